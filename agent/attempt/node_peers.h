/* The other nodes of an attempt, from the start of their agents to their last report.
 *
 * All calls but node_peers_open do nothing if the attempt has no other nodes. */
#ifndef AGENT_ATTEMPT_NODE_PEERS_H
#define AGENT_ATTEMPT_NODE_PEERS_H

#include "agent/attempt/attempt.h"

/* Creates the pages, opens the port, starts the nodes' agents. Fills attempt->peers and attempt->pages. */
int node_peers_open(struct attempt *attempt, uint32_t sample_capacity, struct cb_err *err) CB_MUST_CHECK;
/* Waits until all nodes have joined. Decides the attempt if they do not, on signals, and if the controller dies. */
void node_peers_await(struct attempt *attempt);
/* Writes rendezvous.json: which nodes joined, and when. */
int node_peers_write_report(const struct attempt *attempt, struct cb_err *err) CB_MUST_CHECK;
/* Exchanges messages; call with every scan of the ranks. */
void node_peers_work(struct attempt *attempt, uint64_t now_ns, enum stop_request stop);

/* A sentence about a lost node; false if no node is lost. */
bool node_peers_find_lost(const struct attempt *attempt, char *text, size_t text_bytes);
/* A sentence about a node that has been silent for some seconds, but is not lost yet. */
bool node_peers_find_silent(const struct attempt *attempt, uint64_t now_ns, char *text, size_t text_bytes);
/* A note for the progress: a node that is silent or slow. */
void node_peers_note(const struct attempt *attempt, uint64_t now_ns, char *text, size_t text_bytes);

/* Whether only its node's agent can see the rank's process. */
bool node_peers_has(const struct attempt *attempt, uint32_t rank);
bool node_peers_is_alive(const struct attempt *attempt, uint32_t rank);
char *node_peers_describe_process(const struct attempt *attempt, uint32_t rank, char text[64]);
/* " on node n2" in a run with several nodes, else "". */
char *node_peers_describe_node(const struct attempt *attempt, uint32_t rank, char text[NODE_NAME_BYTES + 16]);

/* Whether a process is one that we used to start the nodes' agents. */
bool node_peers_started(const struct attempt *attempt, pid_t pid);

/* Asks the nodes to kill the remaining processes of their ranks. */
void node_peers_kill(const struct attempt *attempt);
/* Collects the remaining data, writes rendezvous.json, ends the nodes' agents. */
void node_peers_finish(struct attempt *attempt);
void node_peers_free(struct node_peers *self);

/* Time from the agent's start until all nodes had joined; NAN without other nodes. */
double node_peers_seconds(const struct attempt *attempt);

#endif
