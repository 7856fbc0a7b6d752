/* The device's limit for a watched command: measured where its last checkpoint is, after the command has ended. */
#ifndef AGENT_ATTEMPT_WATCH_LIMIT_H
#define AGENT_ATTEMPT_WATCH_LIMIT_H

#include "agent/attempt/attempt.h"
#include "agent/attempt/watch_lines.h"

#define WATCH_LIMIT_FOLDER ".ckptbench-limit-" /* start of the name of a folder of files; the run follows */

/* What one machine wrote in the last save. */
struct limit_share {
    char place[512]; /* folder of the checkpoint */
    double bytes;
    uint32_t writers; /* ranks with files; 0: the machine measures nothing, and only meets the others */
    bool loads;       /* reads are measured, too */
};

/* What one machine has measured. */
struct limit_result {
    uint32_t files, writes, reads; /* files; rounds of each direction */
    uint64_t bytes;                /* of a file */
    double write_s[LIMIT_ROUNDS], read_s[LIMIT_ROUNDS];
};

/* How machines that measure together meet, before each direction of a round. */
struct limit_meeting {
    int (*meet)(void *context, bool *goes_on, struct cb_err *err); /* *goes_on false: there are enough rounds */
    void *context;
};

/* Called about every 100 ms while the storage is waited for. A failure ends the measurement. */
struct limit_look {
    int (*look)(void *context, struct cb_err *err);
    void *context;
};

/* Writes as many bytes in as many files as the share says (at most 16 files and 4 GiB), with the io.* settings of runs,
 * fsync inside, and reads them cold; up to three rounds. `meeting` NULL: this machine is alone. `look` may be NULL. The files
 * lie in `folder` of the place, and are removed. A request to end (foreground_requests) ends it with CB_ERR_ABORTED. */
int watch_limit_run(const struct experiment *experiment, const char *folder, const struct limit_share *share,
                    const struct limit_meeting *meeting, const struct limit_look *look, struct limit_result *result,
                    struct cb_err *err) CB_MUST_CHECK;

/* CB_ERR_UNSUPPORTED, with the reason, if what was seen is not the whole save: no limit can be compared with it. */
int watch_limit_check(const struct watch_summary *summary, struct cb_err *err) CB_MUST_CHECK;

/* Measures on this machine, unless processes of the command ran on another. The median rate of the rounds becomes the
 * baseline of the run, and a fact says what was measured, or why nothing was. `look` may be NULL. */
void watch_limit_measure(struct attempt *attempt, const struct watch_summary *summary, const struct limit_look *look);

/* The same from what tasks on the command's nodes have measured together (agent/attempt/watch_nodes.h): in each round the
 * bytes of all by the time of the slowest, as the baseline of a run. */
void watch_limit_take(struct attempt *attempt, const struct watch_summary *summary);

/* Removes the files of measurements that were killed. */
void watch_limit_remove_left(const struct attempt *attempt, const struct watch_summary *summary);

#endif
