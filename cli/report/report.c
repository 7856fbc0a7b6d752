/* Prints the results of a run, and writes them as JSON. */
#include "cli/report/report.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/plan/store_location.h"
#include "cli/report/metric_format.h"
#include "cli/report/request_repeats.h"
#include "cli/report/table.h"
#include "cli/workload_table.h"
#include "core/path.h"
#include "core/units.h"
#include "jobs/slurm/run_follow.h"
#include "run/workload_kind.h"
#include "store/kind.h"

#define LIMIT_IN_DOUBT 1.1   /* multiple of the device's limit, which is measured once per run */
#define OTHERS_IN_DOUBT 0.15 /* share of the machine's CPU time */
#define SAME_LOAD 0.1        /* tolerated difference between the bytes of a checkpoint and of its baseline */
#define SHOWN_SHARE 0.005    /* states with a smaller share of the time are not printed */

/* "write 91 %, fsync 6 %, wait 2 %", largest first; "" if nothing is known. */
static void describe_states(const struct run_info *info, enum operation op, struct buf *out)
{
    bool shown[STATE_COUNT] = {false};
    for (int n = 0; n < STATE_COUNT; n++) {
        int best = -1;
        for (int state = 0; state < STATE_COUNT; state++)
            if (!shown[state] && (best < 0 || info->state_share[op][state] > info->state_share[op][best]))
                best = state;
        shown[best] = true;
        double share = info->state_share[op][best];
        if (!(share >= SHOWN_SHARE))
            return;
        buf_printf(out, "%s%s %.0f %%", n ? ", " : "", metric_state_name((enum rank_state)best, op), 100 * share);
    }
}

/* The cell "min … max". One value has no range. */
static void add_range(struct table *table, enum metric_id metric, const struct summary *values)
{
    char low[32], high[32];
    table_add_known(table, TABLE_PLAIN, values->n > 1, "%s … %s", metric_format(metric, values->min, low),
                    metric_format(metric, values->max, high));
}

static void add_operation(struct table *table, const struct run_info *info, enum operation op)
{
    bool save = op == OP_SAVE;
    enum metric_id metric = save ? METRIC_SAVE_S : METRIC_LOAD_S;
    const struct summary *time = NULL;
    for (size_t i = 0; i < info->metric_count && !time; i++)
        if (info->metrics[i].metric == metric)
            time = &info->metrics[i].summary;
    if (!time || time->n == 0)
        return;
    bool cold = experiment_bool(info->experiment, OPT_LOAD_COLD);
    bool objects = store_uri_of(experiment_text(info->experiment, OPT_STORE))
                       .kind->is_objects; /* object stores have no cache on this machine, so nothing is cold or warm */
    const char *how = save || objects                                   ? ""
                      : !cold                                           ? " (warm)"
                      : info->suspected_cache || info->coldness_unknown ? " (cold?)"
                                                                        : " (cold)";
    double bytes_per_s = metric_median(info, save ? METRIC_SAVE_BYTES_PER_S : METRIC_LOAD_BYTES_PER_S);
    double of_limit = metric_median(info, save ? METRIC_SAVE_LIMIT_FRACTION : METRIC_LOAD_LIMIT_FRACTION);
    char text[32], slowest[64];
    struct buf states;
    buf_init(&states, 1024);
    describe_states(info, op, &states);
    table_addf(table, TABLE_BOLD, "%s%s", operation_name(op), how);
    table_add(table, TABLE_BOLD, units_format_duration(time->median * 1e9, text));
    add_range(table, metric, time);
    table_add_known(table, TABLE_BOLD, isfinite(bytes_per_s), "%.*f", bytes_per_s < 0.1 * (double)GIB ? 4 : 2,
                    bytes_per_s / (double)GIB);
    table_add_known(table, TABLE_PLAIN, isfinite(of_limit), "%.2f", of_limit);
    table_add(table, TABLE_PLAIN, metric_slowest(info, op, slowest));
    table_add(table, TABLE_PLAIN, states.data);
    buf_release(&states);
}

/* Rank 0 reports how it verified ("full", "sample", "none (why)"), which is more accurate than the key. */
static void write_verified(const struct run_info *info, struct buf *out)
{
    const char *how = run_info_fact(info, "verify");
    if (!how)
        how = experiment_text(info->experiment, OPT_VERIFY);
    if (info->iterations_to_verify == 0) {
        bool ended_before = strncmp(how, "none", 4) != 0 && strcmp(info->outcome, "pass") != 0;
        bool failed = strncmp(how, "none", 4) != 0 && metric_median(info, METRIC_FAILED_FRACTION) > 0;
        buf_printf(out, "verified      nothing: %sverify=%s\n",
                   ended_before ? "the run ended before "
                   : failed     ? "the last save failed, "
                                : "",
                   how);
        return;
    }
    buf_printf(out, "verified      %s, %u of %u iteration%s\n",
               strncmp(how, "sample", 6) == 0 ? "a sample of every tensor" : "every byte of every tensor",
               info->iterations_verified, info->iterations_to_verify, units_plural(info->iterations_to_verify));
}

/* Asynchronous saves: how long training waited for them, and how much the rest slowed it down. */
static void write_behind(const struct run_info *info, struct buf *out)
{
    double stall_s = metric_median(info, METRIC_STALL_S), persist_s = metric_median(info, METRIC_PERSIST_S);
    double waited_s = metric_median(info, METRIC_STALL_WAIT_S);
    double lost = metric_median(info, METRIC_INTERFERENCE_FRACTION);
    char a[32], b[32];
    if (!isfinite(persist_s))
        return;
    buf_printf(out, "stall         training waited %s", units_format_duration(stall_s * 1e9, a));
    if (waited_s > 0.01 * stall_s)
        buf_printf(out, " (%s of it for the save before)", units_format_duration(waited_s * 1e9, a));
    buf_printf(out, ", the save went on behind it for %s", units_format_duration(persist_s * 1e9, b));
    if (isfinite(lost))
        buf_printf(out, ", in which computing lost %.1f %% of its pace", 100 * lost);
    buf_append_char(out, '\n');
}

/* load.dataset: the rate of the reads beside the loads, of what was asked for. */
static void write_dataset(const struct run_info *info, struct buf *out)
{
    double rate = metric_median(info, METRIC_DATASET_BYTES_PER_S), bytes = metric_median(info, METRIC_DATASET_BYTES);
    double asked = (double)experiment_u64(info->experiment, OPT_LOAD_DATASET) *
                   (double)experiment_u64(info->experiment, OPT_RANKS);
    char a[32], b[32], c[32];
    if (isfinite(rate) && asked > 0)
        buf_printf(out, "beside loads  %s read of a dataset, at %s/s of the %s/s asked for, all ranks\n",
                   units_format_bytes(bytes, a), units_format_bytes(rate, b), units_format_bytes(asked, c));
}

static void write_goodput(const struct run_info *info, struct buf *out)
{
    double goodput = metric_median(info, METRIC_GOODPUT), interval_s = metric_median(info, METRIC_BEST_INTERVAL_S);
    char a[32], b[32];
    if (isfinite(goodput) && isfinite(interval_s))
        buf_printf(out, "goodput       %.2f %% at an MTBF of %s, with a save every %s\n", 100 * goodput,
                   units_format_duration((double)experiment_u64(info->experiment, OPT_MTBF), a),
                   units_format_duration(interval_s * 1e9, b));
}

/* The checkpoints that the run left in the store, with the name needed to load them. */
static void write_kept(const struct run_info *info, struct buf *out)
{
    const char *kept = run_info_fact(info, "checkpoint");
    if (!store_uri_of(experiment_text(info->experiment, OPT_STORE)).kind->keeps_data)
        return; /* this kind of store keeps no data */
    if (kept && workload_kind_of(info->experiment)->trains) {
        buf_printf(out, "kept          %s     go on from it with train.resume=latest suffix=%.*s\n", kept,
                   (int)(strrchr(kept, '/') ? strrchr(kept, '/') - kept : (long)strlen(kept)), kept);
        return;
    }
    if (kept && strcmp(info->outcome, "pass") == 0 && !experiment_is(info->experiment, OPT_OPS, "load"))
        buf_printf(out, "kept          %s     load it with ops=load suffix=%s\n", kept, kept);
}

/* Many small files, copies, or only a part of the bytes load the store differently from the baseline's one file per
 * rank. */
static void write_baseline(const struct run_info *info, struct buf *out)
{
    const struct run_metric *raw = run_info_metric(info, OP_BASELINE_WRITE, METRIC_BYTES_MOVED);
    double files = metric_median(info, METRIC_CHECKPOINT_FILES),
           bytes = metric_median(info, METRIC_CHECKPOINT_STORED_BYTES);
    uint64_t ranks = experiment_u64(info->experiment, OPT_RANKS);
    char a[32], b[32], count[32];
    if (!raw || !isfinite(bytes) || !isfinite(files))
        return;
    double difference = fabs(bytes / raw->summary.median - 1);
    if (difference <= SAME_LOAD && files <= (double)ranks + 1) /* with the commit marker */
        return;
    buf_printf(out, "limit         measured with %u file%s, %s in all; a checkpoint has %s files, %s in all\n",
               (unsigned)ranks, units_plural(ranks), units_format_bytes(raw->summary.median, a),
               units_format_count((uint64_t)files, count), units_format_bytes(bytes, b));
}

/* A reason to doubt the figures, if it applies; `which` is 0 to DOUBTS - 1. */
enum { DOUBTS = 4, DOUBT_BYTES = 256 };
static bool describe_doubt(const struct run_info *info, unsigned which, char text[DOUBT_BYTES])
{
    bool passed = strcmp(info->outcome, "pass") == 0;
    double of_limit = metric_median(info, METRIC_SAVE_LIMIT_FRACTION);
    double others = metric_median(info, METRIC_HOST_OTHERS_CPU_FRACTION);
    switch (which) {
    case 0:
        snprintf(text, DOUBT_BYTES, "%u load%s faster than the device, or with files found in memory: not cold",
                 info->suspected_cache, units_plural(info->suspected_cache));
        return info->suspected_cache > 0;
    case 1:
        snprintf(text, DOUBT_BYTES, "of %u load%s it is unknown whether files were cold", info->coldness_unknown,
                 units_plural(info->coldness_unknown));
        return info->coldness_unknown > 0;
    case 2:
        snprintf(text, DOUBT_BYTES,
                 "saves took %.2f of the device's limit: it was measured too low (a busy machine, a cache of the "
                 "device)",
                 of_limit);
        return passed && of_limit > LIMIT_IN_DOUBT;
    default:
        snprintf(text, DOUBT_BYTES,
                 "this machine was busy: others than this run took %.0f %% of its CPU time; what is measured then is "
                 "slower than it need be",
                 100 * others);
        return passed && others > OTHERS_IN_DOUBT;
    }
}

static void write_doubts(const struct run_info *info, struct buf *out)
{
    char text[DOUBT_BYTES];
    for (unsigned which = 0; which < DOUBTS; which++)
        if (describe_doubt(info, which, text))
            buf_printf(out, "doubt         %s\n", text);
}

/* A run that was only rendered, or whose sweep was stopped before it started. */
static void write_unstarted(const struct run_info *info, const char *folder, struct buf *out)
{
    static const char *const scripts[][2] = {{JOB_SCRIPT, "sbatch"}, {JOB_ALLOCATION, "sh"}};
    buf_append_text(out, "planned       it has not been started: nothing is measured yet\n");
    buf_printf(out, "stored        run %s in %s", info->run, folder);
    size_t i = 0;
    for (char script[PATH_MAX]; i < 2; i++)
        if (path_format(script, sizeof script, NULL, "%s/%s", info->folder, scripts[i][0]) == 0 &&
            access(script, R_OK) == 0)
            break;
    if (i < 2)
        buf_printf(out, "     start it: %s %s/%s", scripts[i][1], folder, scripts[i][0]);
    else if (*info->sweep)
        buf_printf(out, "     start it: ckptbench run --resume %s", info->sweep);
    buf_append_char(out, '\n');
}

static void write_ending(const struct run_info *info, struct buf *out)
{
    char folder[PATH_MAX];
    store_location_shorten(info->folder, folder, sizeof folder);
    if (strcmp(info->outcome, "pass") == 0) {
        if (info->message && *info->message)
            buf_printf(out, "continued     %s\n", info->message);
        buf_printf(out, "stored        run %s in %s", info->run, folder);
        if (workload_row_of(info->experiment)->report) /* the workload has measurements */
            buf_printf(out, "     next: ckptbench compare %s OTHER", info->run);
        buf_append_char(out, '\n');
        return;
    }
    if (!*info->outcome && strcmp(info->state, "planned") == 0) {
        write_unstarted(info, folder, out);
        return;
    }
    if (!*info->outcome && (strcmp(info->state, "running") == 0 || strcmp(info->state, "pending") == 0)) {
        buf_printf(out, "%-13s it has not ended, or `ckptbench collect` says why; how far it is: ckptbench status %s\n",
                   info->state, info->run);
        return;
    }
    buf_printf(out, "%-13s %s%s%s\n", *info->outcome ? info->outcome : info->state,
               info->message && *info->message ? info->message : "no reason is known",
               *info->outcome ? "" : " (not sealed: ", *info->outcome ? "" : "`ckptbench collect` says why)");
    buf_printf(out, "stored        run %s in %s     logs: %s/attempts", info->run, folder, folder);
    if (!workload_kind_of(info->experiment)->watches) /* ranks of a command report no failures to us */
        buf_printf(out, "     every reason: ckptbench show %s --failures", info->run);
    buf_append_char(out, '\n');
}

/* Lines of facts that rank 0 reported; the last row is empty. */
struct fact_line {
    const char *key, *heading;
};

static const struct fact_line used_lines[] = {{"io.used", "used"},
                                              {"io.gds", "cuFile"},
                                              {"load.exchange", "exchange"},
                                              {"load.gaps", "requests"},
                                              {"load.extra", "left out"},
                                              {"claim", "claim"},
                                              {"load.evict", "evicted"},
                                              {"load.dataset", "dataset"},
                                              {"suite.cold", "cold reads"},
                                              {"adapter", "adapter"},
                                              {NULL, NULL}};

static void write_facts(const struct run_info *info, const struct fact_line *lines, struct buf *out)
{
    for (; lines->key; lines++) {
        const char *value = run_info_fact(info, lines->key);
        if (value)
            buf_printf(out, "%-13s %s\n", lines->heading, value);
    }
}

static void metric_table_init(struct table *table)
{
    table_init(table, "lrr");
    table_add_headings(table, (const char *const[]){"", "median", "min … max"});
}

static void add_metric(struct table *table, const struct run_metric *found, const char *after_name)
{
    char text[32];
    table_addf(table, TABLE_BOLD, "%s%s", metric_row(found->metric)->name, after_name);
    table_add(table, TABLE_BOLD, metric_format(found->metric, found->summary.median, text));
    add_range(table, found->metric, &found->summary);
}

/* The metrics that have a row of their own, in the order of the catalogue. */
static int write_metrics(const struct run_info *info, enum operation op, bool colour, struct buf *out,
                         struct cb_err *err)
{
    struct table table;
    metric_table_init(&table);
    for (int i = 0; i < METRIC_COUNT; i++) {
        enum metric_id metric = (enum metric_id)i;
        const struct run_metric *found = metric_in_report(metric) ? run_info_metric(info, op, metric) : NULL;
        if (found)
            add_metric(&table, found, "");
    }
    return table_finish(&table, colour, out, err);
}

/* Reports what was measured, and what could not be measured. */
int report_suite(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err)
{
    int rc = write_metrics(info, OP_SUITE, colour, out, err);
    write_facts(info, used_lines, out);
    size_t at = 0;
    for (const char *skipped; (skipped = run_info_next_fact(info, "suite.skipped.", &at));)
        buf_printf(out, "not measured  %s\n", skipped);
    return rc;
}

/* For workload=verify: the bytes read, the rate, and the findings. */
int report_verification(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err)
{
    static const char *const headings[] = {"", "time", "GiB/s", "slowest rank", "where the time goes"};
    static const struct fact_line lines[] = {{"verified.place", "looked at"},
                                             {"verified.checkpoint", "holds"},
                                             {"verified.checksums", "checksums"},
                                             {"verified.values", "values"},
                                             {NULL, NULL}};
    const struct run_metric *time = run_info_metric(info, OP_VERIFY, METRIC_OP_S);
    double bytes_per_s = metric_median(info, METRIC_VERIFY_BYTES_PER_S),
           problems = metric_median(info, METRIC_PROBLEMS);
    char text[32], slowest[64];
    int rc = 0;
    if (time) {
        struct table table;
        struct buf states;
        buf_init(&states, 1024);
        describe_states(info, OP_VERIFY, &states);
        table_init(&table, "lrrll");
        table_add_headings(&table, headings);
        table_add(&table, TABLE_BOLD, operation_name(OP_VERIFY));
        table_add(&table, TABLE_BOLD, units_format_duration(time->summary.median * 1e9, text));
        table_add_known(&table, TABLE_PLAIN, isfinite(bytes_per_s), "%.2f", bytes_per_s / (double)GIB);
        table_add(&table, TABLE_PLAIN, metric_slowest(info, OP_VERIFY, slowest));
        table_add(&table, TABLE_PLAIN, states.data);
        rc = table_finish(&table, colour, out, err);
        buf_release(&states);
    }
    write_facts(info, lines, out);
    const char *contents = run_info_fact(info, "verified.contents");
    if (problems == 0 && contents && strcmp(contents, "checked") != 0)
        buf_printf(out, "complete      every element of every tensor is there once; contents %s\n", contents);
    else if (problems == 0)
        buf_append_text(out, "verified      every element of every tensor is there once\n");
    else if (problems > 0)
        buf_printf(out,
                   "wrong         %.0f finding%s: do not go on from it; restore the files named from a copy, or go "
                   "back to an older "
                   "checkpoint\n              by rank: ckptbench show %s --failures     all: ckptbench logs %s\n",
                   problems, units_plural((uint64_t)problems), info->run, info->run);
    return rc;
}

int report_checkpoints(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err)
{
    static const char *const headings[] = {
        "", "median", "min … max", "GiB/s", "of device limit", "slowest rank", "where the time goes"};
    struct table table;
    table_init(&table, "lrrrrll");
    table_add_headings(&table, headings);
    add_operation(&table, info, OP_SAVE);
    add_operation(&table, info, OP_LOAD);
    bool has_rows = table_has_rows(&table);
    if (has_rows && workload_kind_of(info->experiment)->trains)
        buf_append_char(out, '\n'); /* separates it from the lines of the steps */
    int rc = table_finish(&table, colour, out, err);
    for (enum operation op = OP_NONE; op <= OP_LOAD && !rc; op++)
        rc = write_metrics(info, op, colour, out, err);
    write_facts(info, used_lines, out);
    if (has_rows && workload_kind_of(info->experiment)->has_layout)
        write_verified(info, out);
    request_repeats_write(info, OP_SAVE, out);
    request_repeats_write(info, OP_LOAD, out);
    write_behind(info, out);
    write_dataset(info, out);
    write_goodput(info, out);
    write_kept(info, out);
    write_baseline(info, out);
    write_doubts(info, out);
    return rc;
}

/* Of "KEY=VALUE". Records of others may have facts without a value. */
static const char *value_of(const char *fact)
{
    const char *equals = strchr(fact, '=');
    return equals ? equals + 1 : "";
}

static void write_numbered_facts(const struct run_info *info, const char *prefix, const char *heading, struct buf *out)
{
    size_t at = 0;
    for (const char *fact; (fact = run_info_next_fact(info, prefix, &at));)
        buf_printf(out, "%-13s %s\n", heading, value_of(fact));
}

int report_watch(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err)
{
    static const struct fact_line lines[] = {
        {"watch.command", "command"}, {"watch.seen", "watched"}, {"watch.left_out", "left out"}, {NULL, NULL}};
    static const struct fact_line limit_line[] = {{"watch.limit", "limit"}, {NULL, NULL}};
    const char *place = run_info_fact(info, "watch.place");
    char shown[PATH_MAX];
    write_facts(info, lines, out);
    if (place)
        buf_printf(out, "saved in      %s\n", store_location_shorten(place, shown, sizeof shown));
    int rc = report_checkpoints(info, colour, out, err);
    write_facts(info, limit_line, out);
    write_numbered_facts(info, "watch.warning.", "warning", out);
    write_numbered_facts(info, "watch.unseen.", "not seen", out);
    return rc;
}

/* The samples of the steps, or of the whole training. */
static const struct run_metric *training_metric(const struct run_info *info, enum metric_id metric)
{
    const struct run_metric *found = run_info_metric(info, OP_STEP, metric);
    found = found ? found : run_info_metric(info, OP_NONE, metric);
    return found && found->summary.n > 0 ? found : NULL;
}

/* The median and its interpretation; or the first and last value, if there is no interpretation. */
static void write_training_line(const struct run_info *info, enum metric_id metric, const char *name, const char *words,
                                struct buf *out)
{
    const struct run_metric *found = training_metric(info, metric);
    char text[32];
    if (found && words)
        buf_printf(out, "%-13s %s %s\n", name, metric_format(metric, found->summary.median, text), words);
    else if (found && found->iterations)
        buf_printf(out, "%-13s %.4g … %.4g, from the first step measured to the last\n", name, found->iterations[0],
                   found->iterations[found->summary.n - 1]);
}

int report_training(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err)
{
    static const enum metric_id rows[] = {METRIC_STEP_S,         METRIC_TOKENS_PER_S,  METRIC_MFU,
                                          METRIC_COMM_S,         METRIC_EXCHANGE_S,    METRIC_COMM_BYTES,
                                          METRIC_GATHERED_BYTES, METRIC_OFFLOAD_BYTES, METRIC_GRADIENT_NORM};
    static const struct fact_line facts[] = {{"train.configuration", "training"},
                                             {"train.share", "share"},
                                             {"train.exchange", "exchange"},
                                             {"train.data", "data"},
                                             {"mfu.peak", "peak"},
                                             {"train.resumed", "resumed"},
                                             {"train.passed_over", "passed over"},
                                             {NULL, NULL}};
    static const struct fact_line last_facts[] = {
        {"train.memory", "memory"}, {"train.trace", "trace"}, {"train.kernels", "kernels"}, {NULL, NULL}};
    struct table table;
    metric_table_init(&table);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct run_metric *found = training_metric(info, rows[i]);
        bool of_all = rows[i] == METRIC_COMM_BYTES || rows[i] == METRIC_OFFLOAD_BYTES;
        if (found)
            add_metric(&table, found, of_all ? ", all ranks" : "");
    }
    int rc = table_finish(&table, colour, out, err);
    write_training_line(info, METRIC_LOSS, "loss", NULL, out);
    write_training_line(info, METRIC_VALIDATION_LOSS, "validation", NULL, out);
    write_facts(info, facts, out);
    write_training_line(info, METRIC_RECOVERY_S, "recovery", "from the end of the attempt before to the first step",
                        out);
    write_training_line(info, METRIC_LOST_STEPS, "lost", "steps had to be done again", out);
    write_training_line(info, METRIC_TRAIN_GOODPUT, "goodput", "of the time went into steps at their own pace", out);
    write_facts(info, last_facts, out);
    return rc ? rc : report_checkpoints(info, colour, out, err);
}

int report_write_results(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err)
{
    const struct workload_row *workload = workload_row_of(info->experiment);
    buf_append_char(out, '\n');
    int rc = workload->report ? workload->report(info, colour, out, err) : 0;
    if (rc)
        return rc;
    write_ending(info, out);
    return buf_check(out, "the report", err);
}

/* ---- JSON ---- */

static bool operation_ran(const struct run_info *info, enum operation op)
{
    double sum = 0;
    for (int state = 0; state < STATE_COUNT; state++)
        sum += info->state_share[op][state];
    return sum > 0;
}

static void write_metrics_json(const struct run_info *info, struct json_writer *json)
{
    static const enum metric_id limits[] = {METRIC_BASELINE_WRITE_BYTES_PER_S, METRIC_BASELINE_READ_BYTES_PER_S,
                                            METRIC_SAVE_LIMIT_FRACTION, METRIC_LOAD_LIMIT_FRACTION};
    json_member_object(json, "metrics");
    for (size_t i = 0; i < info->metric_count; i++) {
        const struct run_metric *metric = &info->metrics[i];
        char name[64];
        json_member_object(json, metric_full_name(metric->op, metric->metric, name));
        json_member_text(json, "unit", metric_row(metric->metric)->unit);
        json_member_u64(json, "n", metric->summary.n);
        json_member_double(json, "median", metric->summary.median);
        json_member_double(json, "p95", metric->summary.p95);
        json_member_double(json, "min", metric->summary.min);
        json_member_double(json, "max", metric->summary.max);
        json_member_double(json, "mean", metric->summary.mean);
        json_write_end_object(json);
    }
    json_write_end_object(json);
    json_member_object(json, "limits");
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        json_member_double(json, metric_row(limits[i])->name, metric_median(info, limits[i]));
    json_write_end_object(json);
}

static void write_operations_json(const struct run_info *info, struct json_writer *json)
{
    json_member_object(json, "states");
    for (enum operation op = OP_NONE + 1; op < OP_COUNT; op++) {
        if (!operation_ran(info, op))
            continue;
        json_member_object(json, operation_name(op));
        for (enum rank_state state = 0; state < STATE_COUNT; state++)
            if (state != STATE_BACKOFF || info->state_share[op][state] > 0) /* few stores have it */
                json_member_double(json, metric_state_name(state, op), info->state_share[op][state]);
        json_write_end_object(json);
    }
    json_write_end_object(json);
    json_member_object(json, "slowest_rank");
    for (enum operation op = OP_NONE + 1; op < OP_COUNT; op++) {
        enum rank_state state = info->slowest_rank_state[op];
        if (info->slowest_rank[op] < 0 || !operation_ran(info, op))
            continue;
        json_member_object(json, operation_name(op));
        json_member_i64(json, "rank", info->slowest_rank[op]);
        json_member_text(json, "state", state == STATE_COUNT ? NULL : rank_state_name(state));
        json_member_double(json, "share", info->slowest_rank_share[op]);
        json_member_double(json, "excess", info->slowest_rank_excess[op]);
        json_write_end_object(json);
    }
    json_write_end_object(json);
}

static void json_numbered_facts(const struct run_info *info, const char *prefix, const char *key,
                                struct json_writer *json)
{
    size_t at = 0;
    json_member_array(json, key);
    for (const char *fact; (fact = run_info_next_fact(info, prefix, &at));)
        json_write_text(json, value_of(fact));
    json_write_end_array(json);
}

/* What was seen of a training that was watched. */
static void write_watched_json(const struct run_info *info, struct json_writer *json)
{
    json_member_object(json, "watched");
    json_member_text(json, "command", run_info_fact(info, "watch.command"));
    json_member_text(json, "seen", run_info_fact(info, "watch.seen"));
    json_member_text(json, "left_out", run_info_fact(info, "watch.left_out"));
    json_member_text(json, "place", run_info_fact(info, "watch.place"));
    json_member_text(json, "limit", run_info_fact(info, "watch.limit"));
    json_numbered_facts(info, "watch.warning.", "warnings", json);
    json_numbered_facts(info, "watch.unseen.", "unseen", json);
    json_write_end_object(json);
}

static void write_doubts_json(const struct run_info *info, struct json_writer *json)
{
    char text[DOUBT_BYTES];
    json_member_array(json, "doubts");
    for (unsigned which = 0; which < DOUBTS; which++)
        if (describe_doubt(info, which, text))
            json_write_text(json, text);
    json_write_end_array(json);
}

void report_write_members(const struct run_info *info, struct json_writer *json)
{
    const char *const texts[][2] = {{"run", info->run},         {"sweep", info->sweep},     {"state", info->state},
                                    {"outcome", info->outcome}, {"message", info->message}, {"folder", info->folder}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        json_member_text(json, texts[i][0], texts[i][1] && *texts[i][1] ? texts[i][1] : NULL);
    json_write_key(json, "experiment");
    experiment_write_json(info->experiment, workload_kind_of(info->experiment)->watches ? workload_has_key : NULL,
                          json);
    json_write_key(json, "labels");
    experiment_write_labels_json(info->experiment, json);
    write_metrics_json(info, json);
    write_operations_json(info, json);
    json_member_object(json, "verified");
    json_member_u64(json, "iterations", info->iterations_verified);
    json_member_u64(json, "of", info->iterations_to_verify);
    json_write_end_object(json);
    write_doubts_json(info, json);
    if (workload_kind_of(info->experiment)->watches)
        write_watched_json(info, json);
}

void report_write_json(const struct run_info *info, struct json_writer *json)
{
    json_write_begin_object(json);
    report_write_members(info, json);
    json_write_end_object(json);
}
