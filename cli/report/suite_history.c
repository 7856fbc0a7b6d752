/* Compares a suite's run with earlier ones, and words the lines about outliers. */
#include "cli/report/suite_history.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/report/metric_format.h"
#include "cli/report/table.h"
#include "core/alloc.h"
#include "core/stats.h"
#include "core/units.h"
#include "run/workload_kind.h"

#define PAST_MOST 30 /* only the newest earlier runs: old runs say little about what is usual now */
#define LINES_MOST 8 /* outliers printed after a run; `show --nodes` prints all */

/* Values of earlier runs. */
struct past {
    const struct suite_nodes *nodes; /* or GPUs */
    bool gpus;
    double *values; /* [metric][node][run] */
    size_t *counts; /* [metric][node] */
};

static int past_init(struct past *self, const struct suite_nodes *nodes, bool gpus, struct cb_err *err)
{
    size_t rows = METRIC_COUNT * nodes->count;
    *self = (struct past){.nodes = nodes,
                          .gpus = gpus,
                          .values = calloc(rows * PAST_MOST + 1, sizeof *self->values),
                          .counts = calloc(rows + 1, sizeof *self->counts)};
    return self->values && self->counts ? 0 : alloc_fail(err, "for earlier runs of the nodes");
}

static void past_release(struct past *self)
{
    free(self->values);
    free(self->counts);
}

static void past_add(struct past *self, const struct suite_nodes *earlier)
{
    for (size_t node = 0; node < self->nodes->count; node++) {
        size_t there = 0;
        while (there < earlier->count && strcmp(earlier->names[there], self->nodes->names[node]) != 0)
            there++;
        if (there == earlier->count)
            continue;
        for (size_t metric = 0; metric < METRIC_COUNT; metric++) {
            size_t row = metric * self->nodes->count + node;
            double value = earlier->values[metric * earlier->count + there];
            if (isfinite(value) && self->counts[row] < PAST_MOST)
                self->values[row * PAST_MOST + self->counts[row]++] = value;
        }
    }
}

/* Adds the values of one run if it started before this one. */
static int take_run(struct past *self, struct history *history, const struct run_info *run, const char *name,
                    size_t *runs, struct cb_err *err)
{
    struct run_info *earlier = NULL;
    struct suite_nodes nodes = {0};
    if (strcmp(name, run->run) == 0)
        return 0;
    int rc = history_load_run(history, name, &earlier, err);
    if (rc)
        return rc;
    if (earlier->started_wall_ns && earlier->started_wall_ns < run->started_wall_ns) {
        rc = self->gpus ? suite_gpus_load(&nodes, history, earlier, err)
                        : suite_nodes_load(&nodes, history, earlier, err);
        if (!rc)
            past_add(self, &nodes);
        ++*runs;
    }
    suite_nodes_release(&nodes);
    run_info_free(earlier);
    return rc;
}

static int find_earlier(const struct run_info *run, struct history *history, struct run_selection *selection,
                        struct cb_err *err)
{
    char hash[64], site[96];
    const char *const words[] = {"workload=suite", "outcome=pass,benchmark_failed", hash, site};
    snprintf(hash, sizeof hash, "hash=%s", run->hash);
    snprintf(site, sizeof site, "site=%s", run->site);
    return history_select(history, words, sizeof words / sizeof *words, selection, err);
}

/* Deviation in the bad direction. */
static double badness(enum metric_id metric, double z)
{
    return metric_row(metric)->direction == METRIC_LOWER_IS_BETTER ? z : -z;
}

/* The node that has become worse most; false if no node has enough earlier runs. */
static bool find_change(const struct past *past, size_t metric, struct suite_change *change)
{
    const struct suite_nodes *nodes = past->nodes;
    bool found = false;
    for (size_t node = 0; node < nodes->count; node++) {
        size_t row = metric * nodes->count + node;
        double now = nodes->values[row];
        struct summary summary;
        stats_summarize(past->values + row * PAST_MOST, past->counts[row], &summary);
        struct suite_change here = {.metric = (enum metric_id)metric,
                                    .node = node,
                                    .now = now,
                                    .usual = summary.median,
                                    .n = summary.n,
                                    .z = stats_robust_z(&summary, now)};
        if (isnan(here.z) || (found && badness(here.metric, here.z) <= badness(here.metric, change->z)))
            continue;
        *change = here;
        found = true;
    }
    return found;
}

int suite_history_load(struct suite_history *self, struct history *history, const struct run_info *run,
                       const struct suite_nodes *nodes, bool gpus, struct cb_err *err)
{
    struct run_selection selection = {0};
    struct past past = {0};
    *self = (struct suite_history){0};
    if (nodes->count == 0)
        return 0;
    self->changes = calloc(METRIC_COUNT, sizeof *self->changes);
    int rc = self->changes ? past_init(&past, nodes, gpus, err) : alloc_fail(err, "for what has changed");
    if (!rc)
        rc = find_earlier(run, history, &selection, err);
    for (size_t i = 0; i < selection.count && self->runs < PAST_MOST && !rc; i++)
        rc = take_run(&past, history, run, selection.runs[i], &self->runs, err);
    for (size_t metric = 0; metric < METRIC_COUNT && !rc; metric++)
        if (metric_is_of_suite((enum metric_id)metric) && suite_is_of_gpus((enum metric_id)metric) == gpus)
            self->count += find_change(&past, metric, &self->changes[self->count]);
    run_selection_release(&selection);
    past_release(&past);
    return rc;
}

void suite_history_release(struct suite_history *self)
{
    free(self->changes);
    *self = (struct suite_history){0};
}

static bool is_outlier(const struct suite_change *change)
{
    return badness(change->metric, change->z) > STATS_Z_OF_OUTLIERS;
}

int suite_history_write(const struct suite_history *self, const struct suite_nodes *nodes, bool colour, struct buf *out,
                        struct cb_err *err)
{
    bool of_gpus = self->count > 0 && suite_is_of_gpus(self->changes[0].metric);
    const char *const headings[] = {
        "AGAINST EARLIER RUNS", of_gpus ? "GPU" : "NODE", "USUAL", "NOW", "OFF BY", "ROBUST Z", ""};
    struct table table;
    char text[32];
    if (nodes->count == 0)
        return 0;
    if (self->count == 0) {
        buf_printf(out,
                   "\nhistory: %zu earlier run%s of this experiment here; what is usual for a node takes %d of it\n",
                   self->runs, units_plural(self->runs), STATS_N_FOR_Z);
        return 0;
    }
    table_init(&table, "llrrrrl");
    table_add_headings(&table, headings);
    for (size_t i = 0; i < self->count; i++) {
        const struct suite_change *change = &self->changes[i];
        table_add(&table, TABLE_BOLD, metric_row(change->metric)->name);
        table_add(&table, TABLE_PLAIN, nodes->names[change->node]);
        table_addf(&table, TABLE_PLAIN, "%s (n=%zu)", metric_format(change->metric, change->usual, text), change->n);
        table_add(&table, TABLE_PLAIN, metric_format(change->metric, change->now, text));
        table_addf(&table, TABLE_PLAIN, "%+.1f %%", 100 * (change->now / change->usual - 1));
        table_addf(&table, TABLE_PLAIN, "%.1f", change->z);
        table_add(&table, TABLE_BOLD, is_outlier(change) ? "outlier" : "");
    }
    buf_append_char(out, '\n');
    int rc = table_write(&table, 0, colour, out, err);
    table_release(&table);
    return rc;
}

void suite_history_write_json(const struct suite_history *self, const char *key, const struct suite_nodes *nodes,
                              struct json_writer *json)
{
    json_write_key(json, key);
    json_write_begin_object(json);
    json_member_u64(json, "runs", self->runs);
    json_write_key(json, "metrics");
    json_write_begin_object(json);
    for (size_t i = 0; i < self->count; i++) {
        const struct suite_change *change = &self->changes[i];
        json_write_key(json, metric_row(change->metric)->name);
        json_write_begin_object(json);
        json_member_text(json, "node", nodes->names[change->node]);
        json_member_double(json, "value", change->now);
        json_member_double(json, "usual", change->usual);
        json_member_u64(json, "n", change->n);
        json_member_double(json, "z", change->z);
        json_write_end_object(json);
    }
    json_write_end_object(json);
    json_write_end_object(json);
}

/* --- in words --- */

/* Lines beyond LINES_MOST are counted, not written. */
struct lines {
    struct buf *out;
    size_t count;
};

static void add_line(struct lines *self, const char *whose, enum metric_id metric, double value, double usual, double z,
                     const char *of_what)
{
    char text[32];
    if (self->count++ < LINES_MOST)
        buf_printf(self->out, "outlier       %s: %s is %s, %+.1f %% from %s (robust z %.1f)\n", whose,
                   metric_row(metric)->name, metric_format(metric, value, text), 100 * (value / usual - 1), of_what, z);
}

static void add_pair(struct lines *self, const struct suite_nodes *nodes, enum metric_id metric)
{
    struct suite_pair_spread spread;
    char whose[600];
    if (!suite_nodes_pair_spread(nodes, metric, &spread) || !(fabs(spread.z) > STATS_Z_OF_OUTLIERS))
        return;
    snprintf(whose, sizeof whose, "%.280s and %.280s", nodes->names[spread.a], nodes->names[spread.b]);
    add_line(self, whose, metric, spread.worst, spread.median, spread.z, "the median of the pairs");
}

/* The units are nodes, or with `gpus` GPUs, for which only the metrics of single GPUs are used. */
static void add_units(struct lines *self, const struct suite_nodes *units, bool gpus, const char *of_what)
{
    for (int i = 0; i < METRIC_COUNT; i++) {
        enum metric_id metric = (enum metric_id)i;
        struct suite_spread spread;
        if (metric_is_of_suite(metric) && suite_is_of_gpus(metric) == gpus &&
            suite_nodes_spread(units, metric, &spread) && fabs(spread.z) > STATS_Z_OF_OUTLIERS)
            add_line(self, units->names[spread.worst_node], metric, spread.worst, spread.median, spread.z, of_what);
    }
}

static void add_changes(struct lines *self, const struct suite_nodes *nodes, const struct suite_history *past)
{
    char of_what[64];
    for (size_t i = 0; i < past->count; i++) {
        const struct suite_change *change = &past->changes[i];
        snprintf(of_what, sizeof of_what, "its median of %zu earlier runs", change->n);
        if (is_outlier(change))
            add_line(self, nodes->names[change->node], change->metric, change->now, change->usual, change->z, of_what);
    }
}

int suite_outliers_write(struct history *history, const struct run_info *run, struct buf *out, struct cb_err *err)
{
    struct suite_nodes nodes = {0}, gpus = {0};
    struct suite_history past = {0}, past_of_gpus = {0};
    struct lines lines = {.out = out};
    if (!workload_kind_of(run->experiment)->measures_cluster)
        return 0;
    int rc = suite_nodes_load(&nodes, history, run, err);
    if (!rc)
        rc = suite_gpus_load(&gpus, history, run, err);
    if (!rc)
        rc = suite_history_load(&past, history, run, &nodes, false, err);
    if (!rc)
        rc = suite_history_load(&past_of_gpus, history, run, &gpus, true, err);
    if (!rc && nodes.count > 0) {
        add_pair(&lines, &nodes, METRIC_NET_LATENCY_S);
        add_pair(&lines, &nodes, METRIC_NET_BANDWIDTH_BYTES_PER_S);
        add_pair(&lines, &nodes, METRIC_GPU_NET_LATENCY_S);
        add_pair(&lines, &nodes, METRIC_GPU_NET_BANDWIDTH_BYTES_PER_S);
        add_units(&lines, &nodes, false, "the median of the nodes");
        if (gpus.count > 0)
            add_units(&lines, &gpus, true, "the median of the GPUs");
        add_changes(&lines, &nodes, &past);
        add_changes(&lines, &gpus, &past_of_gpus);
    }
    if (lines.count > LINES_MOST)
        buf_printf(out, "outliers      %zu more: ckptbench show %s --nodes\n", lines.count - LINES_MOST, run->run);
    suite_history_release(&past_of_gpus);
    suite_history_release(&past);
    suite_nodes_release(&gpus);
    suite_nodes_release(&nodes);
    return rc;
}
