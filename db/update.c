/* Brings the history up to date with the run folders. docs/history.md explains how changes are noticed. */
#include "db/connection.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/path.h"
#include "core/units.h"
#include "run/job_record.h"
#include "run/run_folder.h"

#define NAME_BYTES 64
#define RUNS_AT_ONCE 256 /* runs in one transaction: the most that a kill loses and that others wait for */

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

static bool has_name(const struct run_selection *self, const char *name)
{
    char key[NAME_BYTES];
    snprintf(key, sizeof key, "%s", name);
    return self->count && bsearch(key, self->runs, self->count, sizeof *self->runs, compare_names);
}

/* ---- listing folders and rows ---- */

static int list_folders(const struct history *self, struct run_selection *names, struct cb_err *err)
{
    char path[PATH_MAX];
    if (path_format(path, sizeof path, err, "%s/runs", self->folder))
        return CB_ERR_USAGE;
    DIR *entries = opendir(path);
    if (!entries)
        return errno == ENOENT ? 0 : cb_fail_errno(err, errno, "reading %s", path);
    int rc = 0;
    errno = 0;
    for (struct dirent *entry; rc == 0 && (entry = readdir(entries)); errno = 0)
        if (entry->d_name[0] != '.' && entry->d_type != DT_REG && strlen(entry->d_name) < NAME_BYTES)
            rc = selection_add(names, entry->d_name, err);
    if (rc == 0 && errno) /* an incomplete listing must not look like removed runs */
        rc = cb_fail_errno(err, errno, "reading %s", path);
    closedir(entries);
    if (names->count)
        qsort(names->runs, names->count, sizeof *names->runs, compare_names);
    return rc;
}

static int list_rows(struct history *self, const char *sql, struct run_selection *names, struct cb_err *err)
{
    sqlite3_stmt *statement;
    int rc = db_query(self, &statement, err, sql, "");
    while (db_next(self, statement, &rc, err))
        rc = selection_add(names, db_text(statement, 0), err);
    sqlite3_reset(statement);
    return rc;
}

static int read_meta(struct history *self, const char *key, char text[PATH_MAX], struct cb_err *err)
{
    sqlite3_stmt *statement;
    int rc = db_query(self, &statement, err, "SELECT value FROM meta WHERE key=?", "t", key);
    text[0] = '\0';
    if (db_next(self, statement, &rc, err))
        db_copy_text(statement, 0, text, PATH_MAX);
    sqlite3_reset(statement);
    return rc;
}

static int write_meta(struct history *self, const char *key, const char *text, struct cb_err *err)
{
    return db_run(self, err, "INSERT OR REPLACE INTO meta VALUES(?,?)", "tt", key, text);
}

/* Whether the run is a job that has not ended; `state` receives its state. Slurm may requeue such a job, so only
 * `status` and `collect` ingest its attempts. */
static bool is_open_job(const char *folder, char state[16])
{
    struct job_record record;
    int rc = job_record_read(folder, &record, NULL);
    state[0] = '\0';
    if (rc)
        return rc == CB_ERR_SYSTEM; /* unknown: the next update looks again */
    bool is_open = !job_state_is_final(record.state);
    snprintf(state, 16, "%s", job_state_name(record.state));
    job_record_release(&record);
    return is_open;
}

/* The newest sealed attempt, 0 if no attempt is sealed; `*any` is whether any attempt exists. */
static uint32_t newest_sealed(const char *folder, bool *any)
{
    char path[PATH_MAX];
    uint32_t last = 0;
    *any = run_folder_last_attempt(folder, &last, NULL) == 0 && last > 0;
    for (; last > 0; last--) {
        int fd = snprintf(path, sizeof path, "%s/attempts/%u", folder, last) < (int)sizeof path
                     ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) /* makes NFS drop cached failed lookups */
                     : -1;
        bool sealed = fd >= 0 && faccessat(fd, "manifest.json", F_OK, 0) == 0;
        if (fd >= 0)
            close(fd);
        if (sealed)
            break;
    }
    return last;
}

/* Whether a run that has not ended in the history has a new sealed attempt or another state. */
static int has_news(struct history *self, const char *run, const char *folder, bool *news, struct cb_err *err)
{
    char state[16];
    bool any, known = true;
    int rc = 0;
    *news = false;
    if (!is_open_job(folder, state)) {
        uint32_t sealed = newest_sealed(folder, &any);
        if (sealed)
            rc = db_find(self, &known, NULL, err, "SELECT 1 FROM attempt WHERE run=? AND attempt=?", "ti", run,
                         (int64_t)sealed);
        run_folder_read_state(folder, sealed, state);
    }
    if (rc == 0 && *state)
        rc = db_find(self, news, NULL, err, "SELECT 1 FROM run WHERE run=? AND state<>?", "tt", run, state);
    *news = *news || !known;
    return rc;
}

/* A folder without plan and attempts is being planned, or its planning was interrupted. */
static bool is_run(const char *folder)
{
    char path[PATH_MAX];
    bool any;
    (void)newest_sealed(folder, &any);
    return any ||
           (snprintf(path, sizeof path, "%s/planned.json", folder) < (int)sizeof path && access(path, F_OK) == 0);
}

/* ---- updating ---- */

struct update {
    struct history *history;
    struct run_selection folders, rows, unfinished, changed;
    struct run_selection wanted; /* runs to read again; each is in `folders` */
    struct run_selection gone;
    struct run_selection *taken;
};

static void update_release(struct update *self)
{
    run_selection_release(&self->folders);
    run_selection_release(&self->rows);
    run_selection_release(&self->unfinished);
    run_selection_release(&self->changed);
    run_selection_release(&self->wanted);
    run_selection_release(&self->gone);
}

static int find_folder(const struct update *self, const char *run, char folder[PATH_MAX], struct cb_err *err)
{
    return path_format(folder, PATH_MAX, err, "%s/runs/%s", self->history->folder, run);
}

/* A run that was collected from a folder elsewhere stays as long as that folder exists. A run that was submitted or
 * running stays until `status` has queried its job and marked it as lost. */
static int is_gone(struct update *self, const char *run, bool *gone, struct cb_err *err)
{
    char path[PATH_MAX];
    struct stat facts;
    sqlite3_stmt *statement;
    int rc = find_folder(self, run, path, err);
    *gone = rc == 0 && lstat(path, &facts) < 0 && errno == ENOENT;
    if (rc || !*gone)
        return rc;
    *gone = false;
    rc = db_query(self->history, &statement, err,
                  "SELECT folder FROM run WHERE run=? AND (state='planned' OR outcome IS NOT NULL)", "t", run);
    if (db_next(self->history, statement, &rc, err))
        *gone = stat(db_text(statement, 0), &facts) < 0 && errno == ENOENT;
    sqlite3_reset(statement);
    return rc;
}

static int compare(struct update *self, struct cb_err *err)
{
    char folder[PATH_MAX];
    bool every = false;
    int rc = 0;
    for (size_t i = 0; i < self->changed.count; i++)
        every = every || strcmp(self->changed.runs[i], "*") == 0;
    if (self->changed.count)
        qsort(self->changed.runs, self->changed.count, sizeof *self->changed.runs, compare_names);
    for (size_t i = 0; rc == 0 && i < self->folders.count; i++) {
        const char *run = self->folders.runs[i];
        bool wanted = every || has_name(&self->changed, run);
        rc = find_folder(self, run, folder, err);
        if (rc == 0 && !wanted && !has_name(&self->rows, run))
            wanted = is_run(folder);
        else if (rc == 0 && !wanted && has_name(&self->unfinished, run))
            rc = has_news(self->history, run, folder, &wanted, err);
        if (rc == 0 && wanted)
            rc = selection_add(&self->wanted, run, err);
    }
    for (size_t i = 0; rc == 0 && i < self->rows.count; i++) {
        bool gone = false;
        if (!has_name(&self->folders, self->rows.runs[i]))
            rc = is_gone(self, self->rows.runs[i], &gone, err);
        if (rc == 0 && gone)
            rc = selection_add(&self->gone, self->rows.runs[i], err);
    }
    return rc;
}

static int read_folder(struct update *self, const char *run, bool *ingested, struct cb_err *err)
{
    char folder[PATH_MAX], state[16];
    bool any, anew = has_name(&self->changed, run) || has_name(&self->changed, "*");
    int rc = find_folder(self, run, folder, err);
    if (rc == 0 && anew) /* ingested from scratch: its labels and old attempts may have changed, too */
        rc = rows_delete_run(self->history, run, err);
    bool is_open = rc == 0 && is_open_job(folder, state);
    if (rc == 0)
        rc = ingest_folder(self->history, folder, is_open, false, ingested, err);
    if (rc && rc != CB_ERR_NOT_FOUND)
        return rc;
    if (!is_open)
        run_folder_read_state(folder, newest_sealed(folder, &any), state);
    return *state ? db_run(self->history, err, "UPDATE run SET state=?2 WHERE run=?1 AND state<>?2", "tt", run, state)
                  : 0;
}

/* If a folder cannot be read, its rows stay unchanged; `collect` reports it. */
static int take_run(struct update *self, const char *run, struct cb_err *err)
{
    struct cb_err own;
    int rc = db_run(self->history, err, "SAVEPOINT run", "");
    if (rc)
        return rc;
    bool ingested = false;
    int taken = read_folder(self, run, &ingested, &own);
    if (taken == CB_ERR_NO_SPACE || taken == CB_ERR_MEMORY || self->history->is_damaged)
        return cb_fail(err, taken, "%s", own.message);
    if (taken) {
        log_verbose("%s", own.message);
        rc = db_run(self->history, err, "ROLLBACK TO run", "");
    } else if (ingested) {
        rc = selection_add(self->taken, run, err);
    }
    return rc ? rc : db_run(self->history, err, "RELEASE run", "");
}

static int write_runs(struct update *self, size_t first, struct cb_err *err)
{
    int rc = history_begin(self->history, err);
    if (rc)
        return rc;
    for (size_t i = first; rc == 0 && i < self->wanted.count && i < first + RUNS_AT_ONCE; i++)
        rc = take_run(self, self->wanted.runs[i], err);
    return history_end(self->history, rc, err);
}

static int write_rest(struct update *self, uint64_t changes, bool moved, struct cb_err *err)
{
    char text[32];
    bool differ, gone;
    struct history *history = self->history;
    snprintf(text, sizeof text, "%llu", (unsigned long long)changes);
    int rc = history_begin(history, err);
    if (rc)
        return rc;
    for (size_t i = 0; rc == 0 && i < self->gone.count; i++) {
        rc = is_gone(self, self->gone.runs[i], &gone, err); /* another process may have restored the folder */
        if (rc == 0 && gone)
            rc = rows_delete_run(history, self->gone.runs[i], err);
    }
    if (rc == 0 && self->gone.count)
        rc = rows_delete_empty_sweeps(history, err);
    if (rc == 0)
        rc = baselines_update(history, true, &differ, err);
    for (size_t i = 0; rc == 0 && moved && i < self->folders.count; i++)
        rc = db_run(history, err, "UPDATE run SET folder=?2||'/runs/'||?1 WHERE run=?1", "tt", self->folders.runs[i],
                    history->folder);
    if (rc == 0 && moved)
        rc = write_meta(history, "home", history->folder, err);
    if (rc == 0)
        rc = write_meta(history, "changes", text, err);
    return history_end(history, rc, err);
}

/* Earlier releases kept runs whose folder was removed, so the database is copied once before they are deleted. */
static int keep_earlier(struct history *self, size_t gone, struct cb_err *err)
{
    char copy[PATH_MAX], part[PATH_MAX];
    if (path_format(copy, sizeof copy, err, "%s.earlier", self->path) ||
        path_format(part, sizeof part, err, "%s.earlier.part", self->path))
        return CB_ERR_USAGE;
    if (access(copy, F_OK) == 0)
        return 0;
    unlink(part);
    int rc = db_run(self, err, "VACUUM INTO ?", "t", part);
    if (rc == 0 && rename(part, copy) < 0)
        rc = cb_fail_errno(err, errno, "renaming %s", part);
    if (rc == 0)
        log_info("%zu run%s whose folder is gone leave%s the history; %s still has them", gone, units_plural(gone),
                 gone == 1 ? "s" : "", copy);
    return rc;
}

int history_update(struct history *self, struct run_selection *taken, struct cb_err *err)
{
    struct update work = {.history = self, .taken = taken};
    char text[PATH_MAX], home[PATH_MAX];
    bool differ = false, moved = false;
    *taken = (struct run_selection){0};
    /* Changes are read before the folders, so a change in between is seen again by the next update. */
    int rc = read_meta(self, "changes", text, err);
    uint64_t before = strtoull(text, NULL, 10), changes = before;
    if (rc == 0)
        rc = changes_read(self, &changes, &work.changed, err);
    if (rc == 0)
        rc = list_folders(self, &work.folders, err);
    if (rc == 0)
        rc = list_rows(self, "SELECT run FROM run ORDER BY run", &work.rows, err);
    if (rc == 0)
        rc = list_rows(self, "SELECT run FROM run WHERE state NOT IN ('done','failed','cancelled') ORDER BY run",
                       &work.unfinished, err);
    if (rc == 0)
        rc = compare(&work, err);
    if (rc == 0)
        rc = baselines_update(self, false, &differ, err);
    if (rc == 0)
        rc = read_meta(self, "home", home, err);
    if (rc == 0)
        moved = strcmp(home, self->folder) != 0;
    if (rc == 0 && !*home && work.gone.count)
        rc = keep_earlier(self, work.gone.count, err);
    for (size_t i = 0; rc == 0 && i < work.wanted.count; i += RUNS_AT_ONCE)
        rc = write_runs(&work, i, err);
    if (rc == 0 && (work.gone.count || differ || moved || changes != before))
        rc = write_rest(&work, changes, moved, err);
    update_release(&work);
    return rc;
}
