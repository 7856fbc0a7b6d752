/* Starting ranks on several nodes: srun with PMIx, mpirun inside an allocation, mpirun over ssh. */
#ifndef AGENT_LAUNCH_NODES_H
#define AGENT_LAUNCH_NODES_H

#include "agent/attempt.h"

/* Fills attempt->launcher with attempt->launcher_name, started. Places ranks as core/spread.h says. */
int launch_across_nodes(struct attempt *attempt, const char *worker, int log_fd, struct cb_err *err) CB_MUST_CHECK;

/* For mpirun, which starts its daemons with "PROGRAM shell HOSTS NAME COMMAND…": becomes ssh to the host
 * that NAME stands for. Returns only on failure. */
int launch_shell(int argc, char **argv, struct cb_err *err) CB_MUST_CHECK;

/* Fills words for "ssh [-p PORT] DESTINATION", NULL-terminated, into `words` (LAUNCH_SSH_WORDS of them);
 * returns how many. `destination` and `port` are room that the words point to. */
#define LAUNCH_SSH_WORDS 12
size_t launch_ssh_words(const char *host, char destination[NODE_NAME_BYTES], char port[8],
                        const char *words[LAUNCH_SSH_WORDS]);

#endif
