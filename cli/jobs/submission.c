/* Writes the job scripts of planned runs and compares their resource requests. cli/jobs/submit_jobs.c submits them. */
#include "cli/jobs/submission.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/jobs/agent_program.h"
#include "core/alloc.h"
#include "core/path.h"
#include "jobs/slurm/job_script.h"
#include "jobs/slurm/run_follow.h"

#define SCRIPT_MAX_BYTES (1u << 16)
#define PLACE_BYTES 256

int submission_init(struct submission *self, struct cb_err *err)
{
    if (*self->agent)
        return 0;
    int rc = agent_program_find(self->agent, err);
    if (rc == 0)
        throughput_history_load(&self->book);
    return rc;
}

void submission_release(struct submission *self)
{
    throughput_history_release(&self->book);
}

/* ---- scripts ---- */

static int time_limit_ns(const struct submission *self, const struct experiment *experiment, uint64_t *limit_ns,
                         struct cb_err *err)
{
    *limit_ns = experiment_u64(experiment, OPT_SLURM_TIME);
    if (*limit_ns == 0 && experiment_bool(experiment, OPT_SLURM_ONE_JOB))
        return cb_fail(err, CB_ERR_USAGE,
                       "slurm.one_job=true needs slurm.time, the limit of the job for all of its runs");
    return *limit_ns ? 0 : forecast_run_ns(experiment, &self->book, limit_ns, err);
}

bool submission_leads_here(const struct experiment *experiment)
{
    return *experiment_text(experiment, OPT_SLURM_SBCAST) != '\0';
}

const char *submission_script_name(const struct experiment *experiment)
{
    return submission_leads_here(experiment) ? JOB_ALLOCATION : JOB_SCRIPT;
}

int submission_check_led_here(const struct run_plan *run_plan, struct cb_err *err)
{
    const char *first = experiment_text(run_plan->members[0].experiment, OPT_SLURM_SBCAST);
    for (size_t i = 0; i < run_plan->sweep.count; i++) {
        const struct experiment *experiment = run_plan->members[i].experiment;
        const char *folder = experiment_text(experiment, OPT_SLURM_SBCAST);
        if (strcmp(folder, first) != 0)
            return cb_fail(err, CB_ERR_USAGE, "slurm.sbcast says what a cluster is like: it cannot be swept");
        if (*folder && (*folder != '/' || strchr(folder, ' ')))
            return cb_fail(err, CB_ERR_USAGE, "slurm.sbcast=%.200s is no absolute path without blanks", folder);
        if (*folder && experiment_bool(experiment, OPT_SLURM_REQUEUE))
            return cb_fail(err, CB_ERR_USAGE,
                           "slurm.requeue=true: with slurm.sbcast the run is led from the login node, and Slurm runs "
                           "again only what it has a script of: leave it out, and submit what was preempted once more");
    }
    return 0;
}

/* `folder` is that of the run, or of the first of several; other members of `given` are kept. */
static int write_parts(const struct submission *self, const char *folder, const struct job_script *given,
                       bool allocation, struct buf *script, struct cb_err *err)
{
    char run_folder[PATH_MAX], log[PATH_MAX];
    struct job_script parts = *given;
    if (path_format(run_folder, sizeof run_folder, err, "%s%s", folder, parts.array_count ? "/" JOB_ARRAY : "") ||
        path_format(log, sizeof log, err, "%s/" JOB_LOG, folder))
        return CB_ERR_USAGE;
    parts.agent = self->agent;
    parts.run_folder = run_folder;
    parts.log = log;
    parts.after = self->after;
    parts.node_list = self->node_list;
    int rc = time_limit_ns(self, parts.experiment, &parts.time_limit_ns, err);
    if (rc)
        return rc;
    return allocation ? job_script_write_allocation(&parts, script, err) : job_script_write(&parts, script, err);
}

/* As for sbatch, even if the run will use salloc, so that requests can be compared and tested. */
static int batch_script(const struct submission *self, const char *name, const char *folder, uint64_t most_nodes,
                        const struct experiment *experiment, struct buf *script, struct cb_err *err)
{
    struct job_script parts = {.name = name, .most_nodes = most_nodes, .experiment = experiment};
    return write_parts(self, folder, &parts, false, script, err);
}

int submission_script(const struct submission *self, const char *name, const char *folder, size_t count,
                      const struct experiment *experiment, struct buf *script, struct cb_err *err)
{
    struct job_script parts = {.name = name, .array_count = count, .experiment = experiment};
    return write_parts(self, folder, &parts, submission_leads_here(experiment), script, err);
}

static uint64_t nodes_of(const struct experiment *experiment)
{
    uint64_t nodes = experiment_u64(experiment, OPT_NODES);
    return nodes ? nodes : 1;
}

static int script_of_one_job(const struct submission *self, const struct planned *members, size_t count,
                             struct buf *script, struct cb_err *err)
{
    const char **others = calloc(count, sizeof *others);
    if (!others)
        return alloc_fail(err, "for %zu runs", count);
    struct job_script parts = {.name = members[0].id, .others = others, .experiment = members[0].experiment};
    for (size_t i = 0; i < count; i++) {
        uint64_t nodes = nodes_of(members[i].experiment);
        parts.most_nodes = nodes > parts.most_nodes ? nodes : parts.most_nodes;
        if (i > 0)
            others[parts.other_count++] = members[i].folder;
    }
    int rc = write_parts(self, members[0].folder, &parts, submission_leads_here(parts.experiment), script, err);
    free(others);
    return rc;
}

int submission_script_of(const struct submission *self, const struct planned *members, size_t count, struct buf *script,
                         struct cb_err *err)
{
    if (count > 1 && experiment_bool(members[0].experiment, OPT_SLURM_ONE_JOB))
        return script_of_one_job(self, members, count, script, err);
    return submission_script(self, members[0].id, members[0].folder, count > 1 ? count : 0, members[0].experiment,
                             script, err);
}

/* ---- requests ---- */

/* The script without the name of the run: its request to Slurm, including the time limit. Runs of one job with whole
 * nodes may differ in the number of nodes: each uses the first nodes of the job. */
static int request_text(const struct submission *self, const struct experiment *experiment, struct buf *text,
                        struct cb_err *err)
{
    bool any_nodes = experiment_bool(experiment, OPT_SLURM_ONE_JOB) && experiment_bool(experiment, OPT_SLURM_EXCLUSIVE);
    buf_clear(text);
    return batch_script(self, "request", "/", any_nodes ? 1 : 0, experiment, text, err);
}

static int find_request(char **requests, size_t *count, const char *text, size_t *number, struct cb_err *err)
{
    for (*number = 0; *number < *count; ++*number)
        if (strcmp(requests[*number], text) == 0)
            return 0;
    requests[*count] = strdup(text);
    if (!requests[*count])
        return alloc_fail(err, "for a job script");
    ++*count;
    return 0;
}

/* Members of one combination are the same experiment, so one script represents them all. */
static int number_members(const struct submission *self, const struct run_plan *run_plan, size_t *numbers,
                          size_t *of_combination, char **requests, struct cb_err *err)
{
    size_t count = 0;
    struct buf text;
    int rc = 0;
    buf_init(&text, SCRIPT_MAX_BYTES);
    for (size_t i = 0; rc == 0 && i < run_plan->sweep.count; i++) {
        size_t *known = &of_combination[run_plan->sweep.members[i].combination], number; /* from 1; 0: not numbered */
        if (*known == 0) {
            rc = request_text(self, run_plan->members[i].experiment, &text, err);
            if (rc == 0)
                rc = find_request(requests, &count, text.data, &number, err);
            if (rc == 0)
                *known = number + 1;
        }
        numbers[i] = *known;
    }
    for (size_t i = 0; i < count; i++)
        free(requests[i]);
    buf_release(&text);
    return rc;
}

int submission_number_requests(const struct submission *self, const struct run_plan *run_plan, size_t *numbers,
                               struct cb_err *err)
{
    size_t combinations = run_plan->sweep.combinations + 1;
    size_t *of_combination = calloc(combinations, sizeof *of_combination);
    char **requests = calloc(combinations, sizeof *requests);
    int rc = of_combination && requests ? number_members(self, run_plan, numbers, of_combination, requests, err)
                                        : alloc_fail(err, "for %zu combinations", run_plan->sweep.combinations);
    free(of_combination);
    free(requests);
    return rc;
}

/* "partition train, slurm.account=physics" */
static const char *describe_place(const struct experiment *experiment, char text[PLACE_BYTES])
{
    static const enum option_id keys[] = {OPT_SLURM_ACCOUNT, OPT_SLURM_QOS};
    const char *partition = experiment_text(experiment, OPT_SLURM_PARTITION);
    snprintf(text, PLACE_BYTES, "%s%.60s", *partition ? "partition " : "the default partition", partition);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *value = experiment_text(experiment, keys[i]);
        size_t used = strlen(text);
        if (*value)
            snprintf(text + used, PLACE_BYTES - used, ", %s=%.60s", option_row(keys[i])->name, value);
    }
    return text;
}

/* `nodes`: the most that a run with this request needs. */
static int test_member(const struct submission *self, const struct planned *member, uint64_t nodes, struct cb_err *err)
{
    char id[64], cluster[64], place[PLACE_BYTES];
    enum submit_answer answer;
    struct buf script;
    buf_init(&script, SCRIPT_MAX_BYTES);
    int rc = batch_script(self, member->id, member->folder, nodes, member->experiment, &script, err);
    if (rc == 0)
        rc = slurm_submit(self->client, script.data, true, id, cluster, &answer, err);
    buf_release(&script);
    return rc ? cb_context(err, "Slurm would not take run %s on %s (nodes=%" PRIu64 ")", member->id,
                           describe_place(member->experiment, place), nodes)
              : 0;
}

static uint64_t most_nodes(const struct run_plan *run_plan, const size_t *numbers, size_t first)
{
    uint64_t most = 0;
    for (size_t i = first; i < run_plan->sweep.count; i++) {
        uint64_t nodes = nodes_of(run_plan->members[i].experiment);
        most = numbers[i] == numbers[first] && nodes > most ? nodes : most;
    }
    return most;
}

int submission_test(const struct submission *self, const struct run_plan *run_plan, const size_t *numbers,
                    struct cb_err *err)
{
    size_t tested = 0; /* new requests have larger numbers than all before */
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < run_plan->sweep.count; i++) {
        if (numbers[i] <= tested)
            continue;
        tested = numbers[i];
        rc = test_member(self, &run_plan->members[i], most_nodes(run_plan, numbers, i), err);
    }
    return rc;
}
