/* Reports on the nodes and GPUs of a suite's run, from the facts and metrics that workload=suite writes. */
#include "cli/report/suite_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/report/metric_format.h"
#include "cli/report/table.h"
#include "core/alloc.h"
#include "core/stats.h"
#include "core/units.h"
#include "run/status_page.h"
#include "run/workload_kind.h"

#define MATRIX_MOST 16 /* limit of nodes for which a matrix of pairs is printed */
#define PAST_MOST 30   /* limit of earlier runs: old ones do not show what is usual now */
#define LINES_MOST 8   /* limit of outliers printed after a run; `show --nodes` prints all */

/* Metrics of pairs of nodes. A fact with the first prefix has the first two, one with the second prefix the others. */
static const struct {
    enum metric_id metric;
    const char *title, *member;
} pair_rows[] = {{METRIC_NET_LATENCY_S, "latency", "latency_s"},
                 {METRIC_NET_BANDWIDTH_BYTES_PER_S, "bandwidth", "bytes_per_s"},
                 {METRIC_GPU_NET_LATENCY_S, "GPU latency", "gpu_latency_s"},
                 {METRIC_GPU_NET_BANDWIDTH_BYTES_PER_S, "GPU bandwidth", "gpu_bytes_per_s"}};
static const char *const pair_prefixes[] = {"suite.pair.", "suite.gpu_pair."};
#define PAIR_ROWS (sizeof pair_rows / sizeof *pair_rows)

/* One metric against earlier runs: the unit that deviates most from its usual value in the bad direction. */
struct change {
    enum metric_id metric;
    size_t unit;
    double now, usual; /* usual: median of its earlier runs */
    size_t n;          /* earlier runs with this metric */
    double z;          /* stats_robust_z of now */
};

struct unit {
    char *name;    /* owned */
    uint32_t rank; /* the rank that measured for it: the lowest one of a node */
};

/* The nodes of a run, or the GPUs that it measured. */
struct units {
    bool are_gpus;
    size_t count;
    struct unit *items;
    double *values;           /* [metric][unit]: medians over repetitions, NAN where not measured */
    double *pairs[PAIR_ROWS]; /* of nodes: count x count, symmetric, NAN where not measured */
    size_t runs;              /* earlier runs considered: the newest, up to PAST_MOST */
    struct change *changes;   /* metrics with a unit that has enough earlier runs, in the order of the catalogue */
    size_t change_count;
};

struct suite {
    struct units nodes, gpus;
};

/* One metric over the units, or over the pairs of nodes. */
struct spread {
    struct summary summary; /* of all known values */
    double median, worst;
    size_t at; /* of the worst in the bad direction: the unit, or the cell of the matrix */
    double z;  /* stats_robust_z of the worst */
};

static int no_memory(struct cb_err *err)
{
    return alloc_fail(err, "for the nodes of a run");
}

static void suite_release(struct suite *self)
{
    struct units *const both[] = {&self->nodes, &self->gpus};
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < both[k]->count; i++)
            free(both[k]->items[i].name);
        for (size_t i = 0; i < PAIR_ROWS; i++)
            free(both[k]->pairs[i]);
        free(both[k]->items);
        free(both[k]->values);
        free(both[k]->changes);
    }
}

/* ---- loading ---- */

/* Takes ownership of the name; fails if it is NULL (its allocation failed). */
static int add_unit(struct units *self, char *name, const char *rank, struct cb_err *err)
{
    int rc = name ? alloc_grow(&self->items, self->count, sizeof *self->items, err) : no_memory(err);
    if (rc)
        free(name);
    else
        self->items[self->count++] = (struct unit){name, (uint32_t)strtoul(rank, NULL, 10)};
    return rc;
}

/* "suite.node.NAME=RANK" of every node, in order of ranks; "suite.nodes=NAME:RANK,…" of older runs. */
static int load_nodes(struct units *self, const struct run_info *run, struct cb_err *err)
{
    size_t at = 0;
    int rc = 0;
    for (const char *word = run_info_fact(run, "suite.nodes"); word && *word && !rc;) {
        size_t len = strcspn(word, ",");
        const char *colon = memrchr(word, ':', len);
        if (colon) /* if not, the list was truncated */
            rc = add_unit(self, strndup(word, (size_t)(colon - word)), colon + 1, err);
        word += len + (word[len] == ',' ? 1 : 0);
    }
    for (const char *name; !rc && (name = run_info_next_fact(run, "suite.node.", &at));) {
        const char *equals = strrchr(name, '=');
        if (equals)
            rc = add_unit(self, strndup(name, (size_t)(equals - name)), equals + 1, err);
    }
    return rc;
}

/* "suite.gpu.RANK=NODE PCI" of every rank that measured a GPU. The name does not depend on how ranks are placed. */
static int load_gpus(struct units *self, const struct run_info *run, struct cb_err *err)
{
    char *name, number[24];
    size_t at = 0;
    int rc = 0;
    self->are_gpus = true;
    if (!run_info_metric(run, OP_SUITE, METRIC_GPU_COPY_BYTES_PER_S)) /* measured on every GPU */
        return 0;
    for (const char *rank; !rc && (rank = run_info_next_fact(run, "suite.gpu.", &at));) {
        const char *node = strchr(rank, '='), *pci = node ? strrchr(node, ' ') : NULL;
        if (!pci)
            continue;
        if (asprintf(&name, "GPU %s of %.*s", pci + 1, (int)(pci - node - 1), node + 1) < 0)
            name = NULL;
        rc = add_unit(self, name, rank, err);
    }
    bool has_names = self->count > 0;
    for (uint64_t rank = 0; rank < experiment_u64(run->experiment, OPT_RANKS) && !rc && !has_names; rank++) {
        if (asprintf(&name, "the GPU of rank %" PRIu64, rank) < 0) /* older runs have no facts with names */
            name = NULL;
        snprintf(number, sizeof number, "%" PRIu64, rank);
        rc = add_unit(self, name, number, err);
    }
    return rc;
}

struct gathering {
    uint32_t attempt;
    size_t ranks, repetitions;
    double *values; /* [metric][rank][repetition] */
    size_t *counts; /* repetitions by metric and rank */
};

static int gather(void *context, const struct rank_values *given, struct cb_err *err)
{
    struct gathering *self = context;
    (void)err;
    if (given->op != OP_SUITE || given->attempt != self->attempt || given->flags & (SAMPLE_WARMUP | SAMPLE_FAILED))
        return 0;
    for (size_t rank = 0; rank < given->rank_count && rank < self->ranks; rank++) {
        size_t row = (size_t)given->metric * self->ranks + rank;
        if (isfinite(given->ranks[rank]) && self->counts[row] < self->repetitions)
            self->values[row * self->repetitions + self->counts[row]++] = given->ranks[rank];
    }
    return 0;
}

int suite_rank_medians(struct history *history, const struct run_info *run, double **medians, struct cb_err *err)
{
    struct gathering all = {.attempt = run->attempt,
                            .ranks = experiment_u64(run->experiment, OPT_RANKS),
                            .repetitions = experiment_u64(run->experiment, OPT_ITERATIONS)};
    size_t rows = METRIC_COUNT * all.ranks;
    double *found = malloc((rows + 1) * sizeof *found);
    all.values = calloc(rows * all.repetitions + 1, sizeof *all.values);
    all.counts = calloc(rows + 1, sizeof *all.counts);
    int rc = found && all.values && all.counts ? history_each_sample(history, run->run, gather, &all, err)
                                               : alloc_fail(err, "for the ranks of a run");
    for (size_t row = 0; row < rows && !rc; row++) {
        struct summary summary = {.median = NAN};
        if (all.counts[row])
            stats_summarize(all.values + row * all.repetitions, all.counts[row], &summary);
        found[row] = summary.median;
    }
    free(all.values);
    free(all.counts);
    if (rc)
        free(found);
    else
        *medians = found;
    return rc;
}

/* Loads everything but the values of pairs of nodes. Call suite_release in any case. */
static int suite_load(struct suite *self, struct history *history, const struct run_info *run, struct cb_err *err)
{
    struct units *const both[] = {&self->nodes, &self->gpus};
    size_t ranks = experiment_u64(run->experiment, OPT_RANKS);
    double *medians = NULL;
    *self = (struct suite){0};
    int rc = load_nodes(&self->nodes, run, err);
    if (!rc)
        rc = load_gpus(&self->gpus, run, err);
    if (!rc && self->nodes.count + self->gpus.count)
        rc = suite_rank_medians(history, run, &medians, err);
    for (size_t k = 0; k < 2 && !rc && medians; k++) {
        both[k]->values = malloc((METRIC_COUNT * both[k]->count + 1) * sizeof *both[k]->values);
        rc = both[k]->values ? 0 : no_memory(err);
        for (size_t i = 0; i < METRIC_COUNT * both[k]->count && !rc; i++) {
            uint32_t rank = both[k]->items[i % both[k]->count].rank;
            both[k]->values[i] = rank < ranks ? medians[i / both[k]->count * ranks + rank] : NAN;
        }
    }
    free(medians);
    return rc;
}

static size_t find_unit(const struct units *self, const char *name, size_t len)
{
    size_t unit = 0;
    while (unit < self->count &&
           (strlen(self->items[unit].name) != len || strncmp(self->items[unit].name, name, len) != 0))
        unit++;
    return unit;
}

/* "A.B=3.1e-06 s 1.2e+09 bytes/s". Names may contain dots, so any split into two known nodes is accepted. */
static void take_pair(struct units *self, const char *fact, double *latencies, double *rates)
{
    const char *value = strchr(fact, '=');
    double latency_s, bytes_per_s;
    if (!value || sscanf(value + 1, "%lf s %lf bytes/s", &latency_s, &bytes_per_s) != 2)
        return;
    for (const char *dot = strchr(fact, '.'); dot && dot < value; dot = strchr(dot + 1, '.')) {
        size_t a = find_unit(self, fact, (size_t)(dot - fact)), b = find_unit(self, dot + 1, (size_t)(value - dot - 1));
        if (a < self->count && b < self->count) {
            latencies[a * self->count + b] = latencies[b * self->count + a] = latency_s;
            rates[a * self->count + b] = rates[b * self->count + a] = bytes_per_s;
        }
    }
}

static int load_pairs(struct units *self, const struct run_info *run, struct cb_err *err)
{
    for (size_t k = 0; k < PAIR_ROWS; k++) {
        self->pairs[k] = malloc((self->count * self->count + 1) * sizeof *self->pairs[k]);
        if (!self->pairs[k])
            return no_memory(err);
        for (size_t cell = 0; cell < self->count * self->count; cell++)
            self->pairs[k][cell] = NAN;
    }
    for (size_t k = 0; k < 2; k++) {
        size_t at = 0;
        for (const char *fact; (fact = run_info_next_fact(run, pair_prefixes[k], &at));)
            take_pair(self, fact, self->pairs[2 * k], self->pairs[2 * k + 1]);
    }
    return 0;
}

/* Metrics of single GPUs are listed for GPUs, other metrics of the suite for nodes. */
static bool has_metric(const struct units *self, enum metric_id metric)
{
    return metric_is_of_suite(metric) && (metric_row(metric)->group == METRIC_GROUP_SUITE_GPU) == self->are_gpus;
}

/* Deviation in the bad direction. */
static double badness(const struct change *change)
{
    return metric_row(change->metric)->direction == METRIC_LOWER_IS_BETTER ? change->z : -change->z;
}

/* Units are matched by name. */
static int find_changes(struct units *self, const struct suite *earlier, size_t runs, struct cb_err *err)
{
    self->runs = runs;
    self->changes = calloc(METRIC_COUNT, sizeof *self->changes);
    if (!self->changes)
        return alloc_fail(err, "for what has changed");
    for (size_t unit = 0; unit < self->count; unit++) {
        const struct units *then[PAST_MOST];
        size_t there[PAST_MOST];
        for (size_t i = 0; i < runs; i++) {
            then[i] = self->are_gpus ? &earlier[i].gpus : &earlier[i].nodes;
            there[i] = find_unit(then[i], self->items[unit].name, strlen(self->items[unit].name));
        }
        for (size_t metric = 0; metric < METRIC_COUNT; metric++) {
            double past[PAST_MOST], now = self->values[metric * self->count + unit];
            size_t n = 0;
            struct summary summary;
            if (!has_metric(self, (enum metric_id)metric))
                continue;
            for (size_t i = 0; i < runs; i++)
                if (there[i] < then[i]->count && isfinite(then[i]->values[metric * then[i]->count + there[i]]))
                    past[n++] = then[i]->values[metric * then[i]->count + there[i]];
            stats_summarize(past, n, &summary);
            struct change here = {(enum metric_id)metric, unit, now, summary.median, n, stats_robust_z(&summary, now)};
            if (!isnan(here.z) && (!self->changes[metric].n || badness(&here) > badness(&self->changes[metric])))
                self->changes[metric] = here;
        }
    }
    for (size_t metric = 0; metric < METRIC_COUNT; metric++)
        if (self->changes[metric].n)
            self->changes[self->change_count++] = self->changes[metric];
    return 0;
}

/* Earlier runs have the same experiment hash and site, started before this one, and passed or were below
 * suite.fail_below. */
static int compare_with_past(struct suite *self, struct history *history, const struct run_info *run,
                             struct cb_err *err)
{
    char hash[64], site[96];
    const char *const words[] = {"workload=suite", "outcome=pass,benchmark_failed", hash, site};
    struct run_selection selection = {0};
    struct suite earlier[PAST_MOST];
    size_t runs = 0;
    snprintf(hash, sizeof hash, "hash=%s", run->hash);
    snprintf(site, sizeof site, "site=%s", run->site);
    int rc = history_select(history, words, sizeof words / sizeof *words, &selection, err);
    for (size_t i = 0; i < selection.count && runs < PAST_MOST && !rc; i++) {
        struct run_info *info = NULL;
        if (strcmp(selection.runs[i], run->run) == 0)
            continue;
        rc = history_load_run(history, selection.runs[i], &info, err);
        if (!rc && info->started_wall_ns && info->started_wall_ns < run->started_wall_ns)
            rc = suite_load(&earlier[runs++], history, info, err);
        run_info_free(info);
    }
    if (!rc && self->nodes.count)
        rc = find_changes(&self->nodes, earlier, runs, err);
    if (!rc && self->gpus.count)
        rc = find_changes(&self->gpus, earlier, runs, err);
    for (size_t i = 0; i < runs; i++)
        suite_release(&earlier[i]);
    run_selection_release(&selection);
    return rc;
}

/* Loads pairs of nodes, too, and compares with earlier runs. */
static int suite_load_all(struct suite *self, struct history *history, const struct run_info *run, struct cb_err *err)
{
    int rc = suite_load(self, history, run, err);
    if (!rc)
        rc = load_pairs(&self->nodes, run, err);
    return rc || self->nodes.count + self->gpus.count == 0 ? rc : compare_with_past(self, history, run, err);
}

/* ---- spreads ---- */

/* False if fewer than two values are known. `side` is the width of a matrix, of which only the upper triangle counts,
 * or 0 for a list. */
static bool find_spread(enum metric_id metric, const double *values, size_t count, size_t side, struct spread *spread)
{
    bool lower = metric_row(metric)->direction == METRIC_LOWER_IS_BETTER;
    double *known = malloc((count + 1) * sizeof *known);
    struct summary summary;
    size_t used = 0;
    for (size_t i = 0; known && i < count; i++) {
        if (isnan(values[i]) || (side && i / side >= i % side))
            continue;
        if (used == 0 || (lower ? values[i] > spread->worst : values[i] < spread->worst)) {
            spread->worst = values[i];
            spread->at = i;
        }
        known[used++] = values[i];
    }
    if (used >= 2) {
        stats_summarize(known, used, &summary);
        spread->summary = summary;
        spread->median = summary.median;
        spread->z = stats_robust_z(&summary, spread->worst);
    }
    free(known);
    return used >= 2;
}

static bool spread_of_units(const struct units *self, enum metric_id metric, struct spread *spread)
{
    return find_spread(metric, self->values + (size_t)metric * self->count, self->count, 0, spread);
}

static bool spread_of_pairs(const struct units *self, size_t pair, struct spread *spread)
{
    return find_spread(pair_rows[pair].metric, self->pairs[pair], self->count * self->count, self->count, spread);
}

static bool is_any_known(const double *values, size_t count)
{
    size_t i = 0;
    while (i < count && isnan(values[i]))
        i++;
    return i < count;
}

/* ---- tables ---- */

/* Metrics that all nodes measured together have one value: no node is worse than the median, and none is listed. */
static int write_spreads(const struct units *self, bool colour, struct buf *out, struct cb_err *err)
{
    const char *const headings[] = {
        "", "MEDIAN", self->are_gpus ? "WORST GPU" : "WORST NODE", "ITS VALUE", "OFF BY", "ROBUST Z", ""};
    struct table table;
    char text[32];
    table_init(&table, "lrlrrrl");
    table_add_headings(&table, headings);
    for (int i = 0; i < METRIC_COUNT; i++) {
        enum metric_id metric = (enum metric_id)i;
        struct spread spread;
        if (!has_metric(self, metric) || !spread_of_units(self, metric, &spread) || spread.worst == spread.median)
            continue;
        table_add(&table, TABLE_BOLD, metric_row(metric)->name);
        table_add(&table, TABLE_PLAIN, metric_format(metric, spread.median, text));
        table_add(&table, TABLE_PLAIN, self->items[spread.at].name);
        table_add(&table, TABLE_PLAIN, metric_format(metric, spread.worst, text));
        table_add_known(&table, TABLE_PLAIN, spread.median != 0, "%+.1f %%", 100 * (spread.worst / spread.median - 1));
        table_add_known(&table, TABLE_PLAIN, !isnan(spread.z), "%.1f", spread.z);
        table_add(&table, TABLE_BOLD, fabs(spread.z) > STATS_Z_OF_OUTLIERS ? "outlier" : "");
    }
    int rc = table_write(&table, 0, colour, out, err);
    table_release(&table);
    return rc;
}

static void write_worst_pair(const struct units *self, size_t pair, struct buf *out)
{
    struct spread spread;
    if (!spread_of_pairs(self, pair, &spread))
        return;
    buf_printf(out, "worst pair  %s and %s, %s %+.1f %% from the median of the pairs",
               self->items[spread.at / self->count].name, self->items[spread.at % self->count].name,
               pair_rows[pair].title, 100 * (spread.worst / spread.median - 1));
    if (!isnan(spread.z))
        buf_printf(out, ", robust z %.1f%s", spread.z, fabs(spread.z) > STATS_Z_OF_OUTLIERS ? ": outlier" : "");
    buf_append_char(out, '\n');
}

static int write_matrix(const struct units *self, size_t pair, bool colour, struct buf *out, struct cb_err *err)
{
    char columns[MATRIX_MOST + 2] = "l", text[32];
    struct table table;
    for (size_t i = 0; i < self->count; i++)
        columns[i + 1] = 'r';
    columns[self->count + 1] = '\0';
    table_init(&table, columns);
    table_add(&table, TABLE_BOLD, pair_rows[pair].title);
    for (size_t b = 0; b < self->count; b++)
        table_add(&table, TABLE_BOLD, self->items[b].name);
    for (size_t a = 0; a < self->count; a++) {
        table_add(&table, TABLE_BOLD, self->items[a].name);
        for (size_t b = 0; b < self->count; b++)
            table_add(&table, TABLE_PLAIN,
                      metric_format(pair_rows[pair].metric, self->pairs[pair][a * self->count + b], text));
    }
    buf_append_char(out, '\n');
    int rc = table_finish(&table, colour, out, err);
    if (!rc)
        write_worst_pair(self, pair, out);
    return rc;
}

static int write_nodes(const struct units *self, bool colour, struct buf *out, struct cb_err *err)
{
    if (self->count < 2) {
        buf_append_text(out, self->count ? "one node: there is nothing to compare it with\n"
                                         : "nodes are told apart by workload=suite alone\n");
        return 0;
    }
    int rc = write_spreads(self, colour, out, err);
    bool fits = self->count <= MATRIX_MOST;
    if (!rc && !fits)
        buf_printf(out, "pairs of %zu nodes do not fit here: `ckptbench show RUN --nodes --json` has them\n",
                   self->count);
    for (size_t pair = 0; pair < PAIR_ROWS && !rc; pair++) {
        if (!fits)
            write_worst_pair(self, pair, out);
        else if (is_any_known(self->pairs[pair], self->count * self->count))
            rc = write_matrix(self, pair, colour, out, err);
    }
    return rc;
}

static bool is_outlier(const struct change *change)
{
    return badness(change) > STATS_Z_OF_OUTLIERS;
}

static int write_changes(const struct units *self, bool colour, struct buf *out, struct cb_err *err)
{
    const char *const headings[] = {
        "AGAINST EARLIER RUNS", self->are_gpus ? "GPU" : "NODE", "USUAL", "NOW", "OFF BY", "ROBUST Z", ""};
    struct table table;
    char text[32];
    if (self->change_count == 0) {
        buf_printf(out,
                   "\nhistory: %zu earlier run%s of this experiment here; what is usual for a node takes %d of it\n",
                   self->runs, units_plural(self->runs), STATS_N_FOR_Z);
        return 0;
    }
    table_init(&table, "llrrrrl");
    table_add_headings(&table, headings);
    for (size_t i = 0; i < self->change_count; i++) {
        const struct change *change = &self->changes[i];
        table_add(&table, TABLE_BOLD, metric_row(change->metric)->name);
        table_add(&table, TABLE_PLAIN, self->items[change->unit].name);
        table_addf(&table, TABLE_PLAIN, "%s (n=%zu)", metric_format(change->metric, change->usual, text), change->n);
        table_add(&table, TABLE_PLAIN, metric_format(change->metric, change->now, text));
        table_addf(&table, TABLE_PLAIN, "%+.1f %%", 100 * (change->now / change->usual - 1));
        table_addf(&table, TABLE_PLAIN, "%.1f", change->z);
        table_add(&table, TABLE_BOLD, is_outlier(change) ? "outlier" : "");
    }
    buf_append_char(out, '\n');
    return table_finish(&table, colour, out, err);
}

int suite_report_write(struct history *history, const struct run_info *run, bool has_nodes, bool colour,
                       struct buf *out, struct cb_err *err)
{
    struct suite suite;
    int rc = suite_load_all(&suite, history, run, err);
    if (!rc && (suite.nodes.count || !has_nodes))
        rc = write_nodes(&suite.nodes, colour, out, err);
    if (!rc && suite.gpus.count >= 2) {
        buf_append_char(out, '\n');
        rc = write_spreads(&suite.gpus, colour, out, err);
    }
    if (!rc && suite.nodes.count)
        rc = write_changes(&suite.nodes, colour, out, err);
    if (!rc && suite.gpus.change_count)
        rc = write_changes(&suite.gpus, colour, out, err);
    suite_release(&suite);
    return rc;
}

/* ---- bad nodes ---- */

/* The node of a unit: "GPU 0000:17:00.0 of NODE", or the node itself. */
static const char *node_of(const struct units *self, size_t unit)
{
    static const char of[] = " of ";
    const char *at = self->are_gpus ? strstr(self->items[unit].name, of) : NULL;
    return at ? at + strlen(of) : self->items[unit].name;
}

static int add_bad(struct bad_nodes *self, const struct units *units, size_t unit, enum metric_id metric,
                   struct cb_err *err)
{
    const char *node = node_of(units, unit);
    for (size_t i = 0; i < self->count; i++)
        if (strcmp(self->names[i], node) == 0)
            return 0;
    int rc = alloc_grow(&self->metrics, self->count, sizeof *self->metrics, err);
    if (rc)
        return rc;
    self->metrics[self->count] = metric;
    return alloc_add_text(&self->names, &self->count, node, strlen(node), err);
}

/* Adds the units that are outliers in a primary metric, among the others or against their earlier runs. */
static int find_bad(struct bad_nodes *self, const struct units *units, struct cb_err *err)
{
    int rc = 0;
    for (int i = 0; i < METRIC_COUNT && units->count; i++) {
        enum metric_id metric = (enum metric_id)i;
        struct spread spread;
        if (!metric_row(metric)->primary || !has_metric(units, metric) || !spread_of_units(units, metric, &spread))
            continue;
        for (size_t unit = 0; unit < units->count && rc == 0; unit++) {
            double now = units->values[(size_t)metric * units->count + unit];
            const struct change beside = {metric, unit, now, spread.median, 0, stats_robust_z(&spread.summary, now)};
            if (is_outlier(&beside))
                rc = add_bad(self, units, unit, metric, err);
        }
    }
    for (size_t i = 0; i < units->change_count && rc == 0; i++)
        if (metric_row(units->changes[i].metric)->primary && is_outlier(&units->changes[i]))
            rc = add_bad(self, units, units->changes[i].unit, units->changes[i].metric, err);
    return rc;
}

int suite_find_bad_nodes(struct history *history, const struct run_info *run, struct bad_nodes *found,
                         struct cb_err *err)
{
    struct suite suite;
    *found = (struct bad_nodes){0};
    int rc = suite_load_all(&suite, history, run, err);
    if (rc == 0)
        rc = find_bad(found, &suite.nodes, err);
    if (rc == 0)
        rc = find_bad(found, &suite.gpus, err);
    suite_release(&suite);
    return rc;
}

void bad_nodes_release(struct bad_nodes *self)
{
    alloc_free_texts(self->names, self->count);
    free(self->metrics);
    *self = (struct bad_nodes){0};
}

/* ---- JSON ---- */

/* Appends "names" and the metrics; the metrics of nodes are in an object "metrics". */
static void write_units_json(const struct units *self, struct json_writer *json)
{
    json_member_array(json, "names");
    for (size_t i = 0; i < self->count; i++)
        json_write_text(json, self->items[i].name);
    json_write_end_array(json);
    if (!self->are_gpus)
        json_member_object(json, "metrics");
    for (int i = 0; i < METRIC_COUNT && self->count; i++) {
        enum metric_id metric = (enum metric_id)i;
        struct spread spread;
        bool shown = self->are_gpus ? has_metric(self, metric) : metric_is_of_suite(metric);
        if (!shown || !spread_of_units(self, metric, &spread))
            continue;
        json_member_object(json, metric_row(metric)->name);
        json_member_doubles(json, "values", self->values + (size_t)metric * self->count, self->count);
        json_member_double(json, "median", spread.median);
        json_member_text(json, "worst", self->items[spread.at].name);
        json_member_double(json, "z", spread.z);
        json_write_end_object(json);
    }
    if (!self->are_gpus)
        json_write_end_object(json);
}

static void write_pairs_json(const struct units *self, struct json_writer *json)
{
    json_member_object(json, "pairs");
    for (size_t pair = 0; pair < PAIR_ROWS && self->count; pair++) {
        if (metric_row(pair_rows[pair].metric)->group == METRIC_GROUP_SUITE_GPU_LINKS &&
            !is_any_known(self->pairs[pair], self->count * self->count))
            continue;
        json_member_array(json, pair_rows[pair].member);
        for (size_t a = 0; a < self->count; a++)
            json_write_doubles(json, self->pairs[pair] + a * self->count, self->count);
        json_write_end_array(json);
    }
    json_write_end_object(json);
    json_member_object(json, "worst_pairs");
    for (size_t pair = 0; pair < PAIR_ROWS && self->count; pair++) {
        struct spread spread;
        if (!spread_of_pairs(self, pair, &spread))
            continue;
        json_member_object(json, metric_row(pair_rows[pair].metric)->name);
        json_member_array(json, "nodes");
        json_write_text(json, self->items[spread.at / self->count].name);
        json_write_text(json, self->items[spread.at % self->count].name);
        json_write_end_array(json);
        json_member_double(json, "value", spread.worst);
        json_member_double(json, "median", spread.median);
        json_member_double(json, "z", spread.z);
        json_write_end_object(json);
    }
    json_write_end_object(json);
}

static void write_changes_json(const struct units *self, const char *key, struct json_writer *json)
{
    json_member_object(json, key);
    json_member_u64(json, "runs", self->runs);
    json_member_object(json, "metrics");
    for (size_t i = 0; i < self->change_count; i++) {
        const struct change *change = &self->changes[i];
        json_member_object(json, metric_row(change->metric)->name);
        json_member_text(json, "node", self->items[change->unit].name);
        json_member_double(json, "value", change->now);
        json_member_double(json, "usual", change->usual);
        json_member_u64(json, "n", change->n);
        json_member_double(json, "z", change->z);
        json_write_end_object(json);
    }
    json_write_end_object(json);
    json_write_end_object(json);
}

int suite_report_write_json(struct history *history, const struct run_info *run, struct json_writer *json,
                            struct cb_err *err)
{
    struct suite suite;
    int rc = suite_load_all(&suite, history, run, err);
    if (!rc) {
        json_member_object(json, "nodes");
        write_units_json(&suite.nodes, json);
        write_pairs_json(&suite.nodes, json);
        json_write_end_object(json);
        json_member_object(json, "gpus");
        write_units_json(&suite.gpus, json);
        json_write_end_object(json);
        write_changes_json(&suite.nodes, "history", json);
        write_changes_json(&suite.gpus, "gpu_history", json);
    }
    suite_release(&suite);
    return rc;
}

/* ---- outliers as text ---- */

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

static void add_units(struct lines *self, const struct units *units, const char *of_what)
{
    struct spread spread;
    for (int i = 0; i < METRIC_COUNT && units->count; i++) {
        enum metric_id metric = (enum metric_id)i;
        if (has_metric(units, metric) && spread_of_units(units, metric, &spread) &&
            fabs(spread.z) > STATS_Z_OF_OUTLIERS)
            add_line(self, units->items[spread.at].name, metric, spread.worst, spread.median, spread.z, of_what);
    }
}

static void add_changes(struct lines *self, const struct units *units)
{
    char of_what[64];
    for (size_t i = 0; i < units->change_count; i++) {
        const struct change *change = &units->changes[i];
        snprintf(of_what, sizeof of_what, "its median of %zu earlier runs", change->n);
        if (is_outlier(change))
            add_line(self, units->items[change->unit].name, change->metric, change->now, change->usual, change->z,
                     of_what);
    }
}

int suite_outliers_write(struct history *history, const struct run_info *run, struct buf *out, struct cb_err *err)
{
    struct lines lines = {.out = out};
    struct suite suite;
    if (!workload_kind_of(run->experiment)->measures_cluster)
        return 0;
    int rc = suite_load_all(&suite, history, run, err);
    const struct units *nodes = &suite.nodes;
    for (size_t pair = 0; pair < PAIR_ROWS && !rc && nodes->count; pair++) {
        struct spread spread;
        char whose[600];
        if (!spread_of_pairs(nodes, pair, &spread) || !(fabs(spread.z) > STATS_Z_OF_OUTLIERS))
            continue;
        snprintf(whose, sizeof whose, "%.280s and %.280s", nodes->items[spread.at / nodes->count].name,
                 nodes->items[spread.at % nodes->count].name);
        add_line(&lines, whose, pair_rows[pair].metric, spread.worst, spread.median, spread.z,
                 "the median of the pairs");
    }
    if (!rc && nodes->count) {
        add_units(&lines, nodes, "the median of the nodes");
        add_units(&lines, &suite.gpus, "the median of the GPUs");
        add_changes(&lines, nodes);
        add_changes(&lines, &suite.gpus);
    }
    if (lines.count > LINES_MOST)
        buf_printf(out, "outliers      %zu more: ckptbench show %s --nodes\n", lines.count - LINES_MOST, run->run);
    suite_release(&suite);
    return rc;
}
