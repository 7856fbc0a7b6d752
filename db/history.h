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
#include "core/experiment.h"
#include "core/metrics.h"
#include "core/results.h"

struct history;

/* Creates or migrates as needed. NULL is HOME/history.db. */
int history_open(const char *path, struct history **history, struct cb_err *err) CB_MUST_CHECK;
int history_open_read_only(const char *path, struct history **history, struct cb_err *err) CB_MUST_CHECK;
void history_close(struct history *history);

/* Puts a run row in state "planned" before anything starts. `sweep` may be NULL. */
struct planned_run {
    const char *run, *sweep, *folder;
    uint64_t block, combination; /* block from 1, combination from 0 */
    const struct experiment *experiment;
};
int history_plan_run(struct history *history, const struct planned_run *planned, struct cb_err *err) CB_MUST_CHECK;
int history_set_state(struct history *history, const char *run, const char *state, struct cb_err *err) CB_MUST_CHECK;

/* Ingests a run folder: planned row if missing, and every sealed attempt. *ingested is false when
 * nothing is new; CB_ERR_NOT_FOUND says why there is nothing to ingest (not sealed). */
int history_ingest(struct history *history, const char *run_folder, bool *ingested, struct cb_err *err) CB_MUST_CHECK;

/* A run as the verbs show it. Everything is owned by the struct. */
struct run_metric {
    enum operation op;
    enum metric_id metric;
    struct summary summary;
};
struct run_info {
    char run[64], sweep[64], state[16], outcome[24], hash[32];
    char *folder, *message;
    uint64_t block, combination, started_wall_ns, ended_wall_ns;
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

/* "LATEST" is the newest; an unambiguous prefix will do. NOT_FOUND names the nearest. */
int history_find_run(struct history *history, const char *name, char run[64], struct cb_err *err) CB_MUST_CHECK;
int history_load_run(struct history *history, const char *run, struct run_info **info,
                     struct cb_err *err) CB_MUST_CHECK;

/* A selection: words as run ids, sweep ids, baseline names, or filters key=value (label.x=y,
 * since=30d, state=, outcome=), newest first. */
struct run_selection {
    char (*runs)[64];
    size_t count;
};
int history_select(struct history *history, const char *const *words, size_t count, struct run_selection *selection,
                   struct cb_err *err) CB_MUST_CHECK;
void run_selection_release(struct run_selection *selection);

#endif
