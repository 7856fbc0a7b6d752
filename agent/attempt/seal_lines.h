/* Seals attempts from the lines of their processes: those of programs that record their own saves (lib/recording.h), of
 * the tasks of `ckptbench watch --join`, and of watched commands whose agent has died. */
#ifndef AGENT_ATTEMPT_SEAL_LINES_H
#define AGENT_ATTEMPT_SEAL_LINES_H

#include <stdbool.h>

#include "core/err.h"
#include "run/run_folder.h"

struct seal_request {
    const char *why; /* the last attempt has ended even if not all of its processes said so; NULL: it stays open then */
    enum outcome outcome; /* of it, if `why` decides */
    bool measures_limit;  /* this machine is the command's, which has just ended: the device's limit is measured */
};

/* Seals every attempt of the run folder that has lines and no seal, if all of its tasks or processes have ended, or as the
 * request says. The caller holds the lock of the folder alone. */
int seal_lines(const char *run_folder, const struct seal_request *request, struct cb_err *err) CB_MUST_CHECK;

#endif
