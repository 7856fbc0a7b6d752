/* Fetches run folders of a site into a temporary place beside runs/ and moves them into place. */
#include "cli/jobs/site_fetch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/path.h"
#include "jobs/slurm/run_follow.h"
#include "run/run_folder.h"

#define AT_ONCE 64            /* runs fetched in one stream */
#define ASIDE "runs/.fetched" /* RUN below it while incomplete */

/* Checks every sealed attempt against its manifest; the last attempt must be sealed. */
static int check_fetched(const char *folder, const char *run, struct cb_err *err)
{
    char path[PATH_MAX];
    uint32_t last;
    int rc = run_folder_last_attempt(folder, &last, err);
    if (rc == 0 && last == 0)
        return cb_fail(err, CB_ERR_NOT_FOUND, "it holds no attempt");
    for (uint32_t number = 1; rc == 0 && number <= last; number++) {
        struct manifest manifest;
        if (path_format(path, sizeof path, err, "%s/attempts/%u", folder, number))
            return CB_ERR_USAGE;
        rc = manifest_read(path, &manifest, err);
        if (rc == CB_ERR_NOT_FOUND && number < last)
            rc = 0;
        else if (rc == 0 && strcmp(manifest.run, run) != 0)
            rc = cb_fail(err, CB_ERR_CORRUPT, "%s is sealed for run %s", path, manifest.run);
    }
    return rc;
}

/* ---- one run ---- */

/* The run was fetched before but not ingested; its folder is sufficient. */
static bool is_here(const char *folder)
{
    struct manifest manifest;
    char path[PATH_MAX];
    uint32_t last = 0;
    return run_folder_last_attempt(folder, &last, NULL) == 0 && last > 0 &&
           snprintf(path, sizeof path, "%s/attempts/%u", folder, last) < (int)sizeof path &&
           manifest_read(path, &manifest, NULL) == 0;
}

/* Locks the run; if another ckptbench is fetching it, there is nothing to do. */
static void begin(struct history *history, struct remote_fetch *item)
{
    bool ingested;
    item->lock_fd = -1;
    item->is_wanted = false;
    if (is_here(item->entry->folder)) {
        item->rc = history_ingest(history, item->entry->folder, &ingested, &item->why);
        return;
    }
    item->rc = job_folder_lock(item->entry->folder, &item->lock_fd, &item->why);
    item->is_wanted = item->rc == CB_ERR_NOT_FOUND || (item->rc == 0 && item->lock_fd >= 0);
    if (item->rc == CB_ERR_NOT_FOUND) /* the folder to lock does not exist yet */
        item->rc = 0;
}

static int settle(struct remote *remote, struct history *history, const char *aside, struct remote_fetch *item)
{
    char fetched[PATH_MAX], old[PATH_MAX];
    bool ingested;
    if (path_format(fetched, sizeof fetched, &item->why, "%s/%s", aside, item->entry->run) ||
        path_format(old, sizeof old, &item->why, "%s/runs/.old-%s", history_folder(history), item->entry->run))
        return CB_ERR_USAGE;
    int rc = check_fetched(fetched, item->entry->run, &item->why);
    if (rc == 0)
        rc = history_mark_folder(fetched, remote->site.name, &item->why);
    if (rc == 0) { /* the fetched folder replaces the planned one */
        run_folder_discard(old);
        if (rename(item->entry->folder, old) < 0 && errno != ENOENT)
            rc = cb_fail_errno(&item->why, errno, "making room for %s", item->entry->folder);
        else if (rename(fetched, item->entry->folder) < 0)
            rc = cb_fail_errno(&item->why, errno, "naming %s", item->entry->folder);
        else
            run_folder_discard(old);
    }
    if (rc == 0)
        rc = history_ingest(history, item->entry->folder, &ingested, &item->why);
    return rc;
}

static void clear_aside(const char *aside, const struct remote_fetch *item)
{
    char fetched[PATH_MAX];
    if (snprintf(fetched, sizeof fetched, "%s/%s", aside, item->entry->run) < (int)sizeof fetched)
        run_folder_discard(fetched);
}

/* ---- many ---- */

/* Fetches runs one by one after fetching them together has failed. After two connection errors in a row, the
 * remaining runs fail with the same error. */
static void get_one_by_one(struct remote *remote, const char *parent, const char *aside, struct remote_fetch *items,
                           size_t count)
{
    const struct remote_fetch *broken = NULL;
    size_t in_a_row = 0;
    for (size_t i = 0; i < count; i++) {
        if (!items[i].is_wanted)
            continue;
        clear_aside(aside, &items[i]);
        const char *run = items[i].entry->run;
        if (in_a_row >= 2 && broken) {
            items[i].rc = broken->rc;
            items[i].why = broken->why;
            continue;
        }
        items[i].rc = remote->transport->get_folders(remote->transport, parent, &run, 1, aside, &items[i].why);
        bool is_broken = items[i].rc == CB_ERR_SYSTEM || items[i].rc == CB_ERR_TIMEOUT;
        in_a_row = is_broken ? in_a_row + 1 : 0;
        broken = is_broken ? &items[i] : NULL;
    }
}

static void get_all(struct remote *remote, const char *aside, struct remote_fetch *items, size_t count)
{
    const char *names[AT_ONCE];
    char parent[PATH_MAX];
    size_t wanted = 0;
    for (size_t i = 0; i < count; i++) {
        if (!items[i].is_wanted)
            continue;
        clear_aside(aside, &items[i]);
        names[wanted++] = items[i].entry->run;
    }
    snprintf(parent, sizeof parent, "%.4000s/runs", site_text(&remote->site, SITE_HOME));
    if (wanted && remote->transport->get_folders(remote->transport, parent, names, wanted, aside, NULL))
        get_one_by_one(remote, parent, aside, items, count);
}

static void fetch_some(struct remote *remote, struct history *history, const char *aside, struct remote_fetch *items,
                       size_t count)
{
    for (size_t i = 0; i < count; i++)
        begin(history, &items[i]);
    get_all(remote, aside, items, count);
    for (size_t i = 0; i < count; i++) {
        if (items[i].is_wanted && items[i].rc == 0)
            items[i].rc = settle(remote, history, aside, &items[i]);
        if (items[i].is_wanted && items[i].rc)
            clear_aside(aside, &items[i]);
        job_folder_unlock(items[i].lock_fd);
    }
}

void remote_fetch(struct remote *remote, struct history *history, struct remote_fetch *items, size_t count)
{
    char aside[PATH_MAX];
    snprintf(aside, sizeof aside, "%.4000s/" ASIDE, history_folder(history));
    for (size_t done = 0; done < count; done += AT_ONCE)
        fetch_some(remote, history, aside, items + done, count - done < AT_ONCE ? count - done : AT_ONCE);
    rmdir(aside); /* fails if another ckptbench still uses it */
}
