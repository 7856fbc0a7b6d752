/* Which ranks share a node, and who is paired with whom in a tournament of all pairs of nodes.
 *
 * A node is identified by its launcher's name for it (CKPTBENCH_NODE, SLURMD_NODENAME), not only by its host name,
 * since test clusters have several nodes on one host. */
#ifndef SUITE_TOURNAMENT_H
#define SUITE_TOURNAMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"

#define NODE_NAME_BYTES 64

struct nodes {
    uint32_t count;                  /* of nodes */
    uint32_t mine;                   /* index of this rank's node, in order of its lowest rank */
    uint32_t local_rank, local_size; /* index of this rank within its node */
    uint32_t neighbour;              /* the other one of the node's first two ranks; other ranks: itself */
    uint32_t partner;                /* the rank whose file this one reads: see nodes_partner */
    uint32_t *first_rank;            /* lowest rank of each node */
    char (*names)[NODE_NAME_BYTES];  /* one per node */
};

/* Collective. Call nodes_release in any case. */
int nodes_init(struct nodes *self, struct comm *comm, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
void nodes_release(struct nodes *self);

/* Of `ranks` ranks, where rank i is on node node_of[i] below `count`: the rank whose file `rank` reads, such that
 * each file is read once. On another node, however ranks are placed, except for some ranks of a node with more than
 * half of all; with a single node, another rank. */
uint32_t nodes_partner(const uint32_t *node_of, uint32_t ranks, uint32_t count, uint32_t rank);

/* Round `round` of a tournament in which each of `count` players meets every other one exactly once (circle method):
 * the opponent of `player`, or `player` itself if it sits out. Rounds are 0 … nodes_rounds(count) - 1. */
uint32_t nodes_opponent(uint32_t count, uint32_t round, uint32_t player);
uint32_t nodes_rounds(uint32_t count);

/* Which of the pair reports the result, so that each node reports about half of its pairs. */
bool nodes_keeps(uint32_t node, uint32_t opponent);

#endif
