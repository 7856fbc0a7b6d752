/* How one run looks. Reads run_info alone; knows neither the history nor how a run is made. */
#include "cli/report.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/place.h"
#include "cli/table.h"
#include "cli/training_report.h"
#include "core/units.h"

#define SHOWN_SHARE 0.005 /* states with less of the time are not named */

/* ---- before a run ---- */

/* "124 M" */
static void print_millions(uint64_t count, char text[32])
{
    if (count >= UINT64_C(10000000000))
        snprintf(text, 32, "%.0f B", (double)count / 1e9);
    else if (count >= UINT64_C(1000000000))
        snprintf(text, 32, "%.2f B", (double)count / 1e9);
    else if (count >= UINT64_C(10000000))
        snprintf(text, 32, "%.0f M", (double)count / 1e6);
    else
        snprintf(text, 32, "%.2f M", (double)count / 1e6);
}

static void write_model_line(const char *run, const struct experiment *experiment, const struct workload *workload,
                             struct buf *out)
{
    char host[256] = "", count[32];
    if (gethostname(host, sizeof host - 1) < 0)
        snprintf(host, sizeof host, "this machine");
    bool suite = experiment_is(experiment, OPT_WORKLOAD, "suite");
    if (experiment_is(experiment, OPT_WORKLOAD, "wait")) {
        buf_printf(out, "run %s  waits for %s\n", run, experiment_text(experiment, OPT_WAIT_FOR));
        return;
    }
    bool verify = experiment_is(experiment, OPT_WORKLOAD, "verify");
    buf_printf(out, "run %s  %s", run,
               suite    ? "cluster suite"
               : verify ? "verification"
                        : experiment_text(experiment, OPT_MODEL));
    if (suite || verify) {
        buf_printf(out, "%s%s   %s rank%s%s%s\n", suite ? ": " : "",
                   suite ? experiment_text(experiment, OPT_SUITE_ONLY) : "", experiment_text(experiment, OPT_RANKS),
                   experiment_u64(experiment, OPT_RANKS) == 1 ? "" : "s", workload ? " on " : "", workload ? host : "");
    } else if (workload && !workload->layout) {
        print_millions(model_parameters(workload->model), count);
        buf_printf(out, ", %s parameters, %s   %u rank%s on %s\ntrain  ", count,
                   workload->training.bf16 ? "bf16" : "fp32", workload->layouts.ranks,
                   workload->layouts.ranks == 1 ? "" : "s", host);
        training_describe(&workload->training, out);
        buf_printf(out, ", %s steps, checkpoints: %s\n", experiment_text(experiment, OPT_TRAIN_STEPS),
                   strcmp(experiment_text(experiment, OPT_TRAIN_CHECKPOINT_EVERY), "0") == 0
                       ? "none"
                       : experiment_text(experiment, OPT_TRAIN_CHECKPOINT_EVERY));
    } else if (workload) {
        uint64_t parameters = model_parameters(workload->model);
        print_millions(parameters, count);
        buf_printf(out, ", %s parameters, %s, %s (%.3g B each)", count, dtype_name(workload->model->dtype),
                   layout_state_name(workload->layout),
                   parameters ? (double)layout_total_bytes(workload->layout) / (double)parameters : 0.0);
        const struct layout_pair *layouts = &workload->layouts;
        uint32_t ranks = layouts->ranks;
        const char *axes = layout_describe(layouts->saved);
        bool resharded = layouts->loaded != layouts->saved;
        buf_printf(out, "   %u rank%s%s%s%s%s%s on %s\n", ranks, ranks == 1 ? "" : "s", *axes ? " (" : "", axes,
                   resharded ? ", loaded as " : "", resharded ? layout_describe(layouts->loaded) : "", *axes ? ")" : "",
                   host);
    } else {
        buf_printf(out, "   ranks=%s\n", experiment_text(experiment, OPT_RANKS));
    }
}

static void write_store_line(const struct experiment *experiment, struct buf *out)
{
    char block[32], shown[PATH_MAX];
    struct place place;
    const char *store = experiment_text(experiment, OPT_STORE);
    buf_printf(out, "store  %s", place_shorten(store, shown, sizeof shown));
    if (place_find(store, &place, NULL) == 0 && *place.filesystem)
        buf_printf(out, "  %s%s%s", place.filesystem, place.device[0] == '/' ? " on " : "",
                   place.device[0] == '/' ? strrchr(place.device, '/') + 1 : "");
    if (experiment_is(experiment, OPT_WORKLOAD, "verify")) { /* which reads in its own way, too */
        buf_printf(out, ", %s threads a rank that read\n", experiment_text(experiment, OPT_IO_DEPTH));
        return;
    }
    if (!experiment_is(experiment, OPT_ENGINE, "native")) { /* it has its own ways to write */
        buf_printf(out, ", engine=%s\n", experiment_text(experiment, OPT_ENGINE));
        return;
    }
    const char *direct = experiment_text(experiment, OPT_IO_DIRECT), *inner = place_inner_store(store);
    if (inner && place_is_objects(inner)) {
        buf_printf(out, ", %s parts of %s in flight, checksum %s\n", experiment_text(experiment, OPT_IO_DEPTH),
                   units_format_bytes((double)experiment_u64(experiment, OPT_S3_PART_SIZE), block),
                   experiment_text(experiment, OPT_S3_CHECKSUM));
        return;
    }
    buf_printf(out, ", %s, %s, depth %s x %s, %s\n", experiment_text(experiment, OPT_IO_ENGINE),
               strcmp(direct, "true") == 0    ? "O_DIRECT"
               : strcmp(direct, "false") == 0 ? "buffered"
                                              : "O_DIRECT where it can",
               experiment_text(experiment, OPT_IO_DEPTH),
               units_format_bytes((double)experiment_u64(experiment, OPT_IO_BLOCK), block),
               experiment_bool(experiment, OPT_IO_FSYNC) ? "fsync" : "no fsync");
}

static void write_plan_line(const struct plan *plan, struct buf *out)
{
    char time[32], items[32], bytes[32], files[32];
    buf_printf(out, "plan   %s   %s items, %s, %s files, largest rank %.3f x mean\n",
               units_format_duration((double)plan->compute_ns, time), units_format_count(plan->item_count, items),
               units_format_bytes((double)plan->payload_bytes, bytes), units_format_count(plan->file_count + 1, files),
               plan->imbalance);
}

void report_write_heading(const char *run, const struct experiment *experiment, const struct workload *workload,
                          bool colour, struct buf *out)
{
    if (colour)
        buf_append_text(out, table_style_start(TABLE_BOLD));
    write_model_line(run, experiment, workload, out);
    if (colour)
        buf_append_text(out, table_style_end());
    if (!experiment_is(experiment, OPT_WORKLOAD, "wait"))
        write_store_line(experiment, out);
    if (workload && workload->plan && !experiment_is(experiment, OPT_ENGINE, "command")) /* which plans by itself */
        write_plan_line(workload->plan, out);
}

/* ---- figures ---- */

const struct summary *report_find_metric(const struct run_info *info, enum operation op, enum metric_id metric)
{
    for (size_t i = 0; i < info->metric_count; i++)
        if (info->metrics[i].op == op && info->metrics[i].metric == metric)
            return &info->metrics[i].summary;
    return NULL;
}

/* Metrics of iterations and runs belong to one operation; where the history put them does not matter here. */
static double median_of(const struct run_info *info, enum metric_id metric)
{
    for (size_t i = 0; i < info->metric_count; i++)
        if (info->metrics[i].metric == metric)
            return info->metrics[i].summary.median;
    return NAN;
}

char *report_metric_name(enum operation op, enum metric_id metric, char name[64])
{
    const struct metric *row = metric_row(metric);
    bool plain = row->scope != METRIC_OF_SAMPLE || metric == METRIC_STALL_S || metric == METRIC_DURABLE_S;
    snprintf(name, 64, "%s%s%s", plain ? "" : operation_name(op), plain ? "" : ".", row->name);
    return name;
}

char *report_format_value(enum metric_id metric, double value, char text[32])
{
    const char *unit = metric_row(metric)->unit;
    if (!isfinite(value))
        snprintf(text, 32, "-");
    else if (strcmp(unit, "s") == 0)
        units_format_duration(value * 1e9, text);
    else if (strcmp(unit, "bytes") == 0)
        units_format_bytes(value, text);
    else if (strcmp(unit, "bytes/s") == 0)
        units_format_rate(value, text);
    else if (strcmp(unit, "count") == 0 && value >= 0 && value < 1e18)
        units_format_count((uint64_t)llround(value), text);
    else if (strcmp(unit, "ratio") == 0)
        snprintf(text, 32, "%.3f", value);
    else
        snprintf(text, 32, "%.4g %s", value, unit);
    return text;
}

/* ---- the table ---- */

static const char *state_name(enum rank_state state, enum operation op)
{
    if (op == OP_VERIFY && state == STATE_SERIALIZE)
        return "compare";
    return state != STATE_IO ? rank_state_name(state) : op == OP_LOAD || op == OP_VERIFY ? "read" : "write";
}

/* "write 91 %, fsync 6 %, wait 2 %", largest first; "" where nothing is known. */
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
        buf_printf(out, "%s%s %.0f %%", n ? ", " : "", state_name((enum rank_state)best, op), 100 * share);
    }
}

static void add_rate_cells(struct table *table, const struct run_info *info, enum metric_id rate,
                           enum metric_id fraction)
{
    double bytes_per_s = median_of(info, rate), of_limit = median_of(info, fraction);
    if (isfinite(bytes_per_s))
        table_addf(table, TABLE_BOLD, "%.*f", bytes_per_s < 0.1 * (double)GIB ? 4 : 2, bytes_per_s / (double)GIB);
    else
        table_add(table, TABLE_PLAIN, "-");
    if (isfinite(of_limit))
        table_addf(table, TABLE_PLAIN, "%.2f", of_limit);
    else
        table_add(table, TABLE_PLAIN, "-");
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
    const char *inner = place_inner_store(experiment_text(info->experiment, OPT_STORE));
    bool objects = inner && place_is_objects(inner); /* no cache here to be cold or warm */
    const char *how = save || objects                                   ? ""
                      : !cold                                           ? " (warm)"
                      : info->suspected_cache || info->coldness_unknown ? " (cold?)"
                                                                        : " (cold)";
    char text[32], low[32], high[32];
    struct buf states;
    buf_init(&states, 1024);
    describe_states(info, op, &states);
    table_addf(table, TABLE_BOLD, "%s%s", operation_name(op), how);
    table_add(table, TABLE_BOLD, units_format_duration(time->median * 1e9, text));
    table_addf(table, TABLE_PLAIN, "%s … %s", units_format_duration(time->min * 1e9, low),
               units_format_duration(time->max * 1e9, high));
    add_rate_cells(table, info, save ? METRIC_SAVE_BYTES_PER_S : METRIC_LOAD_BYTES_PER_S,
                   save ? METRIC_SAVE_LIMIT_FRACTION : METRIC_LOAD_LIMIT_FRACTION);
    if (info->slowest_rank[op] >= 0)
        table_addf(table, TABLE_PLAIN, "rank %d, %+.1f %%", info->slowest_rank[op],
                   100 * info->slowest_rank_excess[op]);
    else
        table_add(table, TABLE_PLAIN, "-");
    table_add(table, TABLE_PLAIN, states.data);
    buf_release(&states);
}

static const char *fact_value(const struct run_info *info, const char *key)
{
    size_t len = strlen(key);
    for (size_t i = 0; i < info->fact_count; i++)
        if (strncmp(info->facts[i], key, len) == 0 && info->facts[i][len] == '=')
            return info->facts[i] + len + 1;
    return NULL;
}

/* What rank 0 says of how it verified ("full", "sample", "none (why)") is nearer to the truth than the key. */
static void write_verified(const struct run_info *info, struct buf *out)
{
    const char *how = fact_value(info, "verify");
    if (!how)
        how = experiment_text(info->experiment, OPT_VERIFY);
    if (info->iterations_to_verify == 0) {
        buf_printf(out, "verified      nothing: verify=%s\n", how);
        return;
    }
    buf_printf(out, "verified      %s, %u of %u iterations\n",
               strncmp(how, "sample", 6) == 0 ? "a sample of every tensor" : "every byte of every tensor",
               info->iterations_verified, info->iterations_to_verify);
}

static double median_of_save(const struct run_info *info, enum metric_id metric)
{
    for (size_t i = 0; i < info->metric_count; i++)
        if (info->metrics[i].op == OP_SAVE && info->metrics[i].metric == metric && info->metrics[i].summary.n > 0)
            return info->metrics[i].summary.median;
    return NAN;
}

/* Saves that went on behind training: what it waited for, and what the rest cost it. */
static void write_behind(const struct run_info *info, struct buf *out)
{
    double stall_s = median_of_save(info, METRIC_STALL_S), persist_s = median_of_save(info, METRIC_PERSIST_S);
    double waited_s = median_of_save(info, METRIC_STALL_WAIT_S);
    double lost = median_of_save(info, METRIC_INTERFERENCE_FRACTION);
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

static void write_goodput(const struct run_info *info, struct buf *out)
{
    double goodput = median_of(info, METRIC_GOODPUT), interval_s = median_of(info, METRIC_BEST_INTERVAL_S);
    char a[32], b[32];
    if (isfinite(goodput) && isfinite(interval_s))
        buf_printf(out, "goodput       %.2f %% at an MTBF of %s, with a save every %s\n", 100 * goodput,
                   units_format_duration((double)experiment_u64(info->experiment, OPT_MTBF), a),
                   units_format_duration(interval_s * 1e9, b));
}

/* What stays in the store, by the name that loading it needs. */
static void write_kept(const struct run_info *info, struct buf *out)
{
    const char *kept = fact_value(info, "checkpoint");
    if (kept && experiment_is(info->experiment, OPT_WORKLOAD, "train")) {
        buf_printf(out, "kept          %s     go on from it with train.resume=latest suffix=%.*s\n", kept,
                   (int)(strrchr(kept, '/') ? strrchr(kept, '/') - kept : (long)strlen(kept)), kept);
        return;
    }
    if (kept && strcmp(info->outcome, "pass") == 0 && !experiment_is(info->experiment, OPT_OPS, "load"))
        buf_printf(out, "kept          %s     load it with ops=load suffix=%s\n", kept, kept);
}

static void write_doubts(const struct run_info *info, struct buf *out)
{
    if (info->suspected_cache)
        buf_printf(out, "doubt         %u loads were faster than the device or found their files in memory: not cold\n",
                   info->suspected_cache);
    if (info->coldness_unknown)
        buf_printf(out, "doubt         of %u loads it is unknown whether they were cold\n", info->coldness_unknown);
}

static void write_ending(const struct run_info *info, struct buf *out)
{
    char folder[PATH_MAX];
    place_shorten(info->folder, folder, sizeof folder);
    if (strcmp(info->outcome, "pass") == 0) {
        buf_printf(out, "stored        run %s in %s     next: ckptbench compare %s OTHER\n", info->run, folder,
                   info->run);
        return;
    }
    buf_printf(out, "%-13s %s%s%s\n", *info->outcome ? info->outcome : info->state,
               info->message && *info->message ? info->message : "no reason is known",
               *info->outcome ? "" : " (not sealed: ", *info->outcome ? "" : "`ckptbench collect` says why)");
    buf_printf(out, "stored        run %s in %s     logs: %s/attempts     every reason: ckptbench show %s --failures\n",
               info->run, folder, folder, info->run);
}

static void write_used(const struct run_info *info, struct buf *out)
{
    const char *used = fact_value(info, "io.used");
    if (used)
        buf_printf(out, "used          %s\n", used);
    const char *exchange = fact_value(info, "load.exchange"), *extra = fact_value(info, "load.extra");
    const char *gaps = fact_value(info, "load.gaps");
    if (exchange)
        buf_printf(out, "exchange      %s\n", exchange);
    if (gaps)
        buf_printf(out, "requests      %s\n", gaps);
    if (extra)
        buf_printf(out, "left out      %s\n", extra);
}

/* What was measured, in the order of the catalogue, and what could not be. */
static int write_suite(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err)
{
    static const char *const headings[] = {"", "median", "min … max"};
    char text[32], low[32], high[32];
    struct table table;
    table_init(&table, "lrr");
    table_add_headings(&table, headings);
    for (int metric = METRIC_SUITE_FIRST; metric <= METRIC_SUITE_LAST; metric++) {
        const struct summary *summary = report_find_metric(info, OP_SUITE, (enum metric_id)metric);
        if (!summary)
            continue;
        table_add(&table, TABLE_BOLD, metric_row((enum metric_id)metric)->name);
        table_add(&table, TABLE_BOLD, report_format_value((enum metric_id)metric, summary->median, text));
        table_addf(&table, TABLE_PLAIN, "%s … %s", report_format_value((enum metric_id)metric, summary->min, low),
                   report_format_value((enum metric_id)metric, summary->max, high));
    }
    int rc = table_write(&table, 0, colour, out, err);
    table_release(&table);
    write_used(info, out);
    for (size_t i = 0; i < info->fact_count; i++)
        if (strncmp(info->facts[i], "suite.skipped.", strlen("suite.skipped.")) == 0)
            buf_printf(out, "not measured  %s\n", info->facts[i] + strlen("suite.skipped."));
    return rc;
}

static void write_fact(const struct run_info *info, const char *heading, const char *key, struct buf *out)
{
    const char *value = fact_value(info, key);
    if (value)
        buf_printf(out, "%-13s %s\n", heading, value);
}

/* What was looked at, how fast, and what is wrong with it. */
static int write_looked_at(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err)
{
    static const char *const headings[] = {"", "time", "GiB/s", "slowest rank", "where the time goes"};
    const struct summary *time = report_find_metric(info, OP_VERIFY, METRIC_OP_S);
    double bytes_per_s = median_of(info, METRIC_VERIFY_BYTES_PER_S), problems = median_of(info, METRIC_PROBLEMS);
    char text[32];
    int rc = 0;
    if (time) {
        struct table table;
        struct buf states;
        buf_init(&states, 1024);
        describe_states(info, OP_VERIFY, &states);
        table_init(&table, "lrrll");
        table_add_headings(&table, headings);
        table_add(&table, TABLE_BOLD, operation_name(OP_VERIFY));
        table_add(&table, TABLE_BOLD, units_format_duration(time->median * 1e9, text));
        table_addf(&table, TABLE_PLAIN, "%.2f", bytes_per_s / (double)GIB);
        table_addf(&table, TABLE_PLAIN, "rank %d, %+.1f %%", info->slowest_rank[OP_VERIFY],
                   100 * info->slowest_rank_excess[OP_VERIFY]);
        table_add(&table, TABLE_PLAIN, states.data);
        rc = table_write(&table, 0, colour, out, err);
        table_release(&table);
        buf_release(&states);
    }
    write_fact(info, "looked at", "verified.place", out);
    write_fact(info, "holds", "verified.checkpoint", out);
    write_fact(info, "checksums", "verified.checksums", out);
    write_fact(info, "values", "verified.values", out);
    if (problems == 0)
        buf_append_text(out, "verified      every element of every tensor is there once\n");
    else if (problems > 0)
        buf_printf(
            out, "wrong         %.0f finding%s     by rank: ckptbench show %s --failures     all: ckptbench logs %s\n",
            problems, problems > 1 ? "s" : "", info->run, info->run);
    return rc;
}

static int write_checkpoints(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err)
{
    static const char *const headings[] = {
        "", "median", "min … max", "GiB/s", "of device limit", "slowest rank", "where the time goes"};
    struct table table;
    table_init(&table, "lrrrrll");
    table_add_headings(&table, headings);
    add_operation(&table, info, OP_SAVE);
    add_operation(&table, info, OP_LOAD);
    bool has_rows = table.count > sizeof headings / sizeof *headings;
    int rc = has_rows ? table_write(&table, 0, colour, out, err) : 0;
    table_release(&table);
    write_used(info, out);
    if (has_rows && !experiment_is(info->experiment, OPT_WORKLOAD, "train"))
        write_verified(info, out);
    write_behind(info, out);
    write_goodput(info, out);
    write_kept(info, out);
    write_doubts(info, out);
    return rc;
}

int report_write_results(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err)
{
    buf_append_char(out, '\n');
    int rc = 0;
    if (experiment_is(info->experiment, OPT_WORKLOAD, "train"))
        rc = training_report_write(info, colour, out, err);
    if (rc)
        return rc;
    if (experiment_is(info->experiment, OPT_WORKLOAD, "suite"))
        rc = write_suite(info, colour, out, err);
    else if (experiment_is(info->experiment, OPT_WORKLOAD, "verify"))
        rc = write_looked_at(info, colour, out, err);
    else if (!experiment_is(info->experiment, OPT_WORKLOAD, "wait"))
        rc = write_checkpoints(info, colour, out, err);
    if (rc)
        return rc;
    write_ending(info, out);
    return buf_check(out, "the report", err);
}

/* ---- JSON ---- */

void report_write_experiment_json(const struct experiment *experiment, struct json_writer *writer)
{
    json_write_begin_object(writer);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        enum option_id id = (enum option_id)i;
        const struct option *row = option_row(id);
        json_write_key(writer, row->name);
        if (row->type == OPTION_BOOL)
            json_write_bool(writer, experiment_bool(experiment, id));
        else if (row->type == OPTION_U64)
            json_write_u64(writer, experiment_u64(experiment, id));
        else if (row->type == OPTION_DOUBLE)
            json_write_double(writer, experiment_double(experiment, id));
        else
            json_write_text(writer, experiment_text(experiment, id));
    }
    json_write_end_object(writer);
}

static void write_labels_json(const struct experiment *experiment, struct json_writer *writer)
{
    json_write_begin_object(writer);
    for (size_t i = 0; i < experiment_label_count(experiment); i++) {
        json_write_key(writer, experiment_label_key(experiment, i));
        json_write_text(writer, experiment_label_value(experiment, i));
    }
    json_write_end_object(writer);
}

static void write_member(struct json_writer *writer, const char *key, double value)
{
    json_write_key(writer, key);
    json_write_double(writer, value);
}

static void write_metrics_json(const struct run_info *info, struct json_writer *writer)
{
    json_write_begin_object(writer);
    for (size_t i = 0; i < info->metric_count; i++) {
        const struct run_metric *metric = &info->metrics[i];
        char name[64];
        json_write_key(writer, report_metric_name(metric->op, metric->metric, name));
        json_write_begin_object(writer);
        json_write_key(writer, "unit");
        json_write_text(writer, metric_row(metric->metric)->unit);
        json_write_key(writer, "n");
        json_write_u64(writer, metric->summary.n);
        write_member(writer, "median", metric->summary.median);
        write_member(writer, "p95", metric->summary.p95);
        write_member(writer, "min", metric->summary.min);
        write_member(writer, "max", metric->summary.max);
        write_member(writer, "mean", metric->summary.mean);
        json_write_end_object(writer);
    }
    json_write_end_object(writer);
}

static void write_limits_json(const struct run_info *info, struct json_writer *writer)
{
    static const enum metric_id limits[] = {METRIC_BASELINE_WRITE_BYTES_PER_S, METRIC_BASELINE_READ_BYTES_PER_S,
                                            METRIC_SAVE_LIMIT_FRACTION, METRIC_LOAD_LIMIT_FRACTION};
    json_write_begin_object(writer);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        write_member(writer, metric_row(limits[i])->name, median_of(info, limits[i]));
    json_write_end_object(writer);
}

static bool operation_ran(const struct run_info *info, enum operation op)
{
    double sum = 0;
    for (int state = 0; state < STATE_COUNT; state++)
        sum += info->state_share[op][state];
    return sum > 0;
}

static void write_states_json(const struct run_info *info, struct json_writer *writer)
{
    json_write_begin_object(writer);
    for (int op = OP_NONE + 1; op < OP_COUNT; op++) {
        if (!operation_ran(info, (enum operation)op))
            continue;
        json_write_key(writer, operation_name((enum operation)op));
        json_write_begin_object(writer);
        for (int state = 0; state < STATE_COUNT; state++)
            write_member(writer, state_name((enum rank_state)state, (enum operation)op), info->state_share[op][state]);
        json_write_end_object(writer);
    }
    json_write_end_object(writer);
}

static void write_slowest_json(const struct run_info *info, struct json_writer *writer)
{
    json_write_begin_object(writer);
    for (int op = OP_NONE + 1; op < OP_COUNT; op++) {
        if (info->slowest_rank[op] < 0 || !operation_ran(info, (enum operation)op))
            continue;
        json_write_key(writer, operation_name((enum operation)op));
        json_write_begin_object(writer);
        json_write_key(writer, "rank");
        json_write_i64(writer, info->slowest_rank[op]);
        write_member(writer, "share", info->slowest_rank_share[op]);
        write_member(writer, "excess", info->slowest_rank_excess[op]);
        json_write_end_object(writer);
    }
    json_write_end_object(writer);
}

static void write_text_member(struct json_writer *writer, const char *key, const char *value)
{
    json_write_key(writer, key);
    json_write_text(writer, value && *value ? value : NULL);
}

void report_write_members(const struct run_info *info, struct json_writer *writer)
{
    write_text_member(writer, "run", info->run);
    write_text_member(writer, "sweep", info->sweep);
    write_text_member(writer, "state", info->state);
    write_text_member(writer, "outcome", info->outcome);
    write_text_member(writer, "message", info->message);
    write_text_member(writer, "folder", info->folder);
    json_write_key(writer, "experiment");
    report_write_experiment_json(info->experiment, writer);
    json_write_key(writer, "labels");
    write_labels_json(info->experiment, writer);
    json_write_key(writer, "metrics");
    write_metrics_json(info, writer);
    json_write_key(writer, "limits");
    write_limits_json(info, writer);
    json_write_key(writer, "states");
    write_states_json(info, writer);
    json_write_key(writer, "slowest_rank");
    write_slowest_json(info, writer);
    json_write_key(writer, "verified");
    json_write_begin_object(writer);
    json_write_key(writer, "iterations");
    json_write_u64(writer, info->iterations_verified);
    json_write_key(writer, "of");
    json_write_u64(writer, info->iterations_to_verify);
    json_write_end_object(writer);
}

void report_write_json(const struct run_info *info, struct json_writer *writer)
{
    json_write_begin_object(writer);
    report_write_members(info, writer);
    json_write_end_object(writer);
}
