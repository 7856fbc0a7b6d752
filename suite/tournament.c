/* Names of nodes and the schedule of their pairs. */
#include "suite/tournament.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm_measure.h"
#include "core/alloc.h"

static void read_name(char name[NODE_NAME_BYTES])
{
    const char *given = getenv("CKPTBENCH_NODE");
    if (!given || !*given)
        given = getenv("SLURMD_NODENAME");
    memset(name, 0, NODE_NAME_BYTES);
    if (given && *given)
        snprintf(name, NODE_NAME_BYTES, "%s", given);
    else if (gethostname(name, NODE_NAME_BYTES - 1) != 0)
        snprintf(name, NODE_NAME_BYTES, "unnamed");
}

/* The index of a name among those seen so far, or a new one. */
static uint32_t number_of(struct nodes *self, const char *name, uint32_t rank)
{
    for (uint32_t i = 0; i < self->count; i++)
        if (strcmp(self->names[i], name) == 0)
            return i;
    memcpy(self->names[self->count], name, NODE_NAME_BYTES);
    self->first_rank[self->count] = rank;
    return self->count++;
}

/* The other one of a node's first two ranks. */
static uint32_t find_neighbour(const struct nodes *self, uint32_t rank, uint32_t ranks, char (*names)[NODE_NAME_BYTES])
{
    uint32_t seen = 0;
    for (uint32_t i = 0; i < ranks && self->local_rank < 2; i++)
        if (strcmp(names[i], names[rank]) == 0 && seen++ == 1 - self->local_rank)
            return i;
    return rank;
}

/* Ranks ordered by node, in a circle: the partner is as many places later as the largest node has ranks. */
uint32_t nodes_partner(const uint32_t *node_of, uint32_t ranks, uint32_t count, uint32_t rank)
{
    uint32_t shift = 1, place = 0, at = 0;
    for (uint32_t node = 0; node < count && count > 1; node++) {
        uint32_t here = 0;
        for (uint32_t i = 0; i < ranks; i++)
            here += node_of[i] == node;
        shift = here > shift ? here : shift;
    }
    for (uint32_t i = 0; i < ranks; i++)
        place += node_of[i] < node_of[rank] || (node_of[i] == node_of[rank] && i < rank);
    uint32_t wanted = (place + shift) % ranks;
    for (uint32_t node = 0; node < count; node++)
        for (uint32_t i = 0; i < ranks; i++)
            if (node_of[i] == node && at++ == wanted)
                return i;
    return rank;
}

static void sort_into_nodes(struct nodes *self, uint32_t rank, uint32_t ranks, char (*names)[NODE_NAME_BYTES],
                            uint32_t *node_of)
{
    for (uint32_t i = 0; i < ranks; i++) {
        node_of[i] = number_of(self, names[i], i);
        if (strcmp(names[i], names[rank]) == 0) {
            self->local_rank += i < rank ? 1 : 0;
            self->local_size++;
        }
    }
    self->mine = node_of[rank];
    self->neighbour = find_neighbour(self, rank, ranks, names);
    self->partner = nodes_partner(node_of, ranks, self->count, rank);
}

int nodes_init(struct nodes *self, struct comm *comm, uint64_t deadline_ns, struct cb_err *err)
{
    uint32_t ranks = comm_size(comm);
    char mine[NODE_NAME_BYTES];
    *self = (struct nodes){0};
    char(*names)[NODE_NAME_BYTES] = calloc(ranks, sizeof *names);
    self->names = calloc(ranks, sizeof *self->names);
    self->first_rank = calloc(ranks, sizeof *self->first_rank);
    uint32_t *node_of = calloc(ranks, sizeof *node_of);
    int rc = names && self->names && self->first_rank && node_of ? 0 : alloc_fail(err, "for names of nodes");
    read_name(mine);
    if (!rc)
        rc = comm_all_gather(comm, mine, sizeof mine, names, deadline_ns, err);
    if (!rc)
        sort_into_nodes(self, comm_rank(comm), ranks, names, node_of);
    free(node_of);
    free(names);
    return rc;
}

void nodes_release(struct nodes *self)
{
    free(self->first_rank);
    free(self->names);
    *self = (struct nodes){0};
}

uint32_t nodes_rounds(uint32_t count)
{
    return count < 2 ? 0 : count % 2 ? count : count - 1;
}

/* The last of an even number of players stays in place, the others rotate. */
uint32_t nodes_opponent(uint32_t count, uint32_t round, uint32_t player)
{
    uint32_t even = count + count % 2, turning = even - 1;
    uint32_t opponent;
    if (player == even - 1)
        opponent = round % turning * (even / 2) % turning; /* the player that meets itself: 2 p = round (mod turning) */
    else if (2 * player % turning == round % turning)
        opponent = even - 1;
    else
        opponent = (round % turning + turning - player) % turning;
    return opponent < count ? opponent : player;
}

bool nodes_keeps(uint32_t node, uint32_t opponent)
{
    bool lower = node < opponent, odd = (node ^ opponent) & 1;
    return lower == odd;
}
