/* The folder of status pages of one attempt, in node-local memory, and the pages of its ranks.
 *
 * The folder also holds MPI's temporary files, so that removing it removes everything. A lock held by the agent
 * distinguishes live folders from those of dead agents, which the next start removes.
 *
 * In a run with several nodes each node has its own folder, BASE.NODE, with the pages of its ranks; the head keeps
 * copies of the other nodes' pages in memory (agent/node/page_copy.h). */
#ifndef AGENT_NODE_PAGES_H
#define AGENT_NODE_PAGES_H

#include <stdint.h>

#include "core/err.h"
#include "run/status_page.h"

#define PAGES_PARENT "/dev/shm"

struct pages {
    char folder[160]; /* "" for a head without ranks on its own node */
    char base[160];   /* path given to the ranks: the folder, or the BASE of several */
    int lock_fd;
    struct status_page **page; /* page[i] belongs to rank first + i; not valid after pages_release */
    uint32_t first, count;
};

/* On failure everything created so far is removed. `self` must be zero. */
int pages_create(struct pages *self, const char *run, uint32_t attempt, uint32_t ranks, uint32_t sample_capacity,
                 struct cb_err *err) CB_MUST_CHECK;

/* A unique BASE name for a run on several nodes. */
void pages_choose_base(const char *run, uint32_t attempt, char base[160]);
/* For one of `nodes` nodes: the folder and the pages of its own ranks. */
int pages_create_node(struct pages *self, const char *base, uint32_t node, uint32_t nodes, uint32_t ranks,
                      uint32_t sample_capacity, struct cb_err *err) CB_MUST_CHECK;
/* For the head: the same for its own node (-1: no rank runs here), and copies for all other ranks. */
int pages_create_head(struct pages *self, const char *base, int64_t own, uint32_t nodes, uint32_t ranks,
                      uint32_t sample_capacity, struct cb_err *err) CB_MUST_CHECK;

/* Removes only the folder: processes that have mapped its pages keep them, but no process can open them any more. */
void pages_remove(struct pages *self);
void pages_release(struct pages *self); /* unmaps, and removes the folder */

/* The heartbeat that shows ranks that the agent is alive. */
void pages_beat(const struct pages *self, uint64_t now_ns);
void pages_request_stop(const struct pages *self, enum stop_request stop);

/* Tells the ranks of this node when the attempt began, by this machine's monotonic clock. */
void pages_set_origin(const struct pages *self, uint64_t origin_ns);

/* Removes folders of this user's dead agents; what cannot be removed is left. */
void pages_remove_stale(void);

#endif
