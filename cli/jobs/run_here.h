/* Executes one planned run on this machine, from its folder to a sealed attempt in the history. */
#ifndef CLI_JOBS_RUN_HERE_H
#define CLI_JOBS_RUN_HERE_H

#include <stdbool.h>

#include "core/err.h"
#include "db/history.h"

/* From now on counts SIGINT and SIGTERM: the first lets the run end in order, the second ends it immediately. */
void launch_catch_signals(bool only_first); /* true: the second signal kills this program */
bool launch_was_stopped(void);

struct launch {
    const char *run;    /* its id */
    const char *folder; /* its run folder, with the frozen experiment */
    bool show_progress; /* print a progress line to stderr and rewrite it; only on a terminal */
    const char *prefix; /* start of the progress line; may be "" */
    struct history *history;
    const char *const
        *command;   /* of workload=watch, NULL-terminated: runs in the foreground, and signals pass through */
    int *exit_code; /* how the command ended, as a shell reports it; with `command` */
};

/* Starts the agent, waits for it, and ingests the sealed attempt. Returns 0 for every outcome of the run; fails if the
 * history has nothing to show. If the agent leaves an attempt unsealed, it is sealed here as lost. A folder has one
 * controller: CB_ERR_EXISTS if another one runs it. */
int launch_run(const struct launch *launch, struct cb_err *err) CB_MUST_CHECK;

#endif
