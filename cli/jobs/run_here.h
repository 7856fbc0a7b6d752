/* One planned run, from its folder to a sealed attempt in the history. */
#ifndef CLI_JOBS_RUN_HERE_H
#define CLI_JOBS_RUN_HERE_H

#include <stdbool.h>

#include "core/err.h"
#include "db/history.h"

/* Counts SIGINT and SIGTERM from here on: the first lets the run end in order, the second ends it now. */
void launch_catch_signals(void);
/* The first of them alone: the second ends this program as if it had not been caught. */
void launch_catch_first_signal(void);
bool launch_was_stopped(void);

struct launch {
    const char *run;    /* its id */
    const char *folder; /* its run folder, with the frozen experiment */
    bool show_progress; /* a line on stderr that is rewritten; only on a terminal */
    const char *prefix; /* opens that line; may be "" */
    struct history *history;
};

/* Starts the agent, waits for it, and ingests what it sealed. Succeeds however the run ended; fails
 * where there is nothing in the history to show. An attempt that the agent left unsealed is sealed
 * here, as lost. One controller a folder: CB_ERR_EXISTS when another one runs it. */
int launch_run(const struct launch *launch, struct cb_err *err) CB_MUST_CHECK;

#endif
