/* How a node joins: connecting, hello and welcome, comparing clocks. */
#ifndef AGENT_NODE_NODE_JOIN_H
#define AGENT_NODE_NODE_JOIN_H

#include "agent/node/node.h"
#include "agent/node/wire.h"
#include "core/channel.h"

/* Connects to the first address whose peer proves that it has the key. Retries until the deadline. */
int node_connect(const struct node_options *options, struct channel_context *context, uint64_t deadline_ns,
                 struct channel **channel, struct cb_err *err) CB_MUST_CHECK;

/* Sends hello and waits for the welcome, which borrows from `message`. A refusal is an error with the head's reason. */
int node_greet(struct channel *channel, const char *name, uint64_t deadline_ns, struct buf *message,
               struct wire_welcome *welcome, struct cb_err *err) CB_MUST_CHECK;

/* Compares clocks, using the fastest of a few round trips. */
int node_compare_clocks(struct channel *channel, uint64_t deadline_ns, struct wire_joined *joined,
                        struct cb_err *err) CB_MUST_CHECK;

/* Writes a message into `bytes` and queues it. */
int node_say(struct channel *channel, struct buf *bytes, enum wire_kind kind, const void *message,
             struct cb_err *err) CB_MUST_CHECK;

#endif
