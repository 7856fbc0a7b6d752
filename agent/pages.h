/* The folder of status pages of one attempt, on node-local memory, and the pages of its ranks.
 *
 * The folder holds MPI's own temporary files, too, so that removing it removes all. A lock that the
 * agent holds tells live folders from those of agents that died; these are removed at the next start. */
#ifndef AGENT_PAGES_H
#define AGENT_PAGES_H

#include <stdint.h>

#include "core/err.h"
#include "core/status_page.h"

#define PAGES_PARENT "/dev/shm"

struct pages {
    char folder[160];
    int lock_fd;
    struct status_page **page; /* one a rank; borrowed by nobody after pages_release */
    uint32_t count;
};

/* On failure everything made so far is removed. `self` must be zero. */
int pages_create(struct pages *self, const char *run, uint32_t attempt, uint32_t ranks, uint32_t sample_capacity,
                 struct cb_err *err) CB_MUST_CHECK;
void pages_release(struct pages *self); /* unmaps, and removes the folder */

/* Tells ranks that the agent lives. */
void pages_beat(const struct pages *self, uint64_t now_ns);
void pages_request_stop(const struct pages *self, enum stop_request stop);

/* Removes folders of agents of this user that are dead; what cannot be removed is left. */
void pages_remove_stale(void);

#endif
