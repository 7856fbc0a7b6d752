/* workload=verify: checks that a stored checkpoint is complete and right, once. It does what `ckptbench verify` does,
 * with the work divided among the ranks. Collective. */
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
    void (*tell)(const char *line); /* called for each finding, also if the page is full; by one thread at a time */
};

/* Adds every finding to the page of the rank that made it. CB_ERR_CORRUPT on ranks that found something, after all have
 * finished; the sample and the sums are on the page in any case. */
int verify_stored_run(const struct verify_stored_setup *setup, struct cb_err *err) CB_MUST_CHECK;

#endif
