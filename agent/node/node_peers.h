/* The other nodes of an attempt, from the start of their agents to what they last said.
 *
 * All but node_peers_open may be called where the attempt has no other nodes, and then does nothing. */
#ifndef AGENT_NODE_NODE_PEERS_H
#define AGENT_NODE_NODE_PEERS_H

#include "agent/attempt/attempt.h"

/* Makes the pages, opens the port, starts the nodes' agents. Fills attempt->peers and attempt->pages. */
int node_peers_open(struct attempt *attempt, uint32_t sample_capacity, struct cb_err *err) CB_MUST_CHECK;
/* Until all have joined. Decides on nodes that do not, on signals, and on the death of the controller. */
void node_peers_await(struct attempt *attempt);
/* rendezvous.json: who joined, and when. */
int node_peers_write_report(const struct attempt *attempt, struct cb_err *err) CB_MUST_CHECK;
/* With every look at the ranks. */
void node_peers_work(struct attempt *attempt, uint64_t now_ns, enum stop_request stop);

/* A sentence about a node that is lost; false where there is none. */
bool node_peers_find_lost(const struct attempt *attempt, char *text, size_t text_bytes);
/* The same of one that has been silent for some seconds, and is not lost yet. */
bool node_peers_find_silent(const struct attempt *attempt, uint64_t now_ns, char *text, size_t text_bytes);
/* What is worth a note in the progress: a node that is silent or slow. */
void node_peers_note(const struct attempt *attempt, uint64_t now_ns, char *text, size_t text_bytes);

/* Whether a rank runs where only its node's agent can see it. */
bool node_peers_has(const struct attempt *attempt, uint32_t rank);
bool node_peers_is_alive(const struct attempt *attempt, uint32_t rank);
char *node_peers_describe_process(const struct attempt *attempt, uint32_t rank, char text[64]);
/* " on node n2" where there are several nodes, else "". */
char *node_peers_describe_node(const struct attempt *attempt, uint32_t rank, char text[NODE_NAME_BYTES + 16]);

/* Whether a process is one that we started the nodes' agents with. */
bool node_peers_started(const struct attempt *attempt, pid_t pid);

/* Has the nodes end what is left of their ranks by force. */
void node_peers_kill(const struct attempt *attempt);
/* Collects what is left, writes rendezvous.json, ends the nodes' agents. */
void node_peers_finish(struct attempt *attempt);
void node_peers_free(struct node_peers *self);

/* From the agent's start until all nodes had joined; NAN where that does not apply. */
double node_peers_seconds(const struct attempt *attempt);

#endif
