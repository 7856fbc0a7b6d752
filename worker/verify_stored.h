/* workload=verify: is a checkpoint in the store whole and right? Looked at once, by all ranks, each a share of it:
 * as `ckptbench verify` does, and as fast as the store and the ranks' cores are. Collective. */
#ifndef WORKER_VERIFY_STORED_H
#define WORKER_VERIFY_STORED_H

#include "comm/comm.h"
#include "core/err.h"
#include "run/experiment.h"
#include "run/status_page.h"

struct verify_stored_setup {
    struct comm *comm;
    struct status_page *page;
    const struct experiment *experiment;
    const char *pages_folder;       /* node-local */
    void (*tell)(const char *line); /* each finding, also those for which the page has no room; one thread at a time */
};

/* Every finding is a line on the page of the rank that made it. CB_ERR_CORRUPT on ranks that found something, after
 * all have looked; one sample and the sums are on the page all the same. */
int verify_stored_run(const struct verify_stored_setup *setup, struct cb_err *err) CB_MUST_CHECK;

#endif
