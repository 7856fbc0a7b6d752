/* Loads a run from its rows, as verbs show it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "db/connection.h"
#include "run/options.h"

void run_info_free(struct run_info *info)
{
    if (!info)
        return;
    free(info->folder);
    free(info->message);
    experiment_free(info->experiment);
    for (size_t i = 0; i < info->metric_count; i++)
        free(info->metrics[i].iterations);
    free(info->metrics);
    alloc_free_texts(info->fingerprint_keys, info->fingerprint_count);
    alloc_free_texts(info->fingerprint_values, info->fingerprint_count);
    alloc_free_texts(info->facts, info->fact_count);
    free(info);
}

const struct run_metric *run_info_metric(const struct run_info *info, enum operation op, enum metric_id metric)
{
    for (size_t i = 0; i < info->metric_count; i++)
        if (info->metrics[i].op == op && info->metrics[i].metric == metric)
            return &info->metrics[i];
    return NULL;
}

const char *run_info_fact(const struct run_info *info, const char *key)
{
    size_t len = strlen(key);
    for (size_t i = 0; i < info->fact_count; i++)
        if (strncmp(info->facts[i], key, len) == 0 && info->facts[i][len] == '=')
            return info->facts[i] + len + 1;
    return NULL;
}

const char *run_info_next_fact(const struct run_info *info, const char *prefix, size_t *at)
{
    size_t len = strlen(prefix);
    while (*at < info->fact_count) {
        const char *fact = info->facts[(*at)++];
        if (strncmp(fact, prefix, len) == 0)
            return fact + len;
    }
    return NULL;
}

static int load_run_row(struct history *self, const char *run, struct run_info *info, struct cb_err *err)
{
    sqlite3_stmt *statement;
    int rc = db_query(self, &statement, err,
                      "SELECT run, sweep, state, outcome, hash, folder, message, block, combination, started_ns,"
                      " ended_ns, iterations_verified, iterations_to_verify, suspected_cache, coldness_unknown,"
                      " planned_ns, (SELECT max(attempt) FROM attempt a WHERE a.run=r.run),"
                      " (SELECT s.site FROM site s WHERE s.id=r.site) FROM run r WHERE run=?",
                      "t", run);
    if (!db_next(self, statement, &rc, err))
        return rc ? rc : cb_fail(err, CB_ERR_NOT_FOUND, "no run %s in history %s", run, self->path);
    db_copy_text(statement, 0, info->run, sizeof info->run);
    db_copy_text(statement, 1, info->sweep, sizeof info->sweep);
    db_copy_text(statement, 2, info->state, sizeof info->state);
    db_copy_text(statement, 3, info->outcome, sizeof info->outcome);
    db_copy_text(statement, 4, info->hash, sizeof info->hash);
    info->folder = strdup(db_text(statement, 5));
    info->message = strdup(db_text(statement, 6));
    info->block = (uint64_t)sqlite3_column_int64(statement, 7);
    info->combination = (uint64_t)sqlite3_column_int64(statement, 8);
    info->started_wall_ns = (uint64_t)sqlite3_column_int64(statement, 9);
    info->ended_wall_ns = (uint64_t)sqlite3_column_int64(statement, 10);
    info->iterations_verified = (uint32_t)sqlite3_column_int64(statement, 11);
    info->iterations_to_verify = (uint32_t)sqlite3_column_int64(statement, 12);
    info->suspected_cache = (uint32_t)sqlite3_column_int64(statement, 13);
    info->coldness_unknown = (uint32_t)sqlite3_column_int64(statement, 14);
    info->planned_wall_ns = (uint64_t)sqlite3_column_int64(statement, 15);
    info->attempt = (uint32_t)sqlite3_column_int64(statement, 16);
    db_copy_text(statement, 17, info->site, sizeof info->site);
    sqlite3_reset(statement);
    if (!info->folder || !info->message)
        return alloc_fail(err, "to read run %s", run);
    return 0;
}

/* Skips keys that this release does not know (an older or newer release wrote them). */
int history_load_experiment(struct history *self, const char *run, struct experiment **experiment, struct cb_err *err)
{
    sqlite3_stmt *statement = NULL;
    struct experiment *loaded;
    int rc = experiment_new(&loaded, err);
    if (rc)
        return rc;
    rc = db_query(self, &statement, err, "SELECT key, value FROM param WHERE run=?", "t", run);
    while (db_next(self, statement, &rc, err)) {
        const char *key = db_text(statement, 0), *value = db_text(statement, 1);
        enum option_id id;
        struct cb_err why;
        if (strncmp(key, "label.", 6) != 0 &&
            (option_find(key, &id, NULL) || strcmp(experiment_text(loaded, id), value) == 0))
            continue;
        if (experiment_set(loaded, key, value, NULL, &why))
            rc = cb_fail(err, CB_ERR_CORRUPT,
                         "the rows of run %s in the history are damaged: %s; `ckptbench collect --rebuild` makes them "
                         "anew from the run folders",
                         run, why.message);
    }
    if (rc) {
        sqlite3_reset(statement);
        experiment_free(loaded);
    } else {
        *experiment = loaded;
    }
    return rc;
}

static int load_metrics(struct history *self, struct run_info *info, struct cb_err *err)
{
    sqlite3_stmt *statement;
    int rc = db_query(self, &statement, err,
                      "SELECT op, metric, n, median, p95, min, max, mean, mad, iterations FROM metric WHERE run=?", "t",
                      info->run);
    while (db_next(self, statement, &rc, err)) {
        struct run_metric metric = {0};
        if (!operation_find(db_text(statement, 0), &metric.op) || !metric_find(db_text(statement, 1), &metric.metric))
            continue;
        metric.summary = (struct summary){.n = (size_t)sqlite3_column_int64(statement, 2),
                                          .median = db_double(statement, 3),
                                          .p95 = db_double(statement, 4),
                                          .min = db_double(statement, 5),
                                          .max = db_double(statement, 6),
                                          .mean = db_double(statement, 7),
                                          .mad = db_double(statement, 8)};
        size_t bytes = (size_t)sqlite3_column_bytes(statement, 9);
        rc = alloc_grow(&info->metrics, info->metric_count, sizeof metric, err);
        if (rc == 0 && bytes && bytes == metric.summary.n * sizeof(double)) {
            metric.iterations = malloc(bytes);
            if (metric.iterations)
                memcpy(metric.iterations, sqlite3_column_blob(statement, 9), bytes);
            else
                rc = alloc_fail(err, "for the iterations of a run");
        }
        if (rc == 0)
            info->metrics[info->metric_count++] = metric;
    }
    return rc;
}

static int load_operations(struct history *self, struct run_info *info, struct cb_err *err)
{
    sqlite3_stmt *statement;
    for (int op = 0; op < OP_COUNT; op++) {
        info->slowest_rank[op] = -1;
        info->slowest_rank_state[op] = STATE_COUNT;
    }
    int rc =
        db_query(self, &statement, err,
                 "SELECT op, slowest_rank, slowest_share, slowest_excess, slowest_state FROM operation WHERE run=?",
                 "t", info->run);
    while (db_next(self, statement, &rc, err)) {
        enum operation op;
        if (!operation_find(db_text(statement, 0), &op))
            continue;
        info->slowest_rank[op] = sqlite3_column_int(statement, 1);
        info->slowest_rank_share[op] = db_double(statement, 2);
        info->slowest_rank_excess[op] = db_double(statement, 3);
        (void)rank_state_find(db_text(statement, 4), &info->slowest_rank_state[op]);
    }
    if (rc == 0)
        rc = db_query(self, &statement, err, "SELECT op, state, share FROM state_share WHERE run=?", "t", info->run);
    while (db_next(self, statement, &rc, err)) {
        enum operation op;
        enum rank_state state;
        if (operation_find(db_text(statement, 0), &op) && rank_state_find(db_text(statement, 1), &state))
            info->state_share[op][state] = db_double(statement, 2);
    }
    return rc;
}

static int load_fingerprint(struct history *self, struct run_info *info, struct cb_err *err)
{
    sqlite3_stmt *statement;
    int rc =
        db_query(self, &statement, err, "SELECT key, value FROM fingerprint WHERE run=? AND attempt=? ORDER BY key",
                 "ti", info->run, (int64_t)info->attempt);
    while (db_next(self, statement, &rc, err)) {
        const char *key = db_text(statement, 0), *value = db_text(statement, 1);
        size_t values = info->fingerprint_count;
        rc = alloc_add_text(&info->fingerprint_values, &values, value, strlen(value), err);
        if (rc == 0)
            rc = alloc_add_text(&info->fingerprint_keys, &info->fingerprint_count, key, strlen(key), err);
        if (values > info->fingerprint_count)
            free(info->fingerprint_values[info->fingerprint_count]);
    }
    return rc;
}

static int load_facts(struct history *self, struct run_info *info, struct cb_err *err)
{
    sqlite3_stmt *statement;
    int rc = db_query(self, &statement, err, "SELECT fact FROM fact WHERE run=? AND attempt=? ORDER BY rank, number",
                      "ti", info->run, (int64_t)info->attempt);
    while (db_next(self, statement, &rc, err))
        rc = alloc_add_text(&info->facts, &info->fact_count, db_text(statement, 0), strlen(db_text(statement, 0)), err);
    return rc;
}

int history_load_run(struct history *self, const char *run, struct run_info **info, struct cb_err *err)
{
    struct run_info *loaded = calloc(1, sizeof *loaded);
    if (!loaded)
        return alloc_fail(err, "to read run %s", run);
    int rc = load_run_row(self, run, loaded, err);
    if (rc == 0)
        rc = history_load_experiment(self, run, &loaded->experiment, err);
    if (rc == 0)
        rc = load_metrics(self, loaded, err);
    if (rc == 0)
        rc = load_operations(self, loaded, err);
    if (rc == 0)
        rc = load_fingerprint(self, loaded, err);
    if (rc == 0)
        rc = load_facts(self, loaded, err);
    if (rc)
        run_info_free(loaded);
    else
        *info = loaded;
    return rc;
}
