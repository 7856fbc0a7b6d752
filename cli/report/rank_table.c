/* Computes medians of ranks and nodes, and prints them as tables and JSON. */
#include "cli/report/rank_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report/metric_format.h"
#include "cli/report/table.h"
#include "core/alloc.h"
#include "core/stats.h"
#include "core/units.h"
#include "run/status_page.h"

#define MOST_RANK_LINES 64 /* of more ranks, only the slowest have a line of their own */
#define SLOWEST_RANK_LINES 16
#define MOST_NODE_LINES 16

/* The columns: metrics that are loaded for each rank. */
static const enum metric_id rank_metrics[] = {METRIC_OP_S, METRIC_OWN_S, METRIC_IO_S, METRIC_FSYNC_S, METRIC_WAIT_S,
                                              METRIC_BYTES_MOVED, METRIC_CPU_S, METRIC_RSS_BYTES,
                                              /* only with `every_state` */
                                              METRIC_OTHER_S, METRIC_PLAN_S, METRIC_STAGE_S, METRIC_SERIALIZE_S,
                                              METRIC_EXCHANGE_S, METRIC_COMMIT_S, METRIC_IN_BACKOFF_S};
#define RANK_METRICS (sizeof rank_metrics / sizeof rank_metrics[0])
#define PLAIN_RANK_METRICS 8

struct rank_table {
    uint32_t attempt;
    size_t ranks, iterations[OP_COUNT][RANK_METRICS];
    double *values[OP_COUNT][RANK_METRICS]; /* one value per rank, iteration by iteration */
};

static size_t column_of(enum metric_id metric)
{
    size_t column = 0;
    while (column < RANK_METRICS && rank_metrics[column] != metric)
        column++;
    return column;
}

static int gather(void *context, const struct rank_values *given, struct cb_err *err)
{
    struct rank_table *self = context;
    size_t column = column_of(given->metric);
    if (column == RANK_METRICS || given->attempt != self->attempt || given->flags & (SAMPLE_WARMUP | SAMPLE_FAILED))
        return 0;
    if (self->ranks && self->ranks != given->rank_count)
        return 0;
    self->ranks = given->rank_count;
    size_t *count = &self->iterations[given->op][column];
    double **values = &self->values[given->op][column];
    double *more = realloc(*values, (*count + 1) * self->ranks * sizeof *more + 1);
    if (!more)
        return alloc_fail(err, "for the ranks of a run");
    *values = more;
    if (self->ranks)
        memcpy(more + *count * self->ranks, given->ranks, self->ranks * sizeof *more);
    ++*count;
    return 0;
}

int rank_table_load(struct history *history, const struct run_info *run, struct rank_table **table, struct cb_err *err)
{
    struct rank_table *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for the ranks of a run");
    self->attempt = run->attempt;
    int rc = history_each_sample(history, run->run, gather, self, err);
    if (rc)
        rank_table_free(self);
    else
        *table = self;
    return rc;
}

void rank_table_free(struct rank_table *self)
{
    for (int op = 0; self && op < OP_COUNT; op++)
        for (size_t column = 0; column < RANK_METRICS; column++)
            free(self->values[op][column]);
    free(self);
}

/* The median of the finite values; NAN if no value is finite. Overwrites `values`. */
static double median_of(double *values, size_t count)
{
    struct summary summary = {.median = NAN};
    size_t used = 0;
    for (size_t i = 0; i < count; i++)
        if (isfinite(values[i]))
            values[used++] = values[i];
    if (used)
        stats_summarize(values, used, &summary);
    return summary.median;
}

static double rank_median(const struct rank_table *self, int op, enum metric_id metric, size_t rank)
{
    size_t column = column_of(metric), count = self->iterations[op][column];
    double *values = malloc((count + 1) * sizeof *values);
    for (size_t i = 0; values && i < count; i++)
        values[i] = self->values[op][column][i * self->ranks + rank];
    double median = values ? median_of(values, count) : NAN;
    free(values);
    return median;
}

/* ---- ranks ---- */

struct place { /* of a rank or node, for sorting by time */
    size_t at;
    double time_s;
};

static int compare_places(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    double left = isnan(x->time_s) ? -1 : x->time_s, right = isnan(y->time_s) ? -1 : y->time_s;
    if (left != right)
        return left > right ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static void add_rank(struct table *table, const struct rank_table *self, int op, size_t columns, size_t rank)
{
    char text[32];
    table_add(table, TABLE_PLAIN, "");
    table_addf(table, TABLE_PLAIN, "%zu", rank);
    for (size_t column = 0; column < columns; column++)
        table_add(table, TABLE_PLAIN,
                  figure_short_text(rank_metrics[column], rank_median(self, op, rank_metrics[column], rank), text));
}

/* The slowest ranks, and the medians of all others in one line. */
static int add_folded(struct table *table, const struct rank_table *self, int op, size_t columns, struct cb_err *err)
{
    struct place *places = calloc(self->ranks, sizeof *places);
    double *values = calloc(self->ranks, sizeof *values);
    char text[32];
    size_t others = self->ranks - SLOWEST_RANK_LINES;
    for (size_t rank = 0; places && values && rank < self->ranks; rank++)
        places[rank] = (struct place){rank, rank_median(self, op, METRIC_OWN_S, rank)};
    if (places && values) {
        qsort(places, self->ranks, sizeof *places, compare_places);
        for (size_t i = 0; i < SLOWEST_RANK_LINES; i++)
            add_rank(table, self, op, columns, places[i].at);
        table_add(table, TABLE_PLAIN, "");
        table_addf(table, TABLE_PLAIN, "%zu others", others);
        for (size_t column = 0; column < columns; column++) {
            for (size_t i = 0; i < others; i++)
                values[i] = rank_median(self, op, rank_metrics[column], places[SLOWEST_RANK_LINES + i].at);
            table_add(table, TABLE_PLAIN, figure_short_text(rank_metrics[column], median_of(values, others), text));
        }
    }
    int rc = places && values ? 0 : alloc_fail(err, "for %zu ranks", self->ranks);
    free(values);
    free(places);
    return rc;
}

static int write_ranks(const struct rank_table *self, int op, size_t columns, size_t most_chars, bool colour,
                       struct buf *out, struct cb_err *err)
{
    struct table table;
    int rc = 0;
    table_init(&table, columns == RANK_METRICS ? "lrrrrrrrrrrrrrrrr" : "lrrrrrrrrr");
    table_add(&table, TABLE_BOLD, operation_name((enum operation)op));
    table_add(&table, TABLE_BOLD, "rank");
    for (size_t column = 0; column < columns; column++)
        table_add(&table, TABLE_BOLD, metric_row(rank_metrics[column])->name);
    if (self->ranks > MOST_RANK_LINES)
        rc = add_folded(&table, self, op, columns, err);
    else
        for (size_t rank = 0; rank < self->ranks; rank++)
            add_rank(&table, self, op, columns, rank);
    size_t dropped = table_fit(&table, most_chars, 3);
    if (!rc)
        rc = table_write(&table, 0, colour, out, err);
    table_release(&table);
    if (dropped)
        buf_printf(out, "%zu more column%s on a wider terminal\n", dropped, units_plural(dropped));
    if (self->ranks > MOST_RANK_LINES)
        buf_printf(out, "the %d slowest ranks, and medians of the others; `ckptbench export RUN --csv` has all\n",
                   SLOWEST_RANK_LINES);
    return rc;
}

int rank_table_write(const struct rank_table *self, bool every_state, size_t most_chars, bool colour, struct buf *out,
                     struct cb_err *err)
{
    int rc = 0;
    for (int op = OP_SAVE; op <= OP_LOAD && !rc; op++) {
        if (!self->iterations[op][0])
            continue;
        buf_append_char(out, '\n');
        rc = write_ranks(self, op, every_state ? RANK_METRICS : PLAIN_RANK_METRICS, most_chars, colour, out, err);
    }
    return rc;
}

void rank_table_write_json(const struct rank_table *self, bool every_state, struct json_writer *json)
{
    json_member_object(json, "ranks");
    for (int op = OP_SAVE; op <= OP_LOAD; op++) {
        if (!self->iterations[op][0])
            continue;
        json_member_array(json, operation_name((enum operation)op));
        for (size_t rank = 0; rank < self->ranks; rank++) {
            json_write_begin_object(json);
            json_member_u64(json, "rank", rank);
            for (size_t column = 0; column < (every_state ? RANK_METRICS : PLAIN_RANK_METRICS); column++)
                json_member_double(json, metric_row(rank_metrics[column])->name,
                                   rank_median(self, op, rank_metrics[column], rank));
            json_write_end_object(json);
        }
        json_write_end_array(json);
    }
    json_write_end_object(json);
}

/* ---- nodes ---- */

struct node_rate {
    double bytes, time_s;
};

static struct node_rate rate_of(const struct rank_table *self, int op, const struct run_node *node)
{
    struct node_rate rate = {.bytes = NAN, .time_s = NAN};
    for (size_t rank = node->first_rank; rank < node->first_rank + node->ranks && rank < self->ranks; rank++) {
        double bytes = rank_median(self, op, METRIC_BYTES_MOVED, rank);
        double time_s = rank_median(self, op, METRIC_OWN_S, rank);
        rate.bytes = isnan(rate.bytes) ? bytes : isnan(bytes) ? rate.bytes : rate.bytes + bytes;
        rate.time_s = fmax(rate.time_s, time_s);
    }
    return rate;
}

/* The nodes of an operation, the slowest first; *median_s is the median of their times. NULL if out of memory. */
static struct place *sort_nodes(const struct rank_table *self, int op, const struct run_node *nodes, size_t count,
                                double *median_s)
{
    struct place *places = calloc(count + 1, sizeof *places);
    double *times = calloc(count + 1, sizeof *times);
    for (size_t i = 0; places && times && i < count; i++) {
        times[i] = rate_of(self, op, &nodes[i]).time_s;
        places[i] = (struct place){i, times[i]};
    }
    if (places && times) {
        qsort(places, count, sizeof *places, compare_places);
        *median_s = median_of(times, count);
    } else {
        free(places);
        places = NULL;
    }
    free(times);
    return places;
}

/* Operations for which every rank has its own time. */
static const enum operation node_operations[] = {OP_SAVE, OP_LOAD, OP_VERIFY, OP_STEP};
#define NODE_OPERATIONS (sizeof node_operations / sizeof *node_operations)

/* No node of a watched program has ranks, since it is not known which ran where. */
static bool any_ranks(const struct run_node *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (nodes[i].ranks > 0)
            return true;
    return false;
}

static bool has_own_times(const struct rank_table *self, int op)
{
    return self->iterations[op][column_of(METRIC_OWN_S)] > 0;
}

static void add_node(struct table *table, const struct rank_table *self, int op, const struct run_node *node,
                     double median_s)
{
    struct node_rate rate = rate_of(self, op, node);
    double excess = rate.time_s / median_s - 1;
    char text[32];
    table_add(table, TABLE_PLAIN, node->name);
    table_addf(table, TABLE_PLAIN, "%u", node->ranks);
    table_add(table, TABLE_PLAIN, isnan(rate.bytes) ? NULL : units_format_bytes(rate.bytes, text));
    table_add(table, TABLE_PLAIN, isnan(rate.time_s) ? NULL : units_format_duration(rate.time_s * 1e9, text));
    table_add(table, TABLE_PLAIN,
              rate.bytes > 0 && rate.time_s > 0 ? units_format_rate(rate.bytes / rate.time_s, text) : NULL);
    table_add_known(table, TABLE_PLAIN, isfinite(excess), "%+.1f %%", 100 * excess);
}

int rank_table_write_nodes(const struct rank_table *self, const struct run_node *nodes, size_t node_count, bool colour,
                           struct buf *out, struct cb_err *err)
{
    struct table table;
    bool folded = false;
    int rc = 0;
    table_init(&table, "llrrrrr");
    table_add_headings(&table, (const char *const[]){"", "NODE", "RANKS", "BYTES", "TIME", "RATE", "VS MEDIAN"});
    for (size_t i = 0; i < NODE_OPERATIONS && !rc; i++) {
        enum operation op = node_operations[i];
        double median_s = NAN;
        if (!has_own_times(self, op) || !any_ranks(nodes, node_count))
            continue;
        struct place *places = sort_nodes(self, op, nodes, node_count, &median_s);
        if (!places)
            rc = alloc_fail(err, "for %zu nodes", node_count);
        for (size_t n = 0; places && n < node_count && n < MOST_NODE_LINES; n++) {
            table_add(&table, TABLE_BOLD, n == 0 ? operation_name(op) : "");
            add_node(&table, self, op, &nodes[places[n].at], median_s);
        }
        folded = folded || node_count > MOST_NODE_LINES;
        free(places);
    }
    if (!rc)
        rc = table_finish(&table, colour, out, err);
    else
        table_release(&table);
    if (!rc && folded)
        buf_printf(out, "the %d slowest of %zu nodes; --json has all\n", MOST_NODE_LINES, node_count);
    return rc;
}

int rank_table_write_nodes_json(const struct rank_table *self, const struct run_node *nodes, size_t node_count,
                                struct json_writer *json, struct cb_err *err)
{
    json_member_object(json, "node_rates");
    for (size_t i = 0; i < NODE_OPERATIONS; i++) {
        enum operation op = node_operations[i];
        double median_s = NAN;
        if (!has_own_times(self, op) || !any_ranks(nodes, node_count))
            continue;
        struct place *places = sort_nodes(self, op, nodes, node_count, &median_s);
        if (!places)
            return alloc_fail(err, "for %zu nodes", node_count);
        json_member_array(json, operation_name(op));
        for (size_t n = 0; n < node_count; n++) {
            const struct run_node *node = &nodes[places[n].at];
            struct node_rate rate = rate_of(self, op, node);
            json_write_begin_object(json);
            json_member_text(json, "node", node->name);
            json_member_u64(json, "first_rank", node->first_rank);
            json_member_u64(json, "ranks", node->ranks);
            json_member_double(json, metric_row(METRIC_BYTES_MOVED)->name, rate.bytes);
            json_member_double(json, metric_row(METRIC_OWN_S)->name, rate.time_s);
            json_member_double(json, "bytes_per_s", rate.time_s > 0 ? rate.bytes / rate.time_s : NAN);
            json_write_end_object(json);
        }
        json_write_end_array(json);
        free(places);
    }
    json_write_end_object(json);
    return 0;
}
