/* The head's side of a run on several nodes: the port, the nodes that have joined, what they report.
 *
 * Nothing here blocks: the owner calls rendezvous_work() again and again and looks at what has come of
 * it. Connections that do not show the run's key, or take long to, are dropped without further notice;
 * so is a second one that claims a node which has joined. A node is lost once its connection is closed,
 * once it is silent, or once it says what cannot be; the pages then hold what it last sent. */
#ifndef AGENT_NODE_RENDEZVOUS_H
#define AGENT_NODE_RENDEZVOUS_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/node/nodes.h"
#include "agent/node/wire.h"
#include "core/buf.h"
#include "core/channel.h"
#include "core/err.h"
#include "run/status_page.h"

#define RENDEZVOUS_SILENCE_NS UINT64_C(15000000000) /* a node, or the head, that says nothing for so long is gone */

enum node_state { NODE_AWAITED, NODE_GREETED, NODE_JOINED, NODE_FINISHED, NODE_LOST };

/* A file of a node, as it came. Called inside rendezvous_work. */
typedef void (*rendezvous_file_fn)(void *context, uint32_t node, const struct wire_file *file);

struct rendezvous_setup { /* borrowed for as long as the rendezvous lives */
    const char *run;
    uint32_t attempt;
    const struct nodes *nodes;
    uint32_t ranks, sample_capacity;
    const char *pages;         /* base of the folders of pages */
    const char *experiment;    /* frozen, YAML */
    struct status_page **page; /* one a rank; those of other nodes' ranks are copies */
    uint16_t port;             /* 0 takes a free one */
    rendezvous_file_fn file;
    void *context; /* of `file` */
};

/* What is known of a node. */
struct node_report {
    enum node_state state;
    uint32_t first_rank, rank_count;
    char host[WIRE_TEXT_BYTES]; /* its host name, "" before it joined */
    uint64_t joined_wall_ns;    /* by the head's clock */
    uint64_t heard_ns;          /* monotonic: last time it said anything, 0 for never */
    struct wire_joined joined;
    char trouble[512]; /* why it is lost */
};

struct rendezvous;
int rendezvous_new(const struct rendezvous_setup *setup, struct rendezvous **rendezvous,
                   struct cb_err *err) CB_MUST_CHECK;
void rendezvous_free(struct rendezvous *self);

uint16_t rendezvous_port(const struct rendezvous *self);
const struct channel_key *rendezvous_key(const struct rendezvous *self);

/* Waits for news at most so long (0: not at all), and deals with all there is. */
void rendezvous_work(struct rendezvous *self, uint64_t now_ns, unsigned wait_ms);

/* All nodes but the head's own have joined (or had, before they were lost). */
bool rendezvous_is_complete(const struct rendezvous *self);
/* Names those that have not: "n2, n3 and 5 more". */
void rendezvous_name_missing(const struct rendezvous *self, char *text, size_t text_bytes);
/* A node that said hello and may not join: why. False where all is well. */
bool rendezvous_was_refused(const struct rendezvous *self, const char **reason);
/* The lowest node that is lost. */
bool rendezvous_find_lost(const struct rendezvous *self, uint32_t *node);
/* The node that has been silent for longest. False where there is none that runs. */
bool rendezvous_find_silent(const struct rendezvous *self, uint64_t now_ns, uint32_t *node, uint64_t *silent_ns);
const struct node_report *rendezvous_report(const struct rendezvous *self, uint32_t node);

/* What the ranks shall do, told to all nodes at once and with each heartbeat. */
void rendezvous_order(struct rendezvous *self, enum stop_request stop, bool kill);
/* The process of a rank as its node saw it last; NULL for a rank of the head's own node. */
const struct wire_sight *rendezvous_sight(const struct rendezvous *self, uint32_t rank);

/* Asks all nodes for what is left and waits until they have sent it, or the deadline. */
void rendezvous_finish(struct rendezvous *self, uint64_t deadline_ns);

/* rendezvous.json of what is known now; the time until all had joined is NAN where they have not. */
int rendezvous_write(const struct rendezvous *self, const struct nodes *nodes, const char *path, double rendezvous_s,
                     struct cb_err *err) CB_MUST_CHECK;

#endif
