/* ckptbench cancel: ends jobs, or drops runs that were only planned. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/jobs/job_list.h"
#include "cli/jobs/job_status.h"
#include "cli/jobs/pool_runs.h"
#include "cli/jobs/site_runs.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/log.h"
#include "jobs/slurm/run_follow.h"

#define SETTLE_NS (3 * NS_PER_S) /* how long to wait for cancelled jobs to end */
#define LOOK_NS (200 * NS_PER_MS)

/* A run that was never submitted is sealed as cancelled here, because there is no job to seal it. */
static int cancel_planned(struct job_list *list, struct job_entry *entry, struct cb_err *err)
{
    bool ingested;
    int fd, rc = job_folder_lock(entry->folder, &fd, err);
    if (rc)
        return rc;
    if (fd < 0)
        return cb_fail(err, CB_ERR_EXISTS, "run %s is being submitted by another ckptbench: cancel it once more",
                       entry->run);
    rc = job_folder_seal(entry->folder, entry->run, &entry->seen, OUTCOME_CANCELLED,
                         "cancelled before it was submitted", err);
    snprintf(entry->record.name, sizeof entry->record.name, "%s", entry->run);
    if (rc == 0)
        rc = job_record_enter(&entry->record, JOB_CANCELLED, clock_wall_ns(), "cancelled before it was submitted", err);
    if (rc == 0)
        rc = job_record_write(entry->folder, &entry->record, err);
    if (rc == 0)
        rc = history_ingest(list->history, entry->folder, &ingested, err);
    run_folder_unlock(fd);
    return rc;
}

/* Records the request, so that the job's end can be explained later. If this fails (a full disk), the cancellation
 * continues. */
static void note_asked(struct job_entry *entry)
{
    struct cb_err err;
    int fd, rc = job_folder_lock(entry->folder, &fd, &err);
    if (rc == 0 && fd >= 0) {
        entry->record.cancel_asked = true;
        rc = job_record_write(entry->folder, &entry->record, &err);
        run_folder_unlock(fd);
    }
    if (rc)
        log_error("run %s: %s; cancelled all the same", entry->run, err.message);
}

static int cancel_entry(struct job_list *list, struct job_entry *entry, const char **ids, size_t *count,
                        struct cb_err *err)
{
    if (entry->is_final) {
        log_info("run %s has ended already (%s)", entry->run, entry->outcome);
        return 0;
    }
    if (job_entry_is_away(entry))
        return 0;              /* its site cancels it */
    if (*entry->record.pool) { /* the run's job belongs to the pool, which continues */
        bool nowhere;
        int rc = pool_cancel_run(&entry->record, entry->run, &nowhere, err);
        if (rc)
            return rc;
        if (nowhere && entry->seen.attempts == 0)
            return cancel_planned(list, entry, err);
        note_asked(entry);
        return 0;
    }
    bool only_planned = entry->verdict.state == JOB_PLANNED && entry->seen.attempts == 0;
    if (!entry->has_record && !only_planned)
        return cb_fail(err, CB_ERR_USAGE, "run %s is no job of Slurm: stop it where it runs, with Ctrl-C", entry->run);
    if (*entry->record.job) {
        ids[(*count)++] = entry->record.job;
        note_asked(entry);
        return 0;
    }
    if (entry->record.intent_wall_ns)
        return cb_fail(err, CB_ERR_TIMEOUT,
                       "run %s was given to sbatch, and Slurm does not list its job (yet): cancel it once more later",
                       entry->run);
    return cancel_planned(list, entry, err);
}

static int cancel_all(struct cli *cli, struct job_list *list, struct cb_err *err)
{
    char site[64];
    size_t count = 0;
    const char **ids = calloc(list->count + 1, sizeof *ids);
    int rc = ids ? job_list_sync(list, err) : alloc_fail(err, "for %zu jobs", list->count);
    for (size_t i = 0; rc == 0 && i < list->count; i++)
        rc = cancel_entry(list, &list->items[i], ids, &count, err);
    if (rc == 0 && count)
        rc = slurm_ping(&list->client, err);
    if (rc == 0 && count)
        rc = slurm_cancel(&list->client, ids, count, err);
    free(ids);
    for (size_t i = 0; i < list->count; i++)
        list->items[i].was_asked_for = false;
    while (rc == 0 && job_list_next_site(list, site)) {
        struct remote *remote;
        rc = job_list_site(list, site, &remote, err);
        if (rc == 0)
            rc = remote_runs_cancel(remote, list, err);
    }
    uint64_t deadline_ns = clock_monotonic_ns() + SETTLE_NS;
    while (rc == 0 && (rc = job_list_sync(list, err)) == 0 && !job_list_is_final(list) &&
           clock_monotonic_ns() < deadline_ns)
        clock_sleep_ns(LOOK_NS);
    if (rc == 0 && list->broken) {
        log_error("%s", list->trouble);
        cli->exit_code = CB_EXIT_INFRASTRUCTURE;
    }
    return rc ? rc : job_status_write(cli, list, err);
}

static int run_cancel(struct cli *cli, struct cb_err *err)
{
    const char *site = cli_flag_value(cli, "site");
    struct job_list list;
    if (cli->word_count == 0)
        return cb_fail(err, CB_ERR_USAGE, "cancel what? `ckptbench cancel RUN…`; `ckptbench status` lists them");
    int rc = job_list_init(&list, NULL, err);
    if (rc == 0 && site)
        rc = job_list_take(&list, site, cli->words, cli->word_count, err);
    if (rc == 0)
        rc = job_list_add(&list, cli->words, cli->word_count, err);
    if (rc == 0)
        rc = cancel_all(cli, &list, err);
    job_list_release(&list);
    return rc;
}

static const struct verb_flag flags[] = {SITE_FLAG};

const struct verb verb_cancel = {
    .name = "cancel",
    .arguments = "RUN|SWEEP… [key=value…]",
    .summary = "end jobs, or take back what was only planned",
    .about =
        "What a job has measured until then is kept. A job that is running has some seconds to end in order; one that "
        "does several runs (slurm.one_job) ends with all of them; "
        "`status` shows its end.",
    .example = "ckptbench cancel 20261121-m2",
    VERB_FLAGS(flags),
    .run = run_cancel,
};
