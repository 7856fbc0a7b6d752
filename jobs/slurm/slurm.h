/* What Slurm says: its states, and its answers as values. Pure: no process is started here.
 *
 * Text is asked for in the forms below, never JSON, whose shape moves between versions. Times come as
 * seconds since 1970 (SLURM_TIME_FORMAT=%s). Parsers take any bytes; lines that are not what was asked for
 * (other people's job names may hold anything) are left out and counted. */
#ifndef JOBS_SLURM_SLURM_H
#define JOBS_SLURM_SLURM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

/* Base states, and the flags that squeue shows in their place. */
enum slurm_state {
    SLURM_UNKNOWN,
    SLURM_PENDING,
    SLURM_RUNNING,
    SLURM_SUSPENDED,
    SLURM_COMPLETED,
    SLURM_CANCELLED,
    SLURM_FAILED,
    SLURM_TIMEOUT,
    SLURM_NODE_FAIL,
    SLURM_PREEMPTED,
    SLURM_BOOT_FAIL,
    SLURM_DEADLINE,
    SLURM_OUT_OF_MEMORY,
    SLURM_CONFIGURING,
    SLURM_COMPLETING,
    SLURM_REQUEUED,
    SLURM_REQUEUE_FED,
    SLURM_REQUEUE_HOLD,
    SLURM_SPECIAL_EXIT,
    SLURM_RESIZING,
    SLURM_SIGNALING,
    SLURM_STAGE_OUT,
    SLURM_STOPPED,
    SLURM_REVOKED,
    SLURM_RESV_DEL_HOLD,
    SLURM_POWER_UP_NODE,
    SLURM_LAUNCH_FAILED,
    SLURM_RECONFIG_FAIL,
    SLURM_EXPEDITING,
    SLURM_STATE_COUNT
};

/* What a state means for a run. */
enum slurm_phase {
    SLURM_IS_UNKNOWN,   /* a state of another release: shown as it is, nothing concluded */
    SLURM_IS_WAITING,   /* in the queue */
    SLURM_IS_BOOTING,   /* has nodes that are not up */
    SLURM_IS_RUNNING,   /* also suspended, stopped, resizing */
    SLURM_IS_ENDING,    /* its processes are ending */
    SLURM_IS_UNSETTLED, /* ended, and may come back: final only after a grace time away from the queue */
    SLURM_IS_ENDED
};
const char *slurm_state_name(enum slurm_state state);
/* By name, also with what sacct appends ("CANCELLED by 1000") and "+" behind a cut one; UNKNOWN for others. */
enum slurm_state slurm_state_find(const char *name);
enum slurm_phase slurm_state_phase(enum slurm_state state);

struct slurm_job {
    char id[64];   /* "4711", "4711_3" */
    char name[64]; /* "" where it is too long to be ours */
    char comment[128];
    bool in_array;
    uint64_t array_task; /* with in_array */
    enum slurm_state state;
    char state_name[32]; /* as Slurm wrote it */
    char reason[256];
    uint64_t node_count, restarts;
    char nodes[512];                   /* "n[1-4]"; cut where longer */
    char head[64];                     /* the node of the job script; "" where it is not known */
    uint64_t submit_s, start_s, end_s; /* 0: unknown */
    uint64_t scheduled_s;              /* when it was given its nodes, once it has begun; only scontrol says it */
    int exit_status, exit_signal;
    bool has_details; /* restarts, end and exit are known: scontrol or sacct said them */
};

struct slurm_jobs {
    struct slurm_job *items; /* owned */
    size_t count, left_out;  /* lines that were not understood */
};
void slurm_jobs_release(struct slurm_jobs *self);

/* squeue -h -a -r -t all -o SLURM_QUEUE_FORMAT. Appends. */
#define SLURM_QUEUE_FORMAT "%i|%K|%T|%D|%V|%S|%N|%j|%k|%r"
int slurm_parse_queue(const char *text, size_t len, struct slurm_jobs *jobs, struct cb_err *err) CB_MUST_CHECK;

/* scontrol show job -o. Appends. */
int slurm_parse_details(const char *text, size_t len, struct slurm_jobs *jobs, struct cb_err *err) CB_MUST_CHECK;

/* sacct -X -P -n -o SLURM_ACCOUNTING_FORMAT. Appends. */
#define SLURM_ACCOUNTING_FORMAT "JobID,State,ExitCode,Submit,Start,End,NNodes,NodeList,JobName"
int slurm_parse_accounting(const char *text, size_t len, struct slurm_jobs *jobs, struct cb_err *err) CB_MUST_CHECK;

/* sbatch --parsable: "4711" or "4711;cluster", the last line that is one; what a login prints before it is no
 * mistake. `cluster` becomes "" where there is none. */
int slurm_parse_submitted(const char *text, size_t len, char id[64], char cluster[64],
                          struct cb_err *err) CB_MUST_CHECK;

/* Names, one a line and perhaps several times (a node is in several partitions), as "n1,n2": each once. What
 * does not fit into `bytes` is left out. */
void slurm_parse_names(const char *text, size_t len, char *names, size_t bytes);

/* scontrol show config: MaxArraySize, the number of places in an array; 0 where it is not said. */
size_t slurm_parse_most_tasks(const char *text, size_t len);

/* scontrol ping: whether a controller is up. */
bool slurm_parse_ping(const char *text, size_t len);

#endif
