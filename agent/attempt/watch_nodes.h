/* The device's limit of a watched run on several nodes: one task of each node measures, all at the same time, after all
 * commands have ended.
 *
 * One task leads. It holds locks on the first bytes of ATTEMPT/limit, one for each step, and lets go of a byte when all
 * are ready for that step; what is written in the byte says whether to go on. So nobody waits for a leader that has died.
 * Tasks say that they are ready, and what they measured, in their files of lines. */
#ifndef AGENT_ATTEMPT_WATCH_NODES_H
#define AGENT_ATTEMPT_WATCH_NODES_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/attempt/watch_task.h"
#include "run/experiment.h"

struct watch_nodes {
    const char *run, *attempt, *lines; /* its name; the folders of the attempt and of the lines */
    const struct experiment *experiment;
    struct watch_task *task;                            /* of this process; NULL if it leads and measures nothing */
    uint32_t tasks;                                     /* how many there are */
    int fd;                                             /* of watch_nodes_lock; -1: this task follows */
    int (*may_wait)(void *context, struct cb_err *err); /* asked while others are waited for; may be NULL */
    void *context;
    uint32_t step;     /* the next one */
    uint64_t begin_ns; /* of the first round */
    bool loads;
    struct watch_member *members; /* as the leader sees the tasks */
    size_t member_count;
};

/* The locks of the task that will lead: called before others look for them. -1 if locks cannot be had; nothing is measured
 * then. The caller closes it. */
int watch_nodes_lock(const char *attempt);

/* Called by each task whose command has ended well; returns when this task has nothing more to measure. The others'
 * commands may run for another minute. A failure is a line of the task. A request to end (foreground_requests) ends it. */
void watch_nodes_take_part(struct watch_nodes *self);

/* Leads the tasks that take part in the measurement. The caller measures only if it is one of them. */
int watch_nodes_lead(struct watch_nodes *self, struct cb_err *err) CB_MUST_CHECK;

#endif
