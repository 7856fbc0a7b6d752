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

#define SETTLE_NS (3 * NS_PER_S) /* how long to wait until cancelled jobs have ended */
#define LOOK_NS (200 * NS_PER_MS)

/* A run that was never submitted is sealed as cancelled here, because no job will do it. */
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
    job_folder_unlock(fd);
    return rc;
}

/* Records the request, so that the end of the job is explained later. */
static int write_asked(struct job_entry *entry, struct cb_err *err)
{
    int fd, rc = job_folder_lock(entry->folder, &fd, err);
    if (rc || fd < 0)
        return rc;
    entry->record.cancel_asked = true;
    rc = job_record_write(entry->folder, &entry->record, err);
    job_folder_unlock(fd);
    return rc;
}

/* A failure to record it (a full disk) must not prevent the cancellation. */
static void note_asked(struct job_entry *entry)
{
    struct cb_err err;
    if (write_asked(entry, &err))
        log_error("run %s: %s; cancelled all the same", entry->run, err.message);
}

/* The run's job belongs to the pool, which continues. */
static int cancel_in_pool(struct job_list *list, struct job_entry *entry, struct cb_err *err)
{
    bool nowhere;
    int rc = pool_cancel_run(&entry->record, entry->run, &nowhere, err);
    if (rc)
        return rc;
    if (nowhere && entry->seen.attempts == 0)
        return cancel_planned(list, entry, err);
    note_asked(entry);
    return 0;
}

static int cancel_entry(struct job_list *list, struct job_entry *entry, const char **ids, size_t *count,
                        struct cb_err *err)
{
    if (entry->is_final) {
        log_info("run %s has ended already (%s)", entry->run, entry->outcome);
        return 0;
    }
    if (job_entry_is_away(entry))
        return 0; /* its site cancels it */
    if (*entry->record.pool)
        return cancel_in_pool(list, entry, err);
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

/* Asks each site once for all of its runs. */
static int cancel_away(struct job_list *list, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < list->count; i++)
        list->items[i].was_asked_for = false;
    for (size_t i = 0; rc == 0 && i < list->count; i++) {
        struct remote *remote;
        if (!job_entry_is_away(&list->items[i]) || list->items[i].was_asked_for)
            continue;
        for (size_t k = i; k < list->count; k++)
            list->items[k].was_asked_for |= strcmp(list->items[k].site, list->items[i].site) == 0;
        rc = job_list_site(list, list->items[i].site, &remote, err);
        if (rc == 0)
            rc = remote_runs_cancel(remote, list, err);
    }
    return rc;
}

static int cancel_all(struct cli *cli, struct job_list *list, struct cb_err *err)
{
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
    if (rc == 0)
        rc = cancel_away(list, err);
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

/* --site: adds runs that the local history does not know yet. */
static int take_from_site(struct cli *cli, struct job_list *list, struct cb_err *err)
{
    struct remote *remote;
    const char *site = cli_flag_value(cli, "site");
    if (!site)
        return 0;
    int rc = job_list_site(list, site, &remote, err);
    return rc ? rc : remote_runs_take(remote, list->history, cli->words, cli->word_count, err);
}

static int run_cancel(struct cli *cli, struct cb_err *err)
{
    struct history *history = NULL;
    struct job_list list = {0};
    struct run_selection selection = {0};
    if (cli->word_count == 0)
        return cb_fail(err, CB_ERR_USAGE, "cancel what? `ckptbench cancel RUN…`; `ckptbench status` lists them");
    int rc = history_open(NULL, &history, err);
    if (rc == 0)
        rc = job_list_init(&list, history, err);
    if (rc == 0)
        rc = take_from_site(cli, &list, err);
    if (rc == 0)
        rc = history_select(history, cli->words, cli->word_count, &selection, err);
    if (rc == 0)
        rc = job_list_add(&list, &selection, err);
    if (rc == 0)
        rc = cancel_all(cli, &list, err);
    run_selection_release(&selection);
    job_list_release(&list);
    history_close(history);
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
