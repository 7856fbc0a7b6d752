/* make_run FOLDER [save=SECONDS] [load=SECONDS] [made_ranks=N] [made_iterations=N] [started=UNIX_SECONDS] [outcome=NAME|none]
 *          [fingerprint=JSON] [records=false] [facts=LINES] [key=value…]
 * Makes a run folder as controller and agent leave it, with made-up figures, for tests of the history. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "run/record.h"
#include "run/run_folder.h"

struct plan {
    double save_s, load_s;
    uint32_t ranks, iterations;
    uint64_t started_s;
    const char *outcome, *fingerprint, *facts; /* facts of rank 0: lines of key=value */
    bool records;
};

static void fill(struct sample *sample, enum operation op, uint32_t iteration, uint32_t rank, double seconds)
{
    *sample = (struct sample){.op = op, .iteration = iteration, .flags = iteration == 0 ? SAMPLE_WARMUP : 0};
    for (int i = 0; i < METRIC_SAMPLE_COUNT; i++)
        sample->values[i] = NAN;
    double time_s = seconds * (1 + 0.001 * (iteration % 3));
    sample->values[METRIC_OP_S] = time_s;
    sample->values[METRIC_OWN_S] = time_s * (1 - 0.01 * (double)rank);
    sample->values[METRIC_IO_S] = time_s * 0.8;
    sample->values[METRIC_FSYNC_S] = op == OP_SAVE ? time_s * 0.1 : 0;
    sample->values[METRIC_WAIT_S] = time_s * (op == OP_SAVE ? 0.1 : 0.2);
    sample->values[METRIC_BYTES_MOVED] = 1 << 20;
    sample->values[METRIC_BYTES_NEEDED] = 1 << 20;
    sample->values[METRIC_REQUESTS] = 4;
    sample->values[METRIC_CPU_S] = 0.01;
    sample->values[METRIC_RSS_BYTES] = 1 << 24;
}

static int write_records(const struct plan *plan, const char *path, const char *run, struct cb_err *err)
{
    struct record record;
    record_init(&record, run, 1, plan->ranks);
    record.ranks = calloc(plan->ranks, sizeof *record.ranks);
    record.rank_count = plan->ranks;
    for (uint32_t rank = 0; rank < plan->ranks; rank++) {
        struct record_rank *made = &record.ranks[rank];
        *made = (struct record_rank){.rank = rank, .phase = PHASE_DONE};
        made->failures = strdup("");
        made->facts = strdup(rank == 0 ? plan->facts : "");
        made->samples = calloc(2 * ((size_t)plan->iterations + 1), sizeof *made->samples);
        for (uint32_t i = 0; i <= plan->iterations; i++) {
            fill(&made->samples[made->sample_count++], OP_SAVE, i, rank, plan->save_s);
            fill(&made->samples[made->sample_count++], OP_LOAD, i, rank, plan->load_s);
        }
    }
    record.run_values[METRIC_CHECKPOINT_BYTES] = (double)plan->ranks * (1 << 20);
    histogram_record(&record.latency[OP_SAVE], 1000000);
    int rc = record_write(&record, path, err);
    record_release(&record);
    return rc;
}

static int write_text(const char *path, const char *content, struct cb_err *err)
{
    struct buf text;
    buf_init(&text, 1u << 20);
    buf_append_text(&text, content);
    int rc = buf_write_file(&text, path, 0644, err);
    buf_release(&text);
    return rc;
}

static int finish(const struct plan *plan, const char *attempt_path, const char *run, struct cb_err *err)
{
    char path[4096];
    struct manifest manifest = {.attempt = 1, .ranks = plan->ranks, .sealed_by = "agent"};
    int rc = 0;
    if (plan->records) {
        snprintf(path, sizeof path, "%s/records", attempt_path);
        rc = write_records(plan, path, run, err);
    }
    if (rc || strcmp(plan->outcome, "none") == 0)
        return rc;
    if (!outcome_find(plan->outcome, &manifest.outcome))
        return cb_fail(err, CB_ERR_USAGE, "no outcome %s", plan->outcome);
    snprintf(manifest.run, sizeof manifest.run, "%s", run);
    if (manifest.outcome != OUTCOME_PASS)
        snprintf(manifest.message, sizeof manifest.message, "made to fail");
    manifest.started_wall_ns = plan->started_s * NS_PER_S;
    manifest.ended_wall_ns = manifest.started_wall_ns + 10 * NS_PER_S;
    rc = manifest_hash_records(attempt_path, manifest.records_sha256, err);
    return rc ? rc : manifest_write(attempt_path, &manifest, err);
}

static int make(const struct plan *plan, const char *folder, const struct experiment *experiment, struct cb_err *err)
{
    char path[4096];
    struct buf attempt_path;
    uint32_t attempt;
    const char *slash = strrchr(folder, '/');
    buf_init(&attempt_path, 4096);
    int rc = run_folder_create(NULL, folder, experiment, err);
    if (rc == 0)
        rc = run_folder_new_attempt(folder, &attempt, &attempt_path, err);
    if (rc == 0) {
        snprintf(path, sizeof path, "%s/fingerprint.json", attempt_path.data);
        rc = write_text(path, plan->fingerprint, err);
    }
    if (rc == 0)
        rc = finish(plan, attempt_path.data, slash ? slash + 1 : folder, err);
    buf_release(&attempt_path);
    return rc;
}

static int read_word(struct plan *plan, struct experiment *experiment, char *word, struct cb_err *err)
{
    char *value = strchr(word, '=');
    if (!value)
        return cb_fail(err, CB_ERR_USAGE, "%s is not key=value", word);
    *value++ = '\0';
    if (strcmp(word, "save") == 0)
        plan->save_s = atof(value);
    else if (strcmp(word, "load") == 0)
        plan->load_s = atof(value);
    else if (strcmp(word, "made_ranks") == 0)
        plan->ranks = (uint32_t)atoi(value);
    else if (strcmp(word, "made_iterations") == 0)
        plan->iterations = (uint32_t)atoi(value);
    else if (strcmp(word, "started") == 0)
        plan->started_s = (uint64_t)atoll(value);
    else if (strcmp(word, "outcome") == 0)
        plan->outcome = value;
    else if (strcmp(word, "fingerprint") == 0)
        plan->fingerprint = value;
    else if (strcmp(word, "facts") == 0)
        plan->facts = value;
    else if (strcmp(word, "records") == 0)
        plan->records = strcmp(value, "true") == 0;
    else
        return experiment_set(experiment, word, value, "command line", err);
    return 0;
}

int main(int argc, char **argv)
{
    struct plan plan = {.save_s = 1,
                        .load_s = 2,
                        .ranks = 2,
                        .iterations = 3,
                        .started_s = clock_wall_ns() / NS_PER_S,
                        .outcome = "pass",
                        .facts = "io.engine=io_uring\n",
                        .fingerprint = "{\"kernel\": \"6.1\", \"cpu\": {\"count\": 8}}",
                        .records = true};
    struct experiment *experiment = NULL;
    struct cb_err err;
    int rc = argc < 2 ? cb_fail(&err, CB_ERR_USAGE, "usage: make_run FOLDER [key=value...]")
                      : experiment_new(&experiment, &err);
    for (int i = 2; i < argc && rc == 0; i++)
        rc = read_word(&plan, experiment, argv[i], &err);
    if (rc == 0)
        rc = make(&plan, argv[1], experiment, &err);
    if (rc)
        fprintf(stderr, "make_run: %s\n", err.message);
    experiment_free(experiment);
    return rc ? 1 : 0;
}
