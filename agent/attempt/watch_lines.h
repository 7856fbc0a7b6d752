/* What the hooks of a watched command report, and programs that use libckptbench: lines of JSON, as
 * share/watch/hooks/ckptbench_watch/recorder.py and lib/recording.c write them, one file a process. */
#ifndef AGENT_ATTEMPT_WATCH_LINES_H
#define AGENT_ATTEMPT_WATCH_LINES_H

#include "agent/attempt/attempt.h"

/* Creates the status pages of the watched ranks from the lines in `folder`: a sample for each save and load, facts and
 * figures of the run on the first page. The ranks that had no part in a save or load get a sample without time.
 *
 * Saves of the same path by several ranks are one iteration. Files saved in one piece are iterations only if the
 * command saved and loaded nothing else. Malformed lines, as that of a process that was killed, are counted.
 *
 * *all_ended, unless it is NULL: at least one process of each rank is known, and all reported their end. An attempt
 * without a time of start began with the first line and ended with the last. */
int watch_lines_read(struct attempt *attempt, const char *folder, bool *all_ended, struct cb_err *err) CB_MUST_CHECK;

#endif
