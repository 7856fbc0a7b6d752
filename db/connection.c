/* One SQLite connection: prepared statements, transactions, and error messages. */
#include "db/connection.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#define ROOM_BYTES (64u << 10) /* with less free space SQLite may report an I/O error instead of a full disk */

static bool has_no_room(const char *path)
{
    struct statvfs facts;
    return statvfs(path, &facts) == 0 && (uint64_t)facts.f_bavail * facts.f_frsize < ROOM_BYTES;
}

int db_fail(struct history *self, const char *what, struct cb_err *err)
{
    int code = sqlite3_errcode(self->db) & 0xff;
    const char *text = sqlite3_errmsg(self->db);
    if (code == SQLITE_IOERR && has_no_room(self->path))
        code = SQLITE_FULL;
    switch (code) {
    case SQLITE_FULL:
        return cb_fail(err, CB_ERR_NO_SPACE, "history %s: %s: the disk is full", self->path, what);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return cb_fail(err, CB_ERR_TIMEOUT, "history %s: %s: another process has held it for 30 s", self->path, what);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        self->is_damaged = true;
        return cb_fail(err, CB_ERR_CORRUPT,
                       "history %s is damaged (%s): it is set aside, and made again from the run folders", self->path,
                       text);
    case SQLITE_NOMEM:
        return cb_fail(err, CB_ERR_MEMORY, "history %s: %s: no memory", self->path, what);
    default:
        return cb_fail(err, CB_ERR_SYSTEM, "history %s: %s: %s", self->path, what, text);
    }
}

int db_exec(struct history *self, const char *sql, struct cb_err *err)
{
    if (sqlite3_exec(self->db, sql, NULL, NULL, NULL) != SQLITE_OK)
        return db_fail(self, "running SQL", err);
    return 0;
}

static int statement_for(struct history *self, const char *sql, sqlite3_stmt **statement, struct cb_err *err)
{
    for (size_t i = 0; i < self->prepared_count; i++) {
        if (self->prepared[i].sql == sql) {
            *statement = self->prepared[i].statement;
            sqlite3_reset(*statement);
            return 0;
        }
    }
    *statement = NULL; /* so that a reset after a failure is harmless */
    if (self->prepared_count == DB_MAX_STATEMENTS)
        return cb_fail(err, CB_ERR_INTERNAL, "more than %d prepared statements", DB_MAX_STATEMENTS);
    if (sqlite3_prepare_v3(self->db, sql, -1, SQLITE_PREPARE_PERSISTENT, statement, NULL) != SQLITE_OK)
        return db_fail(self, sql, err);
    self->prepared[self->prepared_count++] = (struct prepared){sql, *statement};
    return 0;
}

static int bind_all(sqlite3_stmt *statement, const char *types, va_list values)
{
    int rc = SQLITE_OK;
    for (int i = 1; *types && rc == SQLITE_OK; types++, i++) {
        if (*types == 't') {
            rc = sqlite3_bind_text(statement, i, va_arg(values, const char *), -1, SQLITE_STATIC);
        } else if (*types == 'i') {
            rc = sqlite3_bind_int64(statement, i, va_arg(values, int64_t));
        } else if (*types == 'u') {
            rc = sqlite3_bind_int64(statement, i, (int64_t)va_arg(values, uint64_t));
        } else if (*types == 'd') {
            double value = va_arg(values, double);
            rc = isfinite(value) ? sqlite3_bind_double(statement, i, value) : sqlite3_bind_null(statement, i);
        } else {
            const void *bytes = va_arg(values, const void *);
            rc = sqlite3_bind_blob64(statement, i, bytes, va_arg(values, size_t), SQLITE_STATIC);
        }
    }
    return rc;
}

int db_run(struct history *self, struct cb_err *err, const char *sql, const char *types, ...)
{
    sqlite3_stmt *statement;
    int rc = statement_for(self, sql, &statement, err);
    if (rc)
        return rc;
    va_list values;
    va_start(values, types);
    int bound = bind_all(statement, types, values);
    va_end(values);
    if (bound != SQLITE_OK || sqlite3_step(statement) != SQLITE_DONE)
        rc = db_fail(self, "writing", err);
    sqlite3_reset(statement);
    return rc;
}

static int query(struct history *self, sqlite3_stmt **statement, struct cb_err *err, const char *sql, const char *types,
                 va_list values)
{
    int rc = statement_for(self, sql, statement, err);
    if (rc)
        return rc;
    return bind_all(*statement, types, values) == SQLITE_OK ? 0 : db_fail(self, "binding a value", err);
}

int db_query(struct history *self, sqlite3_stmt **statement, struct cb_err *err, const char *sql, const char *types,
             ...)
{
    va_list values;
    va_start(values, types);
    int rc = query(self, statement, err, sql, types, values);
    va_end(values);
    return rc;
}

int db_find(struct history *self, bool *found, char text[64], struct cb_err *err, const char *sql, const char *types,
            ...)
{
    sqlite3_stmt *statement;
    va_list values;
    va_start(values, types);
    int rc = query(self, &statement, err, sql, types, values);
    va_end(values);
    bool has_row = db_next(self, statement, &rc, err);
    if (has_row && text)
        db_copy_text(statement, 0, text, 64);
    sqlite3_reset(statement);
    if (rc == 0)
        *found = has_row;
    return rc;
}

bool db_next(struct history *self, sqlite3_stmt *statement, int *rc, struct cb_err *err)
{
    int code = *rc ? SQLITE_DONE : sqlite3_step(statement);
    if (code != SQLITE_ROW && code != SQLITE_DONE) {
        *rc = db_fail(self, "reading", err);
        sqlite3_reset(statement);
    }
    return code == SQLITE_ROW;
}

const char *db_text(sqlite3_stmt *statement, int column)
{
    const unsigned char *text = sqlite3_column_text(statement, column);
    return text ? (const char *)text : "";
}

double db_double(sqlite3_stmt *statement, int column)
{
    if (sqlite3_column_type(statement, column) == SQLITE_NULL)
        return NAN;
    return sqlite3_column_double(statement, column);
}

void db_copy_text(sqlite3_stmt *statement, int column, char *out, size_t size)
{
    snprintf(out, size, "%s", db_text(statement, column));
}

int history_begin(struct history *self, struct cb_err *err)
{
    if (self->depth++)
        return 0;
    int rc = db_run(self, err, "BEGIN IMMEDIATE", "");
    if (rc)
        self->depth = 0;
    return rc;
}

int history_end(struct history *self, int rc, struct cb_err *err)
{
    if (--self->depth)
        return rc;
    if (rc == 0)
        rc = db_run(self, err, "COMMIT", "");
    if (rc)
        sqlite3_exec(self->db, "ROLLBACK", NULL, NULL, NULL);
    return rc;
}
