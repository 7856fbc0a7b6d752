/* Measurements of links that are the same over MPI and over NCCL: a collective over message sizes, and pairs of
 * nodes. */
#include <inttypes.h>
#include <stdio.h>

#include "core/buf.h"
#include "suite/suite.h"

#define LEAST_BYTES 8 /* per rank, for collectives where each rank has a share */
#define STEP 8        /* factor from one size to the next */
#define CURVE_BYTES 4096

int suite_curve_write(struct suite *self, const struct suite_curve *curve, struct cb_err *err)
{
    char key[64];
    struct buf text;
    int rc = 0;
    buf_init(&text, CURVE_BYTES);
    uint64_t bytes = collective_bytes(curve->kind, LEAST_BYTES, curve->ranks), next = 0;
    uint64_t largest = collective_bytes(curve->kind, curve->largest, curve->ranks);
    for (; bytes && !rc; bytes = next) {
        double seconds = 0;
        next = bytes >= largest ? 0 : bytes * STEP < largest ? bytes * STEP : largest;
        rc = curve->measure(self, curve->context, bytes, &seconds, err);
        double rate = (double)bytes / seconds;
        if (!rc)
            buf_printf(&text, "%s%" PRIu64 ":%.4g:%.4g:%.4g", text.len ? " " : "", bytes, seconds, rate,
                       rate * collective_bus_factor(curve->kind, curve->ranks));
    }
    snprintf(key, sizeof key, "suite.curve.%s", curve->name);
    if (!rc && comm_rank(self->comm) == 0)
        status_page_add_fact(self->page, key, text.data);
    buf_release(&text);
    return rc;
}

/* "suite.FACT.A.B" = "3.1e-06 s 1.2e+09 bytes/s", with few digits, since a rank's space for facts is limited. */
static void note_pair(struct suite *self, const char *fact, uint32_t opponent, const struct suite_link *link)
{
    const struct nodes *nodes = &self->nodes;
    uint32_t a = nodes->mine < opponent ? nodes->mine : opponent, b = nodes->mine < opponent ? opponent : nodes->mine;
    char key[2 * NODE_NAME_BYTES + 32], text[64];
    snprintf(key, sizeof key, "suite.%s.%s.%s", fact, nodes->names[a], nodes->names[b]);
    snprintf(text, sizeof text, "%.5g s %.5g bytes/s", link->latency_s, link->bytes_per_s);
    status_page_add_fact(self->page, key, text);
}

int suite_pairs_measure(struct suite *self, const struct suite_pairs *pairs, bool last, struct suite_link *mean,
                        uint32_t *met, struct cb_err *err)
{
    const struct nodes *nodes = &self->nodes;
    int rc = 0;
    *mean = (struct suite_link){0};
    *met = 0;
    for (uint32_t round = 0; round < nodes_rounds(nodes->count) && !rc; round++) {
        uint32_t opponent = nodes_opponent(nodes->count, round, nodes->mine), peer = pairs->rank_of_node[opponent];
        struct suite_link link = {0};
        if (pairs->plays && opponent != nodes->mine && peer != SUITE_NO_GPU) {
            rc = pairs->measure(self, pairs->context, peer, &link, err);
            mean->latency_s += link.latency_s;
            mean->p99_s = link.p99_s > mean->p99_s ? link.p99_s : mean->p99_s;
            mean->bytes_per_s += link.bytes_per_s;
            ++*met;
            if (!rc && last && nodes_keeps(nodes->mine, opponent))
                note_pair(self, pairs->fact, opponent, &link);
        }
        rc = suite_join(self, rc, err);
    }
    mean->latency_s /= *met ? *met : 1;
    mean->bytes_per_s /= *met ? *met : 1;
    return rc;
}
