/* Makes loads cold, and checks that they are. Collective.
 *
 * Cold means not in this machine's page cache. It cannot clear the caches of a device or of a storage server. */
#ifndef WORKER_DROP_CACHE_H
#define WORKER_DROP_CACHE_H

#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"
#include "run/status_page.h"
#include "store/store.h"

struct coldness {
    double resident_fraction; /* share of the files in the page cache after dropping; NAN if unknown */
    uint32_t flags;           /* SAMPLE_SUSPECTED_CACHE, SAMPLE_COLDNESS_UNKNOWN or 0 */
};

/* Drops every file of a checkpoint from the page cache; the ranks of a machine divide the files. Does nothing for a
 * store that this machine does not cache. */
int drop_cache(struct comm *comm, struct store *store, const char *folder, uint64_t deadline_ns,
               struct coldness *coldness, struct cb_err *err) CB_MUST_CHECK;

/* Marks loads on the page as suspect if they were much faster than the raw limit, so that a cache must have helped.
 * Call it once the raw limit is known. `load_bytes` is what all ranks read in a load. */
void drop_cache_mark_suspects(struct status_page *page, uint64_t load_bytes, double limit_bytes_per_s);

#endif
