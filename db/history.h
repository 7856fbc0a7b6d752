/* The history: every run in SQLite, a local index over run folders that can be rebuilt from them.
 *
 * WAL on a local file system; on a network file system (statfs) it refuses and names the way out.
 * Migrations are numbered; a newer schema is a clear error. The schema is documented in
 * docs/history.md for people who query it with their own tools. One connection a thread; several
 * processes may write (busy time-out, one transaction an ingest; twice is the same as once). */
#ifndef DB_HISTORY_H
#define DB_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "core/json.h"
#include "run/experiment.h"
#include "run/metrics.h"
#include "run/results.h"

struct file_batch;
struct history;

/* Creates or migrates as needed. NULL is HOME/history.db. */
int history_open(const char *path, struct history **history, struct cb_err *err) CB_MUST_CHECK;
/* NOT_FOUND where there is none yet. */
int history_open_read_only(const char *path, struct history **history, struct cb_err *err) CB_MUST_CHECK;
void history_close(struct history *self);
/* The folder that holds the database, runs/ and baselines/. Borrowed. */
const char *history_folder(const struct history *self);

/* Puts a run row in state "planned" before anything starts, and planned.json in the run folder (which
 * exists), so that a rebuilt history knows sweeps and blocks. `sweep` may be NULL. A run that is known keeps
 * its state and results. */
struct planned_run {
    const char *run, *sweep, *folder;
    uint64_t block, combination; /* block from 1, combination from 0 */
    const struct experiment *experiment;
    const char *site;         /* where it runs; NULL: here */
    uint64_t planned_wall_ns; /* 0: now */
    struct file_batch *batch; /* planned.json is part of it; NULL: written at once */
};
int history_plan_run(struct history *self, const struct planned_run *planned, struct cb_err *err) CB_MUST_CHECK;
/* Writes into a run folder that came from a site that its run is of that site; before it is ingested. */
int history_mark_folder(const char *run_folder, const char *site, struct cb_err *err) CB_MUST_CHECK;

/* Also an event, where the state is a new one. NOT_FOUND where there is no such run. */
int history_set_state(struct history *self, const char *run, const char *state, struct cb_err *err) CB_MUST_CHECK;

/* Ingests a run folder: planned row if missing, and every sealed attempt. *ingested is false when
 * nothing is new; CB_ERR_NOT_FOUND says why there is nothing to ingest (not sealed). */
int history_ingest(struct history *self, const char *run_folder, bool *ingested, struct cb_err *err) CB_MUST_CHECK;

/* What a warm pool has cost and saved so far; replaces what was known of it. */
struct pool_cost {
    const char *id, *pool, *mode, *note;                             /* note: why it ended, or NULL */
    uint64_t nodes, created_wall_ns, expires_wall_ns, ended_wall_ns; /* 0: it has not ended */
    double budget_node_hours, node_hours, job_node_hours;
    uint64_t jobs, failed_boots;
    double boot_s;
    uint64_t runs;
    double saved_s;
};
int history_keep_pool(struct history *self, const struct pool_cost *cost, struct cb_err *err) CB_MUST_CHECK;

/* Many writes in one transaction: `rc` is what the work returned, 0 commits, all else rolls back;
 * returns rc, or why the commit failed. They nest; the outermost counts. */
int history_begin(struct history *self, struct cb_err *err) CB_MUST_CHECK;
int history_end(struct history *self, int rc, struct cb_err *err) CB_MUST_CHECK;

/* Removes every run whose folder is still there, and every baseline, so that ingesting the folders
 * builds them anew. Runs whose folder is gone stay: *kept of them. */
int history_clear_for_rebuild(struct history *self, size_t *kept, struct cb_err *err) CB_MUST_CHECK;

/* A run as the verbs show it. Everything is owned by the struct. */
struct run_metric {
    enum operation op;
    enum metric_id metric;
    struct summary summary;
    double *iterations; /* summary.n of them, in order; owned */
};
struct run_info {
    char run[64], sweep[64], state[16], outcome[24], hash[32];
    char site[64]; /* "local" for this machine */
    char *folder, *message;
    uint32_t attempt; /* the last sealed one, 0 for none */
    uint64_t block, combination, planned_wall_ns, started_wall_ns, ended_wall_ns;
    struct experiment *experiment;
    struct run_metric *metrics;
    size_t metric_count;
    double state_share[OP_COUNT][STATE_COUNT];
    int slowest_rank[OP_COUNT];
    double slowest_rank_share[OP_COUNT], slowest_rank_excess[OP_COUNT];
    uint32_t iterations_verified, iterations_to_verify, suspected_cache, coldness_unknown;
    char **fingerprint_keys, **fingerprint_values; /* sorted by key; the last attempt's */
    size_t fingerprint_count;
    char **facts; /* "key=value", rank 0's */
    size_t fact_count;
};
void run_info_free(struct run_info *info);
const struct run_metric *run_info_metric(const struct run_info *info, enum operation op, enum metric_id metric);

/* "LATEST" is the newest that is more than planned, else the newest; an unambiguous prefix will do. NOT_FOUND names the nearest. */
int history_find_run(struct history *self, const char *name, char run[64], struct cb_err *err) CB_MUST_CHECK;
int history_load_run(struct history *self, const char *run, struct run_info **info, struct cb_err *err) CB_MUST_CHECK;
/* What it was to do, alone. */
int history_load_experiment(struct history *self, const char *run, struct experiment **experiment,
                            struct cb_err *err) CB_MUST_CHECK;

/* A selection: words as run ids, sweep ids, baseline names, or filters key=value (label.x=y,
 * since=30d, until=, state=, outcome=, sweep=, site=, hash=, any key of the option table; a comma between
 * values is "or", * matches any letters), newest first. Words add up, filters narrow. */
struct run_selection {
    char (*runs)[64];
    size_t count;
};
int history_select(struct history *self, const char *const *words, size_t count, struct run_selection *selection,
                   struct cb_err *err) CB_MUST_CHECK;
/* The same without the runs in `exclude` (may be NULL) as far as filters and baselines find them: a
 * sliding window that is compared with its own newest runs must not hold them. */
int history_select_excluding(struct history *self, const char *const *words, size_t count,
                             const struct run_selection *exclude, struct run_selection *selection,
                             struct cb_err *err) CB_MUST_CHECK;
void run_selection_release(struct run_selection *selection);

/* Baselines: named sets of runs, or the newest passed runs that match filters. Each is a file in
 * FOLDER/baselines, and a row. */
#define BASELINE_NAME_BYTES 64
struct baseline {
    char name[BASELINE_NAME_BYTES];
    uint64_t window; /* 0 for a fixed set */
    char **words;    /* run ids, or filters */
    size_t word_count;
};
int history_set_baseline(struct history *self, const struct baseline *baseline, struct cb_err *err) CB_MUST_CHECK;
int history_remove_baseline(struct history *self, const char *name, struct cb_err *err) CB_MUST_CHECK;
int history_read_baseline(struct history *self, const char *name, struct baseline *baseline,
                          struct cb_err *err) CB_MUST_CHECK;
/* A baseline's file or row from its bytes; baseline_release is the caller's. */
int baseline_parse(const char *name, const char *text, size_t len, struct baseline *baseline,
                   struct cb_err *err) CB_MUST_CHECK;
void baseline_release(struct baseline *baseline);
/* Calls `each` for every baseline by name, until it fails. */
typedef int (*baseline_fn)(void *context, const struct baseline *baseline, struct cb_err *err);
int history_each_baseline(struct history *self, baseline_fn each, void *context, struct cb_err *err) CB_MUST_CHECK;
/* Puts the baseline files into the table, for a rebuild. */
int history_load_baseline_files(struct history *self, struct cb_err *err) CB_MUST_CHECK;

/* One line of a list. Borrowed for the call. Times are 0 where there is none. */
struct run_line {
    const char *run, *sweep, *state, *outcome, *message, *folder;
    const char *site; /* "local" for this machine */
    uint64_t block, combination;
    const char *experiment_json, *labels_json; /* objects */
    uint64_t planned_wall_ns, started_wall_ns, ended_wall_ns;
    double save_s, load_s; /* medians, NAN where absent */
};
typedef int (*run_line_fn)(void *context, const struct run_line *line, struct cb_err *err);
int history_each_run(struct history *self, const struct run_selection *selection, run_line_fn each, void *context,
                     struct cb_err *err) CB_MUST_CHECK;

/* What every rank measured, one call for each operation, iteration and metric, in that order. */
struct rank_values {
    enum operation op;
    enum metric_id metric;
    uint32_t attempt, iteration, flags; /* flags: enum sample_flag, of any rank */
    const double *ranks;                /* by rank; NAN where absent */
    size_t rank_count;
};
typedef int (*rank_values_fn)(void *context, const struct rank_values *values, struct cb_err *err);
int history_each_sample(struct history *self, const char *run, rank_values_fn each, void *context,
                        struct cb_err *err) CB_MUST_CHECK;

/* Why ranks of an attempt failed, by rank: the code's name and a line for each thing that was wrong. Borrowed. */
typedef int (*failure_fn)(void *context, uint32_t rank, const char *code, const char *lines, struct cb_err *err);
int history_each_failure(struct history *self, const char *run, uint32_t attempt, failure_fn each, void *context,
                         struct cb_err *err) CB_MUST_CHECK;

/* Any one SELECT, read-only whatever it says. `row` is called for the column names (cells of type
 * text, `is_header`) and then for each row. */
struct query_cell {
    enum { CELL_NULL, CELL_INTEGER, CELL_REAL, CELL_TEXT, CELL_BLOB } type;
    int64_t integer;
    double real;
    const char *text; /* of TEXT; of BLOB the bytes */
    size_t bytes;
};
typedef int (*query_row_fn)(void *context, bool is_header, const struct query_cell *cells, size_t count,
                            struct cb_err *err);
int history_query(struct history *self, const char *sql, query_row_fn row, void *context,
                  struct cb_err *err) CB_MUST_CHECK;

#endif
