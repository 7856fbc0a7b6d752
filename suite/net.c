/* Links: pairs of nodes, pairs of ranks, collectives. Algorithm and bus bandwidth are defined as in nccl-tests
 * doc/PERFORMANCE.md; latency is half a round trip, and bandwidth a window of messages that the receiver
 * acknowledges, as in the OSU micro-benchmarks (osu_latency, osu_bw). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/comm_measure.h"
#include "core/alloc.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/stats.h"
#include "suite/overlap.h"
#include "suite/suite.h"

#define LATENCY_BYTES 8
#define LATENCY_ROUNDS 400
#define WINDOW_BYTES (UINT64_C(1) << 20)
#define WINDOW 64
#define WINDOW_ROUNDS 3
#define COLLECTIVE_ROUNDS 5
#define BATCH_BYTES (UINT64_C(8) << 20) /* of a batch of small operations, at most; also limited by BATCH_MOST */
#define BATCH_MOST 50
#define FACT_BYTES 1024

/* For latency over sizes: */
#define ROUNDS_A_WARMUP 20 /* one warm-up round for this many timed rounds */
#define MOST_ROUNDS 50
#define LEAST_ROUNDS 10
#define BYTES_OF_A_SIZE (UINT64_C(64) << 20) /* fewer rounds for large messages */

static const uint64_t sizes[] = {8, 64, 512, 4096, 32768, 262144, 2097152, 4194304};
#define SIZES (sizeof sizes / sizeof *sizes)

/* For one peer or several in turn: means of the medians, and the worst percentiles. */
struct latencies {
    bool wanted; /* if not, only `link` is measured */
    double median_s[SIZES], p99_s[SIZES];
    uint32_t peers;
};

/* Half a round trip, as osu_latency of the OSU micro-benchmarks; median and 99th percentile. */
static int ping_pong(struct suite *self, uint32_t peer, uint64_t bytes, uint32_t rounds, double *median_s,
                     double *p99_s, struct cb_err *err)
{
    bool right = true;
    double *seconds = calloc(rounds, sizeof *seconds);
    if (!seconds)
        return alloc_fail(err, "for the times of %" PRIu32 " round trips", rounds);
    uint32_t warmup = rounds < ROUNDS_A_WARMUP ? 1 : rounds / ROUNDS_A_WARMUP;
    int rc = comm_measure_ping_pong(self->comm, peer, bytes, warmup, seconds, &right, suite_deadline(self), err);
    if (!rc)
        rc = comm_measure_ping_pong(self->comm, peer, bytes, rounds, seconds, &right, suite_deadline(self), err);
    if (!rc && !right)
        rc = cb_fail(err, CB_ERR_CORRUPT, "ping-pong with rank %" PRIu32 ": wrong bytes arrived", peer);
    if (!rc) {
        stats_sort(seconds, rounds);
        *median_s = stats_quantile_sorted(seconds, rounds, 0.5);
        *p99_s = stats_quantile_sorted(seconds, rounds, 0.99);
    }
    free(seconds);
    return rc;
}

/* Collective over both ranks of a pair. `context` is struct latencies. */
static int measure_link(struct suite *self, void *context, uint32_t peer, struct suite_link *link, struct cb_err *err)
{
    struct latencies *all = context;
    double seconds[WINDOW_ROUNDS];
    struct summary summary;
    bool right = true, sends = comm_rank(self->comm) < peer;
    int rc = ping_pong(self, peer, LATENCY_BYTES, LATENCY_ROUNDS, &link->latency_s, &link->p99_s, err);
    if (!rc) /* to warm up */
        rc = comm_measure_windows(self->comm, peer, sends, WINDOW_BYTES, WINDOW, 1, seconds, &right,
                                  suite_deadline(self), err);
    if (!rc)
        rc = comm_measure_windows(self->comm, peer, sends, WINDOW_BYTES, WINDOW, WINDOW_ROUNDS, seconds, &right,
                                  suite_deadline(self), err);
    if (!rc && !right && !sends)
        rc = cb_fail(err, CB_ERR_CORRUPT, "a window of messages with rank %u: wrong bytes arrived", peer);
    if (rc)
        return rc;
    stats_summarize(seconds, WINDOW_ROUNDS, &summary);
    link->bytes_per_s = (double)(WINDOW * WINDOW_BYTES) / summary.median;
    for (size_t i = 0; i < SIZES && all->wanted && !rc; i++) {
        double median_s = 0, p99_s = 0;
        uint64_t rounds = BYTES_OF_A_SIZE / sizes[i];
        rounds = rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds < LEAST_ROUNDS ? LEAST_ROUNDS : rounds;
        rc = ping_pong(self, peer, sizes[i], (uint32_t)rounds, &median_s, &p99_s, err);
        all->median_s[i] += median_s;
        all->p99_s[i] = p99_s > all->p99_s[i] ? p99_s : all->p99_s[i];
    }
    all->peers++;
    return rc;
}

/* "suite.KIND.NODE" = "bytes:median:p99 ...". */
static void note_latencies(struct suite *self, const char *kind, const struct latencies *all)
{
    char key[NODE_NAME_BYTES + 64];
    struct buf text;
    if (!all->wanted || all->peers == 0)
        return;
    buf_init(&text, FACT_BYTES);
    for (size_t i = 0; i < SIZES; i++)
        buf_printf(&text, "%s%" PRIu64 ":%.4g:%.4g", i ? " " : "", sizes[i], all->median_s[i] / all->peers,
                   all->p99_s[i]);
    snprintf(key, sizeof key, "suite.%s.%s", kind, self->nodes.names[self->nodes.mine]);
    status_page_add_fact(self->page, key, text.data);
    buf_release(&text);
}

/* The first two ranks of every node, on all nodes simultaneously. */
static int measure_local(struct suite *self, struct sample *sample, bool last, struct cb_err *err)
{
    struct suite_link link;
    struct latencies latencies = {.wanted = last};
    if (self->nodes.local_size < 2 || self->nodes.local_rank > 1)
        return 0;
    /* Ranks of a node need not be consecutive: the neighbour is the other one of its first two ranks. */
    int rc = measure_link(self, &latencies, self->nodes.neighbour, &link, err);
    if (rc)
        return rc;
    if (self->nodes.local_rank == 0)
        note_latencies(self, "local_latency", &latencies);
    sample->values[METRIC_LOCAL_LATENCY_S] = link.latency_s;
    sample->values[METRIC_LOCAL_BANDWIDTH_BYTES_PER_S] = link.bytes_per_s;
    return 0;
}

static int measure_pairs(struct suite *self, struct sample *sample, bool last, struct cb_err *err)
{
    struct latencies latencies = {.wanted = last};
    struct suite_pairs pairs = {"pair", self->nodes.first_rank, self->nodes.local_rank == 0, measure_link, &latencies};
    struct suite_link mean;
    uint32_t met;
    int rc = suite_pairs_measure(self, &pairs, last, &mean, &met, err);
    if (!rc && met) {
        sample->values[METRIC_NET_LATENCY_S] = mean.latency_s;
        sample->values[METRIC_NET_LATENCY_P99_S] = mean.p99_s;
        sample->values[METRIC_NET_BANDWIDTH_BYTES_PER_S] = mean.bytes_per_s;
        note_latencies(self, "latency", &latencies);
    }
    return rc;
}

/* Seconds of one operation on the slowest rank, the median of some rounds. */
static int measure_collective(struct suite *self, enum collective kind, uint64_t bytes, double *seconds,
                              struct cb_err *err)
{
    double rounds[COLLECTIVE_ROUNDS];
    struct summary summary;
    bool right = true;
    uint64_t batch = BATCH_BYTES / bytes;
    batch = batch < 1 ? 1 : batch > BATCH_MOST ? BATCH_MOST : batch;
    int rc = comm_measure_collective(self->comm, kind, bytes, (uint32_t)batch, COLLECTIVE_ROUNDS, rounds, &right,
                                     suite_deadline(self), err);
    if (!rc && !right)
        rc = cb_fail(err, CB_ERR_CORRUPT, "%s of %" PRIu64 " bytes: the result is wrong on rank %u",
                     collective_name(kind), bytes, comm_rank(self->comm));
    rc = suite_join(self, rc, err);
    if (rc)
        return rc;
    stats_summarize(rounds, COLLECTIVE_ROUNDS, &summary);
    *seconds = summary.median;
    return 0;
}

static double bus_bytes_per_s(const struct suite *self, enum collective kind, uint64_t bytes, double seconds)
{
    uint32_t ranks = comm_size(self->comm);
    return (double)collective_bytes(kind, bytes, ranks) / seconds * collective_bus_factor(kind, ranks);
}

static int measure_point(struct suite *self, void *context, uint64_t bytes, double *seconds, struct cb_err *err)
{
    return measure_collective(self, *(const enum collective *)context, bytes, seconds, err);
}

static int measure_collectives(struct suite *self, struct sample *sample, bool last, struct cb_err *err)
{
    static const enum metric_id metrics[COLLECTIVE_COUNT] = {
        [COLLECTIVE_ALL_REDUCE] = METRIC_ALL_REDUCE_BUS_BYTES_PER_S,
        [COLLECTIVE_ALL_GATHER] = METRIC_ALL_GATHER_BUS_BYTES_PER_S,
        [COLLECTIVE_REDUCE_SCATTER] = METRIC_REDUCE_SCATTER_BUS_BYTES_PER_S,
        [COLLECTIVE_ALL_TO_ALL] = METRIC_ALL_TO_ALL_BUS_BYTES_PER_S,
        [COLLECTIVE_BROADCAST] = METRIC_BROADCAST_BUS_BYTES_PER_S,
    };
    uint64_t largest = experiment_u64(self->experiment, OPT_SUITE_MESSAGE_BYTES);
    double seconds;
    int rc = measure_collective(self, COLLECTIVE_ALL_REDUCE, LATENCY_BYTES, &seconds, err);
    if (!rc)
        sample->values[METRIC_ALL_REDUCE_LATENCY_S] = seconds;
    for (unsigned kind = 0; kind < COLLECTIVE_COUNT && !rc; kind++) {
        enum collective which = (enum collective)kind;
        struct suite_curve curve = {collective_name(which), which, comm_size(self->comm), largest,
                                    measure_point,          &which};
        rc = measure_collective(self, which, largest, &seconds, err);
        if (!rc)
            sample->values[metrics[kind]] = bus_bytes_per_s(self, which, largest, seconds);
        if (!rc && last)
            rc = suite_curve_write(self, &curve, err);
    }
    return rc;
}

/* Work that takes about as long as the all-reduce, in pieces; MPI progresses between them. */
struct work {
    uint64_t pieces, value;
};

#define PIECE_OPERATIONS 20000

static bool work_piece(void *context)
{
    struct work *work = context;
    if (work->pieces == 0)
        return false;
    for (unsigned i = 0; i < PIECE_OPERATIONS; i++)
        work->value = work->value * UINT64_C(6364136223846793005) + 1;
    work->pieces--;
    return true;
}

static int measure_overlap(struct suite *self, struct sample *sample, struct cb_err *err)
{
    uint64_t bytes = experiment_u64(self->experiment, OPT_SUITE_MESSAGE_BYTES);
    double alone_s, both_s;
    int rc = measure_collective(self, COLLECTIVE_ALL_REDUCE, bytes, &alone_s, err);
    if (rc)
        return rc;
    struct work work = {.pieces = 200, .value = 1};
    uint64_t start_ns = clock_monotonic_ns();
    while (work_piece(&work))
        ;
    double piece_s = (double)(clock_monotonic_ns() - start_ns) / 1e9 / 200;
    uint64_t pieces = (uint64_t)(alone_s / piece_s) + 1;
    work.pieces = pieces;
    rc = comm_measure_overlap(self->comm, bytes, work_piece, &work, &both_s, suite_deadline(self), err);
    if (!rc)
        sample->values[METRIC_OVERLAP_FRACTION] = suite_overlap(alone_s, (double)pieces * piece_s, both_s);
    return rc;
}

int suite_net(struct suite *self, struct sample *sample, bool last, struct cb_err *err)
{
    if (comm_size(self->comm) < 2) {
        if (last)
            suite_skip(self, "net", "one rank: there is nobody to talk to");
        return 0;
    }
    if (last && self->nodes.count < 2)
        suite_skip(self, "net.pairs", "one node: what two nodes do is not seen here");
    int rc = suite_join(self, measure_local(self, sample, last, err), err);
    if (!rc)
        rc = measure_pairs(self, sample, last, err);
    if (!rc)
        rc = measure_collectives(self, sample, last, err);
    return rc ? rc : measure_overlap(self, sample, err);
}
