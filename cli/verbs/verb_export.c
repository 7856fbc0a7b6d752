/* ckptbench export: writes one run for other tools. --mlperf is the summary.json of MLPerf Storage's checkpointing
 * (rank 0's own times; "GB" there is 2^30 bytes), --s3benchmark the run_results.json of the S3 connector's benchmark
 * (every rank's durations). What we do not measure is null, never 0. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/report/clusterbench.h"
#include "cli/report/history_reading.h"
#include "cli/report/report.h"
#include "core/alloc.h"
#include "core/units.h"
#include "core/version.h"
#include "run/status_page.h"
#include "store/kind.h"

/* A growing array of numbers. */
struct numbers {
    double *values;
    size_t count;
    int code;
};

static void numbers_add(struct numbers *self, double value)
{
    if (!(self->count & (self->count - 1))) {
        double *more = realloc(self->values, (self->count ? self->count * 2 : 1) * sizeof *more);
        if (!more) {
            self->code = CB_ERR_MEMORY;
            return;
        }
        self->values = more;
    }
    self->values[self->count++] = value;
}

static void write_numbers(struct json_writer *json, const char *key, const struct numbers *numbers)
{
    json_write_key(json, key);
    json_write_begin_array(json);
    for (size_t i = 0; i < numbers->count; i++)
        json_write_double(json, numbers->values[i]);
    json_write_end_array(json);
}

/* The durations that other benchmarks publish. */
struct durations {
    uint32_t attempt;               /* the attempt whose results are used */
    struct numbers all[OP_COUNT];   /* op_s of every rank */
    struct numbers rank0[OP_COUNT]; /* own_s of rank 0 */
};

static int gather(void *context, const struct rank_values *values, struct cb_err *err)
{
    struct durations *self = context;
    (void)err;
    if (values->attempt != self->attempt || values->flags & (SAMPLE_WARMUP | SAMPLE_FAILED))
        return 0;
    if (values->metric == METRIC_OWN_S && values->rank_count && isfinite(values->ranks[0]))
        numbers_add(&self->rank0[values->op], values->ranks[0]);
    for (size_t rank = 0; values->metric == METRIC_OP_S && rank < values->rank_count; rank++)
        if (isfinite(values->ranks[rank]))
            numbers_add(&self->all[values->op], values->ranks[rank]);
    return 0;
}

static void durations_release(struct durations *self)
{
    for (int op = 0; op < OP_COUNT; op++) {
        free(self->all[op].values);
        free(self->rank0[op].values);
    }
}

static int gather_durations(struct history *history, const struct run_info *run, struct durations *durations,
                            struct cb_err *err)
{
    *durations = (struct durations){.attempt = run->attempt};
    int rc = history_each_sample(history, run->run, gather, durations, err);
    for (int op = 0; op < OP_COUNT && rc == 0; op++)
        if (durations->all[op].code || durations->rank0[op].code)
            rc = alloc_fail(err, "to export run %s", run->run);
    return rc;
}

static double run_value(const struct run_info *run, enum metric_id metric)
{
    const struct run_metric *found = run_info_metric(run, OP_NONE, metric);
    return found ? found->summary.median : NAN;
}

/* A fact of rank 0 or a value of the fingerprint; NULL if there is none. */
static const char *fingerprint_of(const struct run_info *run, const char *key)
{
    for (size_t i = 0; i < run->fingerprint_count; i++)
        if (strcmp(run->fingerprint_keys[i], key) == 0)
            return run->fingerprint_values[i];
    return NULL;
}

/* CSV: one line for each value */

struct csv {
    struct cli *cli;
    const char *run;
};

static int csv_sample(void *context, const struct rank_values *values, struct cb_err *err)
{
    const struct csv *self = context;
    struct buf *out = &self->cli->out;
    for (size_t rank = 0; rank < values->rank_count; rank++) {
        if (isnan(values->ranks[rank]))
            continue;
        buf_printf(out, "%s,%u,%s,%u,%d,%zu,%s,%s,%.17g\r\n", self->run, values->attempt, operation_name(values->op),
                   values->iteration, (values->flags & SAMPLE_WARMUP) != 0, rank, metric_row(values->metric)->name,
                   metric_row(values->metric)->unit, values->ranks[rank]);
    }
    return out->len > (1u << 20) ? cli_flush(self->cli, err) : 0;
}

static int export_csv(struct cli *cli, struct history *history, const struct run_info *run, struct cb_err *err)
{
    struct csv csv = {cli, run->run};
    buf_append_text(&cli->out, "run,attempt,op,iteration,warmup,rank,metric,unit,value\r\n");
    return history_each_sample(history, run->run, csv_sample, &csv, err);
}

/* JSON: everything known about the run */

static int json_sample(void *context, const struct rank_values *values, struct cb_err *err)
{
    struct json_writer *json = context;
    (void)err;
    json_write_begin_object(json);
    json_member_u64(json, "attempt", values->attempt);
    json_member_text(json, "op", operation_name(values->op));
    json_member_u64(json, "iteration", values->iteration);
    json_member_bool(json, "warmup", values->flags & SAMPLE_WARMUP);
    json_member_text(json, "metric", metric_row(values->metric)->name);
    json_write_key(json, "ranks");
    json_write_begin_array(json);
    for (size_t rank = 0; rank < values->rank_count; rank++)
        json_write_double(json, values->ranks[rank]);
    json_write_end_array(json);
    json_write_end_object(json);
    return 0;
}

static void json_iterations(struct json_writer *json, const struct run_info *run)
{
    char name[64];
    json_write_key(json, "iterations");
    json_write_begin_object(json);
    for (size_t i = 0; i < run->metric_count; i++) {
        const struct run_metric *metric = &run->metrics[i];
        if (!metric->iterations || metric->op == OP_NONE)
            continue;
        snprintf(name, sizeof name, "%s.%s", operation_name(metric->op), metric_row(metric->metric)->name);
        struct numbers numbers = {metric->iterations, metric->summary.n, 0};
        write_numbers(json, name, &numbers);
    }
    json_write_end_object(json);
}

static int export_json(struct cli *cli, struct history *history, const struct run_info *run, struct cb_err *err)
{
    struct json_writer json;
    json_writer_init(&json, &cli->out, 0);
    json_write_begin_object(&json);
    json_member_text(&json, "format", "ckptbench-run-1");
    json_write_key(&json, "document");
    report_write_json(run, &json);
    json_member_text(&json, "sweep", run->sweep[0] ? run->sweep : NULL);
    json_member_u64(&json, "block", run->block);
    json_member_text(&json, "experiment_hash", run->hash);
    json_write_key(&json, "started");
    json_write_date(&json, run->started_wall_ns);
    json_write_key(&json, "ended");
    json_write_date(&json, run->ended_wall_ns);
    json_write_key(&json, "fingerprint");
    json_write_begin_object(&json);
    for (size_t i = 0; i < run->fingerprint_count; i++)
        json_member_text(&json, run->fingerprint_keys[i], run->fingerprint_values[i]);
    json_write_end_object(&json);
    json_write_key(&json, "facts");
    json_write_begin_array(&json);
    for (size_t i = 0; i < run->fact_count; i++)
        json_write_text(&json, run->facts[i]);
    json_write_end_array(&json);
    json_iterations(&json, run);
    json_write_key(&json, "samples");
    json_write_begin_array(&json);
    int rc = history_each_sample(history, run->run, json_sample, &json, err);
    json_write_end_array(&json);
    json_write_end_object(&json);
    return rc ? rc : cli_end_json(cli, err);
}

/* MLPerf Storage */

static double mean_of(const struct numbers *numbers)
{
    double sum = 0;
    for (size_t i = 0; i < numbers->count; i++)
        sum += numbers->values[i];
    return numbers->count ? sum / (double)numbers->count : NAN;
}

/* Of the whole population, like numpy's std. */
static double deviation_of(const struct numbers *numbers)
{
    double mean = mean_of(numbers), sum = 0;
    for (size_t i = 0; i < numbers->count; i++)
        sum += (numbers->values[i] - mean) * (numbers->values[i] - mean);
    return numbers->count ? sqrt(sum / (double)numbers->count) : NAN;
}

static int mlperf_operation(struct json_writer *json, const char *name, const struct numbers *durations,
                            double checkpoint_gib, struct cb_err *err)
{
    struct numbers rates = {0};
    char key[80];
    for (size_t i = 0; i < durations->count; i++)
        numbers_add(&rates, checkpoint_gib / durations->values[i]);
    if (rates.code) {
        free(rates.values);
        return alloc_fail(err, "for an export");
    }
    snprintf(key, sizeof key, "%s_checkpoint_io_mean_GB_per_second", name);
    json_member_double(json, key, mean_of(&rates));
    snprintf(key, sizeof key, "%s_checkpoint_io_stdev_GB_per_second", name);
    json_member_double(json, key, deviation_of(&rates));
    snprintf(key, sizeof key, "%s_checkpoint_duration_mean_seconds", name);
    json_member_double(json, key, mean_of(durations));
    snprintf(key, sizeof key, "%s_checkpoint_duration_stdev_seconds", name);
    json_member_double(json, key, deviation_of(durations));
    free(rates.values);
    return 0;
}

static uint64_t world_size(const struct run_info *run, const struct durations *durations)
{
    uint64_t ranks = experiment_u64(run->experiment, OPT_RANKS);
    size_t op = durations->rank0[OP_SAVE].count ? OP_SAVE : OP_LOAD;
    if (ranks == 0 && durations->rank0[op].count)
        ranks = durations->all[op].count / durations->rank0[op].count;
    return ranks;
}

static int export_mlperf(struct cli *cli, struct history *history, const struct run_info *run, struct cb_err *err)
{
    struct durations durations;
    struct json_writer json;
    double checkpoint_gib = run_value(run, METRIC_CHECKPOINT_BYTES) / (double)GIB;
    int rc = gather_durations(history, run, &durations, err);
    json_writer_init(&json, &cli->out, 4);
    json_write_begin_object(&json);
    json_write_key(&json, "start");
    json_write_date(&json, run->started_wall_ns);
    json_member_u64(&json, "num_accelerators", world_size(run, &durations));
    json_member_u64(&json, "num_hosts", 1);
    json_member_text(&json, "hostname", fingerprint_of(run, "system.host"));
    json_write_key(&json, "metric");
    json_write_begin_object(&json);
    if (rc == 0)
        rc = mlperf_operation(&json, "save", &durations.rank0[OP_SAVE], checkpoint_gib, err);
    if (rc == 0 && durations.rank0[OP_LOAD].count)
        rc = mlperf_operation(&json, "load", &durations.rank0[OP_LOAD], checkpoint_gib, err);
    json_member_double(&json, "checkpoint_size_GB", checkpoint_gib);
    json_write_end_object(&json);
    json_write_key(&json, "end");
    json_write_date(&json, run->ended_wall_ns);
    json_write_end_object(&json);
    durations_release(&durations);
    return rc ? rc : cli_end_json(cli, err);
}

/* The S3 connector's benchmark */

static void s3_config(struct json_writer *json, const struct run_info *run, const struct durations *durations)
{
    const struct experiment *experiment = run->experiment;
    const char *store = experiment_text(experiment, OPT_STORE);
    bool is_s3 = store_uri_of(store).kind->is_objects;
    json_write_key(json, "config");
    json_write_begin_object(json);
    json_member_text(json, "model", experiment_text(experiment, OPT_MODEL));
    json_member_text(json, "backend", "gloo"); /* that benchmark's name for MPI on the CPU */
    json_member_u64(json, "world_size", world_size(run, durations));
    json_member_u64(json, "thread_count", experiment_u64(experiment, OPT_IO_THREADS));
    json_member_u64(json, "epochs", experiment_u64(experiment, OPT_ITERATIONS));
    if (!is_s3)
        json_member_text(json, "path", store);
    json_write_key(json, "checkpoint");
    json_write_begin_object(json);
    json_member_text(json, "storage", is_s3 ? "s3" : "disk");
    json_member_text(json, "sharding_strategy", experiment_text(experiment, OPT_SHARDING));
    json_member_bool(json, "sync_files", experiment_bool(experiment, OPT_IO_FSYNC));
    json_write_end_object(json);
    if (is_s3) {
        json_write_key(json, "s3");
        json_write_begin_object(json);
        json_member_text(json, "uri", store);
        json_write_end_object(json);
    }
    json_write_end_object(json);
}

/* A job of that benchmark saves or loads; a run that does both becomes two jobs. */
static int s3_job(struct json_writer *json, const struct run_info *run, const struct durations *durations,
                  enum operation op, struct cb_err *err)
{
    const struct numbers *all = &durations->all[op];
    struct numbers rates = {0};
    double mib = run_value(run, METRIC_CHECKPOINT_BYTES) / (double)MIB;
    for (size_t i = 0; i < all->count; i++)
        numbers_add(&rates, mib / all->values[i]);
    if (rates.code) {
        free(rates.values);
        return alloc_fail(err, "for an export");
    }
    json_write_begin_object(json);
    s3_config(json, run, durations);
    json_write_key(json, "metrics");
    json_write_begin_object(json);
    write_numbers(json, "throughput_mibs", &rates);
    write_numbers(json, op == OP_SAVE ? "corrected_save_durations_s" : "corrected_load_durations_s", all);
    json_write_key(json, "processing_durations_s"); /* that benchmark restarts all processes for each */
    json_write_null(json);
    json_write_key(json, "utilization");
    json_write_null(json);
    json_write_end_object(json);
    json_write_end_object(json);
    free(rates.values);
    return 0;
}

static int export_s3benchmark(struct cli *cli, struct history *history, const struct run_info *run, struct cb_err *err)
{
    struct durations durations;
    struct json_writer json;
    int rc = gather_durations(history, run, &durations, err);
    json_writer_init(&json, &cli->out, 2);
    json_write_begin_object(&json);
    json_member_text(&json, "s3torchconnector_version", NULL);
    json_member_double(&json, "timestamp_utc", (double)run->started_wall_ns / 1e9);
    json_member_text(&json, "scenario",
                     *experiment_text(run->experiment, OPT_NAME) ? experiment_text(run->experiment, OPT_NAME)
                                                                 : "ckptbench");
    json_member_text(&json, "disambiguator", run->run);
    json_member_double(&json, "run_elapsed_time_s", (double)(run->ended_wall_ns - run->started_wall_ns) / 1e9);
    json_write_key(&json, "versions");
    json_write_begin_object(&json);
    json_member_text(&json, "python", fingerprint_of(run, "python.version"));
    json_member_text(&json, "pytorch", fingerprint_of(run, "torch.version"));
    json_member_text(&json, "hydra", NULL);
    json_member_text(&json, "ckptbench", version_text());
    json_write_end_object(&json);
    json_member_text(&json, "ec2_metadata", NULL);
    json_write_key(&json, "job_results");
    json_write_begin_array(&json);
    if (rc == 0 && durations.all[OP_SAVE].count)
        rc = s3_job(&json, run, &durations, OP_SAVE, err);
    if (rc == 0 && durations.all[OP_LOAD].count)
        rc = s3_job(&json, run, &durations, OP_LOAD, err);
    json_write_end_array(&json);
    json_write_end_object(&json);
    durations_release(&durations);
    return rc ? rc : cli_end_json(cli, err);
}

static int export_clusterbench(struct cli *cli, struct history *history, const struct run_info *run, struct cb_err *err)
{
    int rc = clusterbench_write(history, run, cli_has_flag(cli, "per-rank"), &cli->out, err);
    return rc ? rc : cli_flush(cli, err);
}

typedef int (*export_fn)(struct cli *cli, struct history *history, const struct run_info *run, struct cb_err *err);

static int pick_format(const struct cli *cli, export_fn *export, struct cb_err *err)
{
    const struct {
        bool given;
        export_fn export;
    } formats[] = {{cli_has_flag(cli, "csv"), export_csv},
                   {cli->json, export_json},
                   {cli_has_flag(cli, "mlperf"), export_mlperf},
                   {cli_has_flag(cli, "s3benchmark"), export_s3benchmark},
                   {cli_has_flag(cli, "clusterbench"), export_clusterbench}};
    size_t given = 0;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (!formats[i].given)
            continue;
        *export = formats[i].export;
        given++;
    }
    if (given != 1)
        return cb_fail(err, CB_ERR_USAGE,
                       "export takes one of --csv, --json, --mlperf, --s3benchmark and --clusterbench");
    return 0;
}

static int run_export(struct cli *cli, struct cb_err *err)
{
    struct history *history;
    struct run_info *run = NULL;
    char name[64];
    export_fn export;
    int rc = pick_format(cli, &export, err);
    if (rc == 0)
        rc = history_open_read_only(NULL, &history, err);
    if (rc)
        return rc;
    rc = find_only_run(cli, history, name, err);
    if (rc == 0)
        rc = history_load_run(history, name, &run, err);
    if (rc == 0 && run->attempt == 0)
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "run %s has no results: its state is %s", name, run->state);
    if (rc == 0)
        rc = export(cli, history, run, err);
    run_info_free(run);
    history_close(history);
    return rc;
}

static const struct verb_flag flags[] = {
    {"csv", NULL, "one line for each rank, iteration and metric"},
    {"mlperf", NULL, "summary.json of MLPerf Storage's checkpointing"},
    {"s3benchmark", NULL, "run_results.json of the S3 connector for PyTorch"},
    {"clusterbench", NULL, "workload=suite as YAML, with the sections and rows of the older cluster benchmark"},
    {"per-rank", NULL, "with --clusterbench: a document for each rank, too"},
};

const struct verb verb_export = {
    .name = "export",
    .arguments = "[RUN] --csv|--json|--mlperf|--s3benchmark|--clusterbench",
    .summary = "one run, for other tools",
    .about =
        "--json has everything that is known of the run. Under --mlperf rates are checkpoint size over rank 0's own "
        "time, and GB means 2^30 bytes, as there; under --s3benchmark durations are those of every rank.",
    .example = "ckptbench export LATEST --mlperf",
    VERB_FLAGS(flags),
    .run = run_export,
};
