/* The history takes in what runs leave: figures, attempts, rebuilds, several writers. */
#include <sys/wait.h>

#include "tests/unit/history_world.h"

static void a_run_is_ingested_with_its_figures(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    struct run_info *info;
    make_run(self, "20261121-aaaa", 0.8, (const char *const[]){"model", "gpt2", "label.kind", "nightly", NULL});
    struct history *history = open_history(self);
    ingest_well(self, history, "20261121-aaaa");
    assert_int_equal(history_load_run(history, "20261121-aaaa", &info, &err), 0);
    assert_string_equal(info->state, "done");
    assert_string_equal(info->outcome, "pass");
    assert_string_equal(experiment_text(info->experiment, OPT_MODEL), "gpt2");
    assert_int_equal(experiment_label_count(info->experiment), 1);
    const struct run_metric *save = run_info_metric(info, OP_SAVE, METRIC_SAVE_S);
    assert_non_null(save);
    assert_int_equal(save->summary.n, ITERATIONS);
    assert_true(fabs(save->summary.median - 0.8025) < 1e-9);
    assert_true(fabs(save->iterations[0] - 0.801) < 1e-9);
    assert_int_equal(info->slowest_rank[OP_SAVE], 0);
    assert_true(info->state_share[OP_SAVE][STATE_IO] > 0.7);
    assert_int_equal(info->fact_count, 2);
    assert_string_equal(info->facts[0], "io.engine=io_uring");
    assert_int_equal(info->fingerprint_count, 3);
    assert_string_equal(info->fingerprint_keys[0], "cpu.count");
    assert_string_equal(info->fingerprint_values[0], "8");
    assert_string_equal(info->fingerprint_keys[1], "cpu.flags.0");
    run_info_free(info);
    history_close(history);
}

static void stock_sqlite_unfolds_the_blobs(void **state)
{
    struct fixture *self = *state;
    make_run(self, "20261121-aaaa", 0.8, NULL);
    struct history *history = open_history(self);
    ingest_well(self, history, "20261121-aaaa");
    history_close(history);
    assert_int_equal((int)query_number(self, "SELECT count(*) FROM sample_value WHERE op='save' AND metric='op_s'"),
                     RANKS * (ITERATIONS + 1));
    assert_true(query_number(self, "SELECT value FROM sample_value WHERE op='save' AND metric='own_s' AND iteration=2"
                                   " AND rank=1") == 0.8 + 0.001 * 2 - 0.01 * 1);
    assert_true(query_number(self, "SELECT value FROM iteration_value WHERE metric='load_s' AND iteration=3") ==
                2 * 0.8 + 0.001 * 4);
    assert_true(query_number(self, "SELECT count(*) FROM sample_value WHERE warmup") > 0);
    assert_int_equal((int)query_number(self, "SELECT count FROM histogram WHERE op='save'"), 99);
}

/* Every bit pattern that matters comes back from the views as it went in. */
static void views_decode_every_kind_of_double(void **state)
{
    struct fixture *self = *state;
    const double values[] = {0.0,   1.0,    -1.5, 0.1, 1e-310, 4.9406564584124654e-324, 1.7976931348623157e308,
                             1e300, -3e-200};
    const size_t count = sizeof values / sizeof *values;
    struct history *history = open_history(self);
    struct cb_err err;
    for (uint64_t i = 0; i < count; i++)
        assert_int_equal(db_run(history, &err, "INSERT INTO number VALUES(?)", "u", i), 0);
    double with_nan[9];
    memcpy(with_nan, values, sizeof values);
    assert_int_equal(db_run(history, &err, "INSERT INTO metric(run,op,metric,n,iterations) VALUES('r','save','x',9,?)",
                            "b", (const void *)with_nan, sizeof with_nan),
                     0);
    history_close(history);
    for (size_t i = 0; i < count; i++) {
        char sql[128];
        snprintf(sql, sizeof sql, "SELECT value FROM iteration_value WHERE iteration=%zu", i);
        assert_true(query_number(self, sql) == values[i]);
    }
}

static void absent_values_are_null_in_the_views(void **state)
{
    struct fixture *self = *state;
    const double values[] = {NAN, 2.0, INFINITY};
    struct history *history = open_history(self);
    struct cb_err err;
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(db_run(history, &err, "INSERT INTO number VALUES(?)", "u", i), 0);
    assert_int_equal(db_run(history, &err, "INSERT INTO metric(run,op,metric,n,iterations) VALUES('r','save','x',3,?)",
                            "b", (const void *)values, sizeof values),
                     0);
    history_close(history);
    assert_int_equal((int)query_number(self, "SELECT count(*) FROM iteration_value"), 3);
    assert_int_equal((int)query_number(self, "SELECT count(value) FROM iteration_value"), 1);
}

static void ingesting_twice_is_the_same_as_once(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    bool ingested = true;
    make_run(self, "20261121-aaaa", 0.8, NULL);
    struct history *history = open_history(self);
    ingest_well(self, history, "20261121-aaaa");
    double samples = query_number(self, "SELECT count(*) FROM sample");
    assert_int_equal(ingest(self, history, "20261121-aaaa", &ingested, &err), 0);
    assert_false(ingested);
    assert_true(query_number(self, "SELECT count(*) FROM sample") == samples);
    assert_int_equal((int)query_number(self, "SELECT count(*) FROM run"), 1);
    assert_int_equal((int)query_number(self, "SELECT count(*) FROM event"), 1);
    history_close(history);
}

static void a_later_attempt_gives_the_results(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    struct run_info *info;
    char folder[256], path[512];
    struct buf attempt_path;
    uint32_t attempt;
    make_run(self, "20261121-aaaa", 0.8, NULL);
    struct history *history = open_history(self);
    ingest_well(self, history, "20261121-aaaa");
    snprintf(folder, sizeof folder, "%s/runs/20261121-aaaa", self->folder);
    buf_init(&attempt_path, 4096);
    assert_int_equal(run_folder_new_attempt(folder, &attempt, &attempt_path, &err), 0);
    snprintf(path, sizeof path, "%s/records", attempt_path.data);
    write_records(path, "20261121-aaaa", 2, 0.5);
    seal(attempt_path.data, "20261121-aaaa", 2, OUTCOME_TIMEOUT, true);
    ingest_well(self, history, "20261121-aaaa");
    assert_int_equal(history_load_run(history, "20261121-aaaa", &info, &err), 0);
    assert_int_equal(info->attempt, 2);
    assert_string_equal(info->state, "failed");
    assert_string_equal(info->outcome, "timeout");
    assert_true(run_info_metric(info, OP_SAVE, METRIC_SAVE_S)->summary.median < 0.6);
    run_info_free(info);
    buf_release(&attempt_path);
    history_close(history);
}

static void an_unsealed_run_says_so_and_is_listed(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    bool ingested;
    make_run(self, "20261121-aaaa", -1, NULL);
    struct history *history = open_history(self);
    assert_int_equal(ingest(self, history, "20261121-aaaa", &ingested, &err), CB_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "20261121-aaaa"));
    assert_int_equal((int)query_number(self, "SELECT count(*) FROM run WHERE state='planned'"), 1);
    history_close(history);
}

static void a_truncated_record_is_refused_by_name_and_nothing_of_it_stays(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    bool ingested;
    char path[256];
    struct stat status;
    make_run(self, "20261121-aaaa", 0.8, NULL);
    snprintf(path, sizeof path, "%s/runs/20261121-aaaa/attempts/1/records", self->folder);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(truncate(path, status.st_size / 2), 0);
    struct history *history = open_history(self);
    assert_true(ingest(self, history, "20261121-aaaa", &ingested, &err) < 0);
    assert_non_null(strstr(err.message, "20261121-aaaa/attempts/1"));
    assert_int_equal((int)query_number(self, "SELECT count(*) FROM sample"), 0);
    assert_int_equal((int)query_number(self, "SELECT count(*) FROM attempt"), 0);
    history_close(history);
}

static char *dump(const struct fixture *self)
{
    static const char *const queries[] = {
        "SELECT group_concat(run||sweep||block||combination||hash||state||outcome||planned_ns||experiment||labels,'|')"
        " FROM (SELECT * FROM run ORDER BY run)",
        "SELECT group_concat(run||op||metric||n||median||hex(iterations),'|') FROM (SELECT * FROM metric)",
        "SELECT group_concat(r.run||attempt||op||iteration||c.metric||flags||hex(ranks),'|') FROM (SELECT * FROM sample"
        " ORDER BY attempt,op,iteration) s JOIN run r ON r.id=s.run_id JOIN catalogue c ON c.id=s.metric",
        "SELECT group_concat(run||key||value||class,'|') FROM (SELECT * FROM param)",
        "SELECT group_concat(run||key||value,'|') FROM (SELECT * FROM fingerprint)",
        "SELECT group_concat(run||attempt||outcome||records_sha256,'|') FROM (SELECT * FROM attempt)",
        "SELECT group_concat(run||op||count||hex(buckets),'|') FROM (SELECT * FROM histogram)",
        "SELECT group_concat(sweep||block||planned_ns,'|') FROM (SELECT * FROM block)",
        "SELECT group_concat(baseline||definition,'|') FROM (SELECT * FROM baseline)",
    };
    struct buf out;
    buf_init(&out, 64u << 20);
    sqlite3 *db;
    assert_int_equal(sqlite3_open_v2(self->database, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    for (size_t i = 0; i < sizeof queries / sizeof *queries; i++) {
        sqlite3_stmt *statement;
        if (sqlite3_prepare_v2(db, queries[i], -1, &statement, NULL) != SQLITE_OK)
            fail_msg("%s", sqlite3_errmsg(db));
        assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
        buf_printf(&out, "%s\n", (const char *)sqlite3_column_text(statement, 0));
        sqlite3_finalize(statement);
    }
    sqlite3_close(db);
    return buf_take(&out);
}

static void a_rebuilt_history_equals_the_first(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    struct run_selection taken;
    make_run(self, "s1.01", 0.8, (const char *const[]){"model", "gpt2", "label.kind", "nightly", NULL});
    make_run(self, "s1.02", 0.9, (const char *const[]){"model", "gpt2", "io.engine", "psync", NULL});
    struct history *history = open_history(self);
    plan(self, history, "s1.01", "s1", 1);
    plan(self, history, "s1.02", "s1", 2);
    ingest_well(self, history, "s1.01");
    ingest_well(self, history, "s1.02");
    char *words[] = {"s1.01", "s1.02"};
    struct baseline baseline = {.name = "good", .words = words, .word_count = 2};
    assert_int_equal(history_set_baseline(history, &baseline, &err), 0);
    char *before = dump(self);
    assert_int_equal(history_begin(history, &err), 0);
    assert_int_equal(history_clear_for_rebuild(history, &err), 0);
    assert_int_equal(history_update(history, &taken, &err), 0);
    assert_int_equal(taken.count, 2);
    run_selection_release(&taken);
    assert_int_equal(history_end(history, 0, &err), 0);
    char *after = dump(self);
    assert_string_equal(before, after);
    assert_non_null(strstr(after, "psync"));
    free(before);
    free(after);
    history_close(history);
}

/* Processes that open, migrate, plan and ingest the same new history at once. */
static void writers_at_once_lose_nothing(void **state)
{
    enum { WRITERS = 4, RUNS = 5 };
    struct fixture *self = *state;
    char run[32];
    for (int writer = 0; writer < WRITERS; writer++)
        for (int i = 0; i < RUNS; i++) {
            snprintf(run, sizeof run, "w%d.%02d", writer, i);
            make_run(self, run, 0.8, NULL);
        }
    for (int writer = 0; writer < WRITERS; writer++) {
        if (fork() != 0)
            continue;
        struct history *history;
        struct cb_err err;
        bool ingested;
        int rc = history_open(self->database, &history, &err);
        for (int i = 0; i < RUNS && rc == 0; i++) {
            snprintf(run, sizeof run, "w%d.%02d", writer, i);
            rc = ingest(self, history, run, &ingested, &err);
            if (rc == 0)
                rc = history_set_state(history, run, "seen", &err);
        }
        if (rc)
            fprintf(stderr, "writer %d: %s\n", writer, err.message);
        _exit(rc ? 1 : 0);
    }
    for (int writer = 0; writer < WRITERS; writer++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    assert_int_equal((int)query_number(self, "SELECT count(*) FROM run WHERE state='seen'"), WRITERS * RUNS);
    assert_int_equal((int)query_number(self, "SELECT count(DISTINCT run) FROM metric"), WRITERS * RUNS);
}

static void states_become_events(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    make_run(self, "20261121-aaaa", -1, NULL);
    struct history *history = open_history(self);
    plan(self, history, "20261121-aaaa", NULL, 0);
    assert_int_equal(history_set_state(history, "20261121-aaaa", "running", &err), 0);
    assert_int_equal(history_set_state(history, "20261121-aaaa", "running", &err), 0);
    assert_int_equal(history_set_state(history, "nosuch", "running", &err), CB_ERR_NOT_FOUND);
    assert_int_equal((int)query_number(self, "SELECT count(*) FROM event WHERE state='running'"), 1);
    history_close(history);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_run_is_ingested_with_its_figures),
        TEST(stock_sqlite_unfolds_the_blobs),
        TEST(views_decode_every_kind_of_double),
        TEST(absent_values_are_null_in_the_views),
        TEST(ingesting_twice_is_the_same_as_once),
        TEST(a_later_attempt_gives_the_results),
        TEST(an_unsealed_run_says_so_and_is_listed),
        TEST(a_truncated_record_is_refused_by_name_and_nothing_of_it_stays),
        TEST(a_rebuilt_history_equals_the_first),
        TEST(writers_at_once_lose_nothing),
        TEST(states_become_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
