/* Run folders as an agent leaves them, and a history to take them in, in a folder of each test's own: set_up and
 * tear_down are its fixture. */
#ifndef TESTS_UNIT_HISTORY_WORLD_H
#define TESTS_UNIT_HISTORY_WORLD_H

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
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "db/connection.h"
#include "run/record.h"
#include "run/run_folder.h"

#define RANKS 3
#define ITERATIONS 4 /* and one to warm up */

struct fixture {
    char folder[64], database[128];
};

static inline int remove_entry(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status, (void)type, (void)walk;
    return remove(path);
}

static inline int set_up(void **state)
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

static inline int tear_down(void **state)
{
    struct fixture *self = *state;
    nftw(self->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(self);
    return 0;
}

static inline void fill_sample(struct sample *sample, enum operation op, uint32_t iteration, uint32_t rank,
                               double seconds)
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

static inline void write_records(const char *path, const char *run, uint32_t attempt, double seconds)
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

static inline void seal(const char *attempt_path, const char *run, uint32_t attempt, enum outcome outcome, bool records)
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
static inline void make_run(const struct fixture *self, const char *run, double seconds, const char *const *settings)
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
    assert_int_equal(run_folder_create(NULL, folder, experiment, &err), 0);
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

static inline struct history *open_history(const struct fixture *self)
{
    struct history *history = NULL;
    struct cb_err err;
    if (history_open(self->database, &history, &err))
        fail_msg("%s", err.message);
    return history;
}

static inline int ingest(const struct fixture *self, struct history *history, const char *run, bool *ingested,
                         struct cb_err *err)
{
    char folder[256];
    snprintf(folder, sizeof folder, "%s/runs/%s", self->folder, run);
    return history_ingest(history, folder, ingested, err);
}

static inline void ingest_well(const struct fixture *self, struct history *history, const char *run)
{
    struct cb_err err;
    bool ingested;
    if (ingest(self, history, run, &ingested, &err))
        fail_msg("%s", err.message);
    assert_true(ingested);
}

/* One number from any SQL, by a connection of its own: what another tool would see. */
static inline double query_number(const struct fixture *self, const char *sql)
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

static inline void plan(const struct fixture *self, struct history *history, const char *run, const char *sweep,
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

static inline void make_three(const struct fixture *self, struct history *history)
{
    make_run(self, "20261120-bbbb", 0.8, (const char *const[]){"model", "gpt2", "label.kind", "nightly", NULL});
    make_run(self, "20261121-aaaa", 0.8, (const char *const[]){"model", "gpt2-xl", NULL});
    make_run(self, "s1.01", 0.8, (const char *const[]){"io.block", "1MiB", "label.kind", "manual", NULL});
    ingest_well(self, history, "20261120-bbbb");
    ingest_well(self, history, "20261121-aaaa");
    plan(self, history, "s1.01", "s1", 1);
    ingest_well(self, history, "s1.01");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

#endif
