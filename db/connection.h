/* One SQLite connection and the few calls that the files of this room use. Private to db/.
 *
 * Statements are prepared once and cached by the address of their SQL text, so every `sql` below must be a string
 * literal. Types of bound values, one letter each: t text (NULL is null), i int64_t, u uint64_t, d double (NAN is
 * null), b blob (const void *, size_t). */
#ifndef DB_CONNECTION_H
#define DB_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>

#include <sqlite3.h>
#include <sys/vfs.h>

#include "core/err.h"
#include "db/history.h"
#include "run/metrics.h"

#define BASELINE_FILE_VERSION 1

#define DB_MAX_STATEMENTS 96

struct prepared {
    const char *sql; /* address of the literal */
    sqlite3_stmt *statement;
};

struct history {
    sqlite3 *db;
    char *path, *folder; /* folder of the database, baselines/ and runs/ */
    bool read_only;
    unsigned depth;                   /* nesting depth of transactions: only the outermost commits */
    int64_t metric_ids[METRIC_COUNT]; /* of table catalogue */
    struct prepared prepared[DB_MAX_STATEMENTS];
    size_t prepared_count;
};

/* How to open a history: `statfs_call` is statfs(2), or a test's replacement. */
struct history_opening {
    const char *path;
    bool read_only;
    int (*statfs_call)(const char *path, struct statfs *buffer);
};
int history_open_with(const struct history_opening *opening, struct history **history,
                      struct cb_err *err) CB_MUST_CHECK;

int db_fail(struct history *self, const char *what, struct cb_err *err);
int db_exec(struct history *self, const char *sql, struct cb_err *err) CB_MUST_CHECK; /* any SQL that returns no rows */
int db_run(struct history *self, struct cb_err *err, const char *sql, const char *types, ...) CB_MUST_CHECK;
/* Binds and returns the statement to step; borrowed, reset by its next use or by db_reset. */
int db_query(struct history *self, sqlite3_stmt **statement, struct cb_err *err, const char *sql, const char *types,
             ...) CB_MUST_CHECK;
int db_step(struct history *self, sqlite3_stmt *statement, bool *has_row, struct cb_err *err) CB_MUST_CHECK;
void db_reset(sqlite3_stmt *statement);
const char *db_text(sqlite3_stmt *statement, int column); /* "" for null */
double db_double(sqlite3_stmt *statement, int column);    /* NAN for null */
void db_copy_text(sqlite3_stmt *statement, int column, char *out, size_t size);

/* Write transactions lock at the start, so that two writers wait for each other instead of one failing half-way. `rc`
 * is the result of the work: 0 commits, any other value rolls back; returns `rc` or the commit's failure. */
int db_begin(struct history *self, struct cb_err *err) CB_MUST_CHECK;
int db_end(struct history *self, int rc, struct cb_err *err) CB_MUST_CHECK;

#endif
