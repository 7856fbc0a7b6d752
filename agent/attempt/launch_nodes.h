/* Starts ranks on several nodes: srun with PMIx, mpirun inside an allocation, or mpirun over ssh. */
#ifndef AGENT_ATTEMPT_LAUNCH_NODES_H
#define AGENT_ATTEMPT_LAUNCH_NODES_H

#include <limits.h>
#include <stddef.h>

#include "agent/attempt/attempt.h"
#include "run/container.h"

/* The first words of a step of agents, which shares the job's resources with the other steps. */
#define LAUNCH_BESIDE "srun", "--overlap", "--overcommit", "--mpi=none", "--cpu-bind=none", "--mem=0"

/* Starts options->argv as a step with one task on each node of the allocation, but not on this one unless `on_own`. */
int launch_on_each(const struct nodes *nodes, bool on_own, const struct child_options *options, struct child *step,
                   struct cb_err *err) CB_MUST_CHECK;

/* The command of a rank: the words of `container`, then the worker. Words point into the struct. */
struct worker {
    char path[PATH_MAX];
    struct container container;
    const char *words[CONTAINER_MAX_WORDS + 2]; /* NULL-terminated */
};

/* A command line: appends words up to their NULL. Holds LAUNCH_MAX_WORDS, more than any launcher needs. */
#define LAUNCH_MAX_WORDS (CONTAINER_MAX_WORDS + 40)
struct command_line {
    const char *words[LAUNCH_MAX_WORDS + 1];
    size_t count;
};
void command_line_add(struct command_line *self, const char *const *words);
/* Tells ranks that use GPUs whether adapters are set (adapter=). */
void command_line_add_adapter(struct command_line *self, const struct experiment *experiment);

/* Starts attempt->launcher_name as attempt->launcher. Places ranks as in core/rank_placement.h. */
int launch_across_nodes(struct attempt *attempt, const struct worker *worker, int log_fd,
                        struct cb_err *err) CB_MUST_CHECK;

/* For mpirun, which starts its daemons with "PROGRAM shell HOSTS NAME COMMAND…": replaces this process by ssh to the
 * host that NAME refers to. Returns only on failure. */
int launch_shell(int argc, char **argv, struct cb_err *err) CB_MUST_CHECK;

/* Fills `words` with "ssh [-p PORT] DESTINATION", NULL-terminated, and returns their number. They point into the
 * buffers `destination` and `port`. */
#define LAUNCH_SSH_WORDS 12
size_t launch_ssh_words(const char *host, char destination[NODE_NAME_BYTES], char port[8],
                        const char *words[LAUNCH_SSH_WORDS]);

#endif
