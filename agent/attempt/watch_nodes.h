/* The device's limit of a watched run on several nodes: one task of each node measures, all at the same time, after all
 * commands have ended.
 *
 * The task that created the attempt leads. It holds locks on the first bytes of ATTEMPT/limit, one for each step, and
 * lets go of a byte when all are ready for that step; what is written in the byte says whether to go on. So nobody
 * waits for a leader that has died. Tasks say that they are ready, and what they measured, in their files of lines. */
#ifndef AGENT_ATTEMPT_WATCH_NODES_H
#define AGENT_ATTEMPT_WATCH_NODES_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "run/experiment.h"

struct watch_nodes {
    const char *run, *lines; /* its name; the folder of lines */
    const struct experiment *experiment;
    char task[300]; /* name of this task's file of lines */
    int lines_fd;   /* of it */
    uint32_t tasks; /* how many there are; 0 if unknown */
    int fd;         /* ATTEMPT/limit; -1 if it is not open */
    bool leads;
    uint32_t step;     /* the next one */
    uint64_t begin_ns; /* of the first one */
    bool loads;
};

/* Called by the task that creates the attempt, before others can join it: it will lead. *fd is -1 if locks cannot be had;
 * nothing is measured then. */
void watch_nodes_lead(const char *attempt, int *fd);

/* Called by each task whose command has ended well; returns when this task has nothing more to measure. The others'
 * commands may run for another minute. Does nothing for a run on one node. A request to end (foreground_requests) ends
 * it. */
void watch_nodes_measure(struct watch_nodes *self, const char *attempt);

#endif
