/* Planned runs on their way to Slurm: their scripts, and sending them once and only once. Shared by render
 * and submit. */
#ifndef CLI_SUBMISSION_H
#define CLI_SUBMISSION_H

#include <stdbool.h>

#include "cli/outlook.h"
#include "cli/planning.h"
#include "core/buf.h"
#include "core/err.h"
#include "core/job_record.h"
#include "db/history.h"
#include "jobs/client.h"

struct submission {
    char agent[4096]; /* ckptbench-agent, absolute */
    struct rates rates;
    const char *after;           /* number of the job that must pass before; NULL: none */
    const char *node_list;       /* "n1,n2": to run there; NULL: anywhere */
    struct slurm_client *client; /* borrowed; NULL for render */
    struct history *history;     /* borrowed */
};

/* Finds the agent beside this program, else in PATH, and the rates for time limits. */
int submission_init(struct submission *self, const struct experiment *experiment, struct cb_err *err) CB_MUST_CHECK;

/* ckptbench-agent beside this program, else in PATH; absolute. */
int submission_find_agent(char path[4096], struct cb_err *err) CB_MUST_CHECK;

/* The script of one run; with `count` > 0 of an array of so many, whose first run this is. */
int submission_script(const struct submission *self, const char *name, const char *folder, size_t count,
                      const struct experiment *experiment, struct buf *script, struct cb_err *err) CB_MUST_CHECK;

/* Asks Slurm whether it could run each of them; nothing is queued. Equal requests are asked once. */
int submission_test(const struct submission *self, const struct planning *planning, struct cb_err *err) CB_MUST_CHECK;

/* Sends one planned run. `record` is its record (init before; what was read for one that is sent again) and
 * is written to the folder. CB_ERR_TIMEOUT: no answer came and Slurm does not list the job (yet); it is not
 * sent again, and `status` finds it when it appears. */
int submission_send(const struct submission *self, const char *run, const char *folder,
                    const struct experiment *experiment, struct job_record *record, struct cb_err *err) CB_MUST_CHECK;

/* Sends equal planned runs as one array, members first … first+count-1. */
int submission_send_array(const struct submission *self, const struct planning *planning, size_t first, size_t count,
                          struct job_record *records, struct cb_err *err) CB_MUST_CHECK;

/* Whether two experiments ask Slurm for the same. */
bool submission_is_equal(const struct experiment *a, const struct experiment *b);

#endif
