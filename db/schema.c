/* The schema: numbered migrations. A released migration is never edited; a change is a new migration. */
#include "db/connection.h"

#include <math.h>
#include <string.h>

#include "core/alloc.h"

#define SCHEMA_APPLICATION_ID 0x636b7074 /* "ckpt": identifies the database as ours */

/* Byte k (0 is the lowest) of a double, from the 16 hex digits `h` of its little-endian bytes: instr returns 1 … 15
 * for the digits 1 … F and 0 for the digit 0, so only functions built into SQLite are used. */
#define NIBBLE(k) "instr('123456789ABCDEF',substr(h," #k ",1))"
#define BYTE(first, second) "(" NIBBLE(first) "*16+" NIBBLE(second) ")"
#define MANTISSA                                                                                                       \
    "(((" BYTE(13, 14) "&15)<<48)|(" BYTE(11, 12) "<<40)|(" BYTE(9, 10) "<<32)|(" BYTE(7, 8) "<<24)|(" BYTE(           \
        5, 6) "<<16)|(" BYTE(3, 4) "<<8)|" BYTE(1, 2) ")"
#define EXPONENT "(((" BYTE(15, 16) "&127)<<4)|(" BYTE(13, 14) ">>4))"
/* NaN (exponent 2047) has no row in power_of_two, so the outer join makes it null. */
#define DOUBLE_OF_H                                                                                                    \
    "(SELECT (CASE WHEN " NIBBLE(                                                                                      \
        15) ">=8 THEN -1 ELSE 1 END)*CAST(" MANTISSA                                                                   \
            "|((e.exponent>0)<<52) AS REAL)*e.factor FROM power_of_two e WHERE e.exponent=" EXPONENT ")"

static const char version_1[] =
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE catalogue(id INTEGER PRIMARY KEY, metric TEXT NOT NULL UNIQUE, unit TEXT NOT NULL,"
    " direction TEXT NOT NULL, scope TEXT NOT NULL, is_primary INTEGER NOT NULL, meaning TEXT NOT NULL);"
    "CREATE TABLE site(id INTEGER PRIMARY KEY, site TEXT NOT NULL UNIQUE);"
    "CREATE TABLE store_target(id INTEGER PRIMARY KEY, site INTEGER NOT NULL REFERENCES site(id),"
    " store TEXT NOT NULL, UNIQUE(site, store));"
    "CREATE TABLE sweep(sweep TEXT PRIMARY KEY, planned_ns INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE block(sweep TEXT NOT NULL, block INTEGER NOT NULL, planned_ns INTEGER NOT NULL,"
    " PRIMARY KEY(sweep, block)) WITHOUT ROWID;"
    "CREATE TABLE run(id INTEGER PRIMARY KEY, run TEXT NOT NULL UNIQUE, sweep TEXT, block INTEGER NOT NULL,"
    " combination INTEGER NOT NULL, site INTEGER REFERENCES site(id),"
    " store_target INTEGER REFERENCES store_target(id), folder TEXT NOT NULL, hash TEXT NOT NULL,"
    " state TEXT NOT NULL, outcome TEXT, message TEXT, planned_ns INTEGER NOT NULL, started_ns INTEGER,"
    " ended_ns INTEGER, iterations_verified INTEGER, iterations_to_verify INTEGER, suspected_cache INTEGER,"
    " coldness_unknown INTEGER, experiment TEXT NOT NULL, labels TEXT NOT NULL);"
    "CREATE INDEX run_by_sweep ON run(sweep);"
    "CREATE INDEX run_by_time ON run(coalesce(started_ns, planned_ns), run);"
    "CREATE TABLE attempt(run TEXT NOT NULL, attempt INTEGER NOT NULL, outcome TEXT NOT NULL, message TEXT,"
    " started_ns INTEGER, ended_ns INTEGER, ranks INTEGER, samples INTEGER, records_sha256 TEXT, sealed_by TEXT,"
    " PRIMARY KEY(run, attempt)) WITHOUT ROWID;"
    "CREATE TABLE param(run TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, class TEXT NOT NULL,"
    " PRIMARY KEY(run, key)) WITHOUT ROWID;"
    "CREATE INDEX param_by_key ON param(key, value);"
    "CREATE TABLE fingerprint(run TEXT NOT NULL, attempt INTEGER NOT NULL, node TEXT NOT NULL, key TEXT NOT NULL,"
    " value TEXT NOT NULL, PRIMARY KEY(run, attempt, node, key)) WITHOUT ROWID;"
    "CREATE TABLE fact(run TEXT NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL, number INTEGER NOT NULL,"
    " fact TEXT NOT NULL, PRIMARY KEY(run, attempt, rank, number)) WITHOUT ROWID;"
    "CREATE TABLE failure(run TEXT NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL, phase INTEGER NOT NULL,"
    " op TEXT, state TEXT, iteration INTEGER, code TEXT, text TEXT, PRIMARY KEY(run, attempt, rank)) WITHOUT ROWID;"
    "CREATE TABLE metric(run TEXT NOT NULL, op TEXT NOT NULL, metric TEXT NOT NULL, n INTEGER NOT NULL, median REAL,"
    " p95 REAL, min REAL, max REAL, mean REAL, mad REAL, iterations BLOB,"
    " PRIMARY KEY(run, op, metric)) WITHOUT ROWID;"
    "CREATE TABLE operation(run TEXT NOT NULL, op TEXT NOT NULL, slowest_rank INTEGER, slowest_share REAL,"
    " slowest_excess REAL, PRIMARY KEY(run, op)) WITHOUT ROWID;"
    "CREATE TABLE state_share(run TEXT NOT NULL, op TEXT NOT NULL, state TEXT NOT NULL, share REAL NOT NULL,"
    " PRIMARY KEY(run, op, state)) WITHOUT ROWID;"
    "CREATE TABLE sample(run_id INTEGER NOT NULL, attempt INTEGER NOT NULL, op TEXT NOT NULL,"
    " iteration INTEGER NOT NULL, metric INTEGER NOT NULL, flags INTEGER NOT NULL, ranks BLOB NOT NULL,"
    " PRIMARY KEY(run_id, attempt, op, iteration, metric)) WITHOUT ROWID;"
    "CREATE TABLE histogram(run TEXT NOT NULL, attempt INTEGER NOT NULL, op TEXT NOT NULL, count INTEGER NOT NULL,"
    " sum_ns INTEGER, min_ns INTEGER, max_ns INTEGER, p50_ns INTEGER, p99_ns INTEGER, p999_ns INTEGER,"
    " buckets BLOB NOT NULL, PRIMARY KEY(run, attempt, op)) WITHOUT ROWID;"
    "CREATE TABLE event(id INTEGER PRIMARY KEY, run TEXT NOT NULL, at_ns INTEGER NOT NULL, state TEXT NOT NULL,"
    " note TEXT);"
    "CREATE INDEX event_by_run ON event(run);"
    "CREATE TABLE baseline(baseline TEXT PRIMARY KEY, definition TEXT NOT NULL) WITHOUT ROWID;"
    /* The tables that the views use to unfold blobs without any function of ours. */
    "CREATE TABLE number(n INTEGER PRIMARY KEY);"
    "CREATE TABLE power_of_two(exponent INTEGER PRIMARY KEY, factor REAL NOT NULL);"
    "CREATE VIEW sample_value AS SELECT run, attempt, op, metric, iteration, warmup, rank, " DOUBLE_OF_H
    " AS value FROM (SELECT r.run AS run, s.attempt AS attempt, s.op AS op, c.metric AS metric,"
    " s.iteration AS iteration, s.flags & 1 AS warmup, x.n AS rank, hex(substr(s.ranks, 8*x.n+1, 8)) AS h"
    " FROM run r JOIN sample s ON s.run_id=r.id JOIN catalogue c ON c.id=s.metric"
    " JOIN number x ON x.n < length(s.ranks)/8);"
    "CREATE VIEW iteration_value AS SELECT run, op, metric, iteration, " DOUBLE_OF_H
    " AS value FROM (SELECT m.run AS run, m.op AS op, m.metric AS metric, x.n AS iteration,"
    " hex(substr(m.iterations, 8*x.n+1, 8)) AS h FROM metric m JOIN number x ON x.n < length(m.iterations)/8);";

/* Exponent 0 means subnormal and has the factor of exponent 1; 2047 is NaN and infinity. */
static int fill_powers(struct history *self, struct cb_err *err)
{
    for (int64_t exponent = 0; exponent < 2047; exponent++) {
        double factor = ldexp(1.0, (int)(exponent ? exponent : 1) - 1075);
        int rc = db_run(self, err, "INSERT INTO power_of_two VALUES(?,?)", "id", exponent, factor);
        if (rc)
            return rc;
    }
    return 0;
}

static const char version_2[] =
    "CREATE TABLE pool(id TEXT PRIMARY KEY, pool TEXT NOT NULL, mode TEXT NOT NULL, nodes INTEGER NOT NULL,"
    " created_ns INTEGER NOT NULL, expires_ns INTEGER NOT NULL, ended_ns INTEGER, budget_node_hours REAL NOT NULL,"
    " node_hours REAL NOT NULL, job_node_hours REAL NOT NULL, jobs INTEGER NOT NULL, failed_boots INTEGER NOT NULL,"
    " boot_s REAL NOT NULL, runs INTEGER NOT NULL, saved_s REAL NOT NULL, note TEXT) WITHOUT ROWID;";

static const char version_3[] = "ALTER TABLE operation ADD COLUMN slowest_state TEXT;";

/* Finds the runs that have not ended without reading every row. */
static const char version_4[] =
    "CREATE INDEX run_unfinished ON run(run) WHERE state NOT IN ('done','failed','cancelled');";

/* Finds the runs that have a metric without reading every run: a page of the whole history asks for all primary ones. */
static const char version_5[] = "CREATE INDEX metric_by_name ON metric(metric, run, op);";

struct migration {
    const char *sql;
    int (*fill)(struct history *self, struct cb_err *err); /* runs after the SQL; may be NULL */
};
static const struct migration migrations[SCHEMA_VERSION] = {
    {version_1, fill_powers}, {version_2, NULL}, {version_3, NULL}, {version_4, NULL}, {version_5, NULL}};

/* One statement, and so one transaction: another process may be creating the history. */
static int check_owner(struct history *self, int64_t *version, struct cb_err *err)
{
    static const char sql[] = "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_schema) FROM "
                              "pragma_user_version, pragma_application_id";
    int64_t owner = 0, tables = 0;
    sqlite3_stmt *statement;
    if (sqlite3_prepare_v2(self->db, sql, -1, &statement, NULL) != SQLITE_OK)
        return db_fail(self, "opening", err);
    int rc = sqlite3_step(statement) == SQLITE_ROW ? 0 : db_fail(self, "opening", err);
    if (rc == 0) {
        *version = sqlite3_column_int64(statement, 0);
        owner = sqlite3_column_int64(statement, 1);
        tables = sqlite3_column_int64(statement, 2);
    }
    sqlite3_finalize(statement);
    if (rc)
        return rc;
    if (owner != SCHEMA_APPLICATION_ID && (owner != 0 || tables != 0 || *version != 0))
        return cb_fail(err, CB_ERR_FORMAT, "%s is a database of another program, not a history", self->path);
    if (*version > SCHEMA_VERSION)
        return cb_fail(err, CB_ERR_UNSUPPORTED,
                       "history %s has schema %lld, made by a newer ckptbench; this one knows up to %d: use the newer "
                       "program, or set CKPTBENCH_HOME to another folder",
                       self->path, (long long)*version, SCHEMA_VERSION);
    return 0;
}

static int apply(struct history *self, int64_t version, struct cb_err *err)
{
    for (; version < SCHEMA_VERSION; version++) {
        int rc = db_exec(self, migrations[version].sql, err);
        if (rc == 0 && migrations[version].fill)
            rc = migrations[version].fill(self, err);
        if (rc)
            return cb_context(err, "migrating to schema %lld", (long long)version + 1);
    }
    char *sql =
        sqlite3_mprintf("PRAGMA user_version=%d; PRAGMA application_id=%d", SCHEMA_VERSION, SCHEMA_APPLICATION_ID);
    int rc = sql ? db_exec(self, sql, err) : alloc_fail(err, "to migrate the history");
    sqlite3_free(sql);
    return rc;
}

int schema_is_older(struct history *self, bool *older, struct cb_err *err)
{
    int64_t version = 0;
    int rc = check_owner(self, &version, err);
    *older = rc == 0 && version < SCHEMA_VERSION;
    return rc;
}

int schema_migrate(struct history *self, struct cb_err *err)
{
    int64_t version = 0;
    int rc = check_owner(self, &version, err);
    if (rc || version == SCHEMA_VERSION)
        return rc;
    rc = history_begin(self, err);
    if (rc)
        return rc;
    rc = check_owner(self, &version, err); /* another process may have migrated it first */
    if (rc == 0 && version < SCHEMA_VERSION)
        rc = apply(self, version, err);
    return history_end(self, rc, err);
}

static int read_ids(struct history *self, size_t *known, struct cb_err *err)
{
    sqlite3_stmt *statement;
    int rc = db_query(self, &statement, err, "SELECT id, metric, meaning FROM catalogue", "");
    *known = 0;
    while (db_next(self, statement, &rc, err)) {
        enum metric_id metric;
        if (!metric_find(db_text(statement, 1), &metric))
            continue; /* from another release */
        self->metric_ids[metric] = sqlite3_column_int64(statement, 0);
        *known += strcmp(db_text(statement, 2), metric_row(metric)->meaning) == 0;
    }
    return rc;
}

int schema_sync_catalogue(struct history *self, struct cb_err *err)
{
    static const char *const directions[] = {"lower", "higher", "neutral"};
    static const char *const scopes[] = {"sample", "iteration", "run"};
    size_t known;
    int rc = read_ids(self, &known, err);
    if (rc || known == METRIC_COUNT || self->read_only)
        return rc;
    rc = history_begin(self, err);
    if (rc)
        return rc;
    for (int i = 0; i < METRIC_COUNT && rc == 0; i++) {
        const struct metric *row = metric_row((enum metric_id)i);
        rc = db_run(self, err,
                    "INSERT INTO catalogue(metric,unit,direction,scope,is_primary,meaning) VALUES(?,?,?,?,?,?)"
                    " ON CONFLICT(metric) DO UPDATE SET unit=excluded.unit, direction=excluded.direction,"
                    " scope=excluded.scope, is_primary=excluded.is_primary, meaning=excluded.meaning",
                    "ttttit", row->name, row->unit, directions[row->direction], scopes[row->scope],
                    (int64_t)row->primary, row->meaning);
    }
    rc = history_end(self, rc, err);
    return rc ? rc : read_ids(self, &known, err);
}
