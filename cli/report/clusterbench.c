/* Writes a suite's run as YAML with the sections and rows of the earlier cluster benchmark. */
#include "cli/report/clusterbench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report/suite_report.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "run/workload_kind.h"

#define NO_METRIC METRIC_COUNT
#define ROW_BYTES 96
#define DOCUMENT_MAX_BYTES (1u << 20)

/* A %s in `name` stands for the number of workers in rows of a node's storage, else of GPUs (of ranks if there are
 * none). `factor` converts our value to `unit`. */
struct row {
    const char *section, *name, *unit;
    enum metric_id metric;
    double factor;
};

static const char between_nodes[] = "Inter-Node Network", storage_of_node[] = "Storage I/O (per-node)";

static const struct row links[] = {
    {between_nodes, "Latency (ping-pong)", "ms", METRIC_NET_LATENCY_S, 1e3},
    {between_nodes, "Bandwidth (ping-pong, %s GPUs)", "GB/s", METRIC_NET_BANDWIDTH_BYTES_PER_S, 1e-9},
    {between_nodes, "All-to-all bandwidth (%s GPUs)", "GB/s", METRIC_ALL_TO_ALL_BUS_BYTES_PER_S, 1e-9},
};

/* The rows of one GPU; every GPU has a section of its own. */
static const struct row gpus[] = {
    {NULL, "Memory bandwidth", "GB/s", METRIC_GPU_COPY_BYTES_PER_S, 1e-9},
    {NULL, "Compute (FP32 matmul)", "TFLOPS", METRIC_GPU_GEMM_FP32_FLOPS, 1e-12},
};

static const struct row others[] = {
    {"Inter-GPU Communication", "All-reduce (%s GPUs)", "GB/s", METRIC_GPU_ALL_REDUCE_BUS_BYTES_PER_S, 1e-9},
    {"Inter-GPU Communication", "All-to-all (%s GPUs)", "GB/s", METRIC_GPU_ALL_TO_ALL_BUS_BYTES_PER_S, 1e-9},
    {storage_of_node, "Sequential Write", "MB/s", METRIC_STORAGE_WRITE_BYTES_PER_S, 1e-6},
    {storage_of_node, "Sequential Read", "MB/s", METRIC_STORAGE_READ_BYTES_PER_S, 1e-6},
    {storage_of_node, "Parallel Write (%s workers)", "MB/s", METRIC_STORAGE_PARALLEL_WRITE_BYTES_PER_S, 1e-6},
    {storage_of_node, "Parallel Read (%s workers)", "MB/s", METRIC_STORAGE_PARALLEL_READ_BYTES_PER_S, 1e-6},
    {storage_of_node, "Random IOPS (4K blocks)", "ops/s", METRIC_STORAGE_READ_4K_DEPTH_32_PER_S, 1},
    {"Storage I/O (multi-node aggregate)", "Write bandwidth", "MB/s", METRIC_STORAGE_AGGREGATE_WRITE_BYTES_PER_S, 1e-6},
    {"Storage I/O (multi-node aggregate)", "Read bandwidth", "MB/s", METRIC_STORAGE_AGGREGATE_READ_BYTES_PER_S, 1e-6},
    {"CPU", "Multi-core stress (all cores)", "K ops/s", METRIC_CPU_INTEGER_OPS_PER_S, 1e-3},
    {"CPU", "Matrix multiply (NumPy)", "GFLOPS", METRIC_CPU_GEMM_NODE_FLOPS, 1e-9},
    {"CPU", "Compression (zlib)", "MB/s", METRIC_CPU_COMPRESS_BYTES_PER_S, 1e-6},
    {"CPU", "Sorting (NumPy)", "M elements/s", METRIC_CPU_SORT_ELEMENTS_PER_S, 1e-6},
    {"Memory", "Bandwidth (copy)", "GB/s", METRIC_MEMORY_COPY_BYTES_PER_S, 1e-9},
    {"Memory", "Allocation/deallocation", "ops/s", NO_METRIC, 0}, /* of untouched pages: not measured here */
};

/* A document: of the whole run, or of one rank. */
struct document {
    const struct run_info *run;
    const double *medians; /* see suite_rank_medians */
    size_t ranks;
    long rank; /* -1: the whole run */
    size_t gpus, nodes;
    size_t leader; /* first rank on the node of `rank`, which measures for the node */
    char node[64]; /* name of that node; "": the host in the fingerprint */
    struct buf *out;
};

static double median_of_rank(const struct document *self, enum metric_id metric, size_t rank)
{
    return self->medians[(size_t)metric * self->ranks + rank];
}

static double value_of(const struct document *self, enum metric_id metric)
{
    if (metric == NO_METRIC)
        return NAN;
    if (self->rank >= 0) {
        double own = median_of_rank(self, metric, (size_t)self->rank);
        return isfinite(own) ? own : median_of_rank(self, metric, self->leader);
    }
    const struct run_metric *found = run_info_metric(self->run, OP_SUITE, metric);
    return found ? found->summary.median : NAN;
}

static void write_row(struct buf *out, const struct row *row, const char *number, double value)
{
    char name[ROW_BYTES];
    const char *place = strstr(row->name, "%s");
    snprintf(name, sizeof name, "%.*s%s%s", place ? (int)(place - row->name) : (int)strlen(row->name), row->name,
             place ? number : "", place ? place + 2 : "");
    if (isfinite(value))
        buf_printf(out, "    \"%s\": {value: %.6g, unit: \"%s\"}\n", name, value * row->factor, row->unit);
    else
        buf_printf(out, "    \"%s\": {value: null, unit: \"%s\"}\n", name, row->unit);
}

/* Links between nodes are null if there is only one node. All-to-all is between GPUs if they communicate. */
static void write_links(const struct document *self, const char *number)
{
    buf_printf(self->out, "  \"%s\":\n", between_nodes);
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        double value = value_of(self, links[i].metric);
        double of_gpus = links[i].metric == METRIC_ALL_TO_ALL_BUS_BYTES_PER_S
                             ? value_of(self, METRIC_GPU_ALL_TO_ALL_BUS_BYTES_PER_S)
                             : NAN;
        write_row(self->out, &links[i], number, self->nodes < 2 ? NAN : isfinite(of_gpus) ? of_gpus : value);
    }
}

static bool has_gpu(const struct document *self, size_t rank)
{
    for (int metric = 0; metric < METRIC_COUNT; metric++)
        if (metric_row((enum metric_id)metric)->group == METRIC_GROUP_SUITE_GPU &&
            isfinite(median_of_rank(self, (enum metric_id)metric, rank)))
            return true;
    return false;
}

/* The GPUs of a document. Without GPUs one section of nulls, because every section must exist. */
static void write_gpus(const struct document *self)
{
    size_t number = 0, written = 0;
    for (size_t rank = 0; rank <= self->ranks; rank++) {
        bool has = rank < self->ranks && has_gpu(self, rank);
        bool is_mine = has && (self->rank < 0 || (size_t)self->rank == rank);
        bool is_last = rank == self->ranks;
        if (is_mine || (is_last && written == 0)) {
            buf_printf(self->out, "  \"GPU %zu\":\n", is_mine ? number : 0);
            for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++)
                write_row(self->out, &gpus[i], "", is_mine ? median_of_rank(self, gpus[i].metric, rank) : NAN);
            written++;
        }
        number += has ? 1 : 0;
    }
}

static void write_head(const struct document *self)
{
    char date[21];
    const struct run_info *run = self->run;
    const char *host = "";
    clock_format_utc(run->started_wall_ns, date);
    for (size_t i = 0; i < run->fingerprint_count; i++)
        if (strcmp(run->fingerprint_keys[i], "system.host") == 0)
            host = run->fingerprint_values[i];
    if (self->node[0])
        host = self->node;
    buf_printf(self->out, "---\ntimestamp: \"%s\"\nhostname: \"%s\"\ntotal_time: %.2f\n", date, host,
               (double)(run->ended_wall_ns - run->started_wall_ns) / 1e9);
    if (self->rank >= 0)
        buf_printf(self->out, "rank: %ld\n", self->rank);
}

static void write_document(const struct document *self)
{
    const char *section = "", *workers = experiment_text(self->run->experiment, OPT_SUITE_STORAGE_WORKERS);
    char number[24];
    snprintf(number, sizeof number, "%zu", self->gpus ? self->gpus : self->ranks);
    write_head(self);
    buf_append_text(self->out, "results:\n");
    write_links(self, number);
    write_gpus(self);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strcmp(section, others[i].section) != 0)
            buf_printf(self->out, "  \"%s\":\n", others[i].section);
        section = others[i].section;
        write_row(self->out, &others[i], section == storage_of_node ? workers : number,
                  value_of(self, others[i].metric));
    }
}

/* Finds the node of `rank` in the facts "suite.node.NAME=FIRST_RANK": the node with the highest first rank up to it. */
static void find_node(struct document *self)
{
    size_t at = 0;
    self->leader = 0;
    self->node[0] = '\0';
    for (const char *name; self->rank >= 0 && (name = run_info_next_fact(self->run, "suite.node.", &at));) {
        const char *equals = strrchr(name, '=');
        size_t first = equals ? strtoul(equals + 1, NULL, 10) : 0;
        if (!equals || first > (size_t)self->rank || first >= self->ranks || (self->node[0] && first < self->leader))
            continue;
        self->leader = first;
        snprintf(self->node, sizeof self->node, "%.*s", (int)(equals - name), name);
    }
}

int clusterbench_each(struct history *history, const struct run_info *run, bool per_rank, clusterbench_fn take,
                      void *context, struct cb_err *err)
{
    double *medians = NULL;
    struct buf text;
    if (!workload_kind_of(run->experiment)->measures_cluster)
        return cb_fail(err, CB_ERR_USAGE, "run %s is of workload=%s: --clusterbench is for workload=suite", run->run,
                       workload_kind_of(run->experiment)->name);
    int rc = suite_rank_medians(history, run, &medians, err);
    if (rc)
        return rc;
    struct document document = {
        .run = run, .medians = medians, .ranks = experiment_u64(run->experiment, OPT_RANKS), .rank = -1, .out = &text};
    buf_init(&text, DOCUMENT_MAX_BYTES);
    for (size_t at = 0; run_info_next_fact(run, "suite.node.", &at);)
        document.nodes++;
    for (size_t rank = 0; rank < document.ranks; rank++)
        document.gpus += has_gpu(&document, rank);
    for (long last = per_rank ? (long)document.ranks - 1 : -1; rc == 0 && document.rank <= last; document.rank++) {
        buf_clear(&text);
        find_node(&document);
        write_document(&document);
        rc = buf_check(&text, "the results", err);
        if (rc == 0)
            rc = take(context, document.rank, &text, err);
    }
    buf_release(&text);
    free(medians);
    return rc;
}
