/* history_bench [RUNS] [PARENT]: builds a history of RUNS (10000) made-up runs of 1200 samples each from
 * run folders under PARENT (/dev/shm), and times ingest, list, show and compare; `list` without an index, which makes
 * one of all runs, and after 100 new runs, in time and CPU time of the process. Prints one JSON object.
 * Everything it made is removed again. */
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/child.h"
#include "core/clock.h"
#include "db/history.h"
#include "run/record.h"
#include "run/run_folder.h"

#define RANKS 4
#define ITERATIONS 6 /* one of them to warm up */
#define METRICS 25   /* that a save or load of checkpoints has; those of other workloads are absent */
#define VALUES_A_RUN ((uint64_t)RANKS * ITERATIONS * 2 * METRICS)
#define REPEATS 9

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status, (void)type, (void)walk;
    return remove(path);
}

static int write_records(const char *path, const char *run, uint64_t number, struct cb_err *err)
{
    struct record record;
    record_init(&record, run, 1, RANKS);
    record.ranks = calloc(RANKS, sizeof *record.ranks);
    record.rank_count = RANKS;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct record_rank *made = &record.ranks[rank];
        *made =
            (struct record_rank){.rank = rank, .phase = PHASE_DONE, .failures = strdup(""), .facts = strdup("a=b\n")};
        made->samples = calloc(2 * ITERATIONS, sizeof *made->samples);
        for (uint32_t i = 0; i < 2 * ITERATIONS; i++) {
            struct sample *sample = &made->samples[made->sample_count++];
            *sample = (struct sample){.op = i % 2 ? OP_LOAD : OP_SAVE, .iteration = i / 2, .flags = i < 2};
            for (int metric = 0; metric < METRIC_SAMPLE_COUNT; metric++)
                sample->values[metric] =
                    metric < METRICS ? 1 + (double)((number * 7 + i * 3 + rank) % 100) / 1000 : (double)NAN;
        }
    }
    int rc = record_write(&record, path, err);
    record_release(&record);
    return rc;
}

static int make_run(const char *home, const char *run, uint64_t number, struct experiment *experiment,
                    struct cb_err *err)
{
    char folder[512], path[600], records[700];
    struct manifest manifest = {.attempt = 1, .ranks = RANKS, .sealed_by = "agent"};
    snprintf(folder, sizeof folder, "%s/runs/%s", home, run);
    int rc = experiment_set(experiment, "label.kind", number % 100 ? "old" : "nightly", "bench", err);
    if (rc == 0)
        rc = run_folder_create(NULL, folder, experiment, err);
    snprintf(path, sizeof path, "%s/attempts/1", folder);
    if (rc == 0 && mkdir(path, 0755))
        rc = cb_fail(err, CB_ERR_SYSTEM, "cannot create %s", path);
    snprintf(records, sizeof records, "%s/records", path);
    if (rc == 0)
        rc = write_records(records, run, number, err);
    if (rc == 0)
        rc = manifest_hash_records(path, manifest.records_sha256, err);
    snprintf(manifest.run, sizeof manifest.run, "%s", run);
    manifest.started_wall_ns = (1700000000 + number * 60) * NS_PER_S;
    manifest.ended_wall_ns = manifest.started_wall_ns + NS_PER_S;
    return rc ? rc : manifest_write(path, &manifest, err);
}

static void name_run(char run[32], uint64_t number)
{
    snprintf(run, 32, "2026-%06llu", (unsigned long long)number);
}

static int ingest_all(struct history *history, const char *home, uint64_t runs, struct cb_err *err)
{
    char run[32], folder[512];
    bool ingested;
    int rc = history_begin(history, err);
    if (rc)
        return rc;
    for (uint64_t i = 0; i < runs && rc == 0; i++) {
        name_run(run, i);
        snprintf(folder, sizeof folder, "%s/runs/%s", home, run);
        rc = history_ingest(history, folder, &ingested, err);
    }
    return history_end(history, rc, err);
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Median wall time of a verb, process start to end, in milliseconds. */
static int time_verb(const char *const *argv, double *median_ms, struct cb_err *err)
{
    uint64_t times[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        struct child child;
        FILE *sink = fopen("/dev/null", "w");
        struct child_options options = {
            .argv = argv, .stdin_fd = -1, .stdout_fd = fileno(sink), .stderr_fd = fileno(sink)};
        uint64_t start_ns = clock_monotonic_ns();
        int rc = child_start(&child, &options, err);
        if (rc == 0)
            rc = child_wait(&child, start_ns + 60 * NS_PER_S, err);
        times[i] = clock_monotonic_ns() - start_ns;
        fclose(sink);
        if (rc)
            return rc;
    }
    qsort(times, REPEATS, sizeof times[0], compare_u64);
    *median_ms = (double)times[REPEATS / 2] / 1e6;
    return 0;
}

static int time_verbs(const char *program, struct cb_err *err)
{
    const struct {
        const char *name;
        const char *argv[8];
    } verbs[] = {
        {"version", {program, "--version"}},
        {"list", {program, "list"}},
        {"list_filtered", {program, "list", "label.kind=nightly", "model=gpt2"}},
        {"list_json_100", {program, "list", "--json", "-n", "100"}},
        {"list_json_all", {program, "list", "--json"}},
        {"show", {program, "show", "LATEST"}},
        {"compare_runs", {program, "compare", "2026-000001", "2026-000002"}},
        {"compare_100_with_30", {program, "compare", "label.kind=nightly", "run=2026-00001*,2026-00002*,2026-00003*"}},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0] && rc == 0; i++) {
        double median_ms = NAN;
        rc = time_verb(verbs[i].argv, &median_ms, err);
        if (rc == 0)
            printf(", \"%s_ms\": %.1f", verbs[i].name, median_ms);
    }
    return rc;
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* One `list`, which takes in what is new. */
static int time_update(const char *program, const char *name, struct cb_err *err)
{
    struct child child;
    FILE *sink = fopen("/dev/null", "w");
    const char *const argv[] = {program, "list", NULL};
    struct child_options options = {.argv = argv, .stdin_fd = -1, .stdout_fd = fileno(sink), .stderr_fd = fileno(sink)};
    double cpu_s = cpu_seconds();
    uint64_t start_ns = clock_monotonic_ns();
    int rc = child_start(&child, &options, err);
    if (rc == 0)
        rc = child_wait(&child, start_ns + 600 * NS_PER_S, err);
    fclose(sink);
    if (rc == 0)
        printf(", \"%s_s\": %.3f, \"%s_cpu_s\": %.3f", name, (double)(clock_monotonic_ns() - start_ns) / 1e9, name,
               cpu_seconds() - cpu_s);
    return rc;
}

static int make_runs(const char *home, uint64_t first, uint64_t count, struct cb_err *err)
{
    char run[32];
    struct experiment *experiment;
    int rc = experiment_new(&experiment, err);
    if (rc == 0)
        rc = experiment_set(experiment, "model", "gpt2", "bench", err);
    for (uint64_t i = first; i < first + count && rc == 0; i++) {
        name_run(run, i);
        rc = make_run(home, run, i, experiment, err);
    }
    experiment_free(experiment);
    return rc;
}

static int bench(const char *home, uint64_t runs, const char *program, struct cb_err *err)
{
    char database[512];
    struct history *history = NULL;
    int rc = make_runs(home, 0, runs, err);
    snprintf(database, sizeof database, "%s/ingest.db", home);
    if (rc == 0)
        rc = history_open(database, &history, err);
    uint64_t start_ns = clock_monotonic_ns();
    if (rc == 0)
        rc = ingest_all(history, home, runs, err);
    double seconds = (double)(clock_monotonic_ns() - start_ns) / 1e9;
    history_close(history);
    struct stat status;
    if (rc || stat(database, &status))
        return rc ? rc : cb_fail(err, CB_ERR_SYSTEM, "no %s", database);
    printf("{\"runs\": %llu, \"samples\": %llu, \"ingest_s\": %.2f, \"samples_per_s\": %.0f, \"database_bytes\": %lld",
           (unsigned long long)runs, (unsigned long long)(runs * VALUES_A_RUN), seconds,
           (double)(runs * VALUES_A_RUN) / seconds, (long long)status.st_size);
    unlink(database);
    rc = time_update(program, "rebuild", err);
    if (rc == 0)
        rc = time_update(program, "nothing_new", err);
    if (rc == 0)
        rc = make_runs(home, runs, 100, err);
    if (rc == 0)
        rc = time_update(program, "after_100_new", err);
    if (rc == 0)
        rc = time_verbs(program, err);
    printf("}\n");
    return rc;
}

int main(int argc, char **argv)
{
    uint64_t runs = argc > 1 ? strtoull(argv[1], NULL, 10) : 10000;
    const char *parent = argc > 2 ? argv[2] : "/dev/shm";
    char home[256], program[512];
    struct cb_err err;
    snprintf(home, sizeof home, "%s/ckptbench-history-XXXXXX", parent);
    if (!mkdtemp(home)) {
        perror(home);
        return 1;
    }
    const char *slash = strrchr(argv[0], '/');
    snprintf(program, sizeof program, "%.*s/../ckptbench", slash ? (int)(slash - argv[0]) : 1, slash ? argv[0] : ".");
    setenv("CKPTBENCH_HOME", home, 1);
    int rc = bench(home, runs, program, &err);
    if (rc)
        fprintf(stderr, "history_bench: %s\n", err.message);
    nftw(home, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return rc ? 1 : 0;
}
