/* Opens and closes a history, plans runs, and sets their states. */
#include "db/connection.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/path.h"
#include "run/run_folder.h"

#define PATH_MAX_BYTES 4096
#define BUSY_TIMEOUT_MS 30000

static int set_paths(struct history *self, const char *path, struct cb_err *err)
{
    struct buf home;
    char place[PATH_MAX];
    int rc = 0;
    buf_init(&home, PATH_MAX_BYTES);
    if (path) {
        const char *slash = strrchr(path, '/');
        buf_append(&home, slash ? path : ".", slash > path ? (size_t)(slash - path) : 1);
    } else {
        rc = home_folder(&home, err);
        if (rc == 0)
            rc = index_place(home.data, statfs, place, err);
    }
    if (rc == 0)
        rc = buf_check(&home, "the path of the history", err);
    if (rc == 0) {
        self->folder = buf_take(&home);
        self->path = strdup(path ? path : place);
        if (!self->path || !self->folder)
            rc = alloc_fail(err, "to open the history");
    }
    buf_release(&home);
    return rc;
}

/* Retries, because SQLite reports busy at once if two processes switch a new database to WAL at the same time. */
static int use_write_ahead_log(struct history *self, struct cb_err *err)
{
    uint64_t deadline_ns = clock_monotonic_ns() + BUSY_TIMEOUT_MS * NS_PER_MS;
    for (;;) {
        int code = sqlite3_exec(self->db, "PRAGMA journal_mode=WAL", NULL, NULL, NULL);
        if (code == SQLITE_OK)
            return 0;
        if ((code != SQLITE_BUSY && code != SQLITE_LOCKED) || clock_monotonic_ns() > deadline_ns)
            return db_fail(self, "switching to a write-ahead log", err);
        clock_sleep_ns(5 * NS_PER_MS);
    }
}

static int open_connection(struct history *self, struct cb_err *err)
{
    int flags = self->read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    int code = sqlite3_open_v2(self->path, &self->db, flags | SQLITE_OPEN_NOMUTEX, NULL);
    if (code != SQLITE_OK) {
        if (!self->db)
            return alloc_fail(err, "to open history %s", self->path);
        return db_fail(self, "opening (CKPTBENCH_HOME sets another folder)", err);
    }
    sqlite3_extended_result_codes(self->db, 1);
    sqlite3_busy_timeout(self->db, BUSY_TIMEOUT_MS);
    if (self->read_only)
        return db_exec(self, "PRAGMA cache_size=-65536", err);
    int rc = use_write_ahead_log(self, err);
    /* NORMAL: a power failure may lose the last ingest, never the database, and the run folders remain. */
    return rc ? rc : db_exec(self, "PRAGMA synchronous=NORMAL; PRAGMA cache_size=-65536", err);
}

/* Closes with its prepared statements: SQLite would keep the connection open while one of them exists. */
static void close_connection(struct history *self)
{
    for (size_t i = 0; i < self->prepared_count; i++)
        sqlite3_finalize(self->prepared[i].statement);
    self->prepared_count = 0;
    sqlite3_close(self->db);
    self->db = NULL;
}

/* The first process to open a history of an older release migrates it, even if it only reads. */
static int migrate(struct history *self, struct cb_err *err)
{
    bool older = false, read_only = self->read_only;
    int rc = schema_is_older(self, &older, err);
    if (rc || !older || !read_only)
        return rc || !older ? rc : schema_migrate(self, err);
    close_connection(self);
    self->read_only = false;
    rc = open_connection(self, err);
    if (rc == 0)
        rc = schema_migrate(self, err);
    close_connection(self);
    self->read_only = true;
    if (rc)
        return cb_context(err, "bringing the history of an older ckptbench up to date");
    return open_connection(self, err);
}

static int open_database(const char *path, bool read_only, struct history **history, struct cb_err *err)
{
    struct history *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "to open the history");
    self->read_only = read_only;
    int rc = set_paths(self, path, err);
    if (rc == 0 && read_only && access(self->path, F_OK))
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "no history at %s yet: `ckptbench run` starts one", self->path);
    if (rc == 0 && !path)
        index_take_over(self->folder, self->path);
    if (rc == 0)
        rc = open_connection(self, err);
    if (rc == 0)
        rc = migrate(self, err);
    if (rc == 0)
        rc = schema_sync_catalogue(self, err);
    if (rc)
        history_close(self);
    else
        *history = self;
    return rc;
}

/* CB_ERR_NOT_FOUND if there is neither a database nor a folder of runs. */
static int need_anything(struct cb_err *err)
{
    struct buf home;
    char path[PATH_MAX] = "", runs[PATH_MAX] = "";
    buf_init(&home, PATH_MAX_BYTES);
    int rc = home_folder(&home, err);
    if (rc == 0)
        rc = index_place(home.data, statfs, path, err);
    if (rc == 0)
        rc = path_format(runs, sizeof runs, err, "%s/runs", home.data);
    if (rc == 0 && access(path, F_OK) && access(runs, F_OK))
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "no history at %s yet: `ckptbench run` starts one", path);
    buf_release(&home);
    return rc;
}

/* Brings an open history up to date; closes it on failure. */
static int update(struct history **history, struct cb_err *err)
{
    struct run_selection taken = {0};
    bool fresh = false;
    int rc = db_find(*history, &fresh, NULL, err, "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM run)", "");
    if (rc == 0)
        rc = history_update(*history, &taken, err);
    if (rc) {
        history_close(*history);
        *history = NULL;
    } else if (fresh && taken.count > 1) {
        log_info("the index of the history, %s, was made from %zu run folders", (*history)->path, taken.count);
    }
    run_selection_release(&taken);
    return rc;
}

int history_open(const char *path, struct history **history, struct cb_err *err)
{
    int rc = open_database(path, false, history, err);
    if (path)
        return rc;
    if (rc == 0)
        rc = update(history, err);
    if (rc == CB_ERR_CORRUPT) { /* closing has renamed the damaged database */
        log_info("%s", err->message);
        rc = open_database(NULL, false, history, err);
        if (rc == 0)
            rc = update(history, err);
    }
    return rc;
}

int history_open_read_only(const char *path, struct history **history, struct cb_err *err)
{
    struct cb_err why;
    if (path)
        return open_database(path, true, history, err);
    int rc = need_anything(err);
    if (rc)
        return rc;
    rc = history_open(NULL, history, &why);
    if (rc == CB_ERR_NO_SPACE || rc == CB_ERR_TIMEOUT) {
        log_info("%s: what follows may be out of date", why.message);
        return open_database(NULL, true, history, err);
    }
    return rc ? cb_fail(err, rc, "%s", why.message) : db_exec(*history, "PRAGMA query_only=1", err);
}

int history_open_to_collect(struct history **history, struct cb_err *err)
{
    int rc = open_database(NULL, false, history, err);
    if (rc == CB_ERR_CORRUPT) {
        log_info("%s", err->message);
        rc = open_database(NULL, false, history, err);
    }
    return rc;
}

/* Renames a damaged database; the next open creates a new one from the run folders. */
static void set_aside(const struct history *self)
{
    static const char *const suffixes[] = {"-wal", "-shm", ""};
    char from[PATH_MAX], to[PATH_MAX];
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (snprintf(from, sizeof from, "%s%s", self->path, suffixes[i]) < (int)sizeof from &&
            snprintf(to, sizeof to, "%s.damaged%s", self->path, suffixes[i]) < (int)sizeof to && rename(from, to) < 0 &&
            errno != ENOENT)
            log_error("renaming %s to %s: %s", from, to, strerror(errno));
}

void history_close(struct history *self)
{
    if (!self)
        return;
    close_connection(self);
    if (self->is_damaged)
        set_aside(self);
    free(self->path);
    free(self->folder);
    free(self);
}

const char *history_path(const struct history *self)
{
    return self->path;
}

const char *history_folder(const struct history *self)
{
    return self->folder;
}

int history_plan_run(struct history *self, const struct planned_run *planned, struct cb_err *err)
{
    struct planned_run row = *planned;
    if (!row.planned_wall_ns)
        row.planned_wall_ns = clock_wall_ns();
    int rc = planned_file_write(&row, err);
    if (rc == 0)
        rc = history_begin(self, err);
    if (rc)
        return rc;
    rc = rows_insert_run(self, &row, err);
    return history_end(self, rc, err);
}

/* Writes the file `state` for other machines; a job has its state in job.json. Errors are ignored: the folder may be
 * gone or not writable. */
static int write_state(struct history *self, const char *run, const char *state, struct cb_err *err)
{
    char folder[PATH_MAX] = "";
    sqlite3_stmt *statement;
    int rc = db_query(self, &statement, err, "SELECT folder FROM run WHERE run=?", "t", run);
    if (db_next(self, statement, &rc, err))
        db_copy_text(statement, 0, folder, sizeof folder);
    sqlite3_reset(statement);
    if (rc == 0 && *folder)
        run_folder_write_state(folder, state);
    return rc;
}

int history_set_state(struct history *self, const char *run, const char *state, struct cb_err *err)
{
    bool had_ended = false;
    int rc = history_begin(self, err);
    if (rc)
        return rc;
    rc = db_find(self, &had_ended, NULL, err,
                 "SELECT 1 FROM run WHERE run=? AND state IN ('done','failed','cancelled')", "t", run);
    if (rc == 0)
        rc = db_run(self, err, "UPDATE run SET state=?2 WHERE run=?1 AND state<>?2", "tt", run, state);
    bool changed = rc == 0 && sqlite3_changes(self->db) > 0;
    if (changed)
        rc = rows_insert_event(self, run, clock_wall_ns(), state, NULL, err);
    else if (rc == 0)
        rc = rows_run_id(self, run, NULL, err);
    if (rc == 0 && changed)
        rc = write_state(self, run, state, err);
    if (rc == 0 && changed && had_ended)
        (void)changes_tell(self, run);
    return history_end(self, rc, err);
}
