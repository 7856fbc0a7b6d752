/* What a rank does between two iterations, where training would compute: nothing, or compute on all of
 * its cores and measure what an asynchronous save costs it. */
#ifndef WORKER_COMPUTE_GAP_H
#define WORKER_COMPUTE_GAP_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "engine/engine.h"
#include "run/experiment.h"
#include "run/status_page.h"
#include "worker/compute.h"

struct compute_rate {
    uint64_t units, spent_ns;
};

struct compute_gap {
    uint64_t gap_ns;           /* compute_gap; 0: none */
    struct compute *compute;   /* NULL with interference=none */
    struct compute_rate alone; /* while no save was under way, of the whole run */
};

int compute_gap_init(struct compute_gap *self, const struct experiment *experiment, struct cb_err *err) CB_MUST_CHECK;
void compute_gap_release(struct compute_gap *self);
/* The compute_rate without any save, before the first one. All ranks at once. */
int compute_gap_calibrate(struct compute_gap *self, struct comm *comm, struct status_page *page,
                          struct cb_err *err) CB_MUST_CHECK;

/* One gap. *fraction: the share of its compute_rate that computing lost while saves were under way; NAN where
 * none was, or nothing was computed. Ends early, failing, on a request to stop now. */
int compute_gap_pass(struct compute_gap *self, struct engine *engine, struct comm *comm, struct status_page *page,
                     double *fraction, struct cb_err *err) CB_MUST_CHECK;

#endif
