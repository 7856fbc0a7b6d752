/* The folder of status pages of one attempt, on node-local memory, and the pages of its ranks.
 *
 * The folder holds MPI's own temporary files, too, so that removing it removes all. A lock that the
 * agent holds tells live folders from those of agents that died; these are removed at the next start.
 *
 * With several nodes each has a folder of its own, BASE.NODE, with the pages of its ranks; the head has
 * copies of the others' pages in memory (agent/node/page_copy.h). */
#ifndef AGENT_NODE_PAGES_H
#define AGENT_NODE_PAGES_H

#include <stdint.h>

#include "core/err.h"
#include "run/status_page.h"

#define PAGES_PARENT "/dev/shm"

struct pages {
    char folder[160]; /* "" for a head that has no ranks on its own node */
    char base[160];   /* what the command lines of the ranks name: the folder, or the BASE of several */
    int lock_fd;
    struct status_page **page; /* page[i] is rank first + i's; borrowed by nobody after pages_release */
    uint32_t first, count;
};

/* On failure everything made so far is removed. `self` must be zero. */
int pages_create(struct pages *self, const char *run, uint32_t attempt, uint32_t ranks, uint32_t sample_capacity,
                 struct cb_err *err) CB_MUST_CHECK;

/* A name for the BASE of a run on several nodes, that no other run has. */
void pages_choose_base(const char *run, uint32_t attempt, char base[160]);
/* For one of `nodes` nodes: the folder and the pages of its own ranks. */
int pages_create_node(struct pages *self, const char *base, uint32_t node, uint32_t nodes, uint32_t ranks,
                      uint32_t sample_capacity, struct cb_err *err) CB_MUST_CHECK;
/* For the head: the same for its own node (-1 for none), and copies for all other ranks. */
int pages_create_head(struct pages *self, const char *base, int64_t own, uint32_t nodes, uint32_t ranks,
                      uint32_t sample_capacity, struct cb_err *err) CB_MUST_CHECK;

/* Removes the folder alone: who has mapped its pages goes on with them, nobody finds them any more. */
void pages_remove(struct pages *self);
void pages_release(struct pages *self); /* unmaps, and removes the folder */

/* Tells ranks that the agent lives. */
void pages_beat(const struct pages *self, uint64_t now_ns);
void pages_request_stop(const struct pages *self, enum stop_request stop);

/* Removes folders of agents of this user that are dead; what cannot be removed is left. */
void pages_remove_stale(void);

#endif
