/* The figures of a suite's run by node, from the facts and metrics that workload=suite writes. */
#include "cli/report/suite_nodes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/report/metric_format.h"
#include "cli/report/table.h"
#include "core/alloc.h"
#include "core/stats.h"
#include "run/status_page.h"

#define MATRIX_MOST 16 /* largest number of nodes whose matrix of pairs fits on a screen */

static const char *fact_of(const struct run_info *run, const char *key)
{
    size_t len = strlen(key);
    for (size_t i = 0; i < run->fact_count; i++)
        if (strncmp(run->facts[i], key, len) == 0 && run->facts[i][len] == '=')
            return run->facts[i] + len + 1;
    return NULL;
}

static int add_node(struct suite_nodes *self, const char *name, size_t len, const char *rank, struct cb_err *err)
{
    char **names = realloc(self->names, (self->count + 1) * sizeof *names);
    uint32_t *first = names ? realloc(self->first, (self->count + 1) * sizeof *first) : NULL;
    self->names = names ? names : self->names;
    self->first = first ? first : self->first;
    if (!names || !first)
        return alloc_fail(err, "for the nodes of a run");
    self->names[self->count] = strndup(name, len);
    self->first[self->count] = (uint32_t)strtoul(rank, NULL, 10);
    if (!self->names[self->count])
        return alloc_fail(err, "for the nodes of a run");
    self->count++;
    return 0;
}

/* "suite.node.NAME=RANK" of every node, in order of ranks; "suite.nodes=NAME:RANK,…" of older runs. */
static int load_names(struct suite_nodes *self, const struct run_info *run, struct cb_err *err)
{
    static const char prefix[] = "suite.node.";
    const char *word = fact_of(run, "suite.nodes");
    int rc = 0;
    while (word && *word && !rc) {
        size_t len = strcspn(word, ",");
        const char *colon = memrchr(word, ':', len);
        rc = colon ? add_node(self, word, (size_t)(colon - word), colon + 1, err) : 0; /* the list was truncated */
        word += len + (word[len] == ',' ? 1 : 0);
    }
    for (size_t i = 0; i < run->fact_count && !rc; i++) {
        const char *name = run->facts[i] + sizeof prefix - 1, *equals = strrchr(run->facts[i], '=');
        if (strncmp(run->facts[i], prefix, sizeof prefix - 1) == 0 && equals && equals >= name)
            rc = add_node(self, name, (size_t)(equals - name), equals + 1, err);
    }
    return rc;
}

static double *make_cells(size_t count)
{
    double *cells = malloc((count + 1) * sizeof *cells);
    for (size_t i = 0; cells && i < count; i++)
        cells[i] = NAN;
    return cells;
}

static size_t find_node(const struct suite_nodes *self, const char *name, size_t len)
{
    size_t node = 0;
    while (node < self->count && (strlen(self->names[node]) != len || strncmp(self->names[node], name, len) != 0))
        node++;
    return node;
}

/* "suite.pair.A.B=3.1e-06 s 1.2e+09 bytes/s". Names may contain dots, so any split into two known nodes is accepted. */
static void take_pair(const struct suite_nodes *self, const char *fact, double *latencies, double *rates)
{
    const char *value = strchr(fact, '=');
    double latency_s, bytes_per_s;
    if (!value || sscanf(value + 1, "%lf s %lf bytes/s", &latency_s, &bytes_per_s) != 2)
        return;
    for (const char *dot = strchr(fact, '.'); dot && dot < value; dot = strchr(dot + 1, '.')) {
        size_t a = find_node(self, fact, (size_t)(dot - fact)), b = find_node(self, dot + 1, (size_t)(value - dot - 1));
        if (a < self->count && b < self->count) {
            latencies[a * self->count + b] = latencies[b * self->count + a] = latency_s;
            rates[a * self->count + b] = rates[b * self->count + a] = bytes_per_s;
        }
    }
}

/* Values of each node and metric over the repetitions. */
struct gathering {
    const struct suite_nodes *nodes;
    uint32_t attempt;
    double *values; /* [metric][node][repetition] */
    size_t *counts; /* number of repetitions by metric and node */
    size_t repetitions;
};

static int gather(void *context, const struct rank_values *given, struct cb_err *err)
{
    struct gathering *self = context;
    (void)err;
    if (given->op != OP_SUITE || given->attempt != self->attempt || given->flags & (SAMPLE_WARMUP | SAMPLE_FAILED) ||
        !metric_is_of_suite(given->metric))
        return 0;
    for (size_t node = 0; node < self->nodes->count; node++) {
        size_t row = (size_t)given->metric * self->nodes->count + node;
        uint32_t rank = self->nodes->first[node];
        if (rank < given->rank_count && isfinite(given->ranks[rank]) && self->counts[row] < self->repetitions)
            self->values[row * self->repetitions + self->counts[row]++] = given->ranks[rank];
    }
    return 0;
}

static int load_values(struct suite_nodes *self, struct history *history, const struct run_info *run,
                       struct cb_err *err)
{
    size_t rows = METRIC_COUNT * self->count;
    struct gathering gathering = {
        .nodes = self, .attempt = run->attempt, .repetitions = experiment_u64(run->experiment, OPT_ITERATIONS)};
    gathering.values = calloc(rows * gathering.repetitions + 1, sizeof *gathering.values);
    gathering.counts = calloc(rows + 1, sizeof *gathering.counts);
    int rc = gathering.values && gathering.counts ? history_each_sample(history, run->run, gather, &gathering, err)
                                                  : alloc_fail(err, "for the nodes of a run");
    for (size_t row = 0; row < rows && !rc; row++) {
        struct summary summary;
        stats_summarize(gathering.values + row * gathering.repetitions, gathering.counts[row], &summary);
        self->values[row] = summary.median;
    }
    free(gathering.values);
    free(gathering.counts);
    return rc;
}

int suite_nodes_load(struct suite_nodes *self, struct history *history, const struct run_info *run, struct cb_err *err)
{
    static const char pair[] = "suite.pair.", of_gpus[] = "suite.gpu_pair.";
    *self = (struct suite_nodes){0};
    int rc = load_names(self, run, err);
    if (rc || self->count == 0)
        return rc;
    self->values = make_cells(METRIC_COUNT * self->count);
    self->latency_s = make_cells(self->count * self->count);
    self->bytes_per_s = make_cells(self->count * self->count);
    self->gpu_latency_s = make_cells(self->count * self->count);
    self->gpu_bytes_per_s = make_cells(self->count * self->count);
    if (!self->values || !self->latency_s || !self->bytes_per_s || !self->gpu_latency_s || !self->gpu_bytes_per_s)
        return alloc_fail(err, "for the nodes of a run");
    for (size_t i = 0; i < run->fact_count; i++) {
        if (strncmp(run->facts[i], pair, strlen(pair)) == 0)
            take_pair(self, run->facts[i] + strlen(pair), self->latency_s, self->bytes_per_s);
        if (strncmp(run->facts[i], of_gpus, strlen(of_gpus)) == 0)
            take_pair(self, run->facts[i] + strlen(of_gpus), self->gpu_latency_s, self->gpu_bytes_per_s);
    }
    return load_values(self, history, run, err);
}

/* "suite.gpu.RANK=NODE PCI" of every rank that measured a GPU. The name does not depend on how ranks are placed. */
static int load_gpu_names(struct suite_nodes *self, const struct run_info *run, struct cb_err *err)
{
    static const char prefix[] = "suite.gpu.";
    int rc = 0;
    for (size_t i = 0; i < run->fact_count && !rc; i++) {
        char name[160];
        const char *rank = run->facts[i] + sizeof prefix - 1, *node = strchr(run->facts[i], '=');
        const char *pci = node ? strrchr(node, ' ') : NULL;
        if (strncmp(run->facts[i], prefix, sizeof prefix - 1) != 0 || !pci)
            continue;
        int len = snprintf(name, sizeof name, "GPU %.31s of %.*s", pci + 1, (int)(pci - node - 1), node + 1);
        rc = add_node(self, name, (size_t)len, rank, err);
    }
    return rc;
}

int suite_gpus_load(struct suite_nodes *self, struct history *history, const struct run_info *run, struct cb_err *err)
{
    uint64_t ranks = experiment_u64(run->experiment, OPT_RANKS);
    int rc = 0;
    *self = (struct suite_nodes){0};
    if (!run_info_metric(run, OP_SUITE, METRIC_GPU_COPY_BYTES_PER_S)) /* which every GPU has */
        return 0;
    rc = load_gpu_names(self, run, err);
    bool has_names = self->count > 0;
    for (uint64_t rank = 0; rank < ranks && !rc && !has_names; rank++) { /* facts of older runs */
        char name[48], number[24];
        int len = snprintf(name, sizeof name, "the GPU of rank %" PRIu64, rank);
        snprintf(number, sizeof number, "%" PRIu64, rank);
        rc = add_node(self, name, (size_t)len, number, err);
    }
    self->values = make_cells(METRIC_COUNT * self->count);
    if (!rc && !self->values)
        rc = alloc_fail(err, "for the GPUs of a run");
    return rc ? rc : load_values(self, history, run, err);
}

void suite_nodes_release(struct suite_nodes *self)
{
    for (size_t i = 0; i < self->count; i++)
        free(self->names[i]);
    free(self->names);
    free(self->first);
    free(self->values);
    free(self->latency_s);
    free(self->bytes_per_s);
    free(self->gpu_latency_s);
    free(self->gpu_bytes_per_s);
    *self = (struct suite_nodes){0};
}

static const double *row_of(const struct suite_nodes *self, enum metric_id metric)
{
    return self->values + (size_t)metric * self->count;
}

bool suite_nodes_spread(const struct suite_nodes *self, enum metric_id metric, struct suite_spread *spread)
{
    const double *values = row_of(self, metric);
    bool lower = metric_row(metric)->direction == METRIC_LOWER_IS_BETTER;
    double *known = malloc((self->count + 1) * sizeof *known);
    struct summary summary;
    size_t count = 0, worst = self->count;
    for (size_t node = 0; known && node < self->count; node++) {
        if (isnan(values[node]))
            continue;
        known[count++] = values[node];
        if (worst == self->count || (lower ? values[node] > values[worst] : values[node] < values[worst]))
            worst = node;
    }
    if (count < 2) {
        free(known);
        return false;
    }
    stats_summarize(known, count, &summary);
    free(known);
    *spread = (struct suite_spread){.median = summary.median,
                                    .worst = values[worst],
                                    .worst_node = worst,
                                    .z = stats_robust_z(&summary, values[worst])};
    return true;
}

static const double *pairs_of(const struct suite_nodes *self, enum metric_id metric)
{
    return metric == METRIC_NET_LATENCY_S                   ? self->latency_s
           : metric == METRIC_GPU_NET_LATENCY_S             ? self->gpu_latency_s
           : metric == METRIC_GPU_NET_BANDWIDTH_BYTES_PER_S ? self->gpu_bytes_per_s
                                                            : self->bytes_per_s;
}

bool suite_nodes_pair_spread(const struct suite_nodes *self, enum metric_id metric, struct suite_pair_spread *spread)
{
    bool lower = metric_row(metric)->direction == METRIC_LOWER_IS_BETTER;
    const double *cells = pairs_of(self, metric);
    double *known = malloc((self->count * self->count + 1) * sizeof *known);
    struct suite_pair_spread found = {.worst = NAN};
    struct summary summary;
    size_t count = 0;
    for (size_t cell = 0; known && cell < self->count * self->count; cell++) {
        size_t a = cell / self->count, b = cell % self->count;
        if (a >= b || isnan(cells[cell]))
            continue;
        known[count++] = cells[cell];
        if (isnan(found.worst) || (lower ? cells[cell] > found.worst : cells[cell] < found.worst))
            found = (struct suite_pair_spread){.worst = cells[cell], .a = a, .b = b};
    }
    if (count >= 2) {
        stats_summarize(known, count, &summary);
        found.median = summary.median;
        found.z = stats_robust_z(&summary, found.worst);
        *spread = found;
    }
    free(known);
    return count >= 2;
}

bool suite_is_of_gpus(enum metric_id metric)
{
    return metric_row(metric)->group == METRIC_GROUP_SUITE_GPU;
}

/* Of nodes, all metrics except those of single GPUs; of GPUs, only those. If no value is worse than the median, as
 * for what all nodes did together, there is no worst node. */
static int write_spreads(const struct suite_nodes *self, bool gpus, bool colour, struct buf *out, struct cb_err *err)
{
    const char *const headings[] = {"",         "MEDIAN", gpus ? "WORST GPU" : "WORST NODE", "ITS VALUE", "OFF BY",
                                    "ROBUST Z", ""};
    struct table table;
    char text[32];
    table_init(&table, "lrlrrrl");
    table_add_headings(&table, headings);
    for (int metric = 0; metric < METRIC_COUNT; metric++) {
        struct suite_spread spread;
        if (!metric_is_of_suite((enum metric_id)metric) || suite_is_of_gpus((enum metric_id)metric) != gpus ||
            !suite_nodes_spread(self, (enum metric_id)metric, &spread) || spread.worst == spread.median)
            continue;
        table_add(&table, TABLE_BOLD, metric_row((enum metric_id)metric)->name);
        table_add(&table, TABLE_PLAIN, metric_format((enum metric_id)metric, spread.median, text));
        table_add(&table, TABLE_PLAIN, self->names[spread.worst_node]);
        table_add(&table, TABLE_PLAIN, metric_format((enum metric_id)metric, spread.worst, text));
        if (spread.median != 0)
            table_addf(&table, TABLE_PLAIN, "%+.1f %%", 100 * (spread.worst / spread.median - 1));
        else
            table_add(&table, TABLE_PLAIN, NULL);
        if (isnan(spread.z))
            table_add(&table, TABLE_PLAIN, "-");
        else
            table_addf(&table, TABLE_PLAIN, "%.1f", spread.z);
        table_add(&table, TABLE_BOLD, fabs(spread.z) > STATS_Z_OF_OUTLIERS ? "outlier" : "");
    }
    int rc = table_write(&table, 0, colour, out, err);
    table_release(&table);
    return rc;
}

static const struct {
    enum metric_id metric;
    const char *title, *member;
} pair_metrics[] = {{METRIC_NET_LATENCY_S, "latency", "latency_s"},
                    {METRIC_NET_BANDWIDTH_BYTES_PER_S, "bandwidth", "bytes_per_s"},
                    {METRIC_GPU_NET_LATENCY_S, "GPU latency", "gpu_latency_s"},
                    {METRIC_GPU_NET_BANDWIDTH_BYTES_PER_S, "GPU bandwidth", "gpu_bytes_per_s"}};

static void write_worst(const struct suite_nodes *self, const char *title, enum metric_id metric, struct buf *out)
{
    struct suite_pair_spread spread;
    if (!suite_nodes_pair_spread(self, metric, &spread))
        return;
    buf_printf(out, "worst pair  %s and %s, %s %+.1f %% from the median of the pairs", self->names[spread.a],
               self->names[spread.b], title, 100 * (spread.worst / spread.median - 1));
    if (!isnan(spread.z))
        buf_printf(out, ", robust z %.1f%s", spread.z, fabs(spread.z) > STATS_Z_OF_OUTLIERS ? ": outlier" : "");
    buf_append_char(out, '\n');
}

static bool is_any_known(const struct suite_nodes *self, const double *cells)
{
    size_t cell = 0;
    while (cell < self->count * self->count && isnan(cells[cell]))
        cell++;
    return cell < self->count * self->count;
}

static int write_matrix(const struct suite_nodes *self, const char *title, enum metric_id metric, bool colour,
                        struct buf *out, struct cb_err *err)
{
    const double *cells = pairs_of(self, metric);
    struct table table;
    if (!is_any_known(self, cells))
        return 0;
    char columns[MATRIX_MOST + 2] = "l", text[32];
    for (size_t i = 0; i < self->count; i++)
        columns[i + 1] = 'r';
    columns[self->count + 1] = '\0';
    table_init(&table, columns);
    table_add(&table, TABLE_BOLD, title);
    for (size_t b = 0; b < self->count; b++)
        table_add(&table, TABLE_BOLD, self->names[b]);
    for (size_t a = 0; a < self->count; a++) {
        table_add(&table, TABLE_BOLD, self->names[a]);
        for (size_t b = 0; b < self->count; b++)
            table_add(&table, TABLE_PLAIN, metric_format(metric, cells[a * self->count + b], text));
    }
    buf_append_char(out, '\n');
    int rc = table_write(&table, 0, colour, out, err);
    table_release(&table);
    if (!rc)
        write_worst(self, title, metric, out);
    return rc;
}

int suite_nodes_write(const struct suite_nodes *self, bool colour, struct buf *out, struct cb_err *err)
{
    if (self->count < 2) {
        buf_append_text(out, self->count ? "one node: there is nothing to compare it with\n"
                                         : "nodes are told apart by workload=suite alone\n");
        return 0;
    }
    int rc = write_spreads(self, false, colour, out, err);
    bool fits = self->count <= MATRIX_MOST;
    if (!rc && !fits)
        buf_printf(out, "pairs of %zu nodes do not fit here: `ckptbench show RUN --nodes --json` has them\n",
                   self->count);
    for (size_t i = 0; i < sizeof pair_metrics / sizeof *pair_metrics && !rc; i++) {
        if (fits)
            rc = write_matrix(self, pair_metrics[i].title, pair_metrics[i].metric, colour, out, err);
        else
            write_worst(self, pair_metrics[i].title, pair_metrics[i].metric, out);
    }
    return rc;
}

int suite_gpus_write(const struct suite_nodes *self, bool colour, struct buf *out, struct cb_err *err)
{
    if (self->count < 2)
        return 0;
    buf_append_char(out, '\n');
    return write_spreads(self, true, colour, out, err);
}

static void write_numbers(struct json_writer *json, const char *key, const double *values, size_t count)
{
    json_write_key(json, key);
    json_write_begin_array(json);
    for (size_t i = 0; i < count; i++)
        json_write_double(json, values[i]);
    json_write_end_array(json);
}

static void write_metric(const struct suite_nodes *self, enum metric_id metric, struct json_writer *json)
{
    struct suite_spread spread;
    if (!suite_nodes_spread(self, metric, &spread))
        return;
    json_write_key(json, metric_row(metric)->name);
    json_write_begin_object(json);
    write_numbers(json, "values", row_of(self, metric), self->count);
    json_member_double(json, "median", spread.median);
    json_member_text(json, "worst", self->names[spread.worst_node]);
    json_member_double(json, "z", spread.z);
    json_write_end_object(json);
}

static void write_pairs(const struct suite_nodes *self, const char *key, const double *cells, struct json_writer *json)
{
    json_write_key(json, key);
    json_write_begin_array(json);
    for (size_t a = 0; a < self->count; a++) {
        json_write_begin_array(json);
        for (size_t b = 0; b < self->count; b++)
            json_write_double(json, cells[a * self->count + b]);
        json_write_end_array(json);
    }
    json_write_end_array(json);
}

static void write_worst_pair(const struct suite_nodes *self, enum metric_id metric, struct json_writer *json)
{
    struct suite_pair_spread spread;
    if (!suite_nodes_pair_spread(self, metric, &spread))
        return;
    json_write_key(json, metric_row(metric)->name);
    json_write_begin_object(json);
    json_write_key(json, "nodes");
    json_write_begin_array(json);
    json_write_text(json, self->names[spread.a]);
    json_write_text(json, self->names[spread.b]);
    json_write_end_array(json);
    json_member_double(json, "value", spread.worst);
    json_member_double(json, "median", spread.median);
    json_member_double(json, "z", spread.z);
    json_write_end_object(json);
}

static void write_names(const struct suite_nodes *self, struct json_writer *json)
{
    json_write_key(json, "names");
    json_write_begin_array(json);
    for (size_t i = 0; i < self->count; i++)
        json_write_text(json, self->names[i]);
    json_write_end_array(json);
}

void suite_gpus_write_json(const struct suite_nodes *self, struct json_writer *json)
{
    json_write_key(json, "gpus");
    json_write_begin_object(json);
    write_names(self, json);
    for (int metric = 0; metric < METRIC_COUNT && self->count; metric++)
        if (suite_is_of_gpus((enum metric_id)metric))
            write_metric(self, (enum metric_id)metric, json);
    json_write_end_object(json);
}

void suite_nodes_write_json(const struct suite_nodes *self, struct json_writer *json)
{
    json_write_key(json, "nodes");
    json_write_begin_object(json);
    write_names(self, json);
    json_write_key(json, "metrics");
    json_write_begin_object(json);
    for (int metric = 0; metric < METRIC_COUNT && self->count; metric++)
        if (metric_is_of_suite((enum metric_id)metric))
            write_metric(self, (enum metric_id)metric, json);
    json_write_end_object(json);
    json_write_key(json, "pairs");
    json_write_begin_object(json);
    for (size_t i = 0; i < sizeof pair_metrics / sizeof *pair_metrics && self->count; i++)
        if (metric_row(pair_metrics[i].metric)->group != METRIC_GROUP_SUITE_GPU_LINKS ||
            is_any_known(self, pairs_of(self, pair_metrics[i].metric)))
            write_pairs(self, pair_metrics[i].member, pairs_of(self, pair_metrics[i].metric), json);
    json_write_end_object(json);
    json_write_key(json, "worst_pairs");
    json_write_begin_object(json);
    for (size_t i = 0; i < sizeof pair_metrics / sizeof *pair_metrics; i++)
        write_worst_pair(self, pair_metrics[i].metric, json);
    json_write_end_object(json);
    json_write_end_object(json);
}
