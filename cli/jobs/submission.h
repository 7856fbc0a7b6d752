/* Turns planned runs into Slurm jobs: their scripts and resource requests. Shared by render and submit;
 * cli/jobs/submit_jobs.h submits them. */
#ifndef CLI_JOBS_SUBMISSION_H
#define CLI_JOBS_SUBMISSION_H

#include <stdbool.h>

#include "cli/plan/forecast.h"
#include "cli/plan/run_plan.h"
#include "core/buf.h"
#include "core/err.h"
#include "core/setting.h"
#include "db/history.h"
#include "jobs/slurm/slurm_client.h"

struct submission {
    char agent[4096];               /* absolute path of ckptbench-agent */
    struct throughput_history book; /* throughput of earlier runs here, for time limits */
    const char *after;              /* number of the job that must pass first; NULL if there is none */
    const char *node_list;          /* "n1,n2": run on these nodes; NULL for any nodes */
    struct slurm_client *client;    /* borrowed; NULL for render */
    struct history *history;        /* borrowed */
};

/* Finds the agent beside this program, else in PATH, and the rates for time limits. May be called again; release
 * also after a failure. */
int submission_init(struct submission *self, struct cb_err *err) CB_MUST_CHECK;
void submission_release(struct submission *self);

/* Whether this machine leads the run, with an agent under salloc that sends its programs to the nodes by sbcast. */
bool submission_leads_here(const struct experiment *experiment);

/* Whether slurm.sbcast is empty or a folder that can be used. */
int submission_check_folder(const struct experiment *experiment, struct cb_err *err) CB_MUST_CHECK;

/* The file name of its script in the run folder. */
const char *submission_script_name(const struct experiment *experiment);

/* Checks that the requests of runs that are led from this machine can be satisfied; ignores other runs. */
int submission_check_led_here(const struct run_plan *run_plan, struct cb_err *err) CB_MUST_CHECK;

/* The script of one run; if `count` > 0, of an array of `count` runs that starts with this one. */
int submission_script(const struct submission *self, const char *name, const char *folder, size_t count,
                      const struct experiment *experiment, struct buf *script, struct cb_err *err) CB_MUST_CHECK;

/* The script of one job for consecutive planned runs: a single run; with slurm.one_job all of them, one after the
 * other; otherwise an array. */
int submission_script_of(const struct submission *self, const struct planned *members, size_t count, struct buf *script,
                         struct cb_err *err) CB_MUST_CHECK;

/* Numbers the requests of the members from 1 in order of appearance; equal requests, including the time limit, get
 * equal numbers. `numbers` has one element for each member. */
int submission_number_requests(const struct submission *self, const struct run_plan *run_plan, size_t *numbers,
                               struct cb_err *err) CB_MUST_CHECK;

/* --exclude-from WORD: a run of the suite, LATEST (the newest one) or filters. Adds --exclude with the run's bad nodes
 * to slurm.extra of `settings`, and logs how to drain them. */
int submission_exclude_bad(struct history *history, const char *word, struct setting_list *settings,
                           struct cb_err *err) CB_MUST_CHECK;

#define JOB_NUMBER_BYTES 64

/* Whether the settings only load and name no checkpoint; they then load that of the --after run. */
bool submission_lacks_suffix(const struct setting_list *settings);

/* --after: the job number of the run `word`, which must pass before the others start; leaves `job` unchanged if it has
 * passed already. Settings that only load use its checkpoint unless they name another. */
int submission_resolve_after(struct history *history, const char *word, struct setting_list *settings,
                             char job[JOB_NUMBER_BYTES], struct cb_err *err) CB_MUST_CHECK;

/* Number of nodes that a run needs. */
uint64_t submission_nodes(const struct experiment *experiment);

/* Asks Slurm whether it could run each of them, without queueing. Equal requests are asked once. */
int submission_test(const struct submission *self, const struct run_plan *run_plan, const size_t *numbers,
                    struct cb_err *err) CB_MUST_CHECK;

#endif
