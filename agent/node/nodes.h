/* Which nodes a run uses: those of the Slurm allocation, those of hosts=, or this machine alone. */
#ifndef AGENT_NODE_NODES_H
#define AGENT_NODE_NODES_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "run/experiment.h"

#define NODE_NAME_BYTES 256

struct nodes {
    char (*name)[NODE_NAME_BYTES]; /* count of them, as Slurm or hosts= names them, in rank order */
    uint32_t count;
    int64_t own; /* index of the node that this agent runs on; -1 if it is not one of them */
    bool slurm;  /* from an allocation, not from hosts= */
};

/* Variable with the nodes of the allocation that a run may use; unset: all of them. SLURM_JOB_NODELIST cannot say so,
 * since srun and sbcast take it for the whole allocation. */
#define NODES_CHOSEN "CKPTBENCH_NODES"

/* Uses at most as many nodes as ranks; CB_ERR_USAGE if `nodes` asks for more. */
int nodes_find(const struct experiment *experiment, uint32_t ranks, struct nodes *nodes,
               struct cb_err *err) CB_MUST_CHECK;
void nodes_release(struct nodes *nodes);

/* Expands "n[1-2,07-08],m" to one name per line, in order. False for a notation that only Slurm can expand. */
bool nodes_expand(const char *list, struct buf *names);

/* Whether some ranks run on other nodes. */
bool nodes_are_remote(const struct nodes *nodes);

/* Splits "user@host:port" for ssh: `destination` has NODE_NAME_BYTES; `port` is "" if absent. */
void nodes_split_host(const char *word, char *destination, char port[8]);

#endif
