/* One SQLite connection and the few calls that the files of this room use. Private to db/.
 *
 * Statements are prepared once and cached by the address of their SQL text, so every `sql` below must be a string
 * literal. Types of bound values, one letter each: t text (NULL is null), i int64_t, u uint64_t, d double (NAN is
 * null), b blob (const void *, size_t). */
#ifndef DB_CONNECTION_H
#define DB_CONNECTION_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include <sqlite3.h>
#include <sys/vfs.h>

#include "core/err.h"
#include "db/history.h"
#include "run/metrics.h"

#define BASELINE_FILE_VERSION 1

#define DB_MAX_STATEMENTS 128

struct prepared {
    const char *sql; /* address of the literal */
    sqlite3_stmt *statement;
};

struct history {
    sqlite3 *db;
    char *path;   /* of the database */
    char *folder; /* the home: runs/ and baselines/ */
    bool read_only;
    bool is_damaged;                  /* SQLite has found damage: closing renames the database */
    unsigned depth;                   /* nesting depth of transactions: only the outermost commits */
    int64_t metric_ids[METRIC_COUNT]; /* ids in table catalogue */
    struct prepared prepared[DB_MAX_STATEMENTS];
    size_t prepared_count;
};

/* statfs(2), or a test's replacement. */
typedef int statfs_fn(const char *path, struct statfs *buffer);

#define INDEX_NAME "history.db"
/* The database of a home: in $CKPTBENCH_INDEX if that is set, in the home if that is a local folder of the user, else
 * in a cache folder on a local disk. Creates its folder. */
int index_place(const char *home, statfs_fn *statfs_call, char path[PATH_MAX], struct cb_err *err) CB_MUST_CHECK;
/* Creates a missing database as a copy of HOME/history.db, which has states of runs that are in no file. */
void index_take_over(const char *home, const char *path);

int db_fail(struct history *self, const char *what, struct cb_err *err);
int db_exec(struct history *self, const char *sql, struct cb_err *err) CB_MUST_CHECK; /* any SQL that returns no rows */
int db_run(struct history *self, struct cb_err *err, const char *sql, const char *types, ...) CB_MUST_CHECK;
/* Binds and returns the statement to step; borrowed, reset by its next use or by sqlite3_reset. */
int db_query(struct history *self, sqlite3_stmt **statement, struct cb_err *err, const char *sql, const char *types,
             ...) CB_MUST_CHECK;
/* Steps to the next row unless *rc is already a failure. False at the end, and after a failure, which sets *rc. */
bool db_next(struct history *self, sqlite3_stmt *statement, int *rc, struct cb_err *err);
/* Whether the query has a row. `text` receives its first column; NULL if only the row matters. */
int db_find(struct history *self, bool *found, char text[64], struct cb_err *err, const char *sql, const char *types,
            ...) CB_MUST_CHECK;
const char *db_text(sqlite3_stmt *statement, int column); /* "" for null */
double db_double(sqlite3_stmt *statement, int column);    /* NAN for null */
void db_copy_text(sqlite3_stmt *statement, int column, char *out, size_t size);

/* ---- the schema, as numbered migrations; docs/history.md explains the tables ---- */

#define SCHEMA_VERSION 5

/* Whether the database must be migrated. Here and below, another program's database and a newer schema fail with a
 * message that names the file. */
int schema_is_older(struct history *self, bool *older, struct cb_err *err) CB_MUST_CHECK;
/* Migrates the database, open for writing, to SCHEMA_VERSION in one transaction. */
int schema_migrate(struct history *self, struct cb_err *err) CB_MUST_CHECK;
/* Updates table catalogue to match run/metrics.def and reads the ids of the metrics. */
int schema_sync_catalogue(struct history *self, struct cb_err *err) CB_MUST_CHECK;

/* ---- rows of a run, as ingest and planning write them ---- */

/* Run, sweep, block, store target and params. An existing run keeps its state and results; its folder, experiment and
 * labels are updated. */
int rows_insert_run(struct history *self, const struct planned_run *row, struct cb_err *err) CB_MUST_CHECK;
/* The store of a run that has chosen it itself. Until then it is "", and rows_insert_run does not take it back. */
int rows_move_run(struct history *self, const char *run, const char *store, struct cb_err *err) CB_MUST_CHECK;
/* Deletes everything that belongs to a run, including its row. */
int rows_delete_run(struct history *self, const char *run, struct cb_err *err) CB_MUST_CHECK;
/* Deletes sweeps and blocks that have no run. */
int rows_delete_empty_sweeps(struct history *self, struct cb_err *err) CB_MUST_CHECK;
int rows_insert_event(struct history *self, const char *run, uint64_t at_ns, const char *state, const char *note,
                      struct cb_err *err) CB_MUST_CHECK;
/* CB_ERR_NOT_FOUND if there is no such run; `id` may be NULL. */
int rows_run_id(struct history *self, const char *run, int64_t *id, struct cb_err *err) CB_MUST_CHECK;

/* As history_ingest. `only_plan` ingests no attempts; `tells` reports a new attempt of a run that had ended to other
 * machines (changes_tell). CB_ERR_NOT_FOUND: no attempt is sealed; the run's row has been written nevertheless. */
int ingest_folder(struct history *self, const char *run_folder, bool only_plan, bool tells, bool *ingested,
                  struct cb_err *err) CB_MUST_CHECK;
/* Whether the baseline files differ from the table; loads them if `load`. */
int baselines_update(struct history *self, bool load, bool *differ, struct cb_err *err) CB_MUST_CHECK;

/* Reports to the indexes of other machines that a run changed after it had ended; "*" is every run. Returns the offset
 * behind the new line of HOME/changes, as in meta's row `changes`; 0 if it cannot be written. */
uint64_t changes_tell(const struct history *self, const char *run);
/* Adds the names after `*offset`, and moves `*offset` behind the last complete line. A file that is shorter than
 * `*offset` has been replaced, and is read from its start. */
int changes_read(const struct history *self, uint64_t *offset, struct run_selection *names,
                 struct cb_err *err) CB_MUST_CHECK;
int selection_add(struct run_selection *selection, const char *run, struct cb_err *err) CB_MUST_CHECK;

/* Writes planned.json to the run folder: what a rebuild cannot take from the experiment. */
int planned_file_write(const struct planned_run *row, struct cb_err *err) CB_MUST_CHECK;
/* Fills sweep and site (borrowed from `file`, which the caller releases, also after a failure), block, combination and
 * planned_wall_ns. Without the file, the run has no sweep, and was planned here when the folder was created. */
struct planned_file {
    char *sweep, *site; /* owned; NULL if absent */
};
int planned_file_read(const char *folder, struct planned_run *row, struct planned_file *file,
                      struct cb_err *err) CB_MUST_CHECK;
void planned_file_release(struct planned_file *file);

/* The newest passed runs that match the filters of a window baseline, except those in `exclude`. */
int selection_of_window(struct history *self, const struct baseline *baseline, const struct run_selection *exclude,
                        struct run_selection *selection, struct cb_err *err) CB_MUST_CHECK;

#endif
