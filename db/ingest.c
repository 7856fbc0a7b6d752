/* Copies a run folder into the tables, in one transaction: sealed attempts in order, records as samples. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/json.h"
#include "core/yaml.h"
#include "db/connection.h"
#include "run/job_record.h"
#include "run/record.h"
#include "run/results.h"
#include "run/run_folder.h"

#define PATH_MAX_BYTES 4096
#define FINGERPRINT_MAX_BYTES (4u << 20)
#define LABELS_MAX_BYTES (1u << 20)

struct ingest {
    struct history *history;
    const char *run, *attempt_path;
    int64_t run_id;
    uint32_t attempt;
};

/* Samples: one row per operation, iteration and metric; its blob holds every rank's value. */

struct sample_place {
    const struct sample *sample;
    uint32_t rank;
};

static int compare_places(const void *a, const void *b)
{
    const struct sample_place *x = a, *y = b;
    if (x->sample->op != y->sample->op)
        return x->sample->op < y->sample->op ? -1 : 1;
    if (x->sample->iteration != y->sample->iteration)
        return x->sample->iteration < y->sample->iteration ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static int insert_group(struct ingest *self, const struct sample_place *places, size_t count, double *ranks,
                        size_t world_size, struct cb_err *err)
{
    const struct sample *first = places[0].sample;
    uint32_t flags = 0;
    for (size_t i = 0; i < count; i++)
        flags |= places[i].sample->flags;
    for (int metric = 0; metric < METRIC_SAMPLE_COUNT; metric++) {
        bool any = false;
        for (size_t i = 0; i < world_size; i++)
            ranks[i] = NAN;
        for (size_t i = 0; i < count; i++) {
            double value = places[i].sample->values[metric];
            ranks[places[i].rank] = value;
            any |= !isnan(value);
        }
        if (!any)
            continue;
        int rc =
            db_run(self->history, err, "INSERT OR REPLACE INTO sample VALUES(?,?,?,?,?,?,?)", "iitiiib", self->run_id,
                   (int64_t)self->attempt, operation_name((enum operation)first->op), (int64_t)first->iteration,
                   self->history->metric_ids[metric], (int64_t)flags, (const void *)ranks, world_size * sizeof *ranks);
        if (rc)
            return rc;
    }
    return 0;
}

static int insert_samples(struct ingest *self, const struct record *record, struct cb_err *err)
{
    size_t count = 0, used = 0;
    for (uint32_t i = 0; i < record->rank_count; i++)
        count += record->ranks[i].sample_count;
    struct sample_place *places = malloc((count + 1) * sizeof *places);
    double *ranks = malloc((record->world_size + 1) * sizeof *ranks);
    int rc = places && ranks ? 0 : alloc_fail(err, "to ingest %zu samples", count);
    for (uint32_t i = 0; rc == 0 && places && i < record->rank_count; i++) {
        const struct record_rank *rank = &record->ranks[i];
        for (uint32_t k = 0; k < rank->sample_count; k++)
            if (rank->samples[k].op < OP_COUNT && rank->rank < record->world_size)
                places[used++] = (struct sample_place){&rank->samples[k], rank->rank};
    }
    if (rc == 0 && used > 0)
        qsort(places, used, sizeof *places, compare_places);
    for (size_t start = 0, end; start < used && rc == 0; start = end) {
        for (end = start + 1; end < used; end++)
            if (places[end].sample->op != places[start].sample->op ||
                places[end].sample->iteration != places[start].sample->iteration)
                break;
        rc = insert_group(self, places + start, end - start, ranks, record->world_size, err);
    }
    free(places);
    free(ranks);
    return rc;
}

/* Facts whose name starts with `prefix`. */
static int insert_facts(struct ingest *self, const struct record_rank *rank, const char *prefix, struct cb_err *err)
{
    int rc = 0;
    int64_t number = 0;
    size_t len;
    for (const char *line = rank->facts ? rank->facts : ""; *line && rc == 0; line += len + (line[len] == '\n')) {
        len = strcspn(line, "\n");
        if (strncmp(line, prefix, strlen(prefix)) != 0)
            continue;
        char *fact = strndup(line, len);
        rc = fact ? db_run(self->history, err, "INSERT OR REPLACE INTO fact VALUES(?,?,?,?,?)", "tiiit", self->run,
                           (int64_t)self->attempt, (int64_t)rank->rank, number++, fact)
                  : alloc_fail(err, "for the facts of rank %u", rank->rank);
        free(fact);
    }
    return rc;
}

/* The file system to which a watched program has saved becomes the store of its run. */
static int take_store(struct ingest *self, const char *facts, struct cb_err *err)
{
    static const char prefix[] = "watch.mount=";
    const char *line = facts ? facts : "";
    while (*line && strncmp(line, prefix, strlen(prefix)) != 0) {
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
    if (!*line)
        return 0;
    char *store = strndup(line + strlen(prefix), strcspn(line, "\n") - strlen(prefix));
    int rc = store ? rows_move_run(self->history, self->run, store, err) : alloc_fail(err, "for a store");
    free(store);
    return rc;
}

static int insert_ranks(struct ingest *self, const struct record *record, struct cb_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < record->rank_count && rc == 0; i++) {
        const struct record_rank *rank = &record->ranks[i];
        /* Facts of rank 0 apply to all ranks; of the other ranks we keep only facts about their nodes and links. */
        rc = insert_facts(self, rank, rank->rank == 0 || i == 0 ? "" : "suite.", err);
        if (rc == 0 && rank->rank == 0)
            rc = take_store(self, rank->facts, err);
        if (rc == 0 && (rank->failure_code || rank->phase != PHASE_DONE || (rank->failures && *rank->failures)))
            rc = db_run(self->history, err, "INSERT OR REPLACE INTO failure VALUES(?,?,?,?,?,?,?,?,?)", "tiiittitt",
                        self->run, (int64_t)self->attempt, (int64_t)rank->rank, (int64_t)rank->phase,
                        rank->last_op < OP_COUNT ? operation_name((enum operation)rank->last_op) : NULL,
                        rank->last_state < STATE_COUNT ? rank_state_name((enum rank_state)rank->last_state) : NULL,
                        (int64_t)rank->last_iteration, cb_code_name(-(int)rank->failure_code),
                        rank->failures ? rank->failures : "");
    }
    return rc;
}

static void put_le(unsigned char *out, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        out[i] = (unsigned char)(value >> (8 * i));
}

/* Only non-empty buckets: 4 bytes of index, 8 of count, little-endian. */
static int insert_histogram(struct ingest *self, enum operation op, const struct histogram *latency, struct cb_err *err)
{
    unsigned char packed[HISTOGRAM_BUCKETS * 12];
    size_t used = 0;
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
        if (!latency->buckets[i])
            continue;
        put_le(packed + used, i, 4);
        put_le(packed + used + 4, latency->buckets[i], 8);
        used += 12;
    }
    return db_run(self->history, err, "INSERT OR REPLACE INTO histogram VALUES(?,?,?,?,?,?,?,?,?,?,?)", "tituuuuuuub",
                  self->run, (int64_t)self->attempt, operation_name(op), latency->count, latency->sum_ns,
                  latency->min_ns, latency->max_ns, histogram_quantile(latency, 0.5), histogram_quantile(latency, 0.99),
                  histogram_quantile(latency, 0.999), (const void *)packed, used);
}

/* Results: the rows of the run, which replace those of an earlier attempt. */

static int insert_metrics(struct ingest *self, const struct results *results, struct cb_err *err)
{
    int rc = db_run(self->history, err, "DELETE FROM metric WHERE run=?", "t", self->run);
    for (size_t i = 0; i < results->count && rc == 0; i++) {
        const struct result_row *row = &results->rows[i];
        const struct summary *summary = &row->summary;
        rc = db_run(self->history, err, "INSERT OR REPLACE INTO metric VALUES(?,?,?,?,?,?,?,?,?,?,?)", "tttiddddddb",
                    self->run, operation_name(row->op), metric_row(row->metric)->name, (int64_t)summary->n,
                    summary->median, summary->p95, summary->min, summary->max, summary->mean, summary->mad,
                    (const void *)row->iterations, row->iterations ? summary->n * sizeof *row->iterations : 0);
    }
    return rc;
}

static int insert_operations(struct ingest *self, const struct results *results, struct cb_err *err)
{
    struct history *history = self->history;
    int rc = db_run(history, err, "DELETE FROM operation WHERE run=?", "t", self->run);
    if (rc == 0)
        rc = db_run(history, err, "DELETE FROM state_share WHERE run=?", "t", self->run);
    for (int op = 0; op < OP_COUNT && rc == 0; op++) {
        const char *name = operation_name((enum operation)op);
        if (results->slowest_rank[op] >= 0)
            rc = db_run(
                history, err, "INSERT INTO operation VALUES(?,?,?,?,?,?)", "ttiddt", self->run, name,
                (int64_t)results->slowest_rank[op], results->slowest_rank_share[op], results->slowest_rank_excess[op],
                results->slowest_rank_state[op] == STATE_COUNT ? NULL
                                                               : rank_state_name(results->slowest_rank_state[op]));
        for (int state = 0; state < STATE_COUNT && rc == 0; state++)
            if (results->state_share[op][state] > 0)
                rc = db_run(history, err, "INSERT INTO state_share VALUES(?,?,?,?)", "tttd", self->run, name,
                            rank_state_name((enum rank_state)state), results->state_share[op][state]);
    }
    if (rc)
        return rc;
    return db_run(history, err,
                  "UPDATE run SET iterations_verified=?2, iterations_to_verify=?3, suspected_cache=?4,"
                  " coldness_unknown=?5 WHERE run=?1",
                  "tiiii", self->run, (int64_t)results->iterations_verified, (int64_t)results->iterations_to_verify,
                  (int64_t)results->suspected_cache, (int64_t)results->coldness_unknown);
}

/* The views that unfold blobs require a row for every existing rank and iteration. */
static int grow_numbers(struct history *self, uint64_t count, struct cb_err *err)
{
    sqlite3_stmt *statement;
    uint64_t next = count;
    int rc = db_query(self, &statement, err, "SELECT coalesce(max(n),-1)+1 FROM number", "");
    if (db_next(self, statement, &rc, err))
        next = (uint64_t)sqlite3_column_int64(statement, 0);
    sqlite3_reset(statement);
    for (; next < count && rc == 0; next++)
        rc = db_run(self, err, "INSERT INTO number VALUES(?)", "u", next);
    return rc;
}

static int ingest_record(struct ingest *self, const struct record *record, struct cb_err *err)
{
    struct results results;
    int rc = results_compute(record, &results, err);
    if (rc)
        return rc;
    uint64_t longest = record->world_size;
    for (size_t i = 0; i < results.count; i++)
        if (results.rows[i].summary.n > longest)
            longest = results.rows[i].summary.n;
    rc = grow_numbers(self->history, longest, err);
    if (rc == 0)
        rc = insert_samples(self, record, err);
    if (rc == 0)
        rc = insert_ranks(self, record, err);
    for (int op = 0; op < OP_COUNT && rc == 0; op++)
        if (record->latency[op].count)
            rc = insert_histogram(self, (enum operation)op, &record->latency[op], err);
    if (rc == 0)
        rc = insert_metrics(self, &results, err);
    if (rc == 0)
        rc = insert_operations(self, &results, err);
    results_release(&results);
    return rc;
}

/* Fingerprint: JSON flattened into dotted keys. */

static int insert_fingerprint_value(struct ingest *self, const char *key, const struct json_value *value,
                                    struct cb_err *err)
{
    const char *text = NULL;
    char number[32];
    uint64_t integer;
    double real;
    bool boolean;
    if (json_is_null(value))
        return 0;
    if (json_as_u64(value, &integer))
        snprintf(number, sizeof number, "%llu", (unsigned long long)integer);
    else if (json_as_double(value, &real))
        snprintf(number, sizeof number, "%.17g", real);
    else if (json_as_bool(value, &boolean))
        snprintf(number, sizeof number, "%s", boolean ? "true" : "false");
    if (!json_as_text(value, &text))
        text = number;
    return db_run(self->history, err, "INSERT OR REPLACE INTO fingerprint VALUES(?,?,'',?,?)", "titt", self->run,
                  (int64_t)self->attempt, key, text);
}

static int insert_fingerprint_tree(struct ingest *self, const char *prefix, const struct json_value *value,
                                   struct cb_err *err)
{
    char key[512];
    int rc = 0;
    if (json_is_object(value)) {
        size_t position = 0;
        const char *name;
        const struct json_value *member;
        while (rc == 0 && json_next(value, &position, &name, &member)) {
            snprintf(key, sizeof key, "%s%s%s", prefix, *prefix ? "." : "", name);
            rc = insert_fingerprint_tree(self, key, member, err);
        }
        return rc;
    }
    if (json_is_array(value)) {
        for (size_t i = 0; i < json_count(value) && rc == 0; i++) {
            snprintf(key, sizeof key, "%s.%zu", prefix, i);
            rc = insert_fingerprint_tree(self, key, json_at(value, i), err);
        }
        return rc;
    }
    return insert_fingerprint_value(self, prefix, value, err);
}

static int ingest_fingerprint(struct ingest *self, struct cb_err *err)
{
    char path[PATH_MAX_BYTES];
    struct stat status;
    struct json_value *root;
    snprintf(path, sizeof path, "%s/fingerprint.json", self->attempt_path);
    if (stat(path, &status))
        return 0; /* the attempt ended before the fingerprint was written */
    int rc = json_parse_file(path, FINGERPRINT_MAX_BYTES, &root, err);
    if (rc)
        return rc;
    rc = insert_fingerprint_tree(self, "", root, err);
    json_value_free(root);
    return rc;
}

static int insert_attempt(struct ingest *self, const struct manifest *manifest, struct cb_err *err)
{
    const char *outcome = outcome_name(manifest->outcome);
    const char *state = manifest->outcome == OUTCOME_PASS        ? "done"
                        : manifest->outcome == OUTCOME_CANCELLED ? "cancelled"
                                                                 : "failed";
    int rc = db_run(self->history, err, "INSERT OR REPLACE INTO attempt VALUES(?,?,?,?,?,?,?,?,?,?)", "tittuuiitt",
                    self->run, (int64_t)self->attempt, outcome, manifest->message, manifest->started_wall_ns,
                    manifest->ended_wall_ns, (int64_t)manifest->ranks, (int64_t)manifest->samples,
                    manifest->records_sha256, manifest->sealed_by);
    if (rc == 0)
        rc =
            db_run(self->history, err,
                   "UPDATE run SET state=?2, outcome=?3, message=?4, started_ns=?5, ended_ns=?6 WHERE run=?1", "ttttuu",
                   self->run, state, outcome, manifest->message, manifest->started_wall_ns, manifest->ended_wall_ns);
    if (rc == 0)
        rc = rows_insert_event(self->history, self->run, manifest->ended_wall_ns, state, manifest->message, err);
    return rc;
}

static int ingest_attempt(struct ingest *self, const struct manifest *manifest, struct cb_err *err)
{
    int rc = insert_attempt(self, manifest, err);
    if (rc == 0)
        rc = ingest_fingerprint(self, err);
    if (rc || !manifest->records_sha256[0])
        return rc;
    char path[PATH_MAX_BYTES];
    struct record record;
    snprintf(path, sizeof path, "%s/records", self->attempt_path);
    rc = record_read(path, &record, err);
    if (rc)
        return rc;
    rc = ingest_record(self, &record, err);
    record_release(&record);
    return rc;
}

/* Labels come from labels.yaml, which may have been edited since. */
static int apply_labels(const char *folder, struct experiment *experiment, struct cb_err *err)
{
    char path[PATH_MAX_BYTES], key[512];
    struct buf text;
    struct stat status;
    struct setting_list labels = {0};
    snprintf(path, sizeof path, "%s/labels.yaml", folder);
    if (stat(path, &status) || status.st_size == 0)
        return 0;
    buf_init(&text, LABELS_MAX_BYTES);
    int rc = buf_read_file(&text, path, err);
    if (rc == 0)
        rc = yaml_read_settings(path, text.data, text.len, &labels, err);
    for (size_t i = 0; i < labels.count && rc == 0; i++) {
        snprintf(key, sizeof key, "label.%s", labels.items[i].key);
        if (labels.items[i].value_count == 1)
            rc = experiment_set(experiment, key, labels.items[i].values[0], labels.items[i].origin, err);
        else
            rc = cb_fail(err, CB_ERR_FORMAT, "%s: a label has one value", labels.items[i].origin);
    }
    setting_list_release(&labels);
    buf_release(&text);
    return rc;
}

static int insert_run_of_folder(struct history *self, const char *folder, const char *run, struct cb_err *err)
{
    struct planned_run row = {.run = run, .folder = folder};
    struct experiment *experiment = NULL;
    struct planned_file file;
    int rc = planned_file_read(folder, &row, &file, err);
    if (rc == 0)
        rc = run_folder_read_experiment(folder, &experiment, err);
    if (rc == 0)
        rc = apply_labels(folder, experiment, err);
    row.experiment = experiment;
    if (rc == 0)
        rc = rows_insert_run(self, &row, err);
    experiment_free(experiment);
    planned_file_release(&file);
    return rc;
}

/* A known run keeps the experiment of its row, even if the file has been changed or damaged since. */
static int refresh_run_of_folder(struct history *self, const char *folder, const char *run, struct cb_err *err)
{
    struct experiment *experiment = NULL;
    char hash[EXPERIMENT_HASH_LENGTH + 1];
    bool same = false;
    if (run_folder_read_experiment(folder, &experiment, NULL))
        return 0;
    experiment_hash(experiment, hash);
    int rc = db_find(self, &same, NULL, err, "SELECT 1 FROM run WHERE run=? AND hash=?", "tt", run, hash);
    experiment_free(experiment);
    return rc || !same ? rc : insert_run_of_folder(self, folder, run, err);
}

/* Every new sealed attempt, in order, so that the results of the last one remain. */
static int ingest_attempts(struct history *self, const char *folder, const char *run, uint32_t last, bool there,
                           bool *ingested, bool *sealed, struct cb_err *err)
{
    int rc = 0;
    for (uint32_t number = 1; number <= last && rc == 0; number++) {
        char path[PATH_MAX_BYTES];
        struct manifest manifest;
        bool known = false;
        snprintf(path, sizeof path, "%s/attempts/%u", folder, number);
        rc = manifest_read(path, &manifest, err);
        if (rc == CB_ERR_NOT_FOUND) {
            rc = 0;
            continue;
        }
        if (rc == 0)
            rc =
                db_find(self, &known, NULL, err, "SELECT 1 FROM attempt WHERE run=? AND attempt=? AND records_sha256=?",
                        "tit", run, (int64_t)manifest.attempt, manifest.records_sha256);
        *sealed = true;
        if (rc || known)
            continue;
        if (!*ingested)
            rc = there ? refresh_run_of_folder(self, folder, run, err) : insert_run_of_folder(self, folder, run, err);
        *ingested = there = true;
        struct ingest work = {self, run, path, 0, number};
        if (rc == 0)
            rc = rows_run_id(self, run, &work.run_id, err);
        if (rc == 0)
            rc = ingest_attempt(&work, &manifest, err);
    }
    if (rc == 0 && !there)
        rc = insert_run_of_folder(self, folder, run, err);
    return rc;
}

/* Waiting times of the job, from job.json: values of the run that a rank cannot measure. */
static int insert_job_times(struct history *self, const char *folder, const char *run, struct cb_err *err)
{
    struct job_record record;
    int rc = job_record_read(folder, &record, err);
    if (rc)
        return rc == CB_ERR_NOT_FOUND ? 0 : rc;
    const struct {
        enum metric_id metric;
        double value;
    } rows[] = {{METRIC_QUEUE_S, record.queue_s}, {METRIC_BOOT_S, record.boot_s}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows && rc == 0; i++)
        if (!isnan(rows[i].value))
            rc = db_run(self, err, "INSERT OR REPLACE INTO metric VALUES(?1,?2,?3,1,?4,?4,?4,?4,?4,0,NULL)", "tttd",
                        run, operation_name(OP_NONE), metric_row(rows[i].metric)->name, rows[i].value);
    job_record_release(&record);
    return rc;
}

static int name_of_folder(const char *folder, char run[64], struct cb_err *err)
{
    size_t len = strlen(folder);
    while (len > 1 && folder[len - 1] == '/')
        len--;
    size_t start = len;
    while (start > 0 && folder[start - 1] != '/')
        start--;
    if (len - start == 0 || len - start >= 64)
        return cb_fail(err, CB_ERR_USAGE, "%s is not the folder of a run: its name is the run's id", folder);
    memcpy(run, folder + start, len - start);
    run[len - start] = '\0';
    return 0;
}

int ingest_folder(struct history *self, const char *run_folder, bool only_plan, bool tells, bool *ingested,
                  struct cb_err *err)
{
    char run[64];
    uint32_t last;
    bool there = false, had_ended = false, new_attempt = false, sealed = false;
    struct cb_err own;
    int rc = name_of_folder(run_folder, run, &own);
    if (rc == 0)
        rc = run_folder_last_attempt(run_folder, &last, &own);
    if (rc == 0)
        rc = history_begin(self, &own);
    if (rc == 0) {
        rc = db_find(self, &there, NULL, &own, "SELECT 1 FROM run WHERE run=?", "t", run);
        if (rc == 0)
            rc = db_find(self, &had_ended, NULL, &own,
                         "SELECT 1 FROM run WHERE run=? AND state IN ('done','failed','cancelled')", "t", run);
        if (rc == 0)
            rc = ingest_attempts(self, run_folder, run, only_plan ? 0 : last, there, &new_attempt, &sealed, &own);
        if (rc == 0 && new_attempt)
            rc = insert_job_times(self, run_folder, run, &own);
        if (rc == 0 && tells && had_ended && new_attempt) /* before the commit: a kill in between repeats both */
            (void)changes_tell(self, run);
        rc = history_end(self, rc, &own);
    }
    if (rc)
        return cb_fail(err, rc, "ingesting %s: %s", run_folder, own.message);
    *ingested = new_attempt;
    if (!sealed)
        return cb_fail(err, CB_ERR_NOT_FOUND, "run %s is not sealed: %s", run,
                       last ? "its last attempt has no manifest.json yet" : "it has not started");
    return 0;
}

int history_ingest(struct history *self, const char *run_folder, bool *ingested, struct cb_err *err)
{
    return ingest_folder(self, run_folder, false, true, ingested, err);
}

int history_clear_for_rebuild(struct history *self, struct cb_err *err)
{
    int rc = db_exec(self,
                     "DELETE FROM sample; DELETE FROM attempt; DELETE FROM param; DELETE FROM fingerprint;"
                     "DELETE FROM fact; DELETE FROM failure; DELETE FROM metric; DELETE FROM operation;"
                     "DELETE FROM state_share; DELETE FROM histogram; DELETE FROM event; DELETE FROM run;"
                     "DELETE FROM baseline; DELETE FROM block; DELETE FROM sweep",
                     err);
    /* The offset is taken before the folders are read: what others append meanwhile is read again instead of missed. */
    return rc ? rc
              : db_run(self, err, "INSERT OR REPLACE INTO meta VALUES('changes', ?)", "u", changes_tell(self, "*"));
}
