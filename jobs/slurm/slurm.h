/* Slurm's states, and its output as values. Pure: no process is started here.
 *
 * We query text in the formats below, never JSON, whose structure changes between versions. Times are seconds since
 * 1970 (SLURM_TIME_FORMAT=%s). Parsers accept any bytes; malformed lines (job names of other users may contain
 * anything) are skipped and counted. */
#ifndef JOBS_SLURM_SLURM_H
#define JOBS_SLURM_SLURM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

/* Base states, and the flags that squeue shows instead. */
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
    SLURM_IS_UNKNOWN,   /* a state of another Slurm release: shown unchanged, no conclusions */
    SLURM_IS_WAITING,   /* in the queue */
    SLURM_IS_BOOTING,   /* has nodes that are not up yet */
    SLURM_IS_RUNNING,   /* also suspended, stopped, resizing */
    SLURM_IS_ENDING,    /* its processes are ending */
    SLURM_IS_UNSETTLED, /* ended, but may return: final only after a grace period away from the queue */
    SLURM_IS_ENDED
};
const char *slurm_state_name(enum slurm_state state);
/* By name; also accepts sacct's suffixes ("CANCELLED by 1000") and "+" after a truncated name; UNKNOWN for others. */
enum slurm_state slurm_state_find(const char *name);
enum slurm_phase slurm_state_phase(enum slurm_state state);

struct slurm_job {
    char id[64];   /* "4711", "4711_3" */
    char name[64]; /* "" if it is too long to be ours */
    char comment[128];
    bool in_array;
    uint64_t array_task; /* with in_array */
    enum slurm_state state;
    char state_name[32]; /* as Slurm wrote it */
    char reason[256];
    uint64_t node_count, restarts;
    char nodes[512];                   /* "n[1-4]"; truncated if longer */
    char head[64];                     /* the node of the job script; "" if not known */
    uint64_t submit_s, start_s, end_s; /* 0: unknown */
    uint64_t scheduled_s;              /* when its nodes were allocated, once it has begun; only scontrol reports it */
    int exit_status, exit_signal;
    bool has_details; /* restarts, end and exit are known (from scontrol or sacct) */
};

struct slurm_jobs {
    struct slurm_job *items; /* owned */
    size_t count, left_out;  /* malformed lines */
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

/* Parses the output of sbatch --parsable: "4711" or "4711;cluster", in the last line of that form, since a login may
 * print other lines first. `cluster` becomes "" if there is none. */
int slurm_parse_submitted(const char *text, size_t len, char id[64], char cluster[64],
                          struct cb_err *err) CB_MUST_CHECK;

/* Turns names, one per line and possibly repeated (a node is in several partitions), into "n1,n2" without duplicates.
 * Names that do not fit into `bytes` are dropped. */
void slurm_parse_names(const char *text, size_t len, char *names, size_t bytes);

/* A number of scontrol show config ("SuspendTime = 60 sec") or show partition ("SuspendTime=600"); false for INFINITE,
 * -1, GLOBAL, or if absent. */
bool slurm_parse_setting(const char *text, size_t len, const char *key, uint64_t *number);

/* scontrol ping: whether a controller is up. */
bool slurm_parse_ping(const char *text, size_t len);

#endif
