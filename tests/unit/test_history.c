/* The history: ingest, rebuild, selection, baselines, refusals, two writers. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/record.h"
#include "core/run_folder.h"
#include "db/connection.h"

#define RANKS 3
#define ITERATIONS 4 /* and one to warm up */

struct fixture {
    char folder[64], database[128];
};

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status, (void)type, (void)walk;
    return remove(path);
}

static int set_up(void **state)
{
    struct fixture *self = calloc(1, sizeof *self);
    strcpy(self->folder, "/tmp/ckptbench-history-XXXXXX");
    if (!mkdtemp(self->folder))
        return -1;
    snprintf(self->database, sizeof self->database, "%s/history.db", self->folder);
    char runs[128];
    snprintf(runs, sizeof runs, "%s/runs", self->folder);
    *state = self;
    return mkdir(runs, 0755);
}

static int tear_down(void **state)
{
    struct fixture *self = *state;
    nftw(self->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(self);
    return 0;
}

static void fill_sample(struct sample *sample, enum operation op, uint32_t iteration, uint32_t rank, double seconds)
{
    *sample = (struct sample){.op = op, .iteration = iteration, .flags = iteration == 0 ? SAMPLE_WARMUP : 0};
    for (int i = 0; i < METRIC_SAMPLE_COUNT; i++)
        sample->values[i] = NAN;
    sample->values[METRIC_OP_S] = seconds;
    sample->values[METRIC_OWN_S] = seconds - 0.01 * rank;
    sample->values[METRIC_IO_S] = seconds * 0.75;
    sample->values[METRIC_WAIT_S] = seconds * 0.25;
    sample->values[METRIC_BYTES_MOVED] = 1e9;
    sample->values[METRIC_BYTES_NEEDED] = 1e9;
}

static void write_records(const char *path, const char *run, uint32_t attempt, double seconds)
{
    struct record record;
    struct cb_err err;
    record_init(&record, run, attempt, RANKS);
    record.ranks = calloc(RANKS, sizeof *record.ranks);
    record.rank_count = RANKS;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct record_rank *made = &record.ranks[rank];
        *made = (struct record_rank){.rank = rank, .phase = PHASE_DONE};
        made->failures = strdup("");
        made->facts = strdup(rank == 0 ? "io.engine=io_uring\nio.direct=true\n" : "");
        made->samples = calloc(2 * (ITERATIONS + 1), sizeof *made->samples);
        for (uint32_t i = 0; i <= ITERATIONS; i++) {
            double jitter = 0.001 * i;
            fill_sample(&made->samples[made->sample_count++], OP_SAVE, i, rank, seconds + jitter);
            fill_sample(&made->samples[made->sample_count++], OP_LOAD, i, rank, 2 * seconds + jitter);
        }
    }
    record.run_values[METRIC_CHECKPOINT_BYTES] = 3e9;
    for (uint64_t i = 1; i < 100; i++)
        histogram_record(&record.latency[OP_SAVE], i * 1000);
    assert_int_equal(record_write(&record, path, &err), 0);
    record_release(&record);
}

static void seal(const char *attempt_path, const char *run, uint32_t attempt, enum outcome outcome, bool records)
{
    struct cb_err err;
    struct manifest manifest = {.attempt = attempt, .outcome = outcome, .ranks = RANKS, .sealed_by = "agent"};
    snprintf(manifest.run, sizeof manifest.run, "%s", run);
    manifest.started_wall_ns = 1700000000 * NS_PER_S + attempt;
    manifest.ended_wall_ns = manifest.started_wall_ns + NS_PER_S;
    if (records)
        assert_int_equal(manifest_hash_records(attempt_path, manifest.records_sha256, &err), 0);
    assert_int_equal(manifest_write(attempt_path, &manifest, &err), 0);
}

/* A run folder with one attempt; `seconds` < 0 leaves it unsealed. Settings are key, value, …, NULL. */
static void make_run(const struct fixture *self, const char *run, double seconds, const char *const *settings)
{
    struct cb_err err;
    struct experiment *experiment;
    struct buf attempt_path;
    uint32_t attempt;
    char folder[256], path[512];
    buf_init(&attempt_path, 4096);
    snprintf(folder, sizeof folder, "%s/runs/%s", self->folder, run);
    assert_int_equal(experiment_new(&experiment, &err), 0);
    for (; settings && *settings; settings += 2)
        assert_int_equal(experiment_set(experiment, settings[0], settings[1], "test", &err), 0);
    assert_int_equal(run_folder_create(folder, experiment, &err), 0);
    assert_int_equal(run_folder_new_attempt(folder, &attempt, &attempt_path, &err), 0);
    snprintf(path, sizeof path, "%s/fingerprint.json", attempt_path.data);
    struct buf text;
    buf_init(&text, 4096);
    buf_append_text(&text, "{\"kernel\": {\"release\": \"6.1\"}, \"cpu\": {\"count\": 8, \"flags\": [\"avx2\"]}}");
    assert_int_equal(buf_write_file(&text, path, 0644, &err), 0);
    if (seconds >= 0) {
        snprintf(path, sizeof path, "%s/records", attempt_path.data);
        write_records(path, run, attempt, seconds);
        seal(attempt_path.data, run, attempt, OUTCOME_PASS, true);
    }
    buf_release(&text);
    buf_release(&attempt_path);
    experiment_free(experiment);
}

static struct history *open_history(const struct fixture *self)
{
    struct history *history = NULL;
    struct cb_err err;
    if (history_open(self->database, &history, &err))
        fail_msg("%s", err.message);
    return history;
}

static int ingest(const struct fixture *self, struct history *history, const char *run, bool *ingested,
                  struct cb_err *err)
{
    char folder[256];
    snprintf(folder, sizeof folder, "%s/runs/%s", self->folder, run);
    return history_ingest(history, folder, ingested, err);
}

static void ingest_well(const struct fixture *self, struct history *history, const char *run)
{
    struct cb_err err;
    bool ingested;
    if (ingest(self, history, run, &ingested, &err))
        fail_msg("%s", err.message);
    assert_true(ingested);
}

/* One number from any SQL, by a connection of its own: what another tool would see. */
static double query_number(const struct fixture *self, const char *sql)
{
    sqlite3 *db;
    sqlite3_stmt *statement;
    assert_int_equal(sqlite3_open_v2(self->database, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(db));
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    double number = sqlite3_column_double(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return number;
}

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

static void plan(const struct fixture *self, struct history *history, const char *run, const char *sweep,
                 uint64_t block)
{
    struct cb_err err;
    struct experiment *experiment;
    char folder[256];
    snprintf(folder, sizeof folder, "%s/runs/%s", self->folder, run);
    assert_int_equal(run_folder_read_experiment(folder, &experiment, &err), 0);
    struct planned_run planned = {run, sweep, folder, block, 1, experiment};
    if (history_plan_run(history, &planned, &err))
        fail_msg("%s", err.message);
    experiment_free(experiment);
}

static void a_rebuilt_history_equals_the_first(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    size_t kept;
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
    assert_int_equal(history_clear_for_rebuild(history, &kept, &err), 0);
    assert_int_equal(kept, 0);
    ingest_well(self, history, "s1.01");
    ingest_well(self, history, "s1.02");
    assert_int_equal(history_load_baseline_files(history, &err), 0);
    assert_int_equal(history_end(history, 0, &err), 0);
    char *after = dump(self);
    assert_string_equal(before, after);
    assert_non_null(strstr(after, "psync"));
    free(before);
    free(after);
    history_close(history);
}

static void a_run_whose_folder_is_gone_survives_a_rebuild(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    size_t kept;
    char folder[256];
    make_run(self, "20261121-aaaa", 0.8, NULL);
    struct history *history = open_history(self);
    ingest_well(self, history, "20261121-aaaa");
    snprintf(folder, sizeof folder, "%s/runs/20261121-aaaa", self->folder);
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    assert_int_equal(history_clear_for_rebuild(history, &kept, &err), 0);
    assert_int_equal(kept, 1);
    assert_int_equal((int)query_number(self, "SELECT count(*) FROM run"), 1);
    history_close(history);
}

static void select_well(struct history *history, const char *words, struct run_selection *selection)
{
    struct cb_err err;
    char copy[256];
    const char *list[8];
    size_t count = 0;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        list[count++] = word;
    if (history_select(history, list, count, selection, &err))
        fail_msg("%s: %s", words, err.message);
}

static void assert_selects(struct history *history, const char *words, size_t count, const char *newest)
{
    struct run_selection selection;
    select_well(history, words, &selection);
    assert_int_equal(selection.count, count);
    if (newest)
        assert_string_equal(selection.runs[0], newest);
    run_selection_release(&selection);
}

static void make_three(const struct fixture *self, struct history *history)
{
    make_run(self, "20261120-bbbb", 0.8, (const char *const[]){"model", "gpt2", "label.kind", "nightly", NULL});
    make_run(self, "20261121-aaaa", 0.8, (const char *const[]){"model", "gpt2-xl", NULL});
    make_run(self, "s1.01", 0.8, (const char *const[]){"io.block", "1MiB", "label.kind", "manual", NULL});
    ingest_well(self, history, "20261120-bbbb");
    ingest_well(self, history, "20261121-aaaa");
    plan(self, history, "s1.01", "s1", 1);
    ingest_well(self, history, "s1.01");
}

static void words_add_up_and_filters_narrow(void **state)
{
    struct fixture *self = *state;
    struct history *history = open_history(self);
    make_three(self, history);
    assert_selects(history, "", 3, NULL);
    assert_selects(history, "model=gpt2", 1, "20261120-bbbb");
    assert_selects(history, "model=gpt2*", 2, NULL);
    assert_selects(history, "model=gpt2,gpt2-xl", 2, NULL);
    assert_selects(history, "label.kind=nightly", 1, "20261120-bbbb");
    assert_selects(history, "label.kind=*", 2, NULL);
    assert_selects(history, "io.block=1024k", 1, "s1.01");
    assert_selects(history, "s1", 1, "s1.01");
    assert_selects(history, "s1 20261120", 2, NULL);
    assert_selects(history, "s1 20261120 model=gpt2", 1, "20261120-bbbb");
    assert_selects(history, "since=1d", 0, NULL);
    assert_selects(history, "until=1d", 3, NULL);
    assert_selects(history, "outcome=pass state=done", 3, NULL);
    assert_selects(history, "state=failed", 0, NULL);
    history_close(history);
}

static void names_that_fail_say_the_nearest(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    char run[64];
    struct run_selection selection;
    struct history *history = open_history(self);
    assert_int_equal(history_find_run(history, "LATEST", run, &err), CB_ERR_NOT_FOUND);
    make_three(self, history);
    assert_int_equal(history_find_run(history, "20261121", run, &err), 0);
    assert_string_equal(run, "20261121-aaaa");
    assert_int_equal(history_find_run(history, "2026112", run, &err), CB_ERR_USAGE);
    assert_int_equal(history_find_run(history, "20261121-aaab", run, &err), CB_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "20261121-aaaa"));
    const char *wrong[] = {"modle=gpt2"};
    assert_int_equal(history_select(history, wrong, 1, &selection, &err), CB_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "model"));
    const char *bad[] = {"since=yesterday"};
    assert_true(history_select(history, bad, 1, &selection, &err) < 0);
    history_close(history);
}

static void a_window_baseline_slides_and_leaves_out_what_is_compared_with_it(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    struct history *history = open_history(self);
    make_three(self, history);
    char *filters[] = {"model=gpt2*"};
    struct baseline baseline = {.name = "nightly", .window = 1, .words = filters, .word_count = 1};
    assert_int_equal(history_set_baseline(history, &baseline, &err), 0);
    struct run_selection all, rest;
    select_well(history, "nightly", &all);
    assert_int_equal(all.count, 1);
    const char *words[] = {"nightly"};
    assert_int_equal(history_select_excluding(history, words, 1, &all, &rest, &err), 0);
    assert_int_equal(rest.count, 1);
    assert_string_not_equal(rest.runs[0], all.runs[0]);
    run_selection_release(&all);
    run_selection_release(&rest);
    assert_int_equal(history_remove_baseline(history, "nightly", &err), 0);
    assert_int_equal(history_remove_baseline(history, "nightly", &err), CB_ERR_NOT_FOUND);
    char *missing[] = {"nosuchrun"};
    struct baseline wrong = {.name = "x", .words = missing, .word_count = 1};
    assert_true(history_set_baseline(history, &wrong, &err) < 0);
    struct baseline escaping = {.name = "../x", .words = missing, .word_count = 1};
    assert_int_equal(history_set_baseline(history, &escaping, &err), CB_ERR_USAGE);
    history_close(history);
}

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
    assert_int_equal(db_exec(history, "DROP TABLE pool; PRAGMA user_version=1", &err), 0);
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

static void a_damaged_database_says_how_to_make_it_again(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    struct history *history;
    FILE *file = fopen(self->database, "w");
    for (int i = 0; i < 1000; i++)
        fputs("this is no database ", file);
    fclose(file);
    assert_int_equal(history_open(self->database, &history, &err), CB_ERR_CORRUPT);
    assert_non_null(strstr(err.message, "--rebuild"));
}

static int statfs_of_nfs(const char *path, struct statfs *buffer)
{
    (void)path;
    memset(buffer, 0, sizeof *buffer);
    buffer->f_type = 0x6969;
    return 0;
}

static int statfs_of_cifs(const char *path, struct statfs *buffer)
{
    (void)path;
    memset(buffer, 0, sizeof *buffer);
    buffer->f_type = (__typeof__(buffer->f_type))0xFF534D42;
    return 0;
}

static void a_network_filesystem_is_refused_with_the_way_out(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    struct history *history;
    struct history_opening opening = {.path = self->database, .statfs_call = statfs_of_nfs};
    assert_int_equal(history_open_with(&opening, &history, &err), CB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "NFS"));
    assert_non_null(strstr(err.message, "CKPTBENCH_HOME"));
    opening.statfs_call = statfs_of_cifs;
    assert_int_equal(history_open_with(&opening, &history, &err), CB_ERR_UNSUPPORTED);
    assert_int_equal(access(self->database, F_OK), -1);
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

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

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
        TEST(a_run_whose_folder_is_gone_survives_a_rebuild),
        TEST(words_add_up_and_filters_narrow),
        TEST(names_that_fail_say_the_nearest),
        TEST(a_window_baseline_slides_and_leaves_out_what_is_compared_with_it),
        TEST(queries_only_read),
        TEST(a_newer_schema_is_refused_with_what_to_do),
        TEST(an_older_schema_is_migrated_also_by_those_that_only_read),
        TEST(a_database_of_another_program_is_refused),
        TEST(a_damaged_database_says_how_to_make_it_again),
        TEST(a_network_filesystem_is_refused_with_the_way_out),
        TEST(writers_at_once_lose_nothing),
        TEST(states_become_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
