/* The agent of a node other than the head's: joins, keeps the pages of the node's ranks, forwards them to the head,
 * and leaves when the head does. */
#ifndef AGENT_NODE_NODE_H
#define AGENT_NODE_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

struct node_options {
    const char *name;      /* the head's name for this node */
    const char *addresses; /* of the head, numeric, separated by commas */
    uint16_t port;
    uint64_t timeout_ns; /* deadline for joining */
    int key_fd;          /* file descriptor to read the run's key from */
    bool was_sent;       /* this program was sent by sbcast, and deletes itself at the end */
};

/* Returns when the run is over on this node: 0 if the head ended it. Leaves nothing of the run on this node, whatever
 * the result. */
int node_run(const struct node_options *options, struct cb_err *err) CB_MUST_CHECK;

#endif
