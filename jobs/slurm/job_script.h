/* The job script for sbatch: short, without logic. All words of the user in it are checked or quoted; labels, paths
 * and keys of an experiment stay in experiment.yaml. Pure. */
#ifndef JOBS_SLURM_JOB_SCRIPT_H
#define JOBS_SLURM_JOB_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "run/experiment.h"
#include "run/pool.h"

#define SCRIPT_WARN_S 60 /* this long before the time limit the agent is warned, so that it can seal */

struct job_script {
    const char *name;          /* job name: a run's id, or an array's name */
    const char *agent;         /* absolute path of ckptbench-agent on the nodes */
    const char *run_folder;    /* absolute, on the nodes; for an array the folder of its links 0 … count-1 */
    const char *log;           /* absolute: the job's own output, appended; for an array ".K" follows */
    const char *const *others; /* absolute: folders of runs that the job executes after this one; not for an array */
    size_t other_count;
    uint64_t most_nodes;                 /* number of nodes; 0: the experiment's */
    size_t array_count;                  /* 0: a single job */
    const char *after;                   /* number of the job that must pass first; NULL: none */
    const char *node_list;               /* "n1,n2": nodes that must be included; NULL: any */
    const struct experiment *experiment; /* nodes, ranks, slurm.* */
    uint64_t time_limit_ns;              /* rounded up to minutes */
};

/* CB_ERR_USAGE if a slurm key or a path contains characters that Slurm's parsers cannot handle. */
int job_script_write(const struct job_script *self, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

/* A script for an allocation led from the submitting machine (slurm.sbcast): it becomes salloc, which runs the agent.
 * For an array, which salloc cannot request, it submits tasks that hold their nodes while the programs of their run are
 * in `sbcast`, and becomes the agent that leads them. Ignores `log`. */
int job_script_write_allocation(const struct job_script *self, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

/* The script of a pool's jobs. A touch pool submits it repeatedly, with a later begin and for one node. With
 * `allocation` it becomes salloc, which runs the agent on the submitting machine and accepts further options as
 * arguments of the script. */
struct pool_script {
    const struct pool *pool;
    const char *agent, *folder;          /* absolute */
    const char *log;                     /* absolute */
    const struct experiment *experiment; /* nodes, slurm.* */
    uint64_t time_limit_ns;              /* of one job */
    uint64_t deadline_s;                 /* from now: Slurm removes a job that cannot end by then */
    bool allocation;
};
int pool_script_write(const struct pool_script *self, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

#endif
