/* workload=train: one rank's part in training a model, with checkpoints along the way. Every step is one sample of
 * operation `step`, every checkpoint one of `save`, so that spread, comparison and history work as in other workloads.
 * Collective. */
#ifndef TRAIN_TRAIN_H
#define TRAIN_TRAIN_H

#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"
#include "run/experiment.h"
#include "run/status_page.h"

struct train_place {
    struct comm *comm;
    struct status_page *page;
    const struct experiment *experiment;
    const char *pages_folder; /* node-local */
    const char *run_folder;
    uint32_t attempt;
};

/* Runs everything from the memory check to the last checkpoint. After a failure in the middle of communication or of
 * a save the process must exit with _exit (comm_can_end). */
int train_run(const struct train_place *place, struct cb_err *err) CB_MUST_CHECK;

#endif
