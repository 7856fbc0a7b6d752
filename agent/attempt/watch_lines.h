/* What the hooks of a watched command report, and programs that use libckptbench: lines of JSON, as
 * share/watch/hooks/ckptbench_watch/recorder.py and lib/recording.c write them, one file a process. */
#ifndef AGENT_ATTEMPT_WATCH_LINES_H
#define AGENT_ATTEMPT_WATCH_LINES_H

#include "agent/attempt/attempt.h"

/* What a machine wrote in the last save. */
struct watch_share {
    char *host; /* as files of lines are named: core/process.h, process_node_name */
    double bytes;
    uint32_t writers; /* ranks with files */
};

/* What the tasks of several nodes say of the device's limit, which they measured together. */
#define LIMIT_ROUNDS 3
struct limit_round {
    double bytes, slowest_s; /* of all nodes; time of the slowest */
    uint32_t nodes;          /* that took part */
};
struct watch_limit {
    uint32_t nodes, files; /* nodes that were to measure; files of all */
    struct limit_round writes[LIMIT_ROUNDS], reads[LIMIT_ROUNDS];
    char why[600]; /* why it was not measured; "" if no task says so */
};

/* What the lines say beside the samples. */
struct watch_summary {
    /* Tasks of `ckptbench watch --join`. */
    uint32_t tasks, ended, expected; /* expected: how many there will be; 0 if no task knew it */
    uint64_t started_wall_ns;        /* when the first task began */
    uint64_t ended_wall_ns;          /* when the last one ended */
    char command[64];                /* its command's name */
    char failure[256];               /* how the first command that failed ended; "" if none did */
    bool was_asked;                  /* a command ended after a request to end */
    bool was_late;                   /* a command was ended at timeout.run */
    char unreadable[256];            /* the file of a task that cannot be read, and why; "" if all can */
    /* Checkpoints. */
    char place[512];       /* the folder of the last save that passed, or of the first that failed; "" if unknown */
    double bytes;          /* that all ranks wrote in the last save; NAN if a rank's were not seen */
    uint32_t writers;      /* ranks with files in the last save */
    uint32_t saves, loads; /* how many there were, failed ones included */
    struct watch_share *shares; /* of each machine with lines; owned */
    size_t share_count;
    struct watch_limit limit;
    uint32_t processes; /* files of lines but those of tasks */
    bool lacks_ranks;   /* there are more ranks than processes: some were not seen */
    bool has_several_hosts;
    bool all_reported; /* at least one process of each rank is known, and all said that they were at their end */
    bool was_stopped;  /* a request to end arrived while the lines were read: some are missing */
};

/* Creates the status pages of the watched ranks from the lines in `folder`: a sample for each save and load, facts and
 * figures of the run on the first page. The ranks that had no part in a save or load get a sample without time.
 * Iterations are numbered from 1.
 *
 * Saves of the same path by several ranks are one iteration. Files saved in one piece are iterations only if the
 * command saved and loaded nothing else. If there are more than 16 ranks for each one that has reported, only those that
 * have get a page, in their order. Malformed lines, as that of a process that was killed, are counted, and files
 * that cannot be read are named. If a
 * process says that it is a rank which another process is at the same time, what it reported is left out. A request to
 * end (foreground_requests) ends the reading; what was read until then counts. An attempt without a time of start
 * began with the first line and ended with the last. */
int watch_lines_read(struct attempt *attempt, const char *folder, struct watch_summary *summary,
                     struct cb_err *err) CB_MUST_CHECK;
/* Also after a failure. */
void watch_summary_release(struct watch_summary *summary);

#endif
