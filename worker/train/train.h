/* workload=train: one rank's part in training a model, with checkpoints as it goes. Every step is one sample of
 * operation `step`, every checkpoint one of `save`, so that spread, comparison and history work as they do for
 * checkpoints alone. Collective. */
#ifndef WORKER_TRAIN_TRAIN_H
#define WORKER_TRAIN_TRAIN_H

#include <stdint.h>

#include "core/err.h"
#include "core/experiment.h"
#include "core/status_page.h"
#include "worker/comm.h"

struct train_place {
    struct comm *comm;
    struct status_page *page;
    const struct experiment *experiment;
    const char *pages_folder; /* node-local */
    const char *run_folder;
    uint32_t attempt;
};

/* Everything from the first look at memory to the last checkpoint. After a failure in the middle of an exchange or of a
   save the process must leave with _exit (comm_can_end). */
int train_run(const struct train_place *place, struct cb_err *err) CB_MUST_CHECK;

#endif
