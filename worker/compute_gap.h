/* The gap between two iterations, in place of training: a rank sleeps, or computes on all its cores and measures how
 * much an asynchronous save slows that down. */
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
    uint64_t gap_ns;           /* compute_gap; 0: no gap */
    struct compute *compute;   /* NULL with interference=none */
    struct compute_rate alone; /* without a save in flight, over the whole run */
};

int compute_gap_init(struct compute_gap *self, const struct experiment *experiment, struct cb_err *err) CB_MUST_CHECK;
void compute_gap_release(struct compute_gap *self);
/* Measures the rate without any save, before the first one. All ranks do so simultaneously. */
int compute_gap_calibrate(struct compute_gap *self, struct comm *comm, struct status_page *page,
                          struct cb_err *err) CB_MUST_CHECK;

/* Runs one gap. *fraction is the share of its speed that computing lost while saves were in flight; NAN if no save was
 * in flight or nothing was computed. Returns early on a request to stop. */
int compute_gap_pass(struct compute_gap *self, struct engine *engine, struct comm *comm, struct status_page *page,
                     double *fraction, struct cb_err *err) CB_MUST_CHECK;

#endif
