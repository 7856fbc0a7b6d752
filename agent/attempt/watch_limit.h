/* The device's limit for a watched command: measured where its last checkpoint is, after the command has ended. */
#ifndef AGENT_ATTEMPT_WATCH_LIMIT_H
#define AGENT_ATTEMPT_WATCH_LIMIT_H

#include "agent/attempt/attempt.h"
#include "agent/attempt/watch_lines.h"

/* Writes as many bytes as the last save in as many files as ranks wrote, with the io.* settings of runs, fsync inside, and
 * reads them cold if the command loaded. The median of up to three rounds becomes the baseline of the run, and a fact
 * says what was measured, or why nothing was. Its files lie in a folder of this run in that place, and are removed.
 * A request to end (foreground_requests) ends it. */
void watch_limit_measure(struct attempt *attempt, const struct watch_summary *summary);

/* Removes the files of a measurement that was killed. */
void watch_limit_remove_left(const struct attempt *attempt, const struct watch_summary *summary);

#endif
