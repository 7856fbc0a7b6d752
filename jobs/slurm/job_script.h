/* The job script: what sbatch gets. Short, without logic, and without a word of the user's that is not
 * checked or quoted: labels, paths and keys of an experiment stay in experiment.yaml. Pure. */
#ifndef JOBS_SLURM_JOB_SCRIPT_H
#define JOBS_SLURM_JOB_SCRIPT_H

#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "run/experiment.h"
#include "run/pool.h"

#define SCRIPT_WARN_S 60 /* this long before the time limit the agent is told, so that it can seal */

struct job_script {
    const char *name;          /* of the job: a run's id, or an array's name */
    const char *agent;         /* absolute path of ckptbench-agent on the nodes */
    const char *run_folder;    /* absolute, on the nodes; of an array the folder of its links 0 … count-1 */
    const char *log;           /* absolute: what the job itself says, appended; of an array ".K" follows */
    const char *const *others; /* absolute: folders of runs that the job does after this one; not of an array */
    size_t other_count;
    uint64_t most_nodes;   /* of those runs, where they ask for more or fewer; 0: as the experiment says */
    size_t array_count;    /* 0: a single job */
    const char *after;     /* number of the job that must have passed; NULL: none */
    const char *node_list; /* "n1,n2": these among its nodes; NULL: any */
    const struct experiment *experiment; /* nodes, ranks, slurm.* */
    uint64_t time_limit_ns;              /* rounded up to minutes */
};

/* CB_ERR_USAGE where a slurm key or a path holds what Slurm's own parsers cannot take. */
int job_script_write(const struct job_script *self, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

/* The same as an allocation that is led from where it is asked for (slurm.sbcast): a script that becomes salloc, and
 * under it the agent. Not of an array, and `log` is nobody's. */
int job_script_write_allocation(const struct job_script *self, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

/* The script of a pool's jobs. A touch pool submits it again and again, with another begin and one node. */
struct pool_script {
    const struct pool *pool;
    const char *agent, *folder;          /* absolute */
    const char *log;                     /* absolute */
    const struct experiment *experiment; /* nodes, slurm.* */
    uint64_t time_limit_ns;              /* of one job */
    uint64_t deadline_s;                 /* from now: a job that cannot have ended by then is removed by Slurm */
};
int pool_script_write(const struct pool_script *self, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

/* 'text' as one word of a POSIX shell. */
void shell_quote(const char *text, struct buf *out);

#endif
