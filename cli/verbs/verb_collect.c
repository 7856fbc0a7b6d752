/* ckptbench collect: ingests run folders into the history; with --rebuild recreates the history from them.
 *
 * An attempt without a manifest whose heartbeat is stale is sealed as lost, with what is known. Sealing is exclusive:
 * an agent that wakes up later cannot overwrite the seal, and if it was faster, its seal stays. Plans that a killed
 * controller left incomplete are repaired or removed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/jobs/agent_program.h"
#include "cli/jobs/job_list.h"
#include "cli/jobs/pool_list.h"
#include "cli/jobs/site_runs.h"
#include "cli/report/history_reading.h"
#include "cli/sites/site_verb.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/path.h"
#include "core/units.h"
#include "jobs/slurm/run_follow.h"
#include "run/run_folder.h"
#include "run/site.h"

#define PATH_MAX_BYTES 4096
#define DEFAULT_SILENCE_NS (60 * NS_PER_S)

struct collection {
    struct history *history;
    struct run_selection taken; /* runs that history_update has already ingested */
    struct json_writer json;
    bool as_json;
    uint64_t silence_ns; /* an agent whose heartbeat is older than this is dead */
    size_t ingested, known, unsealed, failed;
};

static void report(struct collection *self, const char *run, const char *result, const char *note)
{
    if (self->as_json) {
        json_write_begin_object(&self->json);
        json_member_text(&self->json, "run", run);
        json_member_text(&self->json, "result", result);
        json_member_text(&self->json, "note", note);
        json_write_end_object(&self->json);
    }
    if (strcmp(result, "failed") == 0)
        log_error("%s", note);
    else if (note)
        log_info("%s: %s", run, note);
    else
        log_verbose("%s: %s", run, result);
}

/* Sealing for a dead agent */

static uint64_t modified_ns(const char *folder, const char *name)
{
    char path[PATH_MAX_BYTES];
    struct stat status;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path || stat(path, &status))
        return 0;
    return (uint64_t)status.st_mtim.tv_sec * NS_PER_S + (uint64_t)status.st_mtim.tv_nsec;
}

/* The newest modification time of the files of a folder. */
static uint64_t newest_in_ns(const char *attempt_path, const char *folder)
{
    char path[PATH_MAX_BYTES];
    uint64_t newest = 0;
    DIR *entries = snprintf(path, sizeof path, "%s/%s", attempt_path, folder) < (int)sizeof path ? opendir(path) : NULL;
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        uint64_t at_ns = modified_ns(path, entry->d_name);
        newest = at_ns > newest ? at_ns : newest;
    }
    if (entries)
        closedir(entries);
    return newest;
}

/* The newest modification time of the files that a running agent or a program that records itself writes. */
static uint64_t last_sign_ns(const char *attempt_path)
{
    static const char *const names[] = {".", "progress.json", "records", "logs"};
    uint64_t newest = newest_in_ns(attempt_path, LINES_FOLDER);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        uint64_t at_ns = modified_ns(attempt_path, names[i]);
        newest = at_ns > newest ? at_ns : newest;
    }
    return newest;
}

/* The processes of an attempt have left lines. A program that records itself needs no silence if all of its processes
 * reported their end. */
static int seal_lines(struct collection *self, const char *run, const char *folder, const char *attempt_path,
                      bool is_silent, struct cb_err *err)
{
    static const char lost[] = "not every process reported its end: what had been recorded until then is kept";
    struct manifest manifest;
    int rc = agent_program_seal(folder, OUTCOME_LOST, is_silent ? lost : NULL, err);
    if (!rc && manifest_read(attempt_path, &manifest, NULL) == 0)
        report(self, run, "sealed", *manifest.message ? manifest.message : NULL);
    return rc;
}

static int seal_vanished(struct collection *self, const char *run, const char *path, uint32_t attempt, uint64_t sign_ns,
                         struct cb_err *err)
{
    uint64_t started_ns = modified_ns(path, "fingerprint.json");
    struct manifest manifest = {.attempt = attempt,
                                .outcome = OUTCOME_LOST,
                                .started_wall_ns = started_ns && started_ns < sign_ns ? started_ns : sign_ns,
                                .ended_wall_ns = sign_ns};
    struct progress progress;
    snprintf(manifest.run, sizeof manifest.run, "%s", run);
    if (progress_read(path, &progress, NULL))
        snprintf(manifest.message, sizeof manifest.message, "the agent vanished before it reported any progress");
    else if (progress.op[0])
        snprintf(manifest.message, sizeof manifest.message, "the agent vanished at %s %u/%u (%s)%s%s", progress.op,
                 progress.iteration, progress.iterations, progress.state, progress.note[0] ? ": " : "", progress.note);
    else
        snprintf(manifest.message, sizeof manifest.message, "the agent vanished while %s%s%s", progress.state,
                 progress.note[0] ? ": " : "", progress.note);
    int rc = manifest_write_for_agent(path, &manifest, err);
    if (rc == CB_ERR_EXISTS)
        return 0; /* the agent was running and sealed it first */
    if (rc == 0)
        report(self, run, "sealed", manifest.message);
    return rc;
}

static int seal_if_dead(struct collection *self, const char *run, const char *folder, struct cb_err *err)
{
    char path[PATH_MAX_BYTES];
    struct manifest manifest;
    uint32_t last;
    int lock = -1, rc = run_folder_last_attempt(folder, &last, err);
    if (rc || last == 0)
        return rc;
    if (path_format(path, sizeof path, err, "%s/attempts/%u", folder, last))
        return CB_ERR_USAGE;
    rc = manifest_read(path, &manifest, err);
    if (rc != CB_ERR_NOT_FOUND)
        return rc;
    uint64_t sign_ns = last_sign_ns(path);
    bool is_silent = sign_ns + self->silence_ns <= clock_wall_ns(), has_lines = modified_ns(path, LINES_FOLDER) != 0;
    if (!is_silent && !has_lines)
        return 0;
    if (run_folder_lock(folder, &lock, NULL) == 0 && lock < 0)
        return 0; /* a controller, on whichever machine, is at work on the run: clocks of two machines may differ */
    rc = has_lines ? seal_lines(self, run, folder, path, is_silent, err)
                   : seal_vanished(self, run, path, last, sign_ns, err);
    run_folder_unlock(lock);
    return rc;
}

/* Incomplete plans of a dead controller */

static bool has_attempts(const char *folder)
{
    uint32_t last = 0;
    return run_folder_last_attempt(folder, &last, NULL) == 0 && last > 0;
}

/* The files of a plan in the order of their creation, without planned.json, which completes it. */
static const char *const plan_files[] = {"labels.yaml",         "labels.yaml.tmp",  "experiment.yaml",
                                         "experiment.yaml.tmp", "planned.json.tmp", "lock"};

static bool holds_only_a_plan(const char *folder)
{
    DIR *entries = opendir(folder);
    bool only = entries != NULL;
    for (struct dirent *entry; only && (entry = readdir(entries));) {
        const char *name = entry->d_name;
        only = strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, "attempts") == 0;
        for (size_t i = 0; !only && i < sizeof plan_files / sizeof *plan_files; i++)
            only = strcmp(name, plan_files[i]) == 0;
    }
    if (entries)
        closedir(entries);
    return only;
}

/* A folder unknown to the history: it is being planned, or its planning was interrupted. */
static bool is_half_planned(struct collection *self, const char *run, const char *folder)
{
    struct run_info *info;
    if (modified_ns(folder, "planned.json") || has_attempts(folder) || !holds_only_a_plan(folder))
        return false;
    int rc = history_load_run(self->history, run, &info, NULL);
    if (rc == 0)
        run_info_free(info);
    return rc == CB_ERR_NOT_FOUND;
}

/* Removes an interrupted plan: nothing has run, so nothing is lost. */
static bool remove_cut_plan(struct collection *self, const char *run, const char *folder)
{
    char path[PATH_MAX_BYTES];
    if (modified_ns(folder, ".") + self->silence_ns > clock_wall_ns())
        return false;
    for (size_t i = 0; i < sizeof plan_files / sizeof *plan_files; i++)
        if (snprintf(path, sizeof path, "%s/%s", folder, plan_files[i]) < (int)sizeof path)
            unlink(path);
    if (snprintf(path, sizeof path, "%s/attempts", folder) < (int)sizeof path)
        rmdir(path);
    if (rmdir(folder))
        return false;
    report(self, run, "removed", "its planning was cut short and nothing has run: the folder is removed");
    return true;
}

/* The controller died after setting the state to running and before the agent started: sets it back to planned. */
static int plan_again(struct collection *self, const char *run, const char *folder, struct cb_err *err)
{
    struct run_info *info;
    int rc = history_load_run(self->history, run, &info, err);
    if (rc)
        return rc == CB_ERR_NOT_FOUND ? 0 : rc;
    int fd = -1;
    bool is_locked = run_folder_lock(folder, &fd, NULL) || fd < 0; /* by a controller that works on it */
    run_folder_unlock(fd);
    bool left = strcmp(info->state, "running") == 0 && strcmp(info->site, SITE_LOCAL) == 0 && !has_attempts(folder) &&
                !is_locked;
    if (left)
        rc = history_set_state(self->history, run, "planned", err);
    if (left && rc == 0)
        report(self, run, "planned", "its controller died before it had started anything: planned again");
    run_info_free(info);
    return rc;
}

/* A run with unreadable results is no longer running. */
static void count_failed(struct collection *self, const char *run, int code, const char *message)
{
    self->failed++;
    report(self, run, "failed", message);
    if (code != CB_ERR_CORRUPT && code != CB_ERR_FORMAT)
        return;
    int rc = history_set_state(self->history, run, "failed", NULL);
    if (rc && rc != CB_ERR_NOT_FOUND)
        log_error("run %s keeps its state in the history, which cannot be written to", run);
}

/* Jobs of Slurm */

/* Queries Slurm about unfinished jobs first, because it may know how they ended. */
static int sync_jobs(struct cli *cli, struct collection *self, struct cb_err *err)
{
    static const char *const unfinished[] = {"state=planned,submitted,pending,booting,running,sealing"};
    const char *site = cli_flag_value(cli, "site");
    struct job_list jobs;
    int rc = job_list_init(&jobs, self->history, err);
    if (rc == 0) /* runs of sites that the history does not have */
        rc = site ? job_list_take(&jobs, site, cli->words, cli->word_count, err) : remote_take_unanswered(&jobs, err);
    if (rc == 0)
        rc = job_list_add(&jobs, unfinished, 1, err);
    if (rc == 0)
        rc = job_list_sync(&jobs, err);
    if (rc == 0 && *jobs.trouble) {
        log_error("%s; runs that are jobs stay as they are", jobs.trouble);
        cli->exit_code = CB_EXIT_INFRASTRUCTURE;
    }
    job_list_release(&jobs);
    return rc;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

static bool was_taken(const struct collection *self, const char *run)
{
    char key[sizeof *self->taken.runs];
    snprintf(key, sizeof key, "%s", run);
    return self->taken.count &&
           bsearch(key, self->taken.runs, self->taken.count, sizeof *self->taken.runs, compare_names);
}

/* Collects one folder. A failure is reported and counted; the other folders are still collected. */
static void collect_folder(struct collection *self, const char *run, const char *folder)
{
    struct cb_err err;
    struct job_record record;
    bool ingested = false;
    int rc;
    if (is_half_planned(self, run, folder)) {
        if (!remove_cut_plan(self, run, folder))
            self->unsealed++;
        return;
    }
    bool is_job = job_record_read(folder, &record, NULL) == 0;
    enum job_state state = is_job ? record.state : JOB_DONE;
    if (is_job)
        job_record_release(&record);
    if (!job_state_is_final(state)) {
        /* Only Slurm decides whether its agent may still start; a stale heartbeat alone does not. An earlier attempt
         * may be sealed and in the history while the run continues. */
        rc = history_ingest(self->history, folder, &ingested, &err);
        if (rc == 0 || rc == CB_ERR_NOT_FOUND)
            rc = history_set_state(self->history, run, job_state_name(state), &err);
        if (rc == 0) {
            self->unsealed++;
            report(self, run, "unsealed", NULL);
        } else {
            count_failed(self, run, rc, err.message);
        }
        return;
    }
    rc = seal_if_dead(self, run, folder, &err);
    if (rc == 0)
        rc = history_ingest(self->history, folder, &ingested, &err);
    if (rc == CB_ERR_NOT_FOUND) {
        self->unsealed++;
        /* A run that only waits for its turn is not reported. */
        report(self, run, "unsealed", has_attempts(folder) ? err.message : NULL);
        rc = plan_again(self, run, folder, &err);
        if (rc)
            count_failed(self, run, rc, err.message);
    } else if (rc) {
        count_failed(self, run, rc, err.message);
    } else if (ingested || was_taken(self, run)) {
        self->ingested++;
        report(self, run, "ingested", NULL);
    } else {
        self->known++;
        report(self, run, "known", NULL);
    }
}

/* All folders of runs/ in the order of their names, so that a rebuild is reproducible. */
static int collect_all(struct collection *self, struct cb_err *err)
{
    char runs[PATH_MAX_BYTES], folder[PATH_MAX_BYTES];
    struct dirent **entries = NULL;
    struct stat status;
    if (path_format(runs, sizeof runs, err, "%s/runs", history_folder(self->history)))
        return CB_ERR_USAGE;
    int count = scandir(runs, &entries, NULL, alphasort);
    if (count < 0)
        return errno == ENOENT ? 0 : cb_fail_errno(err, errno, "reading %s", runs);
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        if (name[0] != '.' && snprintf(folder, sizeof folder, "%s/%s", runs, name) < (int)sizeof folder &&
            stat(folder, &status) == 0 && S_ISDIR(status.st_mode))
            collect_folder(self, name, folder);
        free(entries[i]);
    }
    free(entries);
    return 0;
}

/* A word is a run folder, or the id of a run in runs/. The exit code is the outcome of the jobs that have ended, so
 * that a script need not query it again. */
static int collect_word(struct cli *cli, struct collection *self, const char *word, struct cb_err *err)
{
    char folder[PATH_MAX_BYTES];
    struct stat status;
    struct job_folder seen;
    struct job_record record;
    int length = strchr(word, '/') ? snprintf(folder, sizeof folder, "%s", word)
                                   : snprintf(folder, sizeof folder, "%s/runs/%s", history_folder(self->history), word);
    if (length >= (int)sizeof folder || stat(folder, &status))
        return cb_fail(err, CB_ERR_NOT_FOUND, "no run folder %s", folder);
    while (length > 1 && folder[length - 1] == '/')
        folder[--length] = '\0';
    const char *name = strrchr(folder, '/');
    collect_folder(self, name ? name + 1 : folder, folder);
    if (job_record_read(folder, &record, NULL))
        return 0;
    bool ended = job_state_is_final(record.state); /* a sealed attempt need not be the last */
    job_record_release(&record);
    if (ended && job_folder_look(folder, &seen, NULL) == 0 && seen.sealed &&
        outcome_exit_code(seen.manifest.outcome) > cli->exit_code)
        cli->exit_code = outcome_exit_code(seen.manifest.outcome);
    return 0;
}

/* Atomic: readers see the old history until the new one is complete. */
static int rebuild(struct collection *self, struct cb_err *err)
{
    int rc = history_begin(self->history, err);
    if (rc)
        return rc;
    rc = history_clear_for_rebuild(self->history, err);
    if (rc == 0)
        rc = collect_all(self, err);
    return history_end(self->history, rc, err);
}

static int run_collect(struct cli *cli, struct cb_err *err)
{
    struct collection self = {.as_json = cli->json, .silence_ns = DEFAULT_SILENCE_NS};
    bool rebuilds = cli_has_flag(cli, "rebuild");
    int rc = cli_parse_flag(cli, "silence", units_parse_duration, &self.silence_ns, err);
    if (rc == 0 && rebuilds && cli->word_count)
        rc = cb_fail(err, CB_ERR_USAGE, "--rebuild takes every run folder, not some");
    if (rc == 0)
        rc = history_open_to_collect(&self.history, err);
    if (rc)
        return rc;
    json_writer_init(&self.json, &cli->out, 0);
    if (cli->json)
        json_write_begin_array(&self.json);
    rc = history_update(self.history, &self.taken, err); /* keeps a copy of what an earlier version had */
    if (rc == 0 && rebuilds)
        rc = rebuild(&self, err);
    if (rc == 0 && !rebuilds)
        rc = sync_jobs(cli, &self, err);
    if (rc == 0 && cli->word_count == 0)
        pool_list_cancel_outlived();
    if (rc == 0 && cli->word_count == 0)
        rc = pool_list_keep(self.history, err);
    if (rc == 0 && cli->word_count == 0 && !rebuilds)
        rc = collect_all(&self, err);
    for (size_t i = 0; i < cli->word_count && rc == 0; i++)
        rc = collect_word(cli, &self, cli->words[i], err);
    run_selection_release(&self.taken);
    history_close(self.history);
    if (rc)
        return rc;
    if (cli->json)
        rc = cli_end_json(cli, &self.json, err);
    else
        buf_printf(&cli->out, "%zu ingested, %zu known, %zu not sealed, %zu failed\n", self.ingested, self.known,
                   self.unsealed, self.failed);
    if (self.failed)
        cli->exit_code = CB_EXIT_INFRASTRUCTURE;
    return rc;
}

static const struct verb_flag flags[] = {
    {"rebuild", NULL, "make the history anew from the run folders, labels and baselines"},
    SITE_FLAG,
    {"silence", "TIME", "an agent not heard of for so long is dead, its attempt lost (60s)"},
};

const struct verb verb_collect = {
    .name = "collect",
    .arguments = "[RUN|FOLDER…]",
    .summary = "bring run folders into the history",
    .about =
        "Twice is the same as once. An attempt whose agent died is sealed as lost, with what is known of it. "
        "Of a run that is a job, Slurm says whether it has ended; one named here gives the exit code of its outcome. "
        "--rebuild makes the whole history from the folders under HOME/runs.",
    .example = "ckptbench collect --rebuild",
    VERB_FLAGS(flags),
    .run = run_collect,
};
