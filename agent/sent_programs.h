/* The programs sent to nodes that share no file system with the head, and their folder there. */
#ifndef AGENT_SENT_PROGRAMS_H
#define AGENT_SENT_PROGRAMS_H

#define SENT_PROGRAMS 3
#define SENT_WORKER 1 /* a container image has its own */

/* The agent goes first: if it cannot be sent, nothing can. The plugin is sent if there is one. */
extern const char *const sent_programs[SENT_PROGRAMS];

/* Removes the folder that this program was sent to; called by a node's agent at its end. */
void sent_programs_remove_own(void);

#endif
