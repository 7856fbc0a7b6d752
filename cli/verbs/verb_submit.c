/* ckptbench submit: submits runs as Slurm jobs. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/jobs/job_list.h"
#include "cli/jobs/job_status.h"
#include "cli/jobs/pool_runs.h"
#include "cli/jobs/run_here.h"
#include "cli/jobs/submission.h"
#include "cli/jobs/submit_jobs.h"
#include "cli/sites/site_verb.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/file_batch.h"
#include "core/log.h"
#include "run/run_folder.h"
#include "run/workload_kind.h"

#define SCRIPT_MAX_BYTES (1u << 16)
#define NODE_LIST_BYTES 65536
#define SUBMIT_MAX_ARRAY 1000            /* limit of an array: Slurm's usual MaxArraySize - 1 */
#define SUBMIT_ARRAY_FROM 20             /* this many consecutive equal requests become an array */
#define SUBMIT_FORGET_NS (60 * NS_PER_S) /* after this time, an interrupted sbatch can no longer reach Slurm */

struct session {
    struct cli *cli;
    struct run_plan run_plan;
    struct submission submission;
    struct job_list list;   /* submitted runs; the submission uses its client */
    struct pool_entry pool; /* with --warm */
    bool warm;
    char after[JOB_NUMBER_BYTES]; /* number of the job that must pass first; "" if there is none */
    size_t *requests;             /* number of each member's request; owned */
    size_t most_tasks;            /* limit for an array */
    size_t sent;
};

/* ---- sending ---- */

static int write_all(struct session *self, struct cb_err *err)
{
    struct file_batch batch = {0};
    int rc = history_begin(self->list.history, err);
    if (rc)
        return rc;
    for (size_t i = 0; rc == 0 && i < self->run_plan.sweep.count; i++)
        rc = run_plan_write(&self->run_plan, i, self->list.history, &batch, err);
    if (rc == 0)
        rc = file_batch_commit(&batch, err);
    file_batch_release(&batch);
    return history_end(self->list.history, rc, err);
}

/* Submits a run to a pool: into its spool, or as a job on some of its nodes. */
static int send_warm(struct session *self, size_t index, size_t *sent, struct cb_err *err)
{
    const struct planned *member = &self->run_plan.members[index];
    const struct pool_entry *pool = &self->pool;
    uint64_t wanted = submission_nodes(member->experiment);
    char nodes[NODE_LIST_BYTES];
    if (pool->pool.mode == POOL_HOLD) {
        struct job_record record;
        job_record_init(&record);
        int rc = pool_put_run(pool, member->id, member->folder, wanted, &record, self->list.history, err);
        job_record_release(&record);
        *sent = rc == 0;
        return rc;
    }
    int rc = pool_pick_nodes(self->submission.client, pool, index, wanted, nodes, sizeof nodes, err);
    self->submission.node_list = rc == 0 && *nodes ? nodes : NULL;
    if (rc == 0 && !*nodes && index == 0)
        log_info("pool %s has no nodes that are up yet: its runs go to the queue as any other", pool->pool.name);
    if (rc == 0)
        rc = pool_note_run(pool->folder, member->id, err);
    if (rc == 0)
        rc = submission_send_planned(&self->submission, member, 1, false, NULL, sent, err);
    self->submission.node_list = NULL;
    return rc;
}

/* The number of consecutive members with the same request, at most the size of an array. Does not skip members in
 * between, because the order of a sweep is part of the measurement. */
static size_t count_equal(const struct session *self, size_t first)
{
    size_t equal = 1;
    while (first + equal < self->run_plan.sweep.count && equal < self->most_tasks &&
           self->requests[first + equal] == self->requests[first])
        equal++;
    return equal;
}

static bool is_one_job(const struct session *self)
{
    return experiment_bool(self->run_plan.members[0].experiment, OPT_SLURM_ONE_JOB);
}

/* A task of an array that is led from here ends without programs for its nodes. */
static bool may_be_array(const struct session *self)
{
    const struct experiment *experiment = self->run_plan.members[0].experiment;
    return !submission_leads_here(experiment) || workload_kind_of(experiment)->has_ranks;
}

static bool makes_array(const struct session *self, size_t count)
{
    if (is_one_job(self))
        return !self->warm && count > 1;
    if (self->warm || cli_has_flag(self->cli, "no-array") || !may_be_array(self))
        return false;
    return count >= (cli_has_flag(self->cli, "array") ? 2 : SUBMIT_ARRAY_FROM);
}

/* The number of members from `first` that are submitted together, and whether as an array. */
static size_t next_group(const struct session *self, size_t first, bool *array)
{
    size_t count = count_equal(self, first);
    *array = makes_array(self, count);
    while (!*array && first + count < self->run_plan.sweep.count) {
        size_t more = count_equal(self, first + count);
        if (makes_array(self, more))
            break;
        count += more;
    }
    return count;
}

/* Queries Slurm's limit, but only if there would be an array. */
static int ask_most_tasks(struct session *self, struct cb_err *err)
{
    bool any = false;
    self->most_tasks = SUBMIT_MAX_ARRAY;
    for (size_t i = 0; !any && i < self->run_plan.sweep.count; i++)
        any = makes_array(self, count_equal(self, i));
    if (!any)
        return 0;
    size_t most = 0;
    int rc = slurm_most_array_tasks(self->submission.client, &most, err);
    if (rc == 0 && most < SUBMIT_MAX_ARRAY)
        self->most_tasks = most ? most : 1;
    return rc;
}

static int send_all(struct session *self, struct cb_err *err)
{
    const size_t count = self->run_plan.sweep.count;
    int rc = 0;
    for (size_t i = 0, done; rc == 0 && i < count && i == self->sent && !launch_was_stopped(); i += done) {
        bool array = false;
        size_t sent = 0;
        done = self->warm ? 1 : next_group(self, i, &array);
        rc = self->warm ? send_warm(self, i, &sent, err)
                        : submission_send_planned(&self->submission, &self->run_plan.members[i], done, array,
                                                  launch_was_stopped, &sent, err);
        self->sent += sent;
    }
    if (rc == 0 && self->sent < count)
        rc = cb_fail(err, CB_ERR_ABORTED, "stopped");
    if (rc && count > 1)
        cb_context(err, "%zu of %zu runs submitted; `ckptbench submit --resume %s` sends the rest", self->sent, count,
                   self->run_plan.id);
    else if (rc)
        cb_context(err, "run %s", self->run_plan.id);
    return rc;
}

/* ---- resuming ---- */

static int resume_entry(struct session *self, struct job_entry *entry, struct cb_err *err)
{
    struct experiment *experiment = NULL;
    if (entry->is_final || *entry->record.job || entry->seen.attempts)
        return 0;
    if (*entry->record.pool) { /* put into the spool if it never got there; a job is not submitted again */
        struct pool_entry pool;
        struct pool_run found;
        pool_look_at_run(&entry->record, entry->run, NULL, &found);
        if (!found.nowhere)
            return 0;
        int rc = pool_choose(self->submission.client, entry->record.pool, &pool, err);
        if (rc == 0)
            rc = pool_put_run(&pool, entry->run, entry->folder, entry->record.node_count, &entry->record,
                              self->list.history, err);
        self->sent += rc == 0;
        return rc;
    }
    if (entry->record.intent_wall_ns && !self->list.asked)
        return cb_fail(err, CB_ERR_SYSTEM, "run %s: %s", entry->run, self->list.trouble);
    if (entry->record.intent_wall_ns + SUBMIT_FORGET_NS > clock_wall_ns())
        return cb_fail(err, CB_ERR_TIMEOUT,
                       "run %s was given to sbatch less than %d s ago and may still appear: not sent again yet",
                       entry->run, (int)(SUBMIT_FORGET_NS / NS_PER_S));
    int rc = run_folder_read_experiment(entry->folder, &experiment, err);
    if (rc == 0)
        rc = submission_init(&self->submission, err);
    entry->record.in_array = false;
    entry->record.before[0] = '\0';
    const struct sending item = {entry->run, entry->folder, experiment, &entry->record};
    size_t sent = 0;
    if (rc == 0)
        rc = submission_send(&self->submission, &item, 1, NULL, &sent, err);
    experiment_free(experiment);
    self->sent += sent;
    return rc;
}

static int resume(struct session *self, const char *word, struct cb_err *err)
{
    int rc = job_list_add(&self->list, &word, 1, err);
    if (rc == 0)
        rc = job_list_sync(&self->list, err);
    for (size_t i = 0; rc == 0 && i < self->list.count; i++)
        rc = resume_entry(self, &self->list.items[i], err);
    return rc;
}

/* ---- output ---- */

static void say_text(struct session *self, const char *id, const struct experiment *experiment)
{
    struct buf *out = &self->cli->out;
    const struct job_list *list = &self->list;
    const char *partition = experiment ? experiment_text(experiment, OPT_SLURM_PARTITION) : "";
    if (self->warm && self->pool.pool.mode == POOL_HOLD) {
        buf_printf(out, "submitted %zu run%s%s%s to pool %s     next: ckptbench status %s\n", self->sent,
                   self->sent == 1 ? " " : "s  (sweep ", id, self->sent == 1 ? "" : ")", self->pool.pool.name, id);
        return;
    }
    if (self->sent == 0) { /* --resume: everything was submitted before */
        buf_printf(out, "nothing to send: %s was submitted before     next: ckptbench status %s\n", id, id);
        return;
    }
    struct job_range jobs = {0};
    for (size_t i = 0; i < list->count; i++)
        job_range_add(&jobs, list->items[i].record.job);
    if (list->count == 1)
        buf_printf(out, "submitted run %s: job %s", list->items[0].run, jobs.first);
    else if (strcmp(jobs.first, jobs.last) == 0)
        buf_printf(out, "submitted %zu runs  (sweep %s): all in job %s", self->sent, id, jobs.first);
    else
        buf_printf(out, "submitted %zu runs  (sweep %s): job %s … %s", self->sent, id, jobs.first, jobs.last);
    buf_printf(out, "%s%s     next: ckptbench status %s\n", *partition ? " on partition " : "", partition, id);
}

/* ---- the verb ---- */

static int dry_run(struct session *self, struct cb_err *err)
{
    struct cli *cli = self->cli;
    int rc = 0;
    for (size_t i = 0, done; rc == 0 && i < self->run_plan.sweep.count; i += done) {
        const struct planned *member = &self->run_plan.members[i];
        struct buf script;
        done = count_equal(self, i);
        bool array = makes_array(self, done);
        done = array ? done : 1;
        buf_init(&script, SCRIPT_MAX_BYTES);
        rc = submission_script_of(&self->submission, member, done, &script, err);
        if (rc == 0)
            buf_append_text(&cli->out, script.data);
        buf_release(&script);
    }
    if (rc == 0)
        log_info("nothing planned, nothing submitted");
    return rc;
}

static int choose_pool(struct session *self, struct cb_err *err)
{
    const char *name = cli_flag_value(self->cli, "warm");
    if (cli_has_flag(self->cli, "array"))
        return cb_fail(err, CB_ERR_USAGE,
                       "--array and --warm: members of an array cannot each have nodes of their own");
    int rc = pool_choose(self->submission.client, name, &self->pool, err);
    if (rc == 0 && self->pool.pool.mode == POOL_HOLD && cli_has_flag(self->cli, "after"))
        rc = cb_fail(err, CB_ERR_USAGE,
                     "--after and --warm %s: runs of a hold pool are no jobs that others could wait for; they are "
                     "started in the order in which they come",
                     name);
    if (rc == 0 && self->pool.pool.mode == POOL_TOUCH && is_one_job(self))
        rc = cb_fail(err, CB_ERR_USAGE, "slurm.one_job=true and --warm %s: each run of a touch pool is a job", name);
    for (size_t i = 0; rc == 0 && i < self->run_plan.sweep.count; i++)
        rc = pool_check_run(&self->pool, self->run_plan.members[i].experiment, err);
    self->warm = rc == 0;
    return rc;
}

static int submit_new(struct session *self, struct cb_err *err)
{
    const char *after = cli_flag_value(self->cli, "after"), *suite = cli_flag_value(self->cli, "exclude-from");
    int rc = suite ? submission_exclude_bad(self->list.history, suite, &self->cli->settings, err) : 0;
    if (rc == 0 && after)
        rc = submission_resolve_after(self->list.history, after, &self->cli->settings, self->after, err);
    if (rc == 0)
        rc = run_plan_expand(&self->run_plan, &self->cli->settings, true, err);
    if (rc == 0 && cli_flag_value(self->cli, "id"))
        rc = run_plan_rename(&self->run_plan, cli_flag_value(self->cli, "id"), err);
    if (rc == 0)
        rc = submission_init(&self->submission, err);
    if (rc == 0)
        rc = submission_check_led_here(&self->run_plan, err);
    if (rc)
        return rc;
    self->submission.after = *self->after ? self->after : NULL;
    if (is_one_job(self) && cli_has_flag(self->cli, "array"))
        return cb_fail(err, CB_ERR_USAGE,
                       "--array makes a job of every run, slurm.one_job=true one of all: leave one out");
    if (cli_has_flag(self->cli, "array") && !may_be_array(self))
        return cb_fail(err, CB_ERR_USAGE,
                       "--array: workload=wait sends no programs, which would keep the nodes of an array with "
                       "slurm.sbcast: leave --array out");
    /* Numbers the requests, which determines the arrays. */
    self->most_tasks = SUBMIT_MAX_ARRAY;
    self->requests = calloc(self->run_plan.sweep.count + 1, sizeof *self->requests);
    rc = self->requests ? submission_number_requests(&self->submission, &self->run_plan, self->requests, err)
                        : alloc_fail(err, "for %zu runs", self->run_plan.sweep.count);
    if (rc || cli_has_flag(self->cli, "dry-run"))
        return rc ? rc : dry_run(self, err);
    rc = cli_flag_value(self->cli, "warm") ? choose_pool(self, err) : slurm_ping(self->submission.client, err);
    if (rc == 0 && !self->warm)
        rc = ask_most_tasks(self, err);
    if (rc == 0 && !(self->warm && self->pool.pool.mode == POOL_HOLD))
        rc = submission_test(&self->submission, &self->run_plan, self->requests, err);
    if (rc == 0)
        rc = write_all(self, err);
    if (rc == 0)
        rc = send_all(self, err);
    if (rc == 0) /* loads the runs as every other verb does */
        rc = job_list_add(&self->list, (const char *const[]){self->run_plan.id}, 1, err);
    for (size_t i = 0; rc == 0 && i < self->list.count; i++)
        rc = job_record_read(self->list.items[i].folder, &self->list.items[i].record, err);
    return rc;
}

/* With --id: continues a run or sweep that exists. CB_ERR_TIMEOUT if another ckptbench is submitting it: try later. */
static int submit_once(struct session *self, const char *id, const char **resumed, struct cb_err *err)
{
    static const char *const kinds[] = {"run", "sweep"};
    char filter[80];
    bool there = false;
    int rc = 0;
    if (!run_plan_is_id(id))
        return cb_fail(err, CB_ERR_USAGE, "--id %s: small letters, digits and dashes, at most 40", id);
    for (size_t i = 0; rc == 0 && !there && i < 2; i++) {
        struct run_selection selection = {0};
        snprintf(filter, sizeof filter, "%s=%s", kinds[i], id);
        rc = history_select(self->list.history, (const char *const[]){filter}, 1, &selection, err);
        there = selection.count > 0;
        run_selection_release(&selection);
    }
    if (rc)
        return rc;
    *resumed = there ? id : NULL;
    rc = there ? resume(self, id, err) : submit_new(self, err);
    return rc == CB_ERR_EXISTS ? cb_fail(err, CB_ERR_TIMEOUT, "%s is being submitted by another ckptbench", id) : rc;
}

static int submit(struct session *self, struct cb_err *err)
{
    const char *word = cli_flag_value(self->cli, "resume"), *id_given = cli_flag_value(self->cli, "id");
    if (word && id_given)
        return cb_fail(err, CB_ERR_USAGE, "--resume %s has its name already: leave --id out", word);
    if (cli_has_flag(self->cli, "array") && cli_has_flag(self->cli, "no-array"))
        return cb_fail(err, CB_ERR_USAGE, "--array and --no-array: one of them");
    if (word && cli_flag_value(self->cli, "exclude-from"))
        return cb_fail(err, CB_ERR_USAGE, "--exclude-from and --resume %s: its runs are frozen already", word);
    if (word && self->cli->settings.count)
        return cb_fail(err, CB_ERR_USAGE, "--resume %s takes no keys: its runs are frozen already", word);
    int rc = word       ? resume(self, word, err)
             : id_given ? submit_once(self, id_given, &word, err)
                        : submit_new(self, err);
    if (rc || self->list.count == 0)
        return rc;
    const char *id = word ? word : self->run_plan.id;
    const struct experiment *experiment = word ? NULL : self->run_plan.members[0].experiment;
    if (self->cli->json)
        rc = job_status_write_submitted(self->cli, &self->list, self->list.count > 1 ? id : NULL, NULL, err);
    else
        say_text(self, id, experiment);
    if (rc == 0 && cli_has_flag(self->cli, "wait")) {
        rc = cli_flush(self->cli, err);
        if (rc == 0)
            rc = job_status_wait(self->cli, &self->list, err);
    }
    return rc;
}

static int run_submit(struct cli *cli, struct cb_err *err)
{
    struct session self = {.cli = cli};
    launch_catch_signals(false); /* the first Ctrl-C stops between two jobs, or stops waiting */
    if (cli_flag_value(cli, "site"))
        return remote_submit(cli, cli_flag_value(cli, "site"), err);
    int rc = job_list_init(&self.list, NULL, err);
    self.submission.history = self.list.history;
    self.submission.client = &self.list.client;
    if (rc == 0)
        rc = submit(&self, err);
    job_list_release(&self.list);
    run_plan_release(&self.run_plan);
    free(self.requests);
    submission_release(&self.submission);
    return rc;
}

static const struct verb_flag submit_flags[] = {
    {"dry-run", NULL, "print the job scripts; plan and submit nothing"},
    {"wait", NULL, "wait until all have ended; the exit code is the runs'"},
    {"after", "RUN", "start only once RUN has passed; a load takes its checkpoint"},
    {"array", NULL, "send runs of a sweep that ask for the same as job arrays, also where they are few"},
    {"no-array", NULL, "send each run as a job of its own, however many they are"},
    {"warm", "POOL", "on the nodes of a warm pool, or inside its allocation (`ckptbench warm`)"},
    {"exclude-from", "SUITE", "not on nodes that this run of workload=suite found bad (LATEST: the newest)"},
    {"resume", "RUN|SWEEP", "send what was planned and not sent"},
    {"id", "NAME", "name the run or sweep so; one of that name goes on, and no second one is made"},
    REPLACE_KEPT_FLAG,
    SITE_FLAG,
};

const struct verb verb_submit = {
    .name = "submit",
    .arguments = "[FILE.yaml…] [key=value…]",
    .summary = "run as jobs of Slurm: several nodes, sweeps, repeats",
    .about = "A comma in a value sweeps: every combination is a job, repeat=n times. Slurm is asked first whether it "
             "could run them. Nothing is sent twice: where an answer of sbatch is lost, the job is found by its name. "
             "With slurm.one_job=true, runs in a row that ask for the same are one job, one after the other. The keys "
             "nodes, ranks_per_node and slurm.* say what to ask for.",
    .example = "ckptbench submit nightly.yaml store=/shared/ckpt nodes=2,4,8 repeat=5",
    .takes_experiment = true,
    VERB_FLAGS(submit_flags),
    .run = run_submit,
};
