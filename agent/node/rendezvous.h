/* The head's side of a run on several nodes: the port, the nodes that have joined, and their reports.
 *
 * Nothing here blocks: the owner calls rendezvous_work() repeatedly and then reads the state. Connections that fail
 * to prove the run's key in time are closed without a reply, and so is a second connection for a node that has
 * joined. A node is lost when its connection closes, when it is silent for too long, or when it sends an invalid
 * message; the pages then hold what it sent last. */
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

#define RENDEZVOUS_SILENCE_NS UINT64_C(15000000000) /* a node, or the head, that is silent for this long is lost */

enum node_state { NODE_AWAITED, NODE_GREETED, NODE_JOINED, NODE_FINISHED, NODE_LOST };

/* Receives a file of a node. Called inside rendezvous_work. */
typedef void (*rendezvous_file_fn)(void *context, uint32_t node, const struct wire_file *file);

struct rendezvous_setup { /* borrowed for the life of the rendezvous */
    const char *run;
    uint32_t attempt;
    const struct nodes *nodes;
    uint32_t ranks, sample_capacity;
    uint64_t started_ns;       /* monotonic: when the attempt began */
    const char *pages;         /* base of the folders of pages */
    const char *experiment;    /* frozen, YAML */
    struct status_page **page; /* one per rank; copies for ranks of other nodes */
    uint16_t port;             /* 0 picks a free port */
    rendezvous_file_fn file;
    void *context; /* passed to `file` */
};

/* State of a node. */
struct node_report {
    enum node_state state;
    uint32_t first_rank, rank_count;
    char host[WIRE_TEXT_BYTES]; /* its host name, "" before its hello */
    uint64_t joined_wall_ns;    /* by the head's clock */
    uint64_t heard_ns;          /* monotonic: time of its last message; 0 before */
    struct wire_joined joined;
    char trouble[512]; /* why it is lost */
};

struct rendezvous;
int rendezvous_new(const struct rendezvous_setup *setup, struct rendezvous **rendezvous,
                   struct cb_err *err) CB_MUST_CHECK;
void rendezvous_free(struct rendezvous *self);

uint16_t rendezvous_port(const struct rendezvous *self);
const struct channel_key *rendezvous_key(const struct rendezvous *self);

/* Waits for messages for at most this time (0: returns at once), and handles all that have arrived. */
void rendezvous_work(struct rendezvous *self, uint64_t now_ns, unsigned wait_ms);

/* Whether all nodes but the head's own have joined (even if some were lost later). */
bool rendezvous_is_complete(const struct rendezvous *self);
/* Names the missing nodes: "n2, n3 and 5 more". */
void rendezvous_name_missing(const struct rendezvous *self, char *text, size_t text_bytes);
/* Why a node that sent a hello may not join. False if no node was refused. */
bool rendezvous_was_refused(const struct rendezvous *self, const char **reason);
/* The first lost node, if any. */
bool rendezvous_find_lost(const struct rendezvous *self, uint32_t *node);
/* The node that has been silent for longest. False if no node is running. */
bool rendezvous_find_silent(const struct rendezvous *self, uint64_t now_ns, uint32_t *node, uint64_t *silent_ns);
const struct node_report *rendezvous_report(const struct rendezvous *self, uint32_t node);

/* Sends a request to stop or kill the ranks in the next rendezvous_work, and with each heartbeat. */
void rendezvous_order(struct rendezvous *self, enum stop_request stop, bool kill);
/* The process of a rank as its node last reported it; NULL for a rank of the head's own node. */
const struct wire_process *rendezvous_process(const struct rendezvous *self, uint32_t rank);

/* Asks all nodes for their remaining data and waits until they have sent it, or for the deadline. */
void rendezvous_finish(struct rendezvous *self, uint64_t deadline_ns);

/* Writes rendezvous.json from the current state. `rendezvous_s` is the time until all nodes had joined, or NAN. */
int rendezvous_write(const struct rendezvous *self, const char *path, double rendezvous_s,
                     struct cb_err *err) CB_MUST_CHECK;

#endif
