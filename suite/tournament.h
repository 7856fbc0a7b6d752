/* Which ranks share a node, and who talks to whom in a tournament of all pairs of nodes.
 *
 * A node is what its launcher calls it (CKPTBENCH_NODE, SLURMD_NODENAME), not its host name alone: test
 * clusters have several nodes on one host. */
#ifndef SUITE_TOURNAMENT_H
#define SUITE_TOURNAMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"

#define NODE_NAME_BYTES 64

struct nodes {
    uint32_t count;                  /* of nodes */
    uint32_t mine;                   /* number of this rank's node, in order of its lowest rank */
    uint32_t local_rank, local_size; /* of this rank, within its node */
    uint32_t neighbour;              /* the other one of the node's first two ranks; itself for the rest */
    uint32_t partner;                /* the rank whose file this one reads: see nodes_partner */
    uint32_t *first_rank;            /* lowest rank of each node */
    char (*names)[NODE_NAME_BYTES];  /* one a node */
};

/* Collective. nodes_release in any case. */
int nodes_init(struct nodes *self, struct comm *comm, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
void nodes_release(struct nodes *self);

/* Of `ranks` ranks, where rank i is on node node_of[i] below `count`: whose file `rank` reads, so that each is read by
 * one. On another node, wherever ranks lie, but for some of a node that has more than half of all ranks; where there is
 * one node, another rank. */
uint32_t nodes_partner(const uint32_t *node_of, uint32_t ranks, uint32_t count, uint32_t rank);

/* Round `round` of a tournament in which each of `count` players meets every other one exactly once
 * (circle method): the opponent of `player`, or `player` itself where it sits out. Rounds are 0 …
 * nodes_rounds(count) - 1. */
uint32_t nodes_opponent(uint32_t count, uint32_t round, uint32_t player);
uint32_t nodes_rounds(uint32_t count);

/* Which of the two of a pair notes what was measured: each node about half of its pairs. */
bool nodes_keeps(uint32_t node, uint32_t opponent);

#endif
