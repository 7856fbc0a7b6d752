/* Reads the throughput of earlier runs from the history, chooses the closest run, and predicts times from its rates. */
#include "cli/plan/forecast.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "cli/plan/run_plan.h"
#include "cli/plan/store_location.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/stats.h"
#include "core/units.h"
#include "db/history.h"
#include "run/workload_kind.h"
#include "store/kind.h"
#include "store/s3/s3_uri.h"

#define DEFAULT_RATE ((double)GIB) /* bytes/s of one rank, if nothing was measured here */
#define DEFAULT_STAGE_RATE ((double)(5 * GIB))
#define START_NS (10 * 60 * NS_PER_S)         /* added for launch, set-up and sealing */
#define SUITE_ROUND_NS (20.0 * 60 * NS_PER_S) /* added for each round of the cluster suite */
#define WAIT_MARGIN_NS (2 * 60 * NS_PER_S)    /* added to wait.for */
#define MARGIN 3                              /* time limit / prediction, if the rate is known */
#define SMALL_MARGIN 10                       /* the same, if the measuring run wrote much less */
#define BLIND_MARGIN 20                       /* the same, if the rate is only assumed */

/* ---- the history ---- */

/* Saves of the default workload on this machine, the newest of each experiment and store: with max(), SQLite takes
 * the other columns from the row that has the maximum. */
static const char *const book_sql =
    "SELECT r.run, r.hash, max(r.started_ns), r.experiment->>'$.engine', r.experiment->>'$.model',"
    " r.experiment->>'$.store', r.experiment->>'$.\"s3.endpoint\"', r.experiment->>'$.ranks',"
    " r.experiment->>'$.nodes', r.experiment->>'$.\"save.async\"', b.median, v.median,"
    " (SELECT median FROM metric m WHERE m.run=r.run AND m.metric='load_bytes_per_s'),"
    " (SELECT median FROM metric m WHERE m.run=r.run AND m.op='save' AND m.metric='stall_s'),"
    " (SELECT value FROM fingerprint f WHERE f.run=r.run AND f.key='store.mount' ORDER BY attempt DESC LIMIT 1)"
    " FROM run r JOIN site s ON s.id=r.site"
    " JOIN metric b ON b.run=r.run AND b.metric='checkpoint_bytes'"
    " JOIN metric v ON v.run=r.run AND v.op='save' AND v.metric='save_bytes_per_s'"
    " WHERE r.outcome='pass' AND s.site='local' AND r.experiment->>'$.workload'='checkpoint'"
    " AND b.median>0 AND v.median>0 GROUP BY r.hash, r.experiment->>'$.store', r.experiment->>'$.\"s3.endpoint\"'";

enum {
    CELL_RUN,
    CELL_HASH,
    CELL_STARTED,
    CELL_ENGINE,
    CELL_MODEL,
    CELL_STORE,
    CELL_ENDPOINT,
    CELL_RANKS,
    CELL_NODES,
    CELL_ASYNC,
    CELL_BYTES,
    CELL_SAVE,
    CELL_LOAD,
    CELL_STALL,
    CELL_MOUNT,
    CELLS
};

static char *cell_copy(const struct query_cell *cell)
{
    return strdup(cell->type == CELL_TEXT ? cell->text : "");
}

static double cell_number(const struct query_cell *cell)
{
    return cell->type == CELL_REAL ? cell->real : cell->type == CELL_INTEGER ? (double)cell->integer : NAN;
}

static uint32_t cell_count(const struct query_cell *cell)
{
    return cell->type == CELL_INTEGER && cell->integer > 0 && cell->integer <= UINT32_MAX ? (uint32_t)cell->integer : 0;
}

static void rate_run_release(struct rate_run *self)
{
    free(self->engine);
    free(self->model);
    free(self->store);
    free(self->endpoint);
    free(self->mount);
}

static bool fill_run(struct rate_run *run, const struct query_cell *cells)
{
    double stall_s = cell_number(&cells[CELL_STALL]), bytes = cell_number(&cells[CELL_BYTES]);
    *run = (struct rate_run){.ranks = cell_count(&cells[CELL_RANKS]), .nodes = cell_count(&cells[CELL_NODES])};
    if (run->ranks == 0 || cells[CELL_RUN].type != CELL_TEXT || cells[CELL_HASH].type != CELL_TEXT ||
        cells[CELL_STARTED].type != CELL_INTEGER)
        return false;
    snprintf(run->run, sizeof run->run, "%s", cells[CELL_RUN].text);
    snprintf(run->hash, sizeof run->hash, "%s", cells[CELL_HASH].text);
    run->started_wall_ns = (uint64_t)cells[CELL_STARTED].integer;
    run->is_async = cell_count(&cells[CELL_ASYNC]) > 0;
    run->bytes_a_rank = bytes / run->ranks;
    run->save = cell_number(&cells[CELL_SAVE]) / run->ranks;
    run->load = cell_number(&cells[CELL_LOAD]) / run->ranks;
    run->wait = stall_s > 0 ? run->bytes_a_rank / stall_s : NAN;
    run->engine = cell_copy(&cells[CELL_ENGINE]);
    run->model = cell_copy(&cells[CELL_MODEL]);
    run->store = cell_copy(&cells[CELL_STORE]);
    run->endpoint = cell_copy(&cells[CELL_ENDPOINT]);
    run->mount = cell_copy(&cells[CELL_MOUNT]);
    return run->engine && run->model && run->store && run->endpoint && run->mount;
}

static int take_row(void *context, bool is_header, const struct query_cell *cells, size_t count, struct cb_err *err)
{
    struct throughput_history *self = context;
    if (is_header || count != CELLS)
        return 0;
    if (alloc_grow(&self->runs, self->count, sizeof *self->runs, err))
        return CB_ERR_MEMORY;
    if (fill_run(&self->runs[self->count], cells))
        self->count++;
    else
        rate_run_release(&self->runs[self->count]);
    return 0;
}

void throughput_history_load(struct throughput_history *self)
{
    struct history *history = NULL;
    struct cb_err ignored;
    if (self->loaded)
        return;
    *self = (struct throughput_history){.loaded = true};
    if (history_open_read_only(NULL, &history, &ignored))
        return;
    if (history_query(history, book_sql, take_row, self, &ignored))
        throughput_history_release(self);
    history_close(history);
}

void throughput_history_release(struct throughput_history *self)
{
    for (size_t i = 0; i < self->count; i++)
        rate_run_release(&self->runs[i]);
    free(self->runs);
    *self = (struct throughput_history){0};
}

void throughput_query_release(struct throughput_query *self)
{
    experiment_free(self->experiment);
    *self = (struct throughput_query){0};
}

/* ---- the same store ---- */

static bool same_bucket(const struct rate_run *run, const char *inner, const char *endpoint)
{
    char a[S3_BUCKET_BYTES], b[S3_BUCKET_BYTES], prefix[S3_KEY_BYTES];
    return store_uri_of(run->store).kind->is_objects && strcmp(run->endpoint, endpoint) == 0 &&
           s3_uri_parse(run->store, a, prefix, NULL) == 0 && s3_uri_parse(inner, b, prefix, NULL) == 0 &&
           strcmp(a, b) == 0;
}

/* The device of the path, or of its nearest existing parent. */
static bool device_of(const char *path, dev_t *device)
{
    char above[PATH_MAX];
    struct stat status;
    if (snprintf(above, sizeof above, "%s", path) >= PATH_MAX)
        return false;
    while (stat(above, &status) < 0) {
        char *slash = strrchr(above, '/');
        if (!slash || above[1] == '\0')
            return false;
        slash[slash == above] = '\0';
    }
    *device = status.st_dev;
    return true;
}

/* Whether the path lies on the file system mounted at `mount`. */
static bool on_mount(const char *path, const char *mount)
{
    size_t len = strlen(mount);
    struct stat status;
    dev_t device;
    bool below = mount[0] == '/' && (len == 1 || (strncmp(path, mount, len) == 0 && (path[len] == '/' || !path[len])));
    return below && stat(mount, &status) == 0 && device_of(path, &device) && status.st_dev == device;
}

static bool same_store(const struct rate_run *run, const struct throughput_query *query)
{
    const char *store = experiment_text(query->experiment, OPT_STORE);
    struct store_uri uri = store_uri_of(store), of_run = store_uri_of(run->store);
    if (strcmp(run->store, store) == 0 && (uri.has_faults || !uri.kind->is_objects))
        return true;
    if (of_run.has_faults) /* runs with injected faults do not predict a healthy store */
        return false;
    if (uri.kind->is_objects)
        return same_bucket(run, uri.inner, experiment_text(query->experiment, OPT_S3_ENDPOINT));
    return strcmp(run->store, uri.inner) == 0 ||
           (uri.inner[0] == '/' && run->store[0] == '/' && on_mount(uri.inner, run->mount));
}

/* ---- the choice ---- */

/* Whether its ranks wrote so much less that its throughput may differ. */
static bool is_small(const struct rate_run *run, const struct throughput_query *query)
{
    return run->bytes_a_rank * RATES_SMALL < query->bytes_a_rank;
}

static uint32_t ranks_on_a_node(uint32_t ranks, uint32_t nodes)
{
    return nodes ? ranks / nodes : ranks;
}

/* How similar the run is to the requested one: each matching property sets a bit, the more important ones higher
 * bits. */
static unsigned likeness(const struct rate_run *run, const struct throughput_query *query)
{
    bool is_async = experiment_bool(query->experiment, OPT_SAVE_ASYNC);
    bool same_model = strcmp(run->model, experiment_text(query->experiment, OPT_MODEL)) == 0 &&
                      ranks_on_a_node(run->ranks, run->nodes) == ranks_on_a_node(query->ranks, query->nodes);
    return (unsigned)(run->is_async == is_async) << 3 | (unsigned)!is_small(run, query) << 2 |
           (unsigned)(strcmp(run->hash, query->hash) == 0) << 1 | (unsigned)same_model;
}

/* Distance in bytes per rank and in ranks, in powers of two. */
static double distance(const struct rate_run *run, const struct throughput_query *query)
{
    return fabs(log2(run->bytes_a_rank / query->bytes_a_rank)) + fabs(log2((double)run->ranks / query->ranks));
}

const struct rate_run *throughput_history_choose(const struct throughput_history *self,
                                                 const struct throughput_query *query)
{
    const struct rate_run *best = NULL;
    bool is_async = experiment_bool(query->experiment, OPT_SAVE_ASYNC);
    for (size_t i = 0; i < self->count; i++) {
        const struct rate_run *run = &self->runs[i];
        if (strcmp(run->engine, experiment_text(query->experiment, OPT_ENGINE)) != 0 || (is_async && !run->is_async) ||
            !same_store(run, query))
            continue;
        unsigned like = likeness(run, query), best_like = best ? likeness(best, query) : 0;
        double closer = best ? distance(best, query) - distance(run, query) : 0;
        if (!best || like > best_like ||
            (like == best_like && (fabs(closer) > 1e-9 ? closer > 0 : run->started_wall_ns > best->started_wall_ns)))
            best = run;
    }
    return best;
}

/* ---- rates ---- */

/* "run ID (gpt2 on 4 ranks, 118 MiB a rank, /scratch/ckpt, 2026-11-21)". */
static void name_run(const struct rate_run *run, struct rates *rates)
{
    char bytes[32], store[256], date[16];
    struct tm day;
    time_t seconds = (time_t)(run->started_wall_ns / NS_PER_S);
    if (!gmtime_r(&seconds, &day) || strftime(date, sizeof date, "%Y-%m-%d", &day) == 0)
        date[0] = '\0';
    snprintf(rates->from, sizeof rates->from, "run %s (%.80s on %" PRIu32 " rank%s, %s a rank, %.240s, %s)%s", run->run,
             run->model, run->ranks, units_plural(run->ranks), units_format_bytes(run->bytes_a_rank, bytes),
             store_location_shorten(run->store, store, sizeof store), date,
             rates->small ? ", much smaller than this: with more bytes a rank it may be another" : "");
}

static void measured_rates(const struct experiment *experiment, const struct workload *workload,
                           const struct throughput_history *book, struct rates *rates)
{
    struct throughput_query query = {.ranks = workload->layouts.ranks,
                                     .nodes = (uint32_t)experiment_u64(experiment, OPT_NODES),
                                     .bytes_a_rank = (double)workload->plan->payload_bytes / workload->layouts.ranks};
    struct cb_err ignored; /* verbs that use the store report errors in it */
    const struct rate_run *run = NULL;
    if (experiment_copy(experiment, &query.experiment, &ignored) == 0 &&
        store_location_freeze(query.experiment, &ignored) == 0 &&
        run_plan_freeze_world(query.experiment, workload, &ignored) == 0) {
        experiment_hash(query.experiment, query.hash);
        run = throughput_history_choose(book, &query);
    }
    if (run) {
        rates->save = run->save;
        rates->load = isfinite(run->load) ? run->load : run->save;
        if (run->is_async && isfinite(run->wait))
            rates->stage = run->wait;
        rates->assumed = false;
        rates->small = is_small(run, &query);
        name_run(run, rates);
    }
    throughput_query_release(&query);
}

void forecast_choose_rates(const struct experiment *experiment, const struct workload *workload,
                           const struct throughput_history *book, struct rates *rates)
{
    uint64_t rank = experiment_u64(experiment, OPT_RATE_RANK), store = experiment_u64(experiment, OPT_RATE_STORE);
    *rates = (struct rates){.save = DEFAULT_RATE,
                            .load = DEFAULT_RATE,
                            .stage = DEFAULT_STAGE_RATE,
                            .store = store ? (double)store : INFINITY};
    snprintf(rates->from, sizeof rates->from, "assumed: no run on this store yet");
    rates->assumed = true;
    if (rank) {
        rates->save = rates->load = (double)rank;
        rates->assumed = false;
        snprintf(rates->from, sizeof rates->from, "given");
    } else {
        measured_rates(experiment, workload, book, rates);
    }
}

void forecast_sum_states(const struct layout *layout, uint64_t *largest_bytes, uint64_t *all_bytes)
{
    uint64_t largest = 0, all = 0;
    struct layout_sizes sizes;
    layout_sizes_init(&sizes, layout);
    for (uint32_t rank = 0; rank < layout_world_size(layout); rank++) {
        uint64_t bytes = layout_sizes_of(&sizes, rank);
        all += bytes;
        largest = bytes > largest ? bytes : largest;
    }
    layout_sizes_release(&sizes);
    *largest_bytes = largest;
    *all_bytes = all;
}

void forecast_predict(const struct experiment *experiment, const struct plan *plan, const struct rates *rates,
                      uint64_t largest_state_bytes, uint64_t all_state_bytes, uint64_t metadata_bytes,
                      struct prediction *predicted)
{
    double save_rank_s = (double)plan->rank_bytes_max / rates->save;
    double save_store_s = (double)plan->payload_bytes / rates->store;
    double load_rank_s = (double)largest_state_bytes / rates->load;
    double load_store_s = (double)all_state_bytes / rates->store;
    predicted->store_binds_save = save_store_s > save_rank_s;
    predicted->store_binds_load = load_store_s > load_rank_s;
    predicted->save_s = fmax(save_rank_s, save_store_s) + (double)metadata_bytes / rates->save;
    predicted->load_s = fmax(load_rank_s, load_store_s) + (double)metadata_bytes / rates->load;
    predicted->mtbf_s = (double)experiment_u64(experiment, OPT_MTBF) / 1e9;
    bool async = experiment_bool(experiment, OPT_SAVE_ASYNC);
    predicted->stall_s =
        async ? fmin((double)plan->rank_bytes_max / rates->stage, predicted->save_s) : predicted->save_s;
    predicted->goodput = stats_best_goodput(predicted->stall_s, predicted->save_s - predicted->stall_s,
                                            predicted->load_s, predicted->mtbf_s, &predicted->interval_s);
}

int forecast_margin(const struct rates *rates)
{
    return rates->assumed ? BLIND_MARGIN : rates->small ? SMALL_MARGIN : MARGIN;
}

int forecast_run_ns(const struct experiment *experiment, const struct throughput_history *book, uint64_t *duration_ns,
                    struct cb_err *err)
{
    const struct workload_kind *kind = workload_kind_of(experiment);
    const double most_s = 365.0 * 24 * 3600, at_least_s = (double)experiment_u64(experiment, OPT_DURATION) / 1e9;
    struct workload workload;
    struct rates rates;
    struct prediction predicted;
    uint64_t largest, all, metadata, limit_ns = experiment_u64(experiment, OPT_TIMEOUT_RUN);
    if (limit_ns) { /* the agent ends the run at its limit */
        *duration_ns = limit_ns + START_NS;
        return 0;
    }
    if (!kind->has_ranks) {
        *duration_ns = experiment_u64(experiment, OPT_WAIT_FOR) + WAIT_MARGIN_NS;
        return 0;
    }
    int rc = workload_init(&workload, experiment, err);
    if (rc)
        return rc;
    double iterations = (double)(experiment_u64(experiment, OPT_ITERATIONS) + experiment_u64(experiment, OPT_WARMUP));
    if (kind->trains) { /* the duration of a step is unknown: the run measures it */
        rc = cb_fail(err, CB_ERR_USAGE,
                     "workload=train: how long it takes cannot be told before; give slurm.time or timeout.run");
    } else if (kind->inspects_checkpoint) { /* upper limit for reading everything once */
        *duration_ns = START_NS + experiment_u64(experiment, OPT_TIMEOUT_OP);
    } else if (!workload.layout) { /* the suite's duration does not depend on a state's size */
        *duration_ns = START_NS + (uint64_t)(iterations * SUITE_ROUND_NS);
    } else if ((rc = workload_metadata_bytes(experiment, &workload, &metadata, err)) == 0) {
        forecast_sum_states(workload.layout, &largest, &all);
        forecast_choose_rates(experiment, &workload, book, &rates);
        forecast_predict(experiment, workload.plan, &rates, largest, all, metadata, &predicted);
        double once_s = predicted.save_s + 3 * predicted.load_s; /* a load, and verifying the loaded data */
        double run_s = (iterations + 1) * once_s;                /* one more iteration for the baseline */
        run_s = (run_s > at_least_s ? run_s : at_least_s + once_s) * forecast_margin(&rates);
        *duration_ns = START_NS + (uint64_t)((run_s < most_s ? run_s : most_s) * 1e9);
    }
    workload_release(&workload);
    return rc;
}
