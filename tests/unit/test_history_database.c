/* The file of the history: other schemas, other programs, damage, and queries that may only read. */
#include "tests/unit/history_world.h"

#include <errno.h>

static int ignore_row(void *context, bool is_header, const struct query_cell *cells, size_t count, struct cb_err *err)
{
    (void)is_header, (void)cells, (void)count, (void)err;
    ++*(size_t *)context;
    return 0;
}

static void queries_only_read(void **state)
{
    static const char *const writes[] = {"DELETE FROM run",
                                         "ATTACH '/tmp/x' AS y",
                                         "PRAGMA journal_mode=DELETE",
                                         "CREATE TABLE t(a)",
                                         "SELECT 1; DELETE FROM run",
                                         "INSERT INTO site(site) VALUES('x')",
                                         "VACUUM INTO '/tmp/y'",
                                         "BEGIN"};
    struct fixture *self = *state;
    struct cb_err err;
    size_t rows = 0;
    struct history *history = open_history(self);
    make_three(self, history);
    assert_int_equal(history_query(history, "SELECT run FROM run", ignore_row, &rows, &err), 0);
    assert_int_equal(rows, 4);
    for (size_t i = 0; i < sizeof writes / sizeof *writes; i++)
        if (history_query(history, writes[i], ignore_row, &rows, &err) != CB_ERR_USAGE)
            fail_msg("allowed: %s", writes[i]);
    assert_int_equal((int)query_number(self, "SELECT count(*) FROM run"), 3);
    history_close(history);
}

static void a_newer_schema_is_refused_with_what_to_do(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    struct history *history = open_history(self);
    assert_int_equal(db_exec(history, "PRAGMA user_version=99", &err), 0);
    history_close(history);
    assert_int_equal(history_open(self->database, &history, &err), CB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "schema 99"));
    assert_non_null(strstr(err.message, "newer"));
}

static void an_older_schema_is_migrated_also_by_those_that_only_read(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    struct history *history = open_history(self);
    assert_int_equal(db_exec(history,
                             "DROP INDEX metric_by_name; DROP INDEX run_unfinished; DROP TABLE pool; ALTER TABLE "
                             "operation DROP COLUMN slowest_state; PRAGMA user_version=1",
                             &err),
                     0);
    history_close(history);
    assert_int_equal(history_open_read_only(self->database, &history, &err), 0);
    assert_int_not_equal(db_exec(history, "DELETE FROM pool", &err), 0); /* it is there, and not to be written */
    assert_non_null(strstr(err.message, "readonly"));
    history_close(history);
    assert_int_equal((int)query_number(self, "SELECT count(*) FROM pool"), 0);
}

static void a_database_of_another_program_is_refused(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    struct history *history;
    sqlite3 *db;
    assert_int_equal(sqlite3_open(self->database, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "CREATE TABLE mine(a)", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(history_open(self->database, &history, &err), CB_ERR_FORMAT);
}

/* Creates the history from another connection just before statement `at` of the connection that is opened. */
struct intruder {
    const char *path;
    int at, seen;
    bool inside;
};

static struct intruder intruder;

static int before_statement(unsigned type, void *db, void *statement, void *sql)
{
    struct history *other;
    struct cb_err err;
    (void)type, (void)statement, (void)sql;
    if (intruder.inside || !sqlite3_get_autocommit(db) || ++intruder.seen != intruder.at)
        return 0; /* within a transaction the other connection would wait */
    intruder.inside = true;
    assert_int_equal(history_open(intruder.path, &other, &err), 0);
    history_close(other);
    intruder.inside = false;
    return 0;
}

static int watch_connection(sqlite3 *db, const char **message, const struct sqlite3_api_routines *routines)
{
    (void)message, (void)routines;
    return intruder.inside ? SQLITE_OK : sqlite3_trace_v2(db, SQLITE_TRACE_STMT, before_statement, db);
}

static void a_history_that_another_process_creates_meanwhile_is_opened(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    struct history *history;
    char file[PATH_MAX];
    static const char *const parts[] = {"", "-wal", "-shm"};
    assert_int_equal(sqlite3_auto_extension((void (*)(void))watch_connection), SQLITE_OK);
    intruder = (struct intruder){.path = self->database};
    for (intruder.at = 1; intruder.at <= 1 || intruder.seen >= intruder.at - 1; intruder.at++) {
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            snprintf(file, sizeof file, "%s%s", self->database, parts[i]);
            unlink(file);
        }
        intruder.seen = 0;
        if (history_open(self->database, &history, &err))
            fail_msg("created before statement %d: %s", intruder.at, err.message);
        history_close(history);
    }
    assert_in_range(intruder.at, 5, 100);
    sqlite3_reset_auto_extension();
}

static void a_damaged_database_is_set_aside(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    struct history *history;
    FILE *file = fopen(self->database, "w");
    for (int i = 0; i < 1000; i++)
        fputs("this is no database ", file);
    fclose(file);
    assert_int_equal(history_open(self->database, &history, &err), CB_ERR_CORRUPT);
    assert_non_null(strstr(err.message, "made again"));
    assert_int_equal(access(self->database, F_OK), -1);
    history_close(open_history(self));
}

static const char *network; /* folder below which everything is on NFS */

static int statfs_of_test(const char *path, struct statfs *buffer)
{
    memset(buffer, 0, sizeof *buffer);
    buffer->f_type = strncmp(path, network, strlen(network)) == 0 ? 0x6969 : 0xEF53;
    if (access(path, F_OK) == 0)
        return 0;
    errno = ENOENT;
    return -1;
}

static void the_index_lies_on_a_local_disk(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    char cache[128], path[PATH_MAX];
    snprintf(cache, sizeof cache, "%s/cache", self->folder);
    setenv("XDG_CACHE_HOME", cache, 1);
    unsetenv("CKPTBENCH_INDEX");
    network = "/nowhere";
    assert_int_equal(index_place(self->folder, statfs_of_test, path, &err), 0);
    assert_string_equal(path, self->database); /* a local home of ours */
    char home[128];
    snprintf(home, sizeof home, "%s/home", self->folder);
    assert_int_equal(mkdir(home, 0755), 0);
    network = home;
    assert_int_equal(index_place(home, statfs_of_test, path, &err), 0);
    assert_int_equal(strncmp(path, cache, strlen(cache)), 0);
    network = self->folder; /* with the cache */
    assert_int_equal(index_place(home, statfs_of_test, path, &err), 0);
    assert_int_equal(strncmp(path, "/var/tmp/ckptbench-index-", 25), 0);
    *strrchr(path, '/') = '\0';
    rmdir(path);
    network = "/";
    assert_int_equal(index_place(home, statfs_of_test, path, &err), CB_ERR_SYSTEM);
    assert_non_null(strstr(err.message, "CKPTBENCH_INDEX"));
    setenv("CKPTBENCH_INDEX", cache, 1);
    network = "/nowhere";
    assert_int_equal(index_place(self->folder, statfs_of_test, path, &err), 0);
    assert_int_equal(strncmp(path, cache, strlen(cache)), 0);
    network = cache;
    assert_int_equal(index_place(self->folder, statfs_of_test, path, &err), CB_ERR_SYSTEM);
    unsetenv("CKPTBENCH_INDEX");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(queries_only_read),
        TEST(a_newer_schema_is_refused_with_what_to_do),
        TEST(an_older_schema_is_migrated_also_by_those_that_only_read),
        TEST(a_database_of_another_program_is_refused),
        TEST(a_history_that_another_process_creates_meanwhile_is_opened),
        TEST(a_damaged_database_is_set_aside),
        TEST(the_index_lies_on_a_local_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
