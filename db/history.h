/* The history: every run in SQLite, an index over the run folders that is brought up to date with them when it is
 * opened.
 *
 * The folders may be on a network file system and be used by several machines and people. The database is on a local
 * disk, one for each machine and user (or in the home, if that is local and the user's). Migrations are numbered; a
 * newer schema is a clear error. docs/history.md documents the schema for people who query it with their own tools.
 * One connection per thread; several processes may write (busy time-out, one transaction per ingest; ingesting again
 * changes nothing). */
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

/* Creates or migrates the database as needed. With a path, opens that database, whose folder is the home, and does not
 * bring it up to date. With NULL, opens the home's database and brings it up to date with the run folders; a damaged
 * one is replaced. */
int history_open(const char *path, struct history **history, struct cb_err *err) CB_MUST_CHECK;
/* CB_ERR_NOT_FOUND if there is neither a database nor a run yet. */
int history_open_read_only(const char *path, struct history **history, struct cb_err *err) CB_MUST_CHECK;
/* As history_open with NULL, but not brought up to date, since `collect` inspects every run itself. */
int history_open_to_collect(struct history **history, struct cb_err *err) CB_MUST_CHECK;
/* The path of the database. Borrowed. */
const char *history_path(const struct history *self);
void history_close(struct history *self);
/* The home, which holds runs/ and baselines/. Borrowed. */
const char *history_folder(const struct history *self);

/* Adds a run in state "planned" before anything starts, and planned.json in the run folder (which exists), so that a
 * rebuilt history knows sweeps and blocks. `sweep` may be NULL. A known run keeps its state and results. */
struct planned_run {
    const char *run, *sweep, *folder;
    uint64_t block, combination; /* block from 1, combination from 0 */
    const struct experiment *experiment;
    const char *site;         /* the site where it runs; NULL: this machine */
    uint64_t planned_wall_ns; /* 0: now */
    struct file_batch *batch; /* planned.json joins it; NULL: written at once */
};
int history_plan_run(struct history *self, const struct planned_run *planned, struct cb_err *err) CB_MUST_CHECK;
/* Records in a run folder fetched from a site that the run belongs to that site; call before ingesting it. */
int history_mark_folder(const char *run_folder, const char *site, struct cb_err *err) CB_MUST_CHECK;

/* Adds an event if the state has changed. CB_ERR_NOT_FOUND if there is no such run. */
int history_set_state(struct history *self, const char *run, const char *state, struct cb_err *err) CB_MUST_CHECK;

/* Ingests a run folder: the planned row if missing, and every sealed attempt. *ingested is false if there is nothing
 * new; CB_ERR_NOT_FOUND if no attempt is sealed. */
int history_ingest(struct history *self, const char *run_folder, bool *ingested, struct cb_err *err) CB_MUST_CHECK;

/* What a warm pool has cost and saved so far; replaces earlier figures. */
struct pool_cost {
    const char *id, *pool, *mode, *note;                             /* note: the reason for the end, or NULL */
    uint64_t nodes, created_wall_ns, expires_wall_ns, ended_wall_ns; /* 0: still running */
    double budget_node_hours, node_hours, job_node_hours;
    uint64_t jobs, failed_boots;
    double boot_s;
    uint64_t runs;
    double saved_s;
};
int history_keep_pool(struct history *self, const struct pool_cost *cost, struct cb_err *err) CB_MUST_CHECK;

/* Groups many writes into one transaction: `rc` is the result of the work, 0 commits, any other value rolls back;
 * returns `rc`, or the commit's failure. Transactions nest; the outermost decides. They lock at the start, so that two
 * writers wait for each other instead of one failing half-way. */
int history_begin(struct history *self, struct cb_err *err) CB_MUST_CHECK;
int history_end(struct history *self, int rc, struct cb_err *err) CB_MUST_CHECK;

/* Removes every run and baseline, so that they can be ingested anew from the folders, and makes the other machines that
 * share the folders read every run anew, too. */
int history_clear_for_rebuild(struct history *self, struct cb_err *err) CB_MUST_CHECK;

/* A run as verbs show it. Everything is owned by the struct. */
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
    uint32_t attempt; /* the last sealed attempt, 0 if none */
    uint64_t block, combination, planned_wall_ns, started_wall_ns, ended_wall_ns;
    struct experiment *experiment;
    struct run_metric *metrics;
    size_t metric_count;
    double state_share[OP_COUNT][STATE_COUNT];
    int slowest_rank[OP_COUNT];
    double slowest_rank_share[OP_COUNT], slowest_rank_excess[OP_COUNT];
    enum rank_state slowest_rank_state[OP_COUNT]; /* as in run/results.h; STATE_COUNT if unknown */
    uint32_t iterations_verified, iterations_to_verify, suspected_cache, coldness_unknown;
    char **fingerprint_keys, **fingerprint_values; /* sorted by key; from the last attempt */
    size_t fingerprint_count;
    char **facts; /* "key=value", as reported by rank 0 */
    size_t fact_count;
};
void run_info_free(struct run_info *info);
const struct run_metric *run_info_metric(const struct run_info *info, enum operation op, enum metric_id metric);
/* The value of a fact; NULL if rank 0 did not report it. Borrowed. */
const char *run_info_fact(const struct run_info *info, const char *key);
/* What stands behind `prefix` in the next fact that begins with it ("NAME=VALUE"), from fact *at on; moves *at behind
 * it. NULL: no more. Borrowed. */
const char *run_info_next_fact(const struct run_info *info, const char *prefix, size_t *at);

/* "LATEST" is the newest run that is not just planned, else the newest; an unambiguous prefix is accepted.
 * CB_ERR_NOT_FOUND suggests the nearest id. */
int history_find_run(struct history *self, const char *name, char run[64], struct cb_err *err) CB_MUST_CHECK;
int history_load_run(struct history *self, const char *run, struct run_info **info, struct cb_err *err) CB_MUST_CHECK;
/* Loads the experiment only. */
int history_load_experiment(struct history *self, const char *run, struct experiment **experiment,
                            struct cb_err *err) CB_MUST_CHECK;

/* A selection: words are run ids, sweep ids, baseline names, or filters key=value (label.x=y, since=30d, until=,
 * state=, outcome=, sweep=, site=, hash=, any key of the option table; a comma between values means "or", * matches
 * any letters). Newest first. Ids and names add runs, filters restrict them. */
struct run_selection {
    char (*runs)[64];
    size_t count;
};
int history_select(struct history *self, const char *const *words, size_t count, struct run_selection *selection,
                   struct cb_err *err) CB_MUST_CHECK;
/* The same, but filters and baselines do not select the runs in `exclude` (may be NULL): a sliding window that is
 * compared with its own newest runs excludes them, and has only runs on their stores and sites. */
int history_select_excluding(struct history *self, const char *const *words, size_t count,
                             const struct run_selection *exclude, struct run_selection *selection,
                             struct cb_err *err) CB_MUST_CHECK;
void run_selection_release(struct run_selection *selection);

/* Brings the history up to date with the run folders and baseline files. `taken`, released by the caller, receives the
 * runs with newly ingested attempts, in order of name. Runs whose folder was removed leave the history. Writes nothing
 * if nothing has changed. */
int history_update(struct history *self, struct run_selection *taken, struct cb_err *err) CB_MUST_CHECK;

/* Baselines: named sets of runs, or the newest passed runs that match filters. Each is a file in FOLDER/baselines,
 * and a row. */
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
/* Parses a baseline's file or row; release with baseline_release. */
int baseline_parse(const char *name, const char *text, size_t len, struct baseline *baseline,
                   struct cb_err *err) CB_MUST_CHECK;
void baseline_release(struct baseline *baseline);
/* Calls `each` for every baseline in order of name, until it fails. */
typedef int (*baseline_fn)(void *context, const struct baseline *baseline, struct cb_err *err);
int history_each_baseline(struct history *self, baseline_fn each, void *context, struct cb_err *err) CB_MUST_CHECK;

/* One line of a list. Borrowed for the call. Times are 0 if absent. */
struct run_line {
    const char *run, *sweep, *state, *outcome, *message, *folder;
    const char *site; /* "local" for this machine */
    uint64_t block, combination;
    const char *experiment_json, *labels_json; /* objects */
    uint64_t planned_wall_ns, started_wall_ns, ended_wall_ns;
    const double *medians; /* by metric, of those with metric_in_list; NAN where absent */
};
typedef int (*run_line_fn)(void *context, const struct run_line *line, struct cb_err *err);
int history_each_run(struct history *self, const struct run_selection *selection, run_line_fn each, void *context,
                     struct cb_err *err) CB_MUST_CHECK;

/* What is stored of a run, in short, for those who keep something made from it. Borrowed for the call. */
struct run_version {
    const char *run, *sweep, *hash, *store, *site, *state, *outcome; /* "" if absent */
    uint64_t started_wall_ns;                                        /* or when it was planned */
    const char *version; /* a text that changes when what is stored of the run changes */
};
typedef int (*run_version_fn)(void *context, const struct run_version *version, struct cb_err *err);
/* Calls `each` for every run, oldest first. */
int history_each_version(struct history *self, run_version_fn each, void *context, struct cb_err *err) CB_MUST_CHECK;

/* A metric of a run that passed: a point of its history. Borrowed for the call. */
struct metric_point {
    const char *run, *hash, *store, *site;
    uint64_t started_wall_ns;
    enum operation op;
    struct summary summary;
};
typedef int (*metric_point_fn)(void *context, const struct metric_point *point, struct cb_err *err);
/* Calls `each` for the runs of the selection, in its order, that passed and have the metric; NULL selects all, in order
 * of name. With OP_COUNT for `op`, a run has its first operation that has the metric. */
int history_each_point(struct history *self, const struct run_selection *selection, enum operation op,
                       enum metric_id metric, metric_point_fn each, void *context, struct cb_err *err) CB_MUST_CHECK;

/* What every rank measured: one call per operation, iteration and metric, in that order. */
struct rank_values {
    enum operation op;
    enum metric_id metric;
    uint32_t attempt, iteration, flags; /* enum sample_flag of all ranks, combined */
    const double *ranks;                /* by rank; NAN if absent */
    size_t rank_count;
};
typedef int (*rank_values_fn)(void *context, const struct rank_values *values, struct cb_err *err);
int history_each_sample(struct history *self, const char *run, rank_values_fn each, void *context,
                        struct cb_err *err) CB_MUST_CHECK;

/* Why ranks of an attempt failed, by rank: the name of the code and one line per problem. Borrowed. */
typedef int (*failure_fn)(void *context, uint32_t rank, const char *code, const char *lines, struct cb_err *err);
int history_each_failure(struct history *self, const char *run, uint32_t attempt, failure_fn each, void *context,
                         struct cb_err *err) CB_MUST_CHECK;

/* Runs any single SELECT, read-only whatever the statement says. `row` is called for the column names (cells of type
 * text, `is_header`) and then for each row. */
struct query_cell {
    enum { CELL_NULL, CELL_INTEGER, CELL_REAL, CELL_TEXT, CELL_BLOB } type;
    int64_t integer;
    double real;
    const char *text; /* of TEXT; for BLOB its bytes */
    size_t bytes;
};
typedef int (*query_row_fn)(void *context, bool is_header, const struct query_cell *cells, size_t count,
                            struct cb_err *err);
int history_query(struct history *self, const char *sql, query_row_fn row, void *context,
                  struct cb_err *err) CB_MUST_CHECK;

#endif
