/* The state of a run, from Slurm's answer and the run folder. Pure.
 *
 * Only the folder decides success: a job that Slurm reports as COMPLETED without a manifest is lost. Slurm decides
 * how far a run without a manifest has come, and why it ended. States that may not be final (preempted, node lost,
 * requeued) count only after a grace period. */
#ifndef JOBS_SLURM_JOB_STATE_H
#define JOBS_SLURM_JOB_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "jobs/slurm/slurm.h"
#include "run/job_record.h"
#include "run/run_folder.h"

#define JUDGE_GRACE_S 15     /* for a job that may return, and for a file system that shows files late */
#define JUDGE_SEAL_S 5       /* from a job's end until its agent's seal must be visible */
#define JUDGE_SILENCE_S 60   /* if Slurm no longer knows the job, an agent without progress for this long is gone */
#define JUDGE_PATIENCE_S 600 /* instead of GRACE and SILENCE, if accounting exists but does not respond */

/* The state of the run folder. */
struct job_folder {
    uint32_t attempts;        /* the highest number, 0 if none */
    bool sealed;              /* the last attempt is sealed */
    struct manifest manifest; /* if sealed */
    bool has_progress;
    struct progress progress; /* of the last attempt */
    uint64_t sign_wall_ns;    /* last progress of its agent; 0 if none */
};

struct job_observation {
    const struct slurm_job *slurm; /* NULL: not listed, or not queried */
    bool asked;                    /* Slurm responded */
    bool accounting_is_silent;     /* its accounting did not respond, although it exists */
    bool may_requeue;              /* slurm.requeue */
    uint64_t now_wall_ns;
    const struct job_folder *folder;
    const char *why;        /* who cancelled it in the queue, and why; NULL: not known */
    const char *down_nodes; /* nodes of the job that Slurm considers down: "n3"; "" if unknown */
};

struct job_verdict {
    enum job_state state;
    char note[1024];      /* for people: why it pends, which node was lost */
    bool seal;            /* seal the last attempt (or a new one) with this outcome, since no agent will */
    enum outcome outcome; /* for the seal */
};

/* `record` holds the previous state and Slurm's latest reply (call job_record_observe first). */
void job_state_judge(const struct job_record *record, const struct job_observation *observation,
                     struct job_verdict *verdict);

/* Copies Slurm's reply into the record: state and since when, nodes, times, queue_s and boot_s. */
void job_record_observe(struct job_record *record, const struct slurm_job *slurm, uint64_t now_wall_ns);

#endif
