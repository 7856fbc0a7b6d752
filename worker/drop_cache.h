/* Making loads cold, and showing that they are. Collective.
 *
 * Cold means: not in this machine's page cache. Caches of a device or of a storage server are out of
 * reach from here, and nothing here claims otherwise. */
#ifndef WORKER_DROP_CACHE_H
#define WORKER_DROP_CACHE_H

#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"
#include "run/status_page.h"
#include "store/store.h"

struct coldness {
    double resident_fraction; /* of the files' bytes, after dropping; NAN where the kernel does not tell */
    uint32_t flags;           /* SAMPLE_SUSPECTED_CACHE, SAMPLE_COLDNESS_UNKNOWN or 0 */
};

/* Drops the page cache of every file of a checkpoint: the ranks of each machine share the files. Does nothing for a
 * store that this machine does not cache. */
int drop_cache(struct comm *comm, struct store *store, const char *folder, uint64_t deadline_ns,
               struct coldness *coldness, struct cb_err *err) CB_MUST_CHECK;

/* After the raw limit is known: marks the loads on the page that were so much faster than the store
 * can read that a cache must have helped. `load_bytes` is what all ranks read in a load. */
void drop_cache_mark_suspects(struct status_page *page, uint64_t load_bytes, double limit_bytes_per_s);

#endif
