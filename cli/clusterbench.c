/* Rows of the older suite and where their figures are in ours. Knows YAML only as far as it writes it. */
#include "cli/clusterbench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/stats.h"
#include "core/status_page.h"

#define NO_METRIC METRIC_COUNT
#define ROW_BYTES 96

/* `name` has a %s where the number of ranks stands; a value of ours times `factor` is theirs. Where ranks have GPUs that
 * talk, what these measured is the figure. */
struct row {
    const char *section, *name, *unit;
    enum metric_id metric;
    double factor;
    enum metric_id of_gpus;
};

static const struct row rows[] = {
    {"Inter-Node Network", "Latency (ping-pong)", "ms", METRIC_NET_LATENCY_S, 1e3},
    {"Inter-Node Network", "Bandwidth (ping-pong, %s GPUs)", "GB/s", METRIC_NET_BANDWIDTH_BYTES_PER_S, 1e-9},
    {"Inter-Node Network", "All-to-all bandwidth (%s GPUs)", "GB/s", METRIC_ALL_TO_ALL_BUS_BYTES_PER_S, 1e-9},
    {"GPU 0", "Memory bandwidth", "GB/s", METRIC_GPU_COPY_BYTES_PER_S, 1e-9},
    {"GPU 0", "Compute (FP32 matmul)", "TFLOPS", METRIC_GPU_GEMM_FP32_FLOPS, 1e-12},
    {"Inter-GPU Communication", "All-reduce (%s GPUs)", "GB/s", METRIC_ALL_REDUCE_BUS_BYTES_PER_S, 1e-9,
     METRIC_GPU_ALL_REDUCE_BUS_BYTES_PER_S},
    {"Inter-GPU Communication", "All-to-all (%s GPUs)", "GB/s", METRIC_ALL_TO_ALL_BUS_BYTES_PER_S, 1e-9,
     METRIC_GPU_ALL_TO_ALL_BUS_BYTES_PER_S},
    {"Storage I/O (per-node)", "Sequential Write", "MB/s", METRIC_STORAGE_WRITE_BYTES_PER_S, 1e-6},
    {"Storage I/O (per-node)", "Sequential Read", "MB/s", METRIC_STORAGE_READ_BYTES_PER_S, 1e-6},
    {"Storage I/O (per-node)", "Parallel Write (16 workers)", "MB/s", METRIC_STORAGE_PARALLEL_WRITE_BYTES_PER_S, 1e-6},
    {"Storage I/O (per-node)", "Parallel Read (16 workers)", "MB/s", METRIC_STORAGE_PARALLEL_READ_BYTES_PER_S, 1e-6},
    {"Storage I/O (per-node)", "Random IOPS (4K blocks)", "ops/s", METRIC_STORAGE_READ_4K_DEPTH_32_PER_S, 1},
    {"Storage I/O (multi-node aggregate)", "Write bandwidth", "MB/s", METRIC_STORAGE_AGGREGATE_WRITE_BYTES_PER_S, 1e-6},
    {"Storage I/O (multi-node aggregate)", "Read bandwidth", "MB/s", METRIC_STORAGE_AGGREGATE_READ_BYTES_PER_S, 1e-6},
    {"CPU", "Multi-core stress (all cores)", "K ops/s", METRIC_CPU_INTEGER_OPS_PER_S, 1e-3},
    {"CPU", "Matrix multiply (NumPy)", "GFLOPS", METRIC_CPU_GEMM_NODE_FLOPS, 1e-9},
    {"CPU", "Compression (zlib)", "MB/s", METRIC_CPU_COMPRESS_BYTES_PER_S, 1e-6},
    {"CPU", "Sorting (NumPy)", "M elements/s", METRIC_CPU_SORT_ELEMENTS_PER_S, 1e-6},
    {"Memory", "Bandwidth (copy)", "GB/s", METRIC_MEMORY_COPY_BYTES_PER_S, 1e-9},
    {"Memory", "Allocation/deallocation", "ops/s", NO_METRIC, 0}, /* counted untouched pages: there is no such rate */
};

typedef double (*value_fn)(const void *context, enum metric_id metric);

static void write_results(struct buf *out, const char *ranks, value_fn value_of, const void *context)
{
    const char *section = "";
    buf_append_text(out, "results:\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[ROW_BYTES];
        const char *number = strstr(rows[i].name, "%s");
        double value = rows[i].of_gpus ? value_of(context, rows[i].of_gpus) : NAN;
        if (!isfinite(value))
            value = rows[i].metric == NO_METRIC ? NAN : value_of(context, rows[i].metric);
        value *= rows[i].factor;
        if (strcmp(section, rows[i].section) != 0)
            buf_printf(out, "  \"%s\":\n", rows[i].section);
        section = rows[i].section;
        snprintf(name, sizeof name, "%.*s%s%s", number ? (int)(number - rows[i].name) : (int)strlen(rows[i].name),
                 rows[i].name, number ? ranks : "", number ? number + 2 : "");
        if (isfinite(value))
            buf_printf(out, "    \"%s\": {value: %.6g, unit: \"%s\"}\n", name, value, rows[i].unit);
        else
            buf_printf(out, "    \"%s\": {value: null, unit: \"%s\"}\n", name, rows[i].unit);
    }
}

static double median_of_run(const void *context, enum metric_id metric)
{
    const struct run_metric *found = run_info_metric(context, OP_SUITE, metric);
    return found ? found->summary.median : NAN;
}

static void write_head(struct buf *out, const struct run_info *run, long rank)
{
    char date[21];
    const char *host = "";
    clock_format_utc(run->started_wall_ns, date);
    for (size_t i = 0; i < run->fingerprint_count; i++)
        if (strcmp(run->fingerprint_keys[i], "system.host") == 0)
            host = run->fingerprint_values[i];
    buf_printf(out, "---\ntimestamp: \"%s\"\nhostname: \"%s\"\ntotal_time: %.2f\n", date, host,
               (double)(run->ended_wall_ns - run->started_wall_ns) / 1e9);
    if (rank >= 0)
        buf_printf(out, "rank: %ld\n", rank);
}

/* Every rank's median of every metric. */
struct rank_medians {
    uint32_t attempt;
    size_t ranks, repetitions;
    double *values; /* [metric][rank][repetition] */
    size_t *counts;
    size_t rank; /* the one asked for */
};

static int gather(void *context, const struct rank_values *given, struct cb_err *err)
{
    struct rank_medians *self = context;
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

static double median_of_rank(const void *context, enum metric_id metric)
{
    const struct rank_medians *self = context;
    size_t row = (size_t)metric * self->ranks + self->rank;
    struct summary summary;
    stats_summarize(self->values + row * self->repetitions, self->counts[row], &summary);
    return summary.median;
}

static int write_ranks(struct history *history, const struct run_info *run, const char *ranks, struct buf *out,
                       struct cb_err *err)
{
    struct rank_medians medians = {.attempt = run->attempt,
                                   .ranks = experiment_u64(run->experiment, OPT_RANKS),
                                   .repetitions = experiment_u64(run->experiment, OPT_ITERATIONS)};
    medians.values = calloc(METRIC_COUNT * medians.ranks * medians.repetitions + 1, sizeof *medians.values);
    medians.counts = calloc(METRIC_COUNT * medians.ranks + 1, sizeof *medians.counts);
    int rc = medians.values && medians.counts ? history_each_sample(history, run->run, gather, &medians, err)
                                              : cb_fail(err, CB_ERR_MEMORY, "no memory for the ranks of a run");
    for (medians.rank = 0; medians.rank < medians.ranks && !rc; medians.rank++) {
        write_head(out, run, (long)medians.rank);
        write_results(out, ranks, median_of_rank, &medians);
    }
    free(medians.values);
    free(medians.counts);
    return rc;
}

int clusterbench_write(struct history *history, const struct run_info *run, bool per_rank, struct buf *out,
                       struct cb_err *err)
{
    const char *ranks = experiment_text(run->experiment, OPT_RANKS);
    if (!experiment_is(run->experiment, OPT_WORKLOAD, "suite"))
        return cb_fail(err, CB_ERR_USAGE, "run %s is of workload=%s: --clusterbench is for workload=suite", run->run,
                       experiment_text(run->experiment, OPT_WORKLOAD));
    write_head(out, run, -1);
    write_results(out, ranks, median_of_run, run);
    return per_rank ? write_ranks(history, run, ranks, out, err) : 0;
}
