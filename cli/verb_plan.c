/* ckptbench plan: what an experiment comes to, computed and predicted, nothing run. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "ckpt/format.h"
#include "ckpt/needs.h"
#include "cli/cli.h"
#include "cli/place.h"
#include "cli/report.h"
#include "cli/workload.h"
#include "core/stats.h"
#include "core/sweep.h"
#include "core/units.h"
#include "db/history.h"

#define DEFAULT_RATE ((double)GIB) /* of a rank, where nothing was measured here */
#define LATEST_RUNS 20             /* looked at for a measured rate */
#define METADATA_MAX_BYTES (64 * GIB)

struct rates {
    double save, load; /* bytes/s of a rank */
    double store;      /* of all; INFINITY where unlimited */
    char from[80];     /* "given", "run 20261121-k3f9", "assumed" */
};

struct prediction {
    double save_s, load_s;
    bool store_binds_save, store_binds_load;
    double interval_s, goodput, mtbf_s;
};

struct outlook {
    const struct experiment *experiment;
    struct workload workload;
    uint64_t weight_bytes, optimizer_bytes, total_bytes;
    uint64_t largest_state_bytes, all_state_bytes; /* held by a rank, by all ranks together */
    uint64_t rss_bytes, metadata_bytes, requests, host_memory_bytes;
    struct rates rates;
    struct prediction predicted;
};

/* ---- rates ---- */

static double median_of(const struct run_info *info, enum metric_id metric)
{
    for (size_t i = 0; i < info->metric_count; i++)
        if (info->metrics[i].metric == metric && info->metrics[i].summary.n > 0)
            return info->metrics[i].summary.median;
    return NAN;
}

static uint32_t ranks_of(const struct experiment *experiment)
{
    struct model *model = NULL;
    struct layout_pair layouts = {0};
    uint32_t ranks = 0;
    if (workload_load_model(experiment, &model, NULL) == 0 && layout_pair_new(model, experiment, &layouts, NULL) == 0)
        ranks = layouts.ranks;
    layout_pair_release(&layouts);
    model_free(model);
    return ranks;
}

/* Takes the rates of a run that saved; false where it did not. */
static bool take_rates(const struct run_info *info, struct rates *rates)
{
    double save = median_of(info, METRIC_SAVE_BYTES_PER_S), load = median_of(info, METRIC_LOAD_BYTES_PER_S);
    uint32_t ranks = isfinite(save) ? ranks_of(info->experiment) : 0;
    if (ranks == 0)
        return false;
    rates->save = save / ranks;
    rates->load = (isfinite(load) ? load : save) / ranks;
    snprintf(rates->from, sizeof rates->from, "run %s", info->run);
    return true;
}

/* The newest run here of our own engine that passed and saved to a real store. No history is no error. */
static void measured_rates(struct rates *rates)
{
    static const char *const words[] = {"outcome=pass"};
    struct history *history = NULL;
    struct run_selection selection = {0};
    if (history_open_read_only(NULL, &history, NULL))
        return;
    bool found = false;
    if (history_select(history, words, 1, &selection, NULL) == 0) {
        for (size_t i = 0; !found && i < selection.count && i < LATEST_RUNS; i++) {
            struct run_info *info;
            if (history_load_run(history, selection.runs[i], &info, NULL))
                continue;
            const char *inner = place_inner_store(experiment_text(info->experiment, OPT_STORE));
            found = inner && inner[0] == '/' && experiment_is(info->experiment, OPT_ENGINE, "native") &&
                    take_rates(info, rates);
            run_info_free(info);
        }
        run_selection_release(&selection);
    }
    history_close(history);
}

static void choose_rates(const struct experiment *experiment, struct rates *rates)
{
    uint64_t rank = experiment_u64(experiment, OPT_RATE_RANK), store = experiment_u64(experiment, OPT_RATE_STORE);
    *rates = (struct rates){.save = DEFAULT_RATE, .load = DEFAULT_RATE, .store = store ? (double)store : INFINITY};
    snprintf(rates->from, sizeof rates->from, "assumed; no run here says better");
    if (rank) {
        rates->save = rates->load = (double)rank;
        snprintf(rates->from, sizeof rates->from, "given");
    } else {
        measured_rates(rates);
    }
}

/* ---- outlook ---- */

static void sum_states(struct outlook *self)
{
    const struct layout *layout = self->workload.layout;
    for (uint32_t rank = 0; rank < layout_world_size(layout); rank++) {
        uint64_t bytes = layout_rank_bytes(layout, rank);
        self->all_state_bytes += bytes;
        self->largest_state_bytes = bytes > self->largest_state_bytes ? bytes : self->largest_state_bytes;
    }
    self->weight_bytes = layout_kind_bytes(layout, KIND_WEIGHT);
    self->total_bytes = layout_total_bytes(layout);
    self->optimizer_bytes = self->total_bytes - self->weight_bytes;
}

static uint64_t count_requests(const struct outlook *self)
{
    const struct plan *plan = self->workload.plan;
    uint64_t block = experiment_u64(self->experiment, OPT_IO_BLOCK), requests = 1; /* .metadata */
    for (size_t i = 0; i < plan->file_count; i++)
        requests += (plan->files[i].length + block - 1) / block;
    return requests;
}

static int measure_metadata(struct outlook *self, struct cb_err *err)
{
    struct plan_options options;
    struct buf metadata;
    buf_init(&metadata, METADATA_MAX_BYTES);
    int rc = plan_options_read(self->experiment, workload_payload_alignment(self->experiment), &options, err);
    if (rc == 0)
        rc = format_write_metadata(options.format, self->workload.layout, self->workload.plan, "planned", &metadata,
                                   err);
    if (rc == 0)
        self->metadata_bytes = metadata.len;
    buf_release(&metadata);
    return rc;
}

static void predict(struct outlook *self)
{
    const struct rates *rates = &self->rates;
    struct prediction *predicted = &self->predicted;
    const struct plan *plan = self->workload.plan;
    double save_rank_s = (double)plan->rank_bytes_max / rates->save;
    double save_store_s = (double)plan->payload_bytes / rates->store;
    double load_rank_s = (double)self->largest_state_bytes / rates->load;
    double load_store_s = (double)self->all_state_bytes / rates->store;
    predicted->store_binds_save = save_store_s > save_rank_s;
    predicted->store_binds_load = load_store_s > load_rank_s;
    predicted->save_s = fmax(save_rank_s, save_store_s);
    predicted->load_s = fmax(load_rank_s, load_store_s);
    predicted->mtbf_s = (double)experiment_u64(self->experiment, OPT_MTBF) / 1e9;
    predicted->interval_s = stats_daly_interval(predicted->save_s, predicted->mtbf_s);
    predicted->goodput = stats_goodput(predicted->interval_s, predicted->save_s, predicted->load_s, predicted->mtbf_s);
}

static int outlook_init(struct outlook *self, const struct experiment *experiment, struct cb_err *err)
{
    struct rusage usage;
    *self = (struct outlook){.experiment = experiment};
    int rc = workload_init(&self->workload, experiment, err);
    if (rc)
        return rc;
    getrusage(RUSAGE_SELF, &usage);
    self->rss_bytes = (uint64_t)usage.ru_maxrss * KIB; /* before the metadata is written out */
    sum_states(self);
    needs_memory_bytes(&self->workload.layouts, experiment, &self->host_memory_bytes);
    self->requests = count_requests(self);
    rc = measure_metadata(self, err);
    choose_rates(experiment, &self->rates);
    predict(self);
    return rc;
}

/* ---- for people ---- */

static void write_bytes_line(const struct outlook *self, struct buf *out)
{
    char weights[32], optimizer[32], total[32];
    buf_printf(out, "bytes      weights %s, optimizer %s, together %s\n",
               units_format_bytes((double)self->weight_bytes, weights),
               units_format_bytes((double)self->optimizer_bytes, optimizer),
               units_format_bytes((double)self->total_bytes, total));
}

static void write_plan_lines(const struct outlook *self, struct buf *out)
{
    const struct plan *plan = self->workload.plan;
    char a[32], b[32], c[32], d[32];
    buf_printf(out, "plan       %s and %s of memory   %s items of %s tensors\n",
               units_format_duration((double)plan->compute_ns, a), units_format_bytes((double)self->rss_bytes, b),
               units_format_count(plan->item_count, c),
               units_format_count(layout_tensor_count(self->workload.layout), d));
    buf_printf(out, "files      %s, .metadata %s   %s requests of %s\n", units_format_count(plan->file_count + 1, a),
               units_format_bytes((double)self->metadata_bytes, b), units_format_count(self->requests, c),
               units_format_bytes((double)experiment_u64(self->experiment, OPT_IO_BLOCK), d));
    buf_printf(out, "a rank     writes %s … %s … %s (min, median, max): %.3f x mean, %.3f x the least possible\n",
               units_format_bytes((double)plan->rank_bytes_min, a),
               units_format_bytes((double)plan->rank_bytes_median, b),
               units_format_bytes((double)plan->rank_bytes_max, c), plan->imbalance, plan->imbalance_vs_bound);
    buf_printf(out, "memory     %s a rank: its state, and requests in flight\n",
               units_format_bytes((double)self->host_memory_bytes, a));
}

static void write_predicted_lines(const struct outlook *self, struct buf *out)
{
    const struct prediction *predicted = &self->predicted;
    char a[32], b[32];
    buf_printf(out, "rates      a rank %s", units_format_rate(self->rates.save, a));
    if (self->rates.load != self->rates.save)
        buf_printf(out, " (loading %s)", units_format_rate(self->rates.load, a));
    buf_printf(out, ", %s;  the store %s\n", self->rates.from,
               isfinite(self->rates.store) ? units_format_rate(self->rates.store, b) : "without limit");
    buf_printf(out, "predicted  save %s (%s binds), load %s (%s binds)\n",
               units_format_duration(predicted->save_s * 1e9, a), predicted->store_binds_save ? "the store" : "a rank",
               units_format_duration(predicted->load_s * 1e9, b), predicted->store_binds_load ? "the store" : "a rank");
    buf_printf(out, "           at an MTBF of %s: a checkpoint every %s is best and leaves a goodput of %.2f %%\n",
               units_format_duration(predicted->mtbf_s * 1e9, a), units_format_duration(predicted->interval_s * 1e9, b),
               100 * predicted->goodput);
}

static void write_text(const struct outlook *self, struct buf *out)
{
    const struct workload *workload = &self->workload;
    char parameters[32], ranks[32];
    const char *axes = layout_describe(workload->layout);
    buf_printf(out, "model      %s, %s parameters, %s, %s\n", experiment_text(self->experiment, OPT_MODEL),
               units_format_count(model_parameters(workload->model), parameters), dtype_name(workload->model->dtype),
               layout_state_name(workload->layout));
    buf_printf(out, "layout     %s rank%s%s%s%s\n", units_format_count(layout_world_size(workload->layout), ranks),
               layout_world_size(workload->layout) == 1 ? "" : "s", *axes ? " (" : "", axes, *axes ? ")" : "");
    write_bytes_line(self, out);
    write_plan_lines(self, out);
    write_predicted_lines(self, out);
}

/* ---- JSON ---- */

static void member_u64(struct json_writer *writer, const char *key, uint64_t value)
{
    json_write_key(writer, key);
    json_write_u64(writer, value);
}

static void member_double(struct json_writer *writer, const char *key, double value)
{
    json_write_key(writer, key);
    json_write_double(writer, value);
}

static void member_text(struct json_writer *writer, const char *key, const char *value)
{
    json_write_key(writer, key);
    json_write_text(writer, value);
}

static void write_predicted_json(const struct outlook *self, struct json_writer *writer)
{
    const struct prediction *predicted = &self->predicted;
    json_write_key(writer, "predicted");
    json_write_begin_object(writer);
    member_double(writer, "save_s", predicted->save_s);
    member_text(writer, "save_limit", predicted->store_binds_save ? "store" : "rank");
    member_double(writer, "load_s", predicted->load_s);
    member_text(writer, "load_limit", predicted->store_binds_load ? "store" : "rank");
    member_double(writer, "mtbf_s", predicted->mtbf_s);
    member_double(writer, "interval_s", predicted->interval_s);
    member_double(writer, "goodput", predicted->goodput);
    member_double(writer, "rate_rank_bytes_per_s", self->rates.save);
    member_double(writer, "rate_store_bytes_per_s", self->rates.store);
    member_text(writer, "rate_from", self->rates.from);
    json_write_end_object(writer);
}

static void write_json(const struct outlook *self, struct json_writer *writer)
{
    const struct plan *plan = self->workload.plan;
    json_write_begin_object(writer);
    member_u64(writer, "params", model_parameters(self->workload.model));
    json_write_key(writer, "bytes");
    json_write_begin_object(writer);
    member_u64(writer, "weights", self->weight_bytes);
    member_u64(writer, "optimizer", self->optimizer_bytes);
    member_u64(writer, "total", self->total_bytes);
    json_write_end_object(writer);
    member_u64(writer, "tensors", layout_tensor_count(self->workload.layout));
    member_u64(writer, "items", plan->item_count);
    member_u64(writer, "files", plan->file_count + 1);
    json_write_key(writer, "rank_bytes");
    json_write_begin_object(writer);
    member_u64(writer, "min", plan->rank_bytes_min);
    member_u64(writer, "median", plan->rank_bytes_median);
    member_u64(writer, "max", plan->rank_bytes_max);
    json_write_end_object(writer);
    member_double(writer, "imbalance", plan->imbalance);
    member_double(writer, "imbalance_vs_bound", plan->imbalance_vs_bound);
    member_double(writer, "plan_s", (double)plan->compute_ns / 1e9);
    member_u64(writer, "rss_bytes", self->rss_bytes);
    member_u64(writer, "metadata_bytes", self->metadata_bytes);
    member_u64(writer, "requests", self->requests);
    member_u64(writer, "host_memory_bytes", self->host_memory_bytes);
    write_predicted_json(self, writer);
    json_write_end_object(writer);
}

static int write_outlook(struct cli *cli, const struct experiment *experiment, struct cb_err *err)
{
    struct outlook outlook;
    struct json_writer writer;
    int rc = outlook_init(&outlook, experiment, err);
    if (rc == 0 && cli->json) {
        json_writer_init(&writer, &cli->out, 2);
        write_json(&outlook, &writer);
        rc = cli_end_json(cli, err);
    } else if (rc == 0) {
        write_text(&outlook, &cli->out);
    }
    workload_release(&outlook.workload);
    return rc;
}

static int run_plan(struct cli *cli, struct cb_err *err)
{
    struct sweep sweep;
    int rc = sweep_expand(&cli->settings, &sweep, err);
    if (rc)
        return rc;
    if (sweep.combinations > 1)
        rc = cb_fail(err, CB_ERR_USAGE, "plan looks at one experiment, and %s has several values here",
                     sweep.varied_count ? sweep.varied[0] : "a key");
    else
        rc = write_outlook(cli, sweep.members[0].experiment, err);
    sweep_release(&sweep);
    return rc;
}

const struct verb verb_plan = {
    .name = "plan",
    .arguments = "[FILE.yaml…] [key=value…]",
    .summary = "what an experiment comes to: bytes, files, balance, predicted times; nothing is run",
    .about = "The global plan is really computed, for any number of ranks, on one core. Predictions take rate.rank and "
             "rate.store; without rate.rank the last run here that passed.",
    .example = "ckptbench plan model=llama3-405b ranks=16384 tp=8 pp=16 dp=128 zero=1 rate.rank=1.5GiB/s "
               "rate.store=300GiB/s mtbf=24h",
    .takes_experiment = true,
    .run = run_plan,
};
