/* workload=train: one rank's part in training a model, with checkpoints as it goes. Every step is one sample of
 * operation `step`, every checkpoint one of `save`, so that spread, comparison and history work as they do for
 * checkpoints alone. Collective. */
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

/* Everything from the first look at memory to the last checkpoint. After a failure in the middle of an exchange or of a
   save the process must leave with _exit (comm_can_end). */
int train_run(const struct train_place *place, struct cb_err *err) CB_MUST_CHECK;

#endif
