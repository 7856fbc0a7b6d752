/* Writes the job scripts of planned runs and compares their resource requests. cli/jobs/submit_jobs.c submits them. */
#include "cli/jobs/submission.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/jobs/agent_program.h"
#include "cli/jobs/job_list.h"
#include "cli/report/suite_report.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/path.h"
#include "jobs/slurm/job_script.h"
#include "jobs/slurm/run_follow.h"
#include "run/workload_kind.h"

#define SCRIPT_MAX_BYTES (1u << 16)
#define PLACE_BYTES 256
#define NAMES_MAX_BYTES (1u << 20)

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

bool submission_leads_here(const struct experiment *experiment)
{
    return *experiment_text(experiment, OPT_SLURM_SBCAST) != '\0';
}

const char *submission_script_name(const struct experiment *experiment)
{
    return submission_leads_here(experiment) ? JOB_ALLOCATION : JOB_SCRIPT;
}

int submission_check_folder(const struct experiment *experiment, struct cb_err *err)
{
    const char *folder = experiment_text(experiment, OPT_SLURM_SBCAST);
    bool good = *folder == '/' || !*folder;
    for (const char *at = folder; *at; at++)
        good = good && (unsigned char)*at > ' ' && *at != 0x7F;
    return good ? 0
                : cb_fail(err, CB_ERR_USAGE,
                          "slurm.sbcast=%.200s is no absolute path without blanks and control characters", folder);
}

int submission_check_led_here(const struct run_plan *run_plan, struct cb_err *err)
{
    const char *first = experiment_text(run_plan->members[0].experiment, OPT_SLURM_SBCAST);
    for (size_t i = 0; i < run_plan->sweep.count; i++) {
        const struct experiment *experiment = run_plan->members[i].experiment;
        const char *folder = experiment_text(experiment, OPT_SLURM_SBCAST);
        if (strcmp(folder, first) != 0)
            return cb_fail(err, CB_ERR_USAGE, "slurm.sbcast says what a cluster is like: it cannot be swept");
        int rc = submission_check_folder(experiment, err);
        if (rc)
            return rc;
        if (*folder && experiment_is(experiment, OPT_LAUNCHER, "none"))
            return cb_fail(err, CB_ERR_USAGE,
                           "launcher=none: with slurm.sbcast the agent is not on the nodes, and its rank would not be, "
                           "either: leave it out");
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
    parts.time_limit_ns = experiment_u64(parts.experiment, OPT_SLURM_TIME);
    if (parts.time_limit_ns == 0 && experiment_bool(parts.experiment, OPT_SLURM_ONE_JOB))
        return cb_fail(err, CB_ERR_USAGE,
                       "slurm.one_job=true needs slurm.time, the limit of the job for all of its runs");
    int rc = parts.time_limit_ns ? 0 : forecast_run_ns(parts.experiment, &self->book, &parts.time_limit_ns, err);
    if (rc)
        return rc;
    return allocation ? job_script_write_allocation(&parts, script, err) : job_script_write(&parts, script, err);
}

int submission_script(const struct submission *self, const char *name, const char *folder, size_t count,
                      const struct experiment *experiment, struct buf *script, struct cb_err *err)
{
    struct job_script parts = {.name = name, .array_count = count, .experiment = experiment};
    return write_parts(self, folder, &parts, submission_leads_here(experiment), script, err);
}

uint64_t submission_nodes(const struct experiment *experiment)
{
    uint64_t nodes = experiment_u64(experiment, OPT_NODES);
    return nodes ? nodes : 1;
}

int submission_script_of(const struct submission *self, const struct planned *members, size_t count, struct buf *script,
                         struct cb_err *err)
{
    const struct planned *first = &members[0];
    if (count == 1 || !experiment_bool(first->experiment, OPT_SLURM_ONE_JOB))
        return submission_script(self, first->id, first->folder, count > 1 ? count : 0, first->experiment, script, err);
    const char **others = calloc(count, sizeof *others);
    if (!others)
        return alloc_fail(err, "for %zu runs", count);
    struct job_script parts = {.name = first->id, .others = others, .experiment = first->experiment};
    for (size_t i = 0; i < count; i++) {
        uint64_t nodes = submission_nodes(members[i].experiment);
        parts.most_nodes = nodes > parts.most_nodes ? nodes : parts.most_nodes;
        if (i > 0)
            others[parts.other_count++] = members[i].folder;
    }
    int rc = write_parts(self, first->folder, &parts, submission_leads_here(first->experiment), script, err);
    free(others);
    return rc;
}

/* ---- requests ---- */

/* The script without the name of the run: its request to Slurm, including the time limit. Runs that share a job with
 * whole nodes may differ in the number of nodes: each uses the first nodes of the job. */
static int request_text(const struct submission *self, const struct experiment *experiment, struct buf *text,
                        struct cb_err *err)
{
    bool any_nodes = experiment_bool(experiment, OPT_SLURM_ONE_JOB) && experiment_bool(experiment, OPT_SLURM_EXCLUSIVE);
    buf_clear(text);
    const struct job_script parts = {.name = "request", .most_nodes = any_nodes ? 1 : 0, .experiment = experiment};
    return write_parts(self, "/", &parts, false, text, err);
}

/* Members of one combination are the same experiment, so one script represents them all. */
int submission_number_requests(const struct submission *self, const struct run_plan *run_plan, size_t *numbers,
                               struct cb_err *err)
{
    size_t combinations = run_plan->sweep.combinations + 1, count = 0;
    size_t *of_combination = calloc(combinations, sizeof *of_combination); /* from 1; 0: not yet numbered */
    char **requests = calloc(combinations, sizeof *requests);
    struct buf text;
    int rc = of_combination && requests ? 0 : alloc_fail(err, "for %zu combinations", run_plan->sweep.combinations);
    buf_init(&text, SCRIPT_MAX_BYTES);
    for (size_t i = 0; rc == 0 && i < run_plan->sweep.count; i++) {
        size_t *known = &of_combination[run_plan->sweep.members[i].combination], number = 0;
        if (*known == 0) {
            rc = request_text(self, run_plan->members[i].experiment, &text, err);
            while (rc == 0 && number < count && strcmp(requests[number], text.data) != 0)
                number++;
            if (rc == 0 && number == count && !(requests[count++] = strdup(text.data)))
                rc = alloc_fail(err, "for a job script");
            *known = number + 1;
        }
        numbers[i] = *known;
    }
    for (size_t i = 0; i < count; i++)
        free(requests[i]);
    buf_release(&text);
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

/* `nodes`: the most nodes that a run with this request needs. */
static int test_member(const struct submission *self, const struct planned *member, uint64_t nodes, struct cb_err *err)
{
    char id[64], cluster[64], place[PLACE_BYTES];
    enum submit_answer answer;
    struct buf script;
    buf_init(&script, SCRIPT_MAX_BYTES);
    const struct job_script parts = {.name = member->id, .most_nodes = nodes, .experiment = member->experiment};
    int rc =
        write_parts(self, member->folder, &parts, false, &script, err); /* for sbatch, even if salloc will run it */
    if (rc == 0)
        rc = slurm_submit(self->client, script.data, true, id, cluster, &answer, err);
    buf_release(&script);
    return rc ? cb_context(err, "Slurm would not take run %s on %s (nodes=%" PRIu64 ")", member->id,
                           describe_place(member->experiment, place), nodes)
              : 0;
}

int submission_test(const struct submission *self, const struct run_plan *run_plan, const size_t *numbers,
                    struct cb_err *err)
{
    size_t tested = 0; /* a new request has a larger number than all earlier ones */
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < run_plan->sweep.count; i++) {
        uint64_t most_nodes = 0;
        if (numbers[i] <= tested)
            continue;
        tested = numbers[i];
        for (size_t k = i; k < run_plan->sweep.count; k++) {
            uint64_t nodes = submission_nodes(run_plan->members[k].experiment);
            most_nodes = numbers[k] == tested && nodes > most_nodes ? nodes : most_nodes;
        }
        rc = test_member(self, &run_plan->members[i], most_nodes, err);
    }
    return rc;
}

bool submission_lacks_suffix(const struct setting_list *settings)
{
    bool loads = false, names_one = false;
    for (size_t i = 0; i < settings->count; i++) {
        const struct setting *setting = &settings->items[i];
        if (strcmp(setting->key, "ops") == 0)
            loads = setting->value_count == 1 && strcmp(setting->values[0], "load") == 0;
        names_one = names_one || strcmp(setting->key, "suffix") == 0;
    }
    return loads && !names_one;
}

/* ---- excluding bad nodes ---- */

static int find_suite(struct history *history, const char *word, struct run_info **run, struct cb_err *err)
{
    const char *const filters[] = {"workload=suite", word};
    bool is_newest = strcmp(word, "LATEST") == 0;
    struct run_selection selection = {0};
    char id[64] = "";
    int rc = 0;
    if (is_newest || strchr(word, '=')) {
        rc = history_select(history, filters, is_newest ? 1 : 2, &selection, err);
        if (rc == 0 && selection.count == 0)
            rc = cb_fail(err, CB_ERR_NOT_FOUND, "--exclude-from %s: no run of workload=suite matches", word);
        if (rc == 0)
            snprintf(id, sizeof id, "%s", selection.runs[0]); /* the newest */
        run_selection_release(&selection);
    } else {
        rc = history_find_run(history, word, id, err);
    }
    if (rc == 0)
        rc = history_load_run(history, id, run, err);
    if (rc == 0 && !workload_kind_of((*run)->experiment)->measures_cluster)
        rc = cb_fail(err, CB_ERR_USAGE, "--exclude-from %s: run %s is of workload=%s, not a suite", word, id,
                     workload_kind_of((*run)->experiment)->name);
    return rc;
}

/* Appends an option to each value of slurm.extra, which is added if it is missing. */
static int add_option(struct setting_list *settings, const char *option, struct cb_err *err)
{
    static const char key[] = "slurm.extra";
    bool has = false;
    for (size_t i = 0; i < settings->count; i++) {
        struct setting *setting = &settings->items[i];
        for (size_t k = 0; strcmp(setting->key, key) == 0 && k < setting->value_count; k++, has = true) {
            static const char exclude[] = "--exclude=";
            char *whole, *list = strstr(setting->values[k], exclude); /* of two lists sbatch takes the last */
            int len = list ? asprintf(&whole, "%.*s%s,%s", (int)(list - setting->values[k]), setting->values[k], option,
                                      list + strlen(exclude))
                           : asprintf(&whole, "%s %s", setting->values[k], option);
            if (len < 0)
                return alloc_fail(err, "for slurm.extra");
            free(setting->values[k]);
            setting->values[k] = whole;
        }
    }
    return has ? 0 : setting_add(settings, key, option, "--exclude-from", err);
}

int submission_exclude_bad(struct history *history, const char *word, struct setting_list *settings, struct cb_err *err)
{
    struct run_info *run = NULL;
    struct bad_nodes bad = {0};
    struct buf list, option;
    buf_init(&list, NAMES_MAX_BYTES);
    buf_init(&option, NAMES_MAX_BYTES);
    int rc = find_suite(history, word, &run, err);
    if (rc == 0)
        rc = suite_find_bad_nodes(history, run, &bad, err);
    for (size_t i = 0; rc == 0 && i < bad.count; i++) {
        buf_printf(&list, "%s%s", i ? "," : "", bad.names[i]);
        log_info("run %s: node %s is an outlier in %s", run->run, bad.names[i], metric_row(bad.metrics[i])->name);
    }
    if (rc == 0 && bad.count == 0)
        log_info("run %s found no bad node: none is excluded", run->run);
    if (rc == 0 && bad.count) {
        buf_printf(&option, "--exclude=%s", list.data);
        rc = buf_check(&option, "the nodes to exclude", err);
    }
    if (rc == 0 && bad.count)
        rc = add_option(settings, option.data, err);
    if (rc == 0 && bad.count)
        log_info("to drain: scontrol update nodename=%s state=drain reason='ckptbench suite %s'", list.data, run->run);
    bad_nodes_release(&bad);
    run_info_free(run);
    buf_release(&list);
    buf_release(&option);
    return rc;
}

/* ---- after another run ---- */

int submission_resolve_after(struct history *history, const char *word, struct setting_list *settings,
                             char job[JOB_NUMBER_BYTES], struct cb_err *err)
{
    char run[64];
    struct job_list list;
    int rc = history_find_run(history, word, run, err);
    if (rc)
        return rc;
    rc = job_list_init(&list, history, err);
    if (rc == 0)
        rc = job_list_add(&list, (const char *const[]){run}, 1, err);
    if (rc == 0)
        rc = job_list_sync(&list, err);
    if (rc == 0 && list.count != 1)
        rc = cb_fail(err, CB_ERR_USAGE, "--after %s: one run, not a sweep", word);
    else if (rc == 0 && list.items[0].is_final && list.items[0].verdict.state != JOB_DONE)
        rc = cb_fail(err, CB_ERR_USAGE, "--after %s: that run has not passed (%s)", run, list.items[0].outcome);
    else if (rc == 0 && !list.items[0].is_final && !*list.items[0].record.job)
        rc = cb_fail(err, CB_ERR_USAGE, "--after %s: that run is not submitted (yet)", run);
    if (rc == 0 && !list.items[0].is_final)
        snprintf(job, JOB_NUMBER_BYTES, "%s", list.items[0].record.job);
    job_list_release(&list);
    if (rc || !submission_lacks_suffix(settings))
        return rc;
    struct run_info *info;
    rc = history_load_run(history, run, &info, err);
    if (rc)
        return rc;
    const char *suffix = experiment_text(info->experiment, OPT_SUFFIX);
    rc = setting_add(settings, "suffix", *suffix ? suffix : run, "--after", err);
    run_info_free(info);
    return rc;
}
