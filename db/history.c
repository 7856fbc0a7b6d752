/* Opening and closing a history, planning runs and their states: where the database may be, and how SQLite is set
 * up. */
#include "db/connection.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/clock.h"
#include "run/run_folder.h"

#define PATH_MAX_BYTES 4096
#define BUSY_TIMEOUT_MS 30000

/* File systems whose locks or shared memory SQLite cannot rely on between machines (statfs magic). */
static const struct {
    uint32_t magic;
    const char *name;
} network_filesystems[] = {
    {0x6969, "NFS"},          {0x517B, "SMB"},        {0xFE534D42, "SMB"},
    {0xFF534D42, "CIFS"},     {0x0BD00BD0, "Lustre"}, {0x65735546, "FUSE"},
    {0x00C36400, "Ceph"},     {0x47504653, "GPFS"},   {0x19830326, "BeeGFS"},
    {0x5346414F, "AFS"},      {0x6B414653, "AFS"},    {0x01021997, "9P"},
    {0x20030528, "OrangeFS"}, {0xAAD7AAEA, "PanFS"},  {0x73757245, "Coda"},
    {0x7461636F, "OCFS2"},    {0x01161970, "GFS2"},   {0x786F4256, "VirtualBox shared folders"},
};

static int check_filesystem(const struct history *self, const struct history_opening *opening, struct cb_err *err)
{
    struct statfs buffer;
    if (opening->statfs_call(self->folder, &buffer))
        return cb_fail_errno(err, errno, "the folder of the history, %s", self->folder);
    for (size_t i = 0; i < sizeof network_filesystems / sizeof network_filesystems[0]; i++)
        if ((uint32_t)buffer.f_type == network_filesystems[i].magic)
            return cb_fail(err, CB_ERR_UNSUPPORTED,
                           "history %s lies on %s, where SQLite can lose data when two machines use it: set "
                           "CKPTBENCH_HOME to a folder on a local disk; `ckptbench collect --rebuild` there makes the "
                           "history from run folders copied into its runs/",
                           self->path, network_filesystems[i].name);
    return 0;
}

static int set_paths(struct history *self, const char *path, struct cb_err *err)
{
    struct buf buf;
    buf_init(&buf, PATH_MAX_BYTES);
    int rc = 0;
    if (path) {
        buf_append_text(&buf, path);
    } else {
        rc = home_folder(&buf, err);
        buf_append_text(&buf, "/history.db");
    }
    if (rc == 0)
        rc = buf_check(&buf, "the path of the history", err);
    if (rc == 0) {
        self->path = buf_take(&buf);
        const char *slash = self->path ? strrchr(self->path, '/') : NULL;
        size_t len = slash ? (size_t)(slash - self->path) : 0;
        self->folder = slash ? strndup(self->path, len ? len : 1) : strdup(".");
        if (!self->path || !self->folder)
            rc = alloc_fail(err, "to open the history");
    }
    buf_release(&buf);
    return rc;
}

/* Two processes that switch a new database to WAL at the same time: SQLite reports busy without waiting. */
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

int history_open_with(const struct history_opening *opening, struct history **history, struct cb_err *err)
{
    struct history *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "to open the history");
    self->read_only = opening->read_only;
    int rc = set_paths(self, opening->path, err);
    if (rc)
        goto out;
    rc = check_filesystem(self, opening, err);
    if (rc)
        goto out;
    if (self->read_only && access(self->path, F_OK)) {
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "no history at %s yet: `ckptbench run` starts one", self->path);
        goto out;
    }
    rc = open_connection(self, err);
    if (rc == 0)
        rc = migrate(self, err);
    if (rc == 0)
        rc = schema_sync_catalogue(self, err);
out:
    if (rc)
        history_close(self);
    else
        *history = self;
    return rc;
}

int history_open(const char *path, struct history **history, struct cb_err *err)
{
    return history_open_with(&(struct history_opening){.path = path, .statfs_call = statfs}, history, err);
}

int history_open_read_only(const char *path, struct history **history, struct cb_err *err)
{
    return history_open_with(&(struct history_opening){.path = path, .read_only = true, .statfs_call = statfs}, history,
                             err);
}

void history_close(struct history *self)
{
    if (!self)
        return;
    close_connection(self);
    free(self->path);
    free(self->folder);
    free(self);
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

int history_set_state(struct history *self, const char *run, const char *state, struct cb_err *err)
{
    int rc = history_begin(self, err);
    if (rc)
        return rc;
    rc = db_run(self, err, "UPDATE run SET state=?2 WHERE run=?1 AND state<>?2", "tt", run, state);
    if (rc == 0 && sqlite3_changes(self->db) > 0)
        rc = rows_insert_event(self, run, clock_wall_ns(), state, NULL, err);
    else if (rc == 0)
        rc = rows_run_id(self, run, NULL, err);
    return history_end(self, rc, err);
}
