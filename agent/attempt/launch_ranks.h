/* Starts the ranks of an attempt. */
#ifndef AGENT_ATTEMPT_LAUNCH_RANKS_H
#define AGENT_ATTEMPT_LAUNCH_RANKS_H

#include "agent/attempt/attempt.h"

/* Begins to ask what launch_start will need to know, once the nodes are known. Its answer is there when they have
 * come together; launch_end ends it, whatever became of it. */
void launch_ask_ahead(struct attempt *attempt);

/* Fills launcher and has_launcher. Output of the ranks goes to logs/ranks.log. Returns at once. */
int launch_start(struct attempt *attempt, struct cb_err *err) CB_MUST_CHECK;

/* Ends the launcher and every process that is left of it, and fills `stuck` with those that even
 * SIGKILL does not end. Takes a few seconds at most. */
void launch_end(struct attempt *attempt, uint64_t grace_ns);

/* Ends processes that ranks left behind and that came to us when their parents died. True where one is
 * still there. */
bool launch_end_adopted(const struct attempt *attempt);

/* Whether a process was started for this attempt, as its command line says. */
bool launch_is_ours(const struct attempt *attempt, pid_t pid);

/* "state D (io_schedule)", on another node with its name. */
char *launch_describe_process(const struct attempt *attempt, uint32_t rank, char text[64]);

/* Whether the process of a rank (its page's pid) is one of this attempt and alive, not a zombie. */
bool launch_is_alive(const struct attempt *attempt, uint32_t rank);

#endif
