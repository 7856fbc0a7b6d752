/* In which state a run is, from what Slurm says and what its folder holds. Pure.
 *
 * The folder alone decides success: a job that says COMPLETED and left no manifest is lost. Slurm decides
 * how far a run without a manifest has come, and why it ended. States that may not be the last (preempted,
 * node lost, requeued) count only after a grace time. */
#ifndef JOBS_SLURM_JOB_STATE_H
#define JOBS_SLURM_JOB_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "jobs/slurm/slurm.h"
#include "run/job_record.h"
#include "run/run_folder.h"

#define JUDGE_GRACE_S 15     /* for a job that may come back, and for what a file system has yet to show */
#define JUDGE_SEAL_S 5       /* from a job's end until its agent's seal must be seen */
#define JUDGE_SILENCE_S 60   /* an agent that moves nothing for so long is gone, where Slurm knows no more */
#define JUDGE_PATIENCE_S 600 /* both, where accounting would know and does not answer */

/* What the run folder holds. */
struct job_folder {
    uint32_t attempts;        /* the highest number, 0 for none */
    bool sealed;              /* the last one is */
    struct manifest manifest; /* where sealed */
    bool has_progress;
    struct progress progress; /* of the last attempt */
    uint64_t sign_wall_ns;    /* when its agent last moved something; 0 for never */
};

struct job_sight {
    const struct slurm_job *slurm; /* NULL: not listed, or not asked */
    bool asked;                    /* Slurm answered */
    bool accounting_is_silent;     /* but for its accounting, which there is */
    bool may_requeue;              /* slurm.requeue */
    uint64_t now_wall_ns;
    const struct job_folder *folder;
    const char *why;        /* who took it out of the queue, and why; NULL: not known */
    const char *down_nodes; /* those of the job that Slurm holds for down: "n3"; "" where it is not known */
};

struct job_verdict {
    enum job_state state;
    char note[1024];      /* for people: why it pends, which node was lost */
    bool seal;            /* nobody else will: seal the last attempt (a new one where there is none) so */
    enum outcome outcome; /* with seal */
};

/* `record` has the state so far and what Slurm said last (job_record_observe before). */
void job_judge(const struct job_record *record, const struct job_sight *sight, struct job_verdict *verdict);

/* Takes what Slurm says into the record: state and since when, nodes, times, queue_s and boot_s. */
void job_record_observe(struct job_record *record, const struct slurm_job *slurm, uint64_t now_wall_ns);

#endif
