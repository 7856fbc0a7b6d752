/* Reads many rows: lists, samples, and a user's own SELECT. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "db/connection.h"

/* The medians that `list` shows of a run, each from the first operation that has the metric. */
static int read_listed(struct history *self, const char *run, double medians[METRIC_COUNT], struct cb_err *err)
{
    int rc = 0;
    for (int i = 0; i < METRIC_COUNT && rc == 0; i++) {
        sqlite3_stmt *statement;
        enum metric_id metric = (enum metric_id)i;
        enum operation op = OP_NONE;
        medians[i] = NAN;
        if (!metric_in_list(metric))
            continue;
        while (metric_row(metric)->operations && !metric_has_operation(metric, op))
            op++;
        rc = db_query(self, &statement, err, "SELECT median FROM metric WHERE run=? AND op=? AND metric=?", "ttt", run,
                      operation_name(op), metric_row(metric)->name);
        if (db_next(self, statement, &rc, err))
            medians[i] = db_double(statement, 0);
        sqlite3_reset(statement);
    }
    return rc;
}

int history_each_run(struct history *self, const struct run_selection *selection, run_line_fn each, void *context,
                     struct cb_err *err)
{
    sqlite3_stmt *statement = NULL;
    double medians[METRIC_COUNT];
    int rc = 0;
    for (size_t i = 0; i < selection->count && rc == 0; i++) {
        const char *run = selection->runs[i];
        rc = read_listed(self, run, medians, err);
        if (rc == 0)
            rc = db_query(self, &statement, err,
                          "SELECT run, sweep, state, outcome, message, folder, experiment, labels, planned_ns,"
                          " started_ns, ended_ns, (SELECT s.site FROM site s WHERE s.id=run.site), block,"
                          " combination FROM run WHERE run=?",
                          "t", run);
        if (!db_next(self, statement, &rc, err))
            continue; /* removed since it was selected */
        struct run_line line = {.run = db_text(statement, 0),
                                .sweep = db_text(statement, 1),
                                .state = db_text(statement, 2),
                                .outcome = db_text(statement, 3),
                                .message = db_text(statement, 4),
                                .folder = db_text(statement, 5),
                                .experiment_json = db_text(statement, 6),
                                .labels_json = db_text(statement, 7),
                                .planned_wall_ns = (uint64_t)sqlite3_column_int64(statement, 8),
                                .started_wall_ns = (uint64_t)sqlite3_column_int64(statement, 9),
                                .ended_wall_ns = (uint64_t)sqlite3_column_int64(statement, 10),
                                .site = db_text(statement, 11),
                                .block = (uint64_t)sqlite3_column_int64(statement, 12),
                                .combination = (uint64_t)sqlite3_column_int64(statement, 13),
                                .medians = medians};
        rc = each(context, &line, err);
        sqlite3_reset(statement);
    }
    return rc;
}

int history_each_version(struct history *self, run_version_fn each, void *context, struct cb_err *err)
{
    sqlite3_stmt *statement;
    int rc = db_query(self, &statement, err,
                      "SELECT r.run, r.sweep, r.hash, t.store, s.site, r.state, r.outcome,"
                      " coalesce(r.started_ns, r.planned_ns), printf('%s %s %s %s %s', r.folder, r.message, r.ended_ns,"
                      " r.labels, (SELECT group_concat(printf('%d %s %s %s', a.attempt, a.outcome, a.ended_ns,"
                      " a.records_sha256)) FROM attempt a WHERE a.run=r.run)) FROM run r"
                      " LEFT JOIN site s ON s.id=r.site LEFT JOIN store_target t ON t.id=r.store_target"
                      " ORDER BY coalesce(r.started_ns, r.planned_ns), r.run",
                      "");
    while (db_next(self, statement, &rc, err)) {
        struct run_version version = {.run = db_text(statement, 0),
                                      .sweep = db_text(statement, 1),
                                      .hash = db_text(statement, 2),
                                      .store = db_text(statement, 3),
                                      .site = db_text(statement, 4),
                                      .state = db_text(statement, 5),
                                      .outcome = db_text(statement, 6),
                                      .started_wall_ns = (uint64_t)sqlite3_column_int64(statement, 7),
                                      .version = db_text(statement, 8)};
        rc = each(context, &version, err);
    }
    sqlite3_reset(statement);
    return rc;
}

/* The points of one run, or of all if `run` is NULL. */
static int each_point(struct history *self, const char *run, enum operation op, enum metric_id metric,
                      metric_point_fn each, void *context, struct cb_err *err)
{
#define POINT_COLUMNS                                                                                                  \
    "SELECT r.run, r.hash, t.store, s.site, r.started_ns, m.op, m.n, m.median, m.p95, m.min, m.max, m.mean, m.mad"     \
    " FROM run r JOIN metric m ON m.run=r.run LEFT JOIN site s ON s.id=r.site"                                         \
    " LEFT JOIN store_target t ON t.id=r.store_target WHERE r.outcome='pass' AND m.metric=?1"                          \
    " AND (?2 IS NULL OR m.op=?2) AND m.median IS NOT NULL "
    sqlite3_stmt *statement;
    char last[64] = "";
    const char *name = metric_row(metric)->name, *of = op == OP_COUNT ? NULL : operation_name(op);
    int rc = run ? db_query(self, &statement, err, POINT_COLUMNS "AND r.run=?3 ORDER BY m.op", "ttt", name, of, run)
                 : db_query(self, &statement, err, POINT_COLUMNS "ORDER BY r.run, m.op", "tt", name, of);
    while (db_next(self, statement, &rc, err)) {
        struct metric_point point = {.run = db_text(statement, 0),
                                     .hash = db_text(statement, 1),
                                     .store = db_text(statement, 2),
                                     .site = db_text(statement, 3),
                                     .started_wall_ns = (uint64_t)sqlite3_column_int64(statement, 4),
                                     .summary = {.n = (size_t)sqlite3_column_int64(statement, 6),
                                                 .median = db_double(statement, 7),
                                                 .p95 = db_double(statement, 8),
                                                 .min = db_double(statement, 9),
                                                 .max = db_double(statement, 10),
                                                 .mean = db_double(statement, 11),
                                                 .mad = db_double(statement, 12)}};
        if (strcmp(point.run, last) == 0 || !operation_find(db_text(statement, 5), &point.op))
            continue;
        snprintf(last, sizeof last, "%s", point.run);
        rc = each(context, &point, err);
    }
    sqlite3_reset(statement);
    return rc;
}

int history_each_point(struct history *self, const struct run_selection *selection, enum operation op,
                       enum metric_id metric, metric_point_fn each, void *context, struct cb_err *err)
{
    int rc = selection ? 0 : each_point(self, NULL, op, metric, each, context, err);
    for (size_t i = 0; selection && i < selection->count && rc == 0; i++)
        rc = each_point(self, selection->runs[i], op, metric, each, context, err);
    return rc;
}

static int give_sample(struct history *self, sqlite3_stmt *statement, double **ranks, size_t *capacity,
                       rank_values_fn each, void *context, struct cb_err *err)
{
    struct rank_values values = {.attempt = (uint32_t)sqlite3_column_int64(statement, 0),
                                 .iteration = (uint32_t)sqlite3_column_int64(statement, 2),
                                 .flags = (uint32_t)sqlite3_column_int64(statement, 4)};
    size_t bytes = (size_t)sqlite3_column_bytes(statement, 5);
    if (!operation_find(db_text(statement, 1), &values.op) || !metric_find(db_text(statement, 3), &values.metric))
        return 0;
    if (bytes % sizeof(double))
        return cb_fail(err, CB_ERR_CORRUPT, "history %s: a sample of %zu bytes holds no whole doubles", self->path,
                       bytes);
    if (bytes > *capacity) {
        double *more = realloc(*ranks, bytes);
        if (!more)
            return alloc_fail(err, "for a sample");
        *ranks = more;
        *capacity = bytes;
    }
    if (bytes && *ranks)
        memcpy(*ranks, sqlite3_column_blob(statement, 5), bytes);
    values.ranks = *ranks;
    values.rank_count = bytes / sizeof(double);
    return each(context, &values, err);
}

int history_each_sample(struct history *self, const char *run, rank_values_fn each, void *context, struct cb_err *err)
{
    sqlite3_stmt *statement;
    double *ranks = NULL;
    size_t capacity = 0;
    int rc = db_query(self, &statement, err,
                      "SELECT s.attempt, s.op, s.iteration, c.metric, s.flags, s.ranks FROM run r"
                      " JOIN sample s ON s.run_id=r.id JOIN catalogue c ON c.id=s.metric WHERE r.run=?"
                      " ORDER BY s.attempt, s.op, s.iteration, s.metric",
                      "t", run);
    while (db_next(self, statement, &rc, err))
        rc = give_sample(self, statement, &ranks, &capacity, each, context, err);
    sqlite3_reset(statement);
    free(ranks);
    return rc;
}

int history_each_failure(struct history *self, const char *run, uint32_t attempt, failure_fn each, void *context,
                         struct cb_err *err)
{
    sqlite3_stmt *statement;
    int rc =
        db_query(self, &statement, err, "SELECT rank, code, text FROM failure WHERE run=? AND attempt=? ORDER BY rank",
                 "ti", run, (int64_t)attempt);
    while (db_next(self, statement, &rc, err))
        rc = each(context, (uint32_t)sqlite3_column_int64(statement, 0), db_text(statement, 1), db_text(statement, 2),
                  err);
    sqlite3_reset(statement);
    return rc;
}

static int authorize(void *unused, int action, const char *first, const char *second, const char *database,
                     const char *trigger)
{
    (void)unused, (void)first, (void)database, (void)trigger;
    switch (action) {
    case SQLITE_SELECT:
    case SQLITE_READ:
    case SQLITE_RECURSIVE:
        return SQLITE_OK;
    case SQLITE_FUNCTION:
        return second && strcmp(second, "load_extension") == 0 ? SQLITE_DENY : SQLITE_OK;
    case SQLITE_PRAGMA: /* PRAGMA statements that only report */
        return first && (strcmp(first, "table_info") == 0 || strcmp(first, "table_list") == 0 ||
                         (strcmp(first, "user_version") == 0 && !second))
                   ? SQLITE_OK
                   : SQLITE_DENY;
    default:
        return SQLITE_DENY;
    }
}

static void read_cell(sqlite3_stmt *statement, int column, struct query_cell *cell)
{
    *cell = (struct query_cell){.type = CELL_NULL};
    switch (sqlite3_column_type(statement, column)) {
    case SQLITE_INTEGER:
        cell->type = CELL_INTEGER;
        cell->integer = sqlite3_column_int64(statement, column);
        break;
    case SQLITE_FLOAT:
        cell->type = CELL_REAL;
        cell->real = sqlite3_column_double(statement, column);
        break;
    case SQLITE_TEXT:
        cell->type = CELL_TEXT;
        cell->text = (const char *)sqlite3_column_text(statement, column);
        cell->bytes = (size_t)sqlite3_column_bytes(statement, column);
        break;
    case SQLITE_BLOB:
        cell->type = CELL_BLOB;
        cell->text = sqlite3_column_blob(statement, column);
        cell->bytes = (size_t)sqlite3_column_bytes(statement, column);
        break;
    default:
        break;
    }
}

static int step_rows(sqlite3_stmt *statement, struct history *self, query_row_fn row, void *context, struct cb_err *err)
{
    int count = sqlite3_column_count(statement);
    struct query_cell *cells = calloc((size_t)count + 1, sizeof *cells);
    if (!cells)
        return alloc_fail(err, "for a row of %d columns", count);
    for (int i = 0; i < count; i++) {
        cells[i].type = CELL_TEXT;
        cells[i].text = sqlite3_column_name(statement, i);
        cells[i].bytes = strlen(cells[i].text);
    }
    int rc = row(context, true, cells, (size_t)count, err);
    while (db_next(self, statement, &rc, err)) {
        for (int i = 0; i < count; i++)
            read_cell(statement, i, &cells[i]);
        rc = row(context, false, cells, (size_t)count, err);
    }
    free(cells);
    return rc;
}

int history_query(struct history *self, const char *sql, query_row_fn row, void *context, struct cb_err *err)
{
    sqlite3_stmt *statement = NULL;
    const char *rest;
    int rc = 0;
    sqlite3_set_authorizer(self->db, authorize, NULL);
    int code = sqlite3_prepare_v2(self->db, sql, -1, &statement, &rest);
    if (code == SQLITE_AUTH)
        rc = cb_fail(err, CB_ERR_USAGE, "only SELECT is allowed here (%s): the history is made from run folders",
                     sqlite3_errmsg(self->db));
    else if (code != SQLITE_OK)
        rc = cb_fail(err, CB_ERR_USAGE, "%s (docs/history.md has the tables)", sqlite3_errmsg(self->db));
    else if (!statement)
        rc = cb_fail(err, CB_ERR_USAGE, "no SQL given: try 'select run, outcome from run'");
    else if (!sqlite3_stmt_readonly(statement) || sqlite3_column_count(statement) == 0)
        rc = cb_fail(err, CB_ERR_USAGE, "only SELECT is allowed here: the history is made from run folders");
    else if (rest[strspn(rest, " \t\r\n;")])
        rc = cb_fail(err, CB_ERR_USAGE, "one statement at a time: there is more after the first, \"%.40s\"", rest);
    else
        rc = step_rows(statement, self, row, context, err);
    sqlite3_finalize(statement);
    sqlite3_set_authorizer(self->db, NULL, NULL);
    return rc;
}
