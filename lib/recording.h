/* Records the saves and loads of a program as a run: lines of JSON in the attempt's folder, as those of a watched program
 * (agent/attempt/watch_lines.h), which `ckptbench collect` seals. What goes wrong never fails a save. */
#ifndef LIB_RECORDING_H
#define LIB_RECORDING_H

#include "comm/comm.h"
#include "core/err.h"
#include "run/experiment.h"
#include "run/status_page.h"

struct recording;

/* Begins to record as run `name`, a name in the home or the path of a run folder; rank 0's counts, "" records nothing.
 * Makes the run, unless it is there. Handles whose rank 0 is in one process share an attempt; another program that
 * records the same run at the same time is refused. *recording, NULL before the first call, is there even if it records
 * nothing, then with the reason in recording_trouble. A later call does nothing, unless another program, or `collect`,
 * had the run: then it tries again. Collective. */
int recording_begin(const char *name, const struct experiment *experiment, struct comm *comm, uint64_t deadline_ns,
                    struct recording **recording, struct cb_err *err) CB_MUST_CHECK;
/* Records that this process has closed its handle. Accepts NULL. */
void recording_end(struct recording *self);
void recording_free(struct recording *self); /* accepts NULL */

/* One save or load of this rank. Times of the sample are complete. From any thread. */
struct recorded {
    const char *path;
    uint64_t start_wall_ns;
    bool is_asynchronous;
    const struct sample *sample;
};
void recording_add(struct recording *self, const struct recorded *recorded);

/* Copies, once, why nothing is recorded from now on; else "". Accepts NULL. */
void recording_trouble(struct recording *self, char *text, size_t bytes);

#endif
