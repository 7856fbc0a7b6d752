/* Half a round trip between two ranks, at one size and over sizes, as osu_latency of the OSU micro-benchmarks. */
#include <inttypes.h>
#include <stdio.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/stats.h"
#include "suite/suite.h"

#define ROUNDS_A_WARMUP 20 /* one warm-up round for so many timed rounds */
#define MOST_ROUNDS 50
#define LEAST_ROUNDS 10
#define BYTES_OF_A_SIZE (UINT64_C(64) << 20) /* fewer rounds for large messages */
#define FACT_BYTES 1024

static const uint64_t sizes[SUITE_LATENCY_SIZES] = {8, 64, 512, 4096, 32768, 262144, 2097152, 4194304};

int suite_ping_pong(struct suite *self, uint32_t peer, uint64_t bytes, uint32_t rounds, double *median_s, double *p99_s,
                    struct cb_err *err)
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

int suite_latencies_measure(struct suite *self, uint32_t peer, struct suite_latencies *all, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < SUITE_LATENCY_SIZES && !rc; i++) {
        double median_s = 0, p99_s = 0;
        uint64_t rounds = BYTES_OF_A_SIZE / sizes[i];
        rounds = rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds < LEAST_ROUNDS ? LEAST_ROUNDS : rounds;
        rc = suite_ping_pong(self, peer, sizes[i], (uint32_t)rounds, &median_s, &p99_s, err);
        all->median_s[i] += median_s;
        all->p99_s[i] = p99_s > all->p99_s[i] ? p99_s : all->p99_s[i];
    }
    all->peers++;
    return rc;
}

void suite_latencies_note(struct suite *self, const char *kind, const struct suite_latencies *all)
{
    char key[NODE_NAME_BYTES + 64];
    struct buf text;
    if (all->peers == 0)
        return;
    buf_init(&text, FACT_BYTES);
    for (size_t i = 0; i < SUITE_LATENCY_SIZES; i++)
        buf_printf(&text, "%s%" PRIu64 ":%.4g:%.4g", i ? " " : "", sizes[i], all->median_s[i] / all->peers,
                   all->p99_s[i]);
    snprintf(key, sizeof key, "suite.%s.%s", kind, self->nodes.names[self->nodes.mine]);
    status_page_add_fact(self->page, key, text.data);
    buf_release(&text);
}
