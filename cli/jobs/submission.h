/* Planned runs as jobs of Slurm: their scripts, and what they ask for. Shared by render and submit; cli/jobs/submit_jobs.h
 * sends them. */
#ifndef CLI_JOBS_SUBMISSION_H
#define CLI_JOBS_SUBMISSION_H

#include <stdbool.h>

#include "cli/plan/forecast.h"
#include "cli/plan/run_plan.h"
#include "core/buf.h"
#include "core/err.h"
#include "db/history.h"
#include "jobs/slurm/slurm_client.h"

struct submission {
    char agent[4096];               /* ckptbench-agent, absolute */
    struct throughput_history book; /* what runs here measured, for time limits */
    const char *after;              /* number of the job that must pass before; NULL: none */
    const char *node_list;          /* "n1,n2": to run there; NULL: anywhere */
    struct slurm_client *client;    /* borrowed; NULL for render */
    struct history *history;        /* borrowed */
};

/* Finds the agent beside this program, else in PATH, and the rates for time limits. Again is no mistake; release
 * also after a failure. */
int submission_init(struct submission *self, struct cb_err *err) CB_MUST_CHECK;
void submission_release(struct submission *self);

/* Whether the run is led from here, by an agent under salloc, and its programs go to the nodes by sbcast. */
bool submission_leads_here(const struct experiment *experiment);

/* What its script is called in the run folder. */
const char *submission_script_name(const struct experiment *experiment);

/* Whether what the runs ask for can be had where they are led from here; of runs that are not, nothing is asked. */
int submission_check_led_here(const struct run_plan *run_plan, struct cb_err *err) CB_MUST_CHECK;

/* The script of one run; with `count` > 0 of an array of so many, whose first run this is. */
int submission_script(const struct submission *self, const char *name, const char *folder, size_t count,
                      const struct experiment *experiment, struct buf *script, struct cb_err *err) CB_MUST_CHECK;

/* The script of one job for planned runs in a row: of one run; with slurm.one_job of all, one after the other; else of an
 * array. */
int submission_script_of(const struct submission *self, const struct planned *members, size_t count, struct buf *script,
                         struct cb_err *err) CB_MUST_CHECK;

/* What each member asks Slurm for, as a number from 1 on: equal requests, equal numbers; new ones come in order. Its
 * time limit is part of it. `numbers` has a place for each member. */
int submission_number_requests(const struct submission *self, const struct run_plan *run_plan, size_t *numbers,
                               struct cb_err *err) CB_MUST_CHECK;

/* Asks Slurm whether it could run each of them; nothing is queued. Equal requests are asked once. */
int submission_test(const struct submission *self, const struct run_plan *run_plan, const size_t *numbers,
                    struct cb_err *err) CB_MUST_CHECK;

#endif
