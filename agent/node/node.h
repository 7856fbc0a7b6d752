/* The agent of a node that is not the head's: joins, keeps the pages of the node's ranks, tells the head
 * what they say, and leaves when the head does. */
#ifndef AGENT_NODE_NODE_H
#define AGENT_NODE_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

struct node_options {
    const char *name;      /* as the head knows this node */
    const char *addresses; /* of the head, numeric, with commas between them */
    uint16_t port;
    uint64_t timeout_ns; /* until it must have joined */
    int key_fd;          /* brings the run's key */
    bool was_sent;       /* this program came by sbcast, and goes when all is over */
};

/* Returns when the run is over on this node: 0 where the head said so. Nothing of the run is left here
 * then, whatever the result. */
int node_run(const struct node_options *options, struct cb_err *err) CB_MUST_CHECK;

#endif
