/* Reads the throughput of earlier runs from the history and chooses the closest one. */
#include "cli/plan/throughput_history.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/plan/run_plan.h"
#include "cli/plan/store_location.h"
#include "core/alloc.h"
#include "db/history.h"
#include "store/kind.h"
#include "store/s3/s3_uri.h"

/* ---- the book ---- */

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
    run->behind = cell_count(&cells[CELL_ASYNC]) > 0;
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

/* ---- the wish ---- */

int throughput_query_init(struct throughput_query *self, const struct experiment *experiment,
                          const struct workload *workload, struct cb_err *err)
{
    *self = (struct throughput_query){.ranks = workload->layouts.ranks,
                                      .nodes = (uint32_t)experiment_u64(experiment, OPT_NODES),
                                      .bytes_a_rank = (double)workload->plan->payload_bytes / workload->layouts.ranks};
    int rc = experiment_copy(experiment, &self->experiment, err);
    if (rc == 0)
        rc = store_location_freeze(self->experiment, err);
    if (rc == 0)
        rc = run_plan_freeze_world(self->experiment, workload, err);
    if (rc == 0)
        experiment_hash(self->experiment, self->hash);
    return rc;
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

static bool same_store(const struct rate_run *run, const struct throughput_query *wish)
{
    const char *store = experiment_text(wish->experiment, OPT_STORE);
    struct store_uri uri = store_uri_of(store), of_run = store_uri_of(run->store);
    if (strcmp(run->store, store) == 0 && (uri.has_faults || !uri.kind->is_objects))
        return true;
    if (of_run.has_faults) /* runs with faults say nothing about a healthy store */
        return false;
    if (uri.kind->is_objects)
        return same_bucket(run, uri.inner, experiment_text(wish->experiment, OPT_S3_ENDPOINT));
    return strcmp(run->store, uri.inner) == 0 ||
           (uri.inner[0] == '/' && run->store[0] == '/' && on_mount(uri.inner, run->mount));
}

/* ---- the choice ---- */

bool rate_run_is_small(const struct rate_run *run, const struct throughput_query *wish)
{
    return run->bytes_a_rank * RATES_SMALL < wish->bytes_a_rank;
}

static bool tells(const struct rate_run *run, const struct throughput_query *wish)
{
    bool behind = experiment_bool(wish->experiment, OPT_SAVE_ASYNC);
    return strcmp(run->engine, experiment_text(wish->experiment, OPT_ENGINE)) == 0 && (run->behind || !behind) &&
           same_store(run, wish);
}

static uint32_t ranks_on_a_node(uint32_t ranks, uint32_t nodes)
{
    return nodes ? ranks / nodes : ranks;
}

/* How similar the run is to the wish: each matching property sets a bit, the more important ones higher bits. */
static unsigned likeness(const struct rate_run *run, const struct throughput_query *wish)
{
    bool behind = experiment_bool(wish->experiment, OPT_SAVE_ASYNC);
    bool same_model = strcmp(run->model, experiment_text(wish->experiment, OPT_MODEL)) == 0 &&
                      ranks_on_a_node(run->ranks, run->nodes) == ranks_on_a_node(wish->ranks, wish->nodes);
    return (unsigned)(run->behind == behind) << 3 | (unsigned)!rate_run_is_small(run, wish) << 2 |
           (unsigned)(strcmp(run->hash, wish->hash) == 0) << 1 | (unsigned)same_model;
}

/* In powers of two. */
static double distance(const struct rate_run *run, const struct throughput_query *wish)
{
    return fabs(log2(run->bytes_a_rank / wish->bytes_a_rank)) + fabs(log2((double)run->ranks / wish->ranks));
}

static bool tells_more(const struct rate_run *a, const struct rate_run *b, const struct throughput_query *wish)
{
    unsigned like_a = likeness(a, wish), like_b = likeness(b, wish);
    double far_a = distance(a, wish), far_b = distance(b, wish);
    if (like_a != like_b)
        return like_a > like_b;
    return fabs(far_a - far_b) > 1e-9 ? far_a < far_b : a->started_wall_ns > b->started_wall_ns;
}

const struct rate_run *throughput_history_choose(const struct throughput_history *self,
                                                 const struct throughput_query *wish)
{
    const struct rate_run *best = NULL;
    for (size_t i = 0; i < self->count; i++)
        if (tells(&self->runs[i], wish) && (!best || tells_more(&self->runs[i], best, wish)))
            best = &self->runs[i];
    return best;
}
