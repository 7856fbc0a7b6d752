/* The Slurm job of a run: job.json in the run folder.
 *
 * The controller replaces the file by rename: before a job is submitted, when its number is known, and when its state
 * changes, so that any later controller finds the job again. The history reads queue_s and boot_s from it. It does not
 * contain whether the run passed: the manifest of the last attempt does.
 *
 * States go planned, submitted, pending, booting, running, sealing, and end as done, failed, cancelled or lost; a
 * requeue returns to pending. Every change is kept. */
#ifndef RUN_JOB_RECORD_H
#define RUN_JOB_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "run/run_folder.h"

#define JOB_RECORD_VERSION 1
#define JOB_MAX_TRANSITIONS 1000 /* a job may be requeued very often; the first is kept, then the oldest are dropped */

enum job_state {
    JOB_PLANNED,
    JOB_SUBMITTED, /* submitted, not listed by Slurm yet */
    JOB_PENDING,
    JOB_BOOTING, /* nodes are allocated but not up yet */
    JOB_RUNNING,
    JOB_SEALING,
    JOB_DONE,
    JOB_FAILED,
    JOB_CANCELLED,
    JOB_LOST,
    JOB_STATE_COUNT
};
const char *job_state_name(enum job_state state);
bool job_state_find(const char *name, enum job_state *state);
bool job_state_is_final(enum job_state state);

struct job_transition {
    uint64_t at_wall_ns; /* when we saw the change */
    enum job_state state;
    char note[256]; /* Slurm's state and reason: "PENDING: Resources" */
};

struct job_record {
    char name[64];    /* job name in Slurm: the run's id; for an array, or a job with several runs, the first run's */
    char job[64];     /* "4711", "4711_3"; "" until sbatch has replied */
    char cluster[64]; /* if sbatch reported one, else "" */
    bool in_array;
    uint64_t array_task;
    char before[64];            /* the run that the same job executes before this one; "" if none */
    char pool[RUN_ID_BYTES];    /* id of the hold pool that executes it; "" for a job of its own */
    char step[32];              /* its step in the pool's job, "0"; "" before it starts */
    uint64_t intent_wall_ns;    /* when submission began; 0: never */
    uint64_t submitted_wall_ns; /* when sbatch had replied; 0 before */
    bool cancel_asked;          /* set by `cancel`: a run that ends after this was cancelled */
    enum job_state state;
    /* As last reported by Slurm. */
    char slurm_state[32], reason[256], nodes[512]; /* "RUNNING", "Resources", "n[1-4]" */
    uint64_t node_count;
    uint64_t restarts;
    uint64_t slurm_state_wall_ns; /* when we first saw it in that state */
    uint64_t queued_s, allocated_s,
        began_s;                        /* Slurm's clock, since 1970: submitted, nodes allocated, nodes up; 0 unknown */
    double queue_s, boot_s;             /* of the last attempt; NAN if unknown so far */
    struct job_transition *transitions; /* owned */
    size_t transition_count;
};

void job_record_init(struct job_record *self);
void job_record_release(struct job_record *self);

/* Enters a state and records the transition; does nothing if it is in that state already. */
int job_record_enter(struct job_record *self, enum job_state state, uint64_t at_wall_ns, const char *note,
                     struct cb_err *err) CB_MUST_CHECK;

/* Reads RUN_FOLDER/job.json. CB_ERR_NOT_FOUND if the run never was a job. */
int job_record_read(const char *run_folder, struct job_record *self, struct cb_err *err) CB_MUST_CHECK;
int job_record_write(const char *run_folder, const struct job_record *self, struct cb_err *err) CB_MUST_CHECK;
/* Writes it as part of a batch (NULL: at once). */
int job_record_write_in(struct file_batch *batch, const char *run_folder, const struct job_record *self,
                        struct cb_err *err) CB_MUST_CHECK;
/* Parses it from bytes. */
int job_record_parse(const char *name, const char *text, size_t len, struct job_record *self,
                     struct cb_err *err) CB_MUST_CHECK;

#endif
