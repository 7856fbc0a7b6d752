/* Which nodes a run uses: those of the allocation that Slurm gave us, of hosts=, or this machine alone. */
#ifndef AGENT_NODE_NODES_H
#define AGENT_NODE_NODES_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "run/experiment.h"

#define NODE_NAME_BYTES 256

struct nodes {
    char (*name)[NODE_NAME_BYTES]; /* count of them, as Slurm or hosts= calls them; in the order of their ranks */
    uint32_t count;
    int64_t own; /* the one this agent runs on, -1 where it runs on none of them */
    bool slurm;  /* from an allocation, not from hosts= */
};

/* Never more nodes than ranks, where `nodes` does not ask for more: then CB_ERR_USAGE. */
int nodes_find(const struct experiment *experiment, uint32_t ranks, struct nodes *nodes,
               struct cb_err *err) CB_MUST_CHECK;
void nodes_release(struct nodes *nodes);

/* "n[1-2,07-08],m": their names, one a line, in order. False where it is written in a way that only Slurm reads. */
bool nodes_expand(const char *list, struct buf *names);

/* Whether ranks run anywhere else than in this agent's reach. */
bool nodes_are_remote(const struct nodes *nodes);

/* "user@host:port" for ssh: *destination points into `room` (NODE_NAME_BYTES), *port is "" where none is given. */
void nodes_split_host(const char *word, char *destination, char port[8]);

#endif
