/* Releases the nodes of an allocation that is led from this machine after the salloc that held it has died. */
#ifndef AGENT_GIVE_BACK_H
#define AGENT_GIVE_BACK_H

#include <signal.h>
#include <stdint.h>

struct give_back {
    const char *job;        /* or an array, whose tasks then all end */
    const char *name;       /* the job's; a Slurm that has lost its state gives numbers again */
    uint64_t until_wall_ns; /* Slurm itself ends the job then */
    const volatile sig_atomic_t *signals;
    void (*log)(void *context, const char *text); /* a line; only if the first request fails */
    void *context;
};

/* Cancels the job, unless another one has its number. If Slurm does not answer, tries again, after 1 s at first and every
 * 30 s in the end, until it has answered, until `until_wall_ns`, or until another signal arrives. Blocks meanwhile:
 * nobody waits for this agent, since its salloc is gone and its results are sealed. */
void give_back_nodes(const struct give_back *self);

#endif
