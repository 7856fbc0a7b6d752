/* ckptbench export: writes a run, or the runs of a sweep, for other tools. --mlperf writes the summary.json of MLPerf
 * Storage's checkpointing (rank 0's own times; "GB" there is 2^30 bytes), --s3benchmark the run_results.json of the S3
 * connector's benchmark (every rank's durations). Values that we do not measure are null, never 0. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/report/clusterbench.h"
#include "cli/report/history_reading.h"
#include "cli/report/perfetto.h"
#include "cli/report/prometheus.h"
#include "cli/report/report.h"
#include "cli/report/run_iterations.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/path.h"
#include "core/units.h"
#include "core/version.h"
#include "run/job_record.h"
#include "run/status_page.h"
#include "store/kind.h"

/* The runs to export: a single run, or the runs of a sweep that have results, in order of their ids. */
struct export_runs {
    char sweep[64]; /* "" for a single run */
    struct run_info **items;
    size_t count;
};

/* A growing array of numbers. */
struct numbers {
    double *values;
    size_t count;
};

static int numbers_add(struct numbers *self, double value, struct cb_err *err)
{
    int rc = alloc_grow(&self->values, self->count, sizeof *self->values, err);
    if (rc == 0)
        self->values[self->count++] = value;
    return rc;
}

/* Durations of all measured iterations, for the formats of other benchmarks. */
struct durations {
    uint32_t attempt;               /* the attempt whose results are used */
    struct numbers all[OP_COUNT];   /* op_s of every rank */
    struct numbers rank0[OP_COUNT]; /* own_s of rank 0 */
};

static int gather(void *context, const struct rank_values *values, struct cb_err *err)
{
    struct durations *self = context;
    int rc = 0;
    if (values->attempt != self->attempt || values->flags & (SAMPLE_WARMUP | SAMPLE_FAILED))
        return 0;
    if (values->metric == METRIC_OWN_S && values->rank_count && isfinite(values->ranks[0]))
        rc = numbers_add(&self->rank0[values->op], values->ranks[0], err);
    for (size_t rank = 0; rc == 0 && values->metric == METRIC_OP_S && rank < values->rank_count; rank++)
        if (isfinite(values->ranks[rank]))
            rc = numbers_add(&self->all[values->op], values->ranks[rank], err);
    return rc;
}

static double run_value(const struct run_info *run, enum metric_id metric)
{
    const struct run_metric *found = run_info_metric(run, OP_NONE, metric);
    return found ? found->summary.median : NAN;
}

/* A fact of rank 0 or a value of the fingerprint; NULL if it is absent. */
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

static int export_csv(struct cli *cli, struct history *history, const struct export_runs *runs, struct cb_err *err)
{
    int rc = 0;
    buf_append_text(&cli->out, "run,attempt,op,iteration,warmup,rank,metric,unit,value\r\n");
    for (size_t i = 0; i < runs->count && rc == 0; i++) {
        struct csv csv = {cli, runs->items[i]->run};
        rc = history_each_sample(history, csv.run, csv_sample, &csv, err);
    }
    return rc;
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
    json_member_doubles(json, "ranks", values->ranks, values->rank_count);
    json_write_end_object(json);
    return 0;
}

/* Leaves the object open if it is the whole document. */
static int write_run_json(struct json_writer *json, struct history *history, const struct run_info *run,
                          struct cb_err *err)
{
    json_write_begin_object(json);
    json_member_text(json, "format", "ckptbench-run-1");
    json_write_key(json, "document");
    report_write_json(run, json);
    json_member_text(json, "sweep", run->sweep[0] ? run->sweep : NULL);
    json_member_u64(json, "block", run->block);
    json_member_text(json, "experiment_hash", run->hash);
    json_member_date(json, "started", run->started_wall_ns);
    json_member_date(json, "ended", run->ended_wall_ns);
    json_member_object(json, "fingerprint");
    for (size_t i = 0; i < run->fingerprint_count; i++)
        json_member_text(json, run->fingerprint_keys[i], run->fingerprint_values[i]);
    json_write_end_object(json);
    json_member_array(json, "facts");
    for (size_t i = 0; i < run->fact_count; i++)
        json_write_text(json, run->facts[i]);
    json_write_end_array(json);
    run_iterations_write_json(run, json);
    json_member_array(json, "samples");
    int rc = history_each_sample(history, run->run, json_sample, json, err);
    json_write_end_array(json);
    json_write_end_object(json);
    return rc;
}

static int export_json(struct cli *cli, struct history *history, const struct export_runs *runs, struct cb_err *err)
{
    struct json_writer json;
    int rc = 0;
    json_writer_init(&json, &cli->out, 0);
    if (*runs->sweep) {
        json_write_begin_object(&json);
        json_member_text(&json, "format", "ckptbench-sweep-1");
        json_member_text(&json, "sweep", runs->sweep);
        json_member_array(&json, "runs");
    }
    for (size_t i = 0; i < runs->count && rc == 0; i++)
        rc = write_run_json(&json, history, runs->items[i], err);
    return rc ? rc : cli_end_json(cli, &json, err);
}

/* MLPerf Storage */

/* The mean and the deviation of the durations, or of the rates at which they moved `gib`. The deviation is that of the
 * whole population, like numpy's std. */
static void mlperf_statistics(struct json_writer *json, const char *operation, const struct numbers *durations,
                              bool as_rates, double gib)
{
    char key[80];
    const char *what = as_rates ? "io" : "duration", *unit = as_rates ? "GB_per_second" : "seconds";
    double sum = 0, squares = 0, count = (double)durations->count;
    for (size_t i = 0; i < durations->count; i++)
        sum += as_rates ? gib / durations->values[i] : durations->values[i];
    double mean = durations->count ? sum / count : NAN;
    for (size_t i = 0; i < durations->count; i++)
        squares += pow((as_rates ? gib / durations->values[i] : durations->values[i]) - mean, 2);
    snprintf(key, sizeof key, "%s_checkpoint_%s_mean_%s", operation, what, unit);
    json_member_double(json, key, mean);
    snprintf(key, sizeof key, "%s_checkpoint_%s_stdev_%s", operation, what, unit);
    json_member_double(json, key, durations->count ? sqrt(squares / count) : NAN);
}

static uint64_t world_size(const struct run_info *run, const struct durations *durations)
{
    uint64_t ranks = experiment_u64(run->experiment, OPT_RANKS);
    size_t op = durations->rank0[OP_SAVE].count ? OP_SAVE : OP_LOAD;
    if (ranks == 0 && durations->rank0[op].count)
        ranks = durations->all[op].count / durations->rank0[op].count;
    return ranks;
}

static void write_mlperf(struct json_writer *json, const struct run_info *run, const struct durations *durations)
{
    static const enum operation operations[] = {OP_SAVE, OP_LOAD};
    double checkpoint_gib = run_value(run, METRIC_CHECKPOINT_BYTES) / (double)GIB;
    uint64_t nodes = experiment_u64(run->experiment, OPT_NODES);
    json_member_date(json, "start", run->started_wall_ns);
    json_member_u64(json, "num_accelerators", world_size(run, durations));
    json_member_u64(json, "num_hosts", nodes ? nodes : 1);
    json_member_text(json, "hostname", fingerprint_of(run, "system.host"));
    json_member_object(json, "metric");
    for (size_t i = 0; i < 2; i++) {
        const struct numbers *own = &durations->rank0[operations[i]];
        const char *name = operation_name(operations[i]);
        if (operations[i] == OP_LOAD && own->count == 0)
            continue;
        mlperf_statistics(json, name, own, true, checkpoint_gib);
        mlperf_statistics(json, name, own, false, checkpoint_gib);
    }
    json_member_double(json, "checkpoint_size_GB", checkpoint_gib);
    json_write_end_object(json);
    json_member_date(json, "end", run->ended_wall_ns);
}

/* The S3 connector's benchmark */

static void s3_config(struct json_writer *json, const struct run_info *run, const struct durations *durations)
{
    const struct experiment *experiment = run->experiment;
    const char *store = experiment_text(experiment, OPT_STORE);
    bool is_s3 = store_uri_of(store).kind->is_objects;
    json_member_object(json, "config");
    json_member_text(json, "model", experiment_text(experiment, OPT_MODEL));
    /* That benchmark calls MPI on the CPU gloo, and GPUs nccl. */
    json_member_text(json, "backend", experiment_is(experiment, OPT_DEVICE, "cuda") ? "nccl" : "gloo");
    json_member_u64(json, "world_size", world_size(run, durations));
    json_member_u64(json, "thread_count", experiment_u64(experiment, OPT_IO_THREADS));
    json_member_u64(json, "epochs", experiment_u64(experiment, OPT_ITERATIONS));
    if (!is_s3)
        json_member_text(json, "path", store);
    json_member_object(json, "checkpoint");
    json_member_text(json, "storage", is_s3 ? "s3" : "disk");
    json_member_text(json, "sharding_strategy", experiment_text(experiment, OPT_SHARDING));
    json_member_bool(json, "sync_files", experiment_bool(experiment, OPT_IO_FSYNC));
    json_write_end_object(json);
    if (is_s3) {
        json_member_object(json, "s3");
        json_member_text(json, "uri", store);
        json_write_end_object(json);
    }
    json_write_end_object(json);
}

/* Mean CPU load and peak memory of the whole run, in percent of the machine. */
static void s3_utilization(struct json_writer *json, const struct run_info *run)
{
    const char *memory = fingerprint_of(run, "memory.bytes");
    double bytes = memory ? strtod(memory, NULL) : NAN;
    json_member_object(json, "utilization");
    json_member_object(json, "cpu_util");
    json_member_double(json, "mean", 100 * run_value(run, METRIC_HOST_CPU_FRACTION));
    json_write_end_object(json);
    json_member_object(json, "cpu_mem");
    json_member_double(json, "max", bytes > 0 ? 100 * run_value(run, METRIC_HOST_MEMORY_PEAK_BYTES) / bytes : NAN);
    json_write_end_object(json);
    json_write_end_object(json);
}

/* A job of that benchmark saves or loads; a run that does both becomes two jobs. */
static void s3_job(struct json_writer *json, const struct run_info *run, const struct durations *durations,
                   enum operation op)
{
    const struct numbers *all = &durations->all[op];
    double mib = run_value(run, METRIC_CHECKPOINT_BYTES) / (double)MIB;
    if (all->count == 0)
        return;
    json_write_begin_object(json);
    s3_config(json, run, durations);
    json_member_object(json, "metrics");
    json_member_array(json, "throughput_mibs");
    for (size_t i = 0; i < all->count; i++)
        json_write_double(json, mib / all->values[i]);
    json_write_end_array(json);
    json_member_doubles(json, op == OP_SAVE ? "corrected_save_durations_s" : "corrected_load_durations_s", all->values,
                        all->count);
    /* That benchmark restarts all processes for each save or load, and includes their start. */
    const struct run_metric *whole = run_info_metric(run, op, op == OP_SAVE ? METRIC_SAVE_S : METRIC_LOAD_S);
    if (whole && whole->iterations)
        json_member_doubles(json, "processing_durations_s", whole->iterations, whole->summary.n);
    else
        json_member_text(json, "processing_durations_s", NULL);
    s3_utilization(json, run);
    json_write_end_object(json);
    json_write_end_object(json);
}

static void s3_head(struct json_writer *json, const struct export_runs *runs)
{
    const struct run_info *first = runs->items[0];
    const char *name = experiment_text(first->experiment, OPT_NAME);
    uint64_t started_ns = first->started_wall_ns, ended_ns = first->ended_wall_ns;
    for (size_t i = 1; i < runs->count; i++) {
        started_ns = runs->items[i]->started_wall_ns < started_ns ? runs->items[i]->started_wall_ns : started_ns;
        ended_ns = runs->items[i]->ended_wall_ns > ended_ns ? runs->items[i]->ended_wall_ns : ended_ns;
    }
    json_member_text(json, "s3torchconnector_version", NULL);
    json_member_double(json, "timestamp_utc", (double)started_ns / 1e9);
    json_member_text(json, "scenario", *name ? name : "ckptbench");
    json_member_text(json, "disambiguator", *runs->sweep ? runs->sweep : first->run);
    json_member_double(json, "run_elapsed_time_s", (double)(ended_ns - started_ns) / 1e9);
    json_member_object(json, "versions");
    json_member_text(json, "python", fingerprint_of(first, "python.version"));
    json_member_text(json, "pytorch", fingerprint_of(first, "torch.version"));
    json_member_text(json, "hydra", NULL);
    json_member_text(json, "ckptbench", version_text());
    json_write_end_object(json);
    json_member_text(json, "ec2_metadata", NULL);
}

static int with_durations(struct json_writer *json, struct history *history, const struct run_info *run,
                          void (*write)(struct json_writer *json, const struct run_info *run,
                                        const struct durations *durations),
                          struct cb_err *err)
{
    struct durations durations = {.attempt = run->attempt};
    int rc = history_each_sample(history, run->run, gather, &durations, err);
    if (rc == 0)
        write(json, run, &durations);
    for (int op = 0; op < OP_COUNT; op++) {
        free(durations.all[op].values);
        free(durations.rank0[op].values);
    }
    return rc;
}

static void s3_jobs(struct json_writer *json, const struct run_info *run, const struct durations *durations)
{
    s3_job(json, run, durations, OP_SAVE);
    s3_job(json, run, durations, OP_LOAD);
}

static int export_s3benchmark(struct cli *cli, struct history *history, const struct export_runs *runs,
                              struct cb_err *err)
{
    struct json_writer json;
    int rc = 0;
    json_writer_init(&json, &cli->out, 2);
    json_write_begin_object(&json);
    s3_head(&json, runs);
    json_member_array(&json, "job_results");
    for (size_t i = 0; i < runs->count && rc == 0; i++)
        rc = with_durations(&json, history, runs->items[i], s3_jobs, err);
    return rc ? rc : cli_end_json(cli, &json, err);
}

static int export_mlperf(struct cli *cli, struct history *history, const struct export_runs *runs, struct cb_err *err)
{
    struct json_writer json;
    if (*runs->sweep)
        return cb_fail(err, CB_ERR_USAGE, "--mlperf is a summary of one run, and %s is a sweep of %zu", runs->sweep,
                       runs->count);
    json_writer_init(&json, &cli->out, 4);
    json_write_begin_object(&json);
    int rc = with_durations(&json, history, runs->items[0], write_mlperf, err);
    return rc ? rc : cli_end_json(cli, &json, err);
}

static int export_perfetto(struct cli *cli, struct history *history, const struct export_runs *runs, struct cb_err *err)
{
    (void)history;
    if (*runs->sweep)
        return cb_fail(err, CB_ERR_USAGE, "--perfetto is the trace of one run, and %s is a sweep of %zu", runs->sweep,
                       runs->count);
    return perfetto_write(cli, runs->items[0], err);
}

/* The earlier cluster benchmark */

static int print_document(void *context, long rank, const struct buf *document, struct cb_err *err)
{
    struct cli *cli = context;
    (void)rank;
    buf_append(&cli->out, document->data, document->len);
    return cli_flush(cli, err);
}

struct document_files {
    const char *folder;
    char job[64]; /* number of the Slurm job, else the run's id */
};

/* benchmark_JOB.yaml, or benchmark_JOB_rankR.yaml. */
static int write_document(void *context, long rank, const struct buf *document, struct cb_err *err)
{
    const struct document_files *self = context;
    char path[PATH_MAX], of_rank[32] = "";
    if (rank >= 0)
        snprintf(of_rank, sizeof of_rank, "_rank%ld", rank);
    int rc = path_format(path, sizeof path, err, "%s/benchmark_%s%s.yaml", self->folder, self->job, of_rank);
    return rc ? rc : buf_write_file(document, path, 0644, err);
}

static int export_suite(struct cli *cli, struct history *history, const struct run_info *run, struct cb_err *err)
{
    bool per_rank = cli_has_flag(cli, "per-rank");
    struct document_files files = {.folder = cli_flag_value(cli, "into")};
    struct job_record record;
    if (!files.folder)
        return clusterbench_each(history, run, per_rank, print_document, cli, err);
    job_record_init(&record);
    bool is_job = job_record_read(run->folder, &record, NULL) == 0 && *record.job;
    snprintf(files.job, sizeof files.job, "%s", is_job ? record.job : run->run);
    job_record_release(&record);
    return clusterbench_each(history, run, per_rank, write_document, &files, err);
}

static int export_clusterbench(struct cli *cli, struct history *history, const struct export_runs *runs,
                               struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < runs->count && rc == 0; i++)
        rc = export_suite(cli, history, runs->items[i], err);
    return rc;
}

/* The verb */

static int compare_ids(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* A single run without results is an error; a run of a sweep is logged and skipped. */
static int add_run(struct export_runs *self, struct history *history, const char *name, struct cb_err *err)
{
    struct run_info *run = NULL;
    int rc = history_load_run(history, name, &run, err);
    if (rc == 0 && run->attempt == 0 && *self->sweep) {
        log_info("run %s has no results: its state is %s", name, run->state);
        run_info_free(run);
        return 0;
    }
    if (rc == 0 && run->attempt == 0)
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "run %s has no results: its state is %s", name, run->state);
    if (rc == 0)
        rc = alloc_grow(&self->items, self->count, sizeof(struct run_info *), err);
    if (rc)
        run_info_free(run);
    else
        self->items[self->count++] = run;
    return rc;
}

static int find_runs(struct export_runs *self, struct cli *cli, struct history *history, struct cb_err *err)
{
    struct run_selection selection = {0};
    char filter[80], name[64];
    snprintf(filter, sizeof filter, "sweep=%.64s", cli->word_count == 1 ? cli->words[0] : "");
    int rc = cli->word_count == 1 ? history_select(history, (const char *const[]){filter}, 1, &selection, err) : 0;
    if (rc)
        return rc;
    if (selection.count == 0) {
        rc = find_only_run(cli, history, name, err);
        return rc ? rc : add_run(self, history, name, err);
    }
    snprintf(self->sweep, sizeof self->sweep, "%s", cli->words[0]);
    qsort(selection.runs, selection.count, sizeof *selection.runs, compare_ids);
    for (size_t i = 0; i < selection.count && rc == 0; i++)
        rc = add_run(self, history, selection.runs[i], err);
    if (rc == 0 && self->count == 0)
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "no run of sweep %s has results", self->sweep);
    run_selection_release(&selection);
    return rc;
}

static int run_export(struct cli *cli, struct cb_err *err)
{
    const struct {
        bool given;
        int (*export)(struct cli *cli, struct history *history, const struct export_runs *runs, struct cb_err *err);
    } formats[] = {{cli_has_flag(cli, "csv"), export_csv},
                   {cli->json, export_json},
                   {cli_has_flag(cli, "mlperf"), export_mlperf},
                   {cli_has_flag(cli, "s3benchmark"), export_s3benchmark},
                   {cli_has_flag(cli, "clusterbench"), export_clusterbench},
                   {cli_has_flag(cli, "perfetto"), export_perfetto}};
    size_t given = 0, format = 0;
    struct history *history;
    struct export_runs runs = {0};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        given += formats[i].given;
        format = formats[i].given ? i : format;
    }
    if (cli_flag_value(cli, "into") && !cli_has_flag(cli, "clusterbench"))
        return cb_fail(err, CB_ERR_USAGE, "--into is for --clusterbench: the others print one document");
    if (given + cli_has_flag(cli, "prometheus") != 1)
        return cb_fail(
            err, CB_ERR_USAGE,
            "export takes one of --csv, --json, --mlperf, --s3benchmark, --clusterbench, --perfetto and --prometheus");
    int rc = history_open_read_only(NULL, &history, err);
    if (rc)
        return rc;
    if (cli_has_flag(cli, "prometheus"))
        rc = prometheus_write(history, cli->words, cli->word_count, &cli->out, err);
    else
        rc = find_runs(&runs, cli, history, err);
    if (rc == 0 && given)
        rc = formats[format].export(cli, history, &runs, err);
    for (size_t i = 0; i < runs.count; i++)
        run_info_free(runs.items[i]);
    free(runs.items);
    history_close(history);
    return rc;
}

static const struct verb_flag flags[] = {
    {"csv", NULL, "one line for each rank, iteration and metric"},
    {"mlperf", NULL, "summary.json of MLPerf Storage's checkpointing"},
    {"s3benchmark", NULL, "run_results.json of the S3 connector for PyTorch"},
    {"clusterbench", NULL, "workload=suite as YAML, with the sections and rows of the older cluster benchmark"},
    {"perfetto", NULL, "every request of a run with trace=full, as Chrome trace events for ui.perfetto.dev"},
    {"prometheus", NULL,
     "the newest figures of each experiment as text for Prometheus; words are filters, as since=7d"},
    {"per-rank", NULL, "with --clusterbench: a document for each rank, too"},
    {"into", "DIR", "with --clusterbench: write benchmark_JOB.yaml there, and benchmark_JOB_rankR.yaml for each rank"},
};

const struct verb verb_export = {
    .name = "export",
    .arguments = "[RUN|SWEEP] --csv|--json|--mlperf|--s3benchmark|--clusterbench|--perfetto|--prometheus",
    .summary = "a run or a sweep, for other tools",
    .about =
        "--json has everything that is known of the run. Under --mlperf rates are checkpoint size over rank 0's own "
        "time, and GB means 2^30 bytes, as there; under --s3benchmark durations are those of every rank.",
    .example = "ckptbench export LATEST --mlperf",
    VERB_FLAGS(flags),
    .run = run_export,
};
