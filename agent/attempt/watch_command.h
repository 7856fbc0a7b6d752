/* workload=watch: runs the user's command with hooks for its checkpoints, and reads what they saw. */
#ifndef AGENT_ATTEMPT_WATCH_COMMAND_H
#define AGENT_ATTEMPT_WATCH_COMMAND_H

#include "agent/attempt/attempt.h"

/* Runs attempt->command, or the shell command of command=, in the foreground and to its end, creates the pages from
 * what its processes reported, and decides the attempt. Fills pages, ranks and command_status. */
void watch_command_run(struct attempt *attempt);

#endif
