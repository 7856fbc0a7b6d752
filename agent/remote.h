/* The other nodes of an attempt, from the start of their agents to what they last said.
 *
 * All but remote_open may be called where the attempt has no other nodes, and then does nothing. */
#ifndef AGENT_REMOTE_H
#define AGENT_REMOTE_H

#include "agent/attempt.h"

/* Makes the pages, opens the port, starts the nodes' agents. Fills attempt->remote and attempt->pages. */
int remote_open(struct attempt *attempt, uint32_t sample_capacity, struct cb_err *err) CB_MUST_CHECK;
/* Until all have joined. Decides on nodes that do not, on signals, and on the death of the controller. */
void remote_await(struct attempt *attempt);
/* rendezvous.json: who joined, and when. */
int remote_write_report(const struct attempt *attempt, struct cb_err *err) CB_MUST_CHECK;
/* With every look at the ranks. */
void remote_work(struct attempt *attempt, uint64_t now_ns, enum stop_request stop);

/* A sentence about a node that is lost; false where there is none. */
bool remote_find_lost(const struct attempt *attempt, char *text, size_t text_bytes);
/* The same of one that has been silent for some seconds, and is not lost yet. */
bool remote_find_silent(const struct attempt *attempt, uint64_t now_ns, char *text, size_t text_bytes);
/* What is worth a note in the progress: a node that is silent or slow. */
void remote_note(const struct attempt *attempt, uint64_t now_ns, char *text, size_t text_bytes);

/* Whether a rank runs where only its node's agent can see it. */
bool remote_has(const struct attempt *attempt, uint32_t rank);
bool remote_is_alive(const struct attempt *attempt, uint32_t rank);
char *remote_describe_process(const struct attempt *attempt, uint32_t rank, char text[64]);
/* " on node n2" where there are several nodes, else "". */
char *remote_describe_node(const struct attempt *attempt, uint32_t rank, char text[NODE_NAME_BYTES + 16]);

/* Whether a process is one that we started the nodes' agents with. */
bool remote_started(const struct attempt *attempt, pid_t pid);

/* Has the nodes end what is left of their ranks by force. */
void remote_kill(const struct attempt *attempt);
/* Collects what is left, writes rendezvous.json, ends the nodes' agents. */
void remote_finish(struct attempt *attempt);
void remote_free(struct remote *self);

/* From the agent's start until all nodes had joined; NAN where that does not apply. */
double remote_seconds(const struct attempt *attempt);

#endif
