/* Starts and ends the ranks of an attempt. */
#ifndef AGENT_ATTEMPT_LAUNCH_RANKS_H
#define AGENT_ATTEMPT_LAUNCH_RANKS_H

#include "agent/attempt/attempt.h"

/* Starts `srun --mpi=list` if launch_start may need its result, so that it runs while the nodes join. Call once the
 * nodes are known. launch_end ends it in any case. */
void launch_ask_ahead(struct attempt *attempt);

/* Fills launcher and has_launcher. Output of the ranks goes to logs/ranks.log. Returns immediately. */
int launch_start(struct attempt *attempt, struct cb_err *err) CB_MUST_CHECK;

/* Ends the launcher and all its remaining processes, and fills `stuck` with those that survive SIGKILL. Takes a few
 * seconds at most. */
void launch_end(struct attempt *attempt, uint64_t grace_ns);

/* Ends orphaned processes of ranks that were reparented to us. True if one is still alive. */
bool launch_end_adopted(const struct attempt *attempt);

/* Whether a process belongs to this attempt, judging by its command line. */
bool launch_is_ours(const struct attempt *attempt, pid_t pid);

/* "state D (io_schedule)"; " on NODE" follows if that is another node. */
char *launch_describe_process(const struct attempt *attempt, uint32_t rank, char text[64]);

/* Whether the process of a rank (the pid on its page) belongs to this attempt and is alive, not a zombie. */
bool launch_is_alive(const struct attempt *attempt, uint32_t rank);

#endif
