/* load.evict: reads other files from the store before a load, to push the checkpoint out of the caches of servers. */
#ifndef WORKER_EVICT_CACHE_H
#define WORKER_EVICT_CACHE_H

#include "worker/run.h"

/* Before a load: the ranks read load.evict bytes in all, each another rank's file, past the page cache. The first call
 * writes the files (worker/scratch_files.h). Does nothing without the key. Collective. */
int evict_cache_pass(struct run *run, struct cb_err *err) CB_MUST_CHECK;

#endif
