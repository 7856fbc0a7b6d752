/* ckptbench plan: computes and predicts an experiment without running it. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/plan/forecast.h"
#include "cli/plan/run_plan.h"
#include "cli/plan/workload.h"
#include "cli/report/slow_notice.h"
#include "cli/report/training_report.h"
#include "core/procfs.h"
#include "core/rlimits.h"
#include "core/units.h"
#include "run/sweep.h"
#include "run/workload_kind.h"
#include "setup/memory_estimate.h"

#define NOTABLE_MEMORY_BYTES (64 * MIB) /* of rank 0's metadata, from which it is printed */
#define LONG_METADATA 0.1               /* share of a save's time above which a warning is printed */

struct forecast {
    const struct experiment *experiment;
    struct workload workload;
    uint64_t weight_bytes, optimizer_bytes, total_bytes;
    uint64_t largest_state_bytes, all_state_bytes; /* of one rank; of all ranks */
    uint64_t rss_bytes, metadata_bytes, metadata_memory_bytes, requests, host_memory_bytes;
    double metadata_s; /* at the rate of a rank */
    struct rates rates;
    struct prediction predicted;
};

/* ---- forecast ---- */

/* Write requests of a save, without .metadata. */
static uint64_t count_requests(const struct plan *plan, uint64_t block)
{
    uint64_t count = 0;
    if (plan->options.files == FILES_SHARED)
        return plan->file_count > 0 ? (plan_file_length(plan, 0) + block - 1) / block : 0;
    for (size_t i = 0; i < plan->pattern_count; i++) {
        const struct plan_pattern *pattern = &plan->patterns[i];
        for (size_t k = pattern->first_length; k < pattern[1].first_length; k++)
            count += (plan->lengths[k] + block - 1) / block * pattern->count;
    }
    return count;
}

/* Peak memory of this process. getrusage() would include the peak of its parent, which survives exec. */
static uint64_t most_resident_bytes(void)
{
    char text[8192];
    size_t len = procfs_read(getpid(), "status", text, sizeof text);
    const char *line = len ? strstr(text, "VmHWM:") : NULL;
    return line ? strtoull(line + strlen("VmHWM:"), NULL, 10) * KIB : 0;
}

static int forecast_init(struct forecast *self, const struct experiment *experiment,
                         const struct throughput_history *book, struct cb_err *err)
{
    *self = (struct forecast){.experiment = experiment};
    int rc = workload_init(&self->workload, experiment, err);
    if (rc == 0 && !self->workload.layout)
        rc = cb_fail(err, CB_ERR_USAGE, "plan is about checkpoints: workload=%s has none",
                     workload_kind_of(experiment)->name);
    if (rc == 0)
        rc = estimate_check_staging(&self->workload.layouts, experiment, err);
    if (rc)
        return rc;
    self->rss_bytes = most_resident_bytes();
    const struct layout *layout = self->workload.layout;
    const struct plan *plan = self->workload.plan;
    forecast_sum_states(layout, &self->largest_state_bytes, &self->all_state_bytes);
    self->weight_bytes = layout_kind_bytes(layout, KIND_WEIGHT);
    self->total_bytes = layout_total_bytes(layout);
    self->optimizer_bytes = self->total_bytes - self->weight_bytes;
    estimate_memory_bytes(&self->workload.layouts, experiment, &self->host_memory_bytes);
    self->requests = count_requests(plan, experiment_u64(experiment, OPT_IO_BLOCK)) + 1; /* and .metadata */
    rc = workload_metadata_bytes(experiment, &self->workload, &self->metadata_bytes, err);
    self->metadata_memory_bytes = estimate_metadata_memory_bytes(experiment, self->metadata_bytes);
    forecast_choose_rates(experiment, &self->workload, book, &self->rates);
    forecast_predict(experiment, plan, &self->rates, self->largest_state_bytes, self->all_state_bytes,
                     self->metadata_bytes, &self->predicted);
    self->metadata_s = (double)self->metadata_bytes / self->rates.save;
    return rc;
}

/* ---- for people ---- */

static void write_plan_lines(const struct forecast *self, struct buf *out)
{
    const struct plan *plan = self->workload.plan;
    size_t tensors = layout_tensor_count(self->workload.layout);
    char a[32], b[32], c[32], d[32];
    buf_printf(out, "plan       %s and %s of memory   %s item%s of %s tensor%s\n",
               units_format_duration((double)plan->compute_ns, a), units_format_bytes((double)self->rss_bytes, b),
               units_format_count(plan->item_count, c), units_plural(plan->item_count), units_format_count(tensors, d),
               units_plural(tensors));
    buf_printf(out, "files      %s, .metadata %s   %s request%s of %s\n", units_format_count(plan->file_count + 1, a),
               units_format_bytes((double)self->metadata_bytes, b), units_format_count(self->requests, c),
               units_plural(self->requests),
               units_format_bytes((double)experiment_u64(self->experiment, OPT_IO_BLOCK), d));
    if (self->metadata_s > LONG_METADATA * self->predicted.save_s)
        buf_printf(
            out,
            "           warning: rank 0 alone writes .metadata, %s after all data, and a load waits until it has read "
            "it; fewer shards make it shorter\n",
            units_format_duration(self->metadata_s * 1e9, a));
    buf_printf(out, "a rank     writes %s … %s … %s (min, median, max): %.3f x mean, %.3f x the least possible\n",
               units_format_bytes((double)plan->rank_bytes_min, a),
               units_format_bytes((double)plan->rank_bytes_median, b),
               units_format_bytes((double)plan->rank_bytes_max, c), plan->imbalance, plan->imbalance_vs_bound);
    buf_printf(out, "memory     %s a rank: its state, and requests in flight\n",
               units_format_bytes((double)self->host_memory_bytes, a));
    if (self->metadata_memory_bytes > NOTABLE_MEMORY_BYTES)
        buf_printf(out, "           rank 0 needs at most %s more while it reads .metadata for a load\n",
                   units_format_bytes((double)self->metadata_memory_bytes, a));
}

static void write_predicted_lines(const struct forecast *self, struct buf *out)
{
    const struct prediction *predicted = &self->predicted;
    char a[32], b[32];
    buf_printf(out, "rates      a rank %s", units_format_rate(self->rates.save, a));
    if (self->rates.load != self->rates.save)
        buf_printf(out, " (loading %s)", units_format_rate(self->rates.load, a));
    buf_printf(out, ", %s; the store %s\n", self->rates.from,
               isfinite(self->rates.store) ? units_format_rate(self->rates.store, b) : "without limit");
    if (self->rates.assumed || self->rates.small)
        buf_printf(out, "           so a time limit asked of Slurm is %d times what is predicted\n",
                   forecast_margin(&self->rates));
    buf_printf(out, "predicted  save %s (%s binds), load %s (%s binds)\n",
               units_format_duration(predicted->save_s * 1e9, a), predicted->store_binds_save ? "the store" : "a rank",
               units_format_duration(predicted->load_s * 1e9, b), predicted->store_binds_load ? "the store" : "a rank");
    if (predicted->stall_s < predicted->save_s)
        buf_printf(out, "           training waits %s for a save, the rest goes on behind it (a rank copies %s)\n",
                   units_format_duration(predicted->stall_s * 1e9, a), units_format_rate(self->rates.stage, b));
    buf_printf(out, "           at an MTBF of %s: a checkpoint every %s is best and leaves a goodput of %.2f %%\n",
               units_format_duration(predicted->mtbf_s * 1e9, a), units_format_duration(predicted->interval_s * 1e9, b),
               100 * predicted->goodput);
}

static void write_text(const struct forecast *self, struct buf *out)
{
    const struct workload *workload = &self->workload;
    char a[32], b[32], c[32];
    const char *axes = layout_describe(workload->layout);
    buf_printf(out, "model      %s, %s parameters, %s, %s\n", experiment_text(self->experiment, OPT_MODEL),
               units_format_count(model_parameters(workload->model), a), dtype_name(workload->model->dtype),
               layout_state_name(workload->layout));
    buf_printf(out, "layout     %s rank%s%s%s%s\n", units_format_count(layout_world_size(workload->layout), a),
               units_plural(layout_world_size(workload->layout)), *axes ? " (" : "", axes, *axes ? ")" : "");
    buf_printf(out, "bytes      weights %s, optimizer %s, together %s\n",
               units_format_bytes((double)self->weight_bytes, a), units_format_bytes((double)self->optimizer_bytes, b),
               units_format_bytes((double)self->total_bytes, c));
    write_plan_lines(self, out);
    write_predicted_lines(self, out);
}

/* ---- JSON ---- */

static void write_predicted_json(const struct forecast *self, struct json_writer *writer)
{
    const struct prediction *predicted = &self->predicted;
    json_member_object(writer, "predicted");
    json_member_double(writer, "save_s", predicted->save_s);
    json_member_text(writer, "save_limit", predicted->store_binds_save ? "store" : "rank");
    json_member_double(writer, "load_s", predicted->load_s);
    json_member_text(writer, "load_limit", predicted->store_binds_load ? "store" : "rank");
    json_member_double(writer, "mtbf_s", predicted->mtbf_s);
    json_member_double(writer, "interval_s", predicted->interval_s);
    json_member_double(writer, "stall_s", predicted->stall_s);
    json_member_double(writer, "goodput", predicted->goodput);
    json_member_double(writer, "rate_rank_bytes_per_s", self->rates.save);
    json_member_double(writer, "rate_store_bytes_per_s", self->rates.store);
    json_member_text(writer, "rate_from", self->rates.from);
    json_write_end_object(writer);
}

static void write_json(const struct forecast *self, struct json_writer *writer)
{
    const struct plan *plan = self->workload.plan;
    json_write_begin_object(writer);
    json_member_u64(writer, "params", model_parameters(self->workload.model));
    json_member_object(writer, "bytes");
    json_member_u64(writer, "weights", self->weight_bytes);
    json_member_u64(writer, "optimizer", self->optimizer_bytes);
    json_member_u64(writer, "total", self->total_bytes);
    json_write_end_object(writer);
    json_member_u64(writer, "tensors", layout_tensor_count(self->workload.layout));
    json_member_u64(writer, "items", plan->item_count);
    json_member_u64(writer, "files", plan->file_count + 1);
    json_member_object(writer, "rank_bytes");
    json_member_u64(writer, "min", plan->rank_bytes_min);
    json_member_u64(writer, "median", plan->rank_bytes_median);
    json_member_u64(writer, "max", plan->rank_bytes_max);
    json_write_end_object(writer);
    json_member_double(writer, "imbalance", plan->imbalance);
    json_member_double(writer, "imbalance_vs_bound", plan->imbalance_vs_bound);
    json_member_double(writer, "plan_s", (double)plan->compute_ns / 1e9);
    json_member_u64(writer, "rss_bytes", self->rss_bytes);
    json_member_u64(writer, "metadata_bytes", self->metadata_bytes);
    json_member_double(writer, "metadata_s", self->metadata_s);
    json_member_u64(writer, "requests", self->requests);
    json_member_u64(writer, "host_memory_bytes", self->host_memory_bytes);
    json_member_u64(writer, "metadata_memory_bytes", self->metadata_memory_bytes);
    write_predicted_json(self, writer);
    json_write_end_object(writer);
}

static int write_forecast(struct cli *cli, const struct experiment *experiment, const struct throughput_history *book,
                          struct remarks *remarks, struct json_writer *writer, struct cb_err *err)
{
    struct forecast forecast = {0};
    bool trains = workload_kind_of(experiment)->trains;
    int rc =
        trains ? workload_init(&forecast.workload, experiment, err) : forecast_init(&forecast, experiment, book, err);
    if (rc == 0)
        rc = run_plan_remark(experiment, &forecast.workload, remarks, err);
    if (rc == 0 && trains && cli->json)
        training_report_write_json(experiment, &forecast.workload, writer);
    else if (rc == 0 && trains)
        training_report_write(experiment, &forecast.workload, &cli->out);
    else if (rc == 0 && cli->json)
        write_json(&forecast, writer);
    else if (rc == 0)
        write_text(&forecast, &cli->out);
    workload_release(&forecast.workload);
    return rc;
}

/* ---- sweeps ---- */

/* The varied keys of a run: "tp=2 dp=1", or as an object. */
static void write_varied(struct cli *cli, const struct sweep *sweep, size_t index, struct json_writer *writer)
{
    const struct experiment *experiment = sweep->members[index].experiment;
    if (cli->json)
        json_member_object(writer, "varied");
    else
        buf_append_text(&cli->out, index ? "\n== " : "== ");
    for (size_t i = 0; i < sweep->varied_count; i++) {
        enum option_id id;
        const char *key = sweep->varied[i];
        const char *value = option_find(key, &id, NULL) == 0 ? experiment_text(experiment, id) : "";
        if (cli->json)
            json_member_text(writer, key, value);
        else
            buf_printf(&cli->out, "%s%s=%s", i ? "  " : "", key, value);
    }
    if (cli->json)
        json_write_end_object(writer);
    else
        buf_append_char(&cli->out, '\n');
}

static int write_member(struct cli *cli, const struct sweep *sweep, size_t index, const struct throughput_history *book,
                        struct remarks *remarks, struct json_writer *writer, struct cb_err *err)
{
    bool several = sweep->combinations > 1;
    if (several && cli->json)
        json_write_begin_object(writer);
    if (several)
        write_varied(cli, sweep, index, writer);
    if (several && cli->json)
        json_write_key(writer, "plan");
    int rc = run_plan_freeze_nodes(sweep->members[index].experiment, err);
    if (rc == 0)
        rc = write_forecast(cli, sweep->members[index].experiment, book, remarks, writer, err);
    if (several && cli->json)
        json_write_end_object(writer);
    return rc;
}

static int plan_members(struct cli *cli, const struct sweep *sweep, const struct throughput_history *book,
                        struct json_writer *writer, struct cb_err *err)
{
    char free_bytes[32];
    struct rlimits_memory memory;
    struct slow_notice *slow_notice = slow_notice_new("planning");
    struct remarks remarks = {0};
    int rc = 0;
    rlimits_bound_memory(&memory);
    for (size_t i = 0; rc == 0 && i < sweep->count; i++)
        if (sweep->members[i].block == 1) /* repetitions change nothing here */
            rc = write_member(cli, sweep, i, book, &remarks, writer, err);
    rlimits_release_memory(&memory);
    remarks_release(&remarks);
    slow_notice_free(slow_notice);
    if (rc == CB_ERR_MEMORY && memory.available)
        cb_context(err, "the plan does not fit into the %s of memory that it may have here: plan fewer ranks",
                   units_format_bytes((double)memory.available, free_bytes));
    return rc;
}

static int run_plan(struct cli *cli, struct cb_err *err)
{
    struct sweep sweep;
    struct json_writer writer;
    struct throughput_history book = {0};
    int rc = sweep_expand(&cli->settings, &sweep, err);
    if (rc)
        return rc;
    throughput_history_load(&book);
    json_writer_init(&writer, &cli->out, 2);
    if (cli->json && sweep.combinations > 1)
        json_write_begin_array(&writer);
    rc = plan_members(cli, &sweep, &book, &writer, err);
    throughput_history_release(&book);
    sweep_release(&sweep);
    return rc || !cli->json ? rc : cli_end_json(cli, &writer, err);
}

const struct verb verb_plan = {
    .name = "plan",
    .arguments = "[FILE.yaml…] [key=value…]",
    .summary = "what an experiment comes to: bytes, files, balance, predicted times; nothing is run",
    .about = "The global plan is really computed, for any number of ranks, on one core. Predictions take rate.rank and "
             "rate.store; without rate.rank what a run here that passed measured on the same store, the most alike of "
             "them. A "
             "sweep gives a plan for each combination.",
    .example = "ckptbench plan model=llama3-405b ranks=16384 tp=8 pp=16 dp=128 zero=1 rate.rank=1.5GiB/s "
               "rate.store=300GiB/s mtbf=24h",
    .takes_experiment = true,
    .run = run_plan,
};
