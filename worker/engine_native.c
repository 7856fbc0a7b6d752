/* The native engine: open, close, and what saves and loads share (options, agreement, names, sample).
 *
 * Owns the engine's parts; native_save.c and native_load.c do the work. Must not know MPI or how a
 * store moves bytes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/native_pump.h"
#include "worker/native_save.h"
#include "worker/store_metrics.h"

/* After the deadline ranks still get this long to say why they are late, so that all learn the reason
 * of the one that is stuck rather than each its own time-out. */
#define AGREE_GRACE_NS (10 * UINT64_C(1000000000))

/* Payloads at multiples of a page let O_DIRECT move them without a copy; else of a cache line. */
#define ALIGNMENT_DIRECT 4096
#define ALIGNMENT_BUFFERED 64

static uint32_t payload_alignment(const struct store_capabilities *capabilities)
{
    uint32_t alignment = capabilities->offset_alignment > 1 ? ALIGNMENT_DIRECT : ALIGNMENT_BUFFERED;
    return capabilities->offset_alignment > alignment ? capabilities->offset_alignment : alignment;
}

static int read_options(struct native_engine *self, struct cb_err *err)
{
    const struct experiment *experiment = self->setup.experiment;
    self->block_bytes = experiment_u64(experiment, OPT_IO_BLOCK);
    self->durable = experiment_bool(experiment, OPT_IO_FSYNC);
    self->caches_plans = experiment_bool(experiment, OPT_SAVE_PLAN_CACHE);
    self->staging_bytes = experiment_u64(experiment, OPT_SAVE_STAGING_BYTES);
    self->inflight = (uint32_t)experiment_u64(experiment, OPT_SAVE_INFLIGHT);
    self->copies = (uint32_t)experiment_u64(experiment, OPT_COPIES);
    self->checksum = experiment_is(experiment, OPT_CHECKSUM, "crc32");
    self->folder = experiment_is(experiment, OPT_FOLDER, "per_iteration") ? FOLDER_PER_ITERATION : FOLDER_REPLACE;
    const struct store_capabilities *capabilities = store_capabilities(self->setup.store);
    int rc = plan_options_read(experiment, payload_alignment(capabilities), &self->plan_options, err);
    if (!rc && self->plan_options.files == FILES_SHARED && capabilities->part_bytes > 0)
        rc = cb_fail(err, CB_ERR_USAGE, "io.files=shared: an object in S3 is written by one rank; use io.files=rank");
    return rc;
}

static void native_close(struct engine *engine)
{
    struct native_engine *self = (struct native_engine *)engine;
    native_behind_free(self);
    native_save_free(self->save);
    native_load_free(self->load);
    native_pump_free(self->pump);
    transfer_free(self->back.transfer);
    transfer_free(self->transfer);
    free(self);
}

static int open_lane(const struct native_engine *self, struct native_lane *lane, struct cb_err *err)
{
    struct transfer_setup transfer = {
        .store = lane->store,
        .comm = lane->comm,
        .page = self->setup.page,
        .behind = lane->behind,
        .depth = (uint32_t)experiment_u64(self->setup.experiment, OPT_IO_DEPTH),
    };
    return transfer_new(&transfer, &lane->transfer, err);
}

static int native_open(const struct engine_setup *setup, struct engine **engine, struct cb_err *err)
{
    struct native_engine *self = calloc(1, sizeof *self);
    if (!self)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for the engine");
    self->base.ops = &engine_native_ops;
    self->setup = *setup;
    self->rank = comm_rank(setup->comm);
    self->size = comm_size(setup->comm);
    self->front = (struct native_lane){.store = setup->store, .comm = setup->comm};
    self->back = (struct native_lane){.store = setup->behind_store, .comm = setup->behind_comm, .behind = true};
    int rc = read_options(self, err);
    if (!rc)
        rc = open_lane(self, &self->front, err);
    if (!rc && self->back.store)
        rc = open_lane(self, &self->back, err);
    self->transfer = self->front.transfer;
    if (rc) {
        native_close(&self->base);
        return rc;
    }
    *engine = &self->base;
    return 0;
}

void native_begin(struct native_operation *operation, enum rank_state state)
{
    struct status_page *page = operation->engine->setup.page;
    atomic_store_explicit(&page->bytes_done, 0, memory_order_relaxed);
    atomic_store_explicit(&page->bytes_total, 0, memory_order_relaxed);
    atomic_store_explicit(&page->iteration, operation->options->iteration, memory_order_relaxed);
    if (!operation->options->async) /* else its thread does, when it begins */
        store_metrics_begin(operation->lane->store);
    getrusage(operation->usage_of, &operation->usage);
    timeline_start(&operation->timeline, page, (enum operation)operation->sample->op, state);
    if (atomic_load_explicit(&page->first_operation_ns, memory_order_relaxed) == 0)
        atomic_store_explicit(&page->first_operation_ns, operation->timeline.start_ns, memory_order_relaxed);
}

static double seconds_between(const struct timeval *from, const struct timeval *to)
{
    return (double)(to->tv_sec - from->tv_sec) + (double)(to->tv_usec - from->tv_usec) / 1e6;
}

double native_cpu_seconds(const struct native_operation *operation)
{
    struct rusage now;
    getrusage(operation->usage_of, &now);
    return seconds_between(&operation->usage.ru_utime, &now.ru_utime) +
           seconds_between(&operation->usage.ru_stime, &now.ru_stime);
}

void native_end(struct native_operation *operation)
{
    timeline_stop(&operation->timeline);
    native_fill(operation);
}

void native_fill(struct native_operation *operation)
{
    struct sample *sample = operation->sample;
    struct rusage now;
    timeline_fill(&operation->timeline, sample);
    getrusage(RUSAGE_SELF, &now);
    sample->values[METRIC_CPU_S] = operation->cpu_s + native_cpu_seconds(operation);
    sample->values[METRIC_RSS_BYTES] = (double)now.ru_maxrss * 1024;
    sample->values[METRIC_BYTES_NEEDED] = (double)operation->bytes_needed;
    sample->values[METRIC_BYTES_MOVED] = (double)operation->counts.bytes;
    sample->values[METRIC_BYTES_COPIED] = (double)operation->bytes_copied;
    sample->values[METRIC_REQUESTS] = (double)operation->counts.requests;
    sample->values[METRIC_ERRORS] = (double)operation->counts.errors;
    sample->values[METRIC_RETRIES] = 0;
    if (!transfer_is_stuck(operation->lane->transfer))
        store_metrics_fill(operation->lane->store, sample, operation->engine->setup.page);
}

int native_agree(struct native_operation *operation, int code, uint64_t number, struct agreement *agreement,
                 struct cb_err *err)
{
    struct comm *comm = operation->lane->comm;
    uint64_t deadline_ns = operation->options->deadline_ns;
    struct cb_err own_failure;
    deadline_ns = deadline_ns < UINT64_MAX - AGREE_GRACE_NS ? deadline_ns + AGREE_GRACE_NS : UINT64_MAX;
    int rc = comm_agree(comm, code, number, deadline_ns, agreement, code ? &own_failure : err);
    if (code)
        return code;
    if (!rc && agreement->code)
        rc =
            cb_fail(err, CB_ERR_ABORTED, "rank %" PRIu32 " failed (%s)%s: nothing of %s counts", agreement->failed_rank,
                    cb_code_name(agreement->code), agreement->failed_count > 1 ? " and others" : "", operation->path);
    return rc;
}

int native_name(const char *path, const char *name, char text[PATH_MAX], struct cb_err *err)
{
    int len = snprintf(text, PATH_MAX, "%s/%s", path, name);
    return len < PATH_MAX ? 0 : cb_fail(err, CB_ERR_USAGE, "the name %s/%s is too long", path, name);
}

int native_copy_name(const char *path, uint32_t copy, const char *name, char text[PATH_MAX], struct cb_err *err)
{
    if (copy == 0)
        return native_name(path, name, text, err);
    int len = snprintf(text, PATH_MAX, "%s/copy-%" PRIu32 "/%s", path, copy, name);
    return len < PATH_MAX ? 0
                          : cb_fail(err, CB_ERR_USAGE, "the name %s/copy-%" PRIu32 "/%s is too long", path, copy, name);
}

static int run_operation(struct engine *engine, const char *path, struct state *state,
                         const struct engine_options *options, struct sample *sample,
                         int (*work)(struct native_operation *operation, struct cb_err *err), struct cb_err *err)
{
    struct native_operation operation = {
        .engine = (struct native_engine *)engine,
        .lane = &((struct native_engine *)engine)->front,
        .path = path,
        .state = state,
        .layout = state->layout,
        .usage_of = RUSAGE_SELF,
        .options = options,
        .sample = sample,
    };
    struct cb_err local;
    return work(&operation, err ? err : &local);
}

static int native_save(struct engine *engine, const char *path, struct state *state,
                       const struct engine_options *options, struct sample *sample, struct cb_err *err)
{
    return run_operation(engine, path, state, options, sample, native_save_run, err);
}

static int native_load(struct engine *engine, const char *path, struct state *state,
                       const struct engine_options *options, struct sample *sample, struct cb_err *err)
{
    return run_operation(engine, path, state, options, sample, native_load_run, err);
}

static int native_wait(struct engine *engine, uint64_t deadline_ns, struct cb_err *err)
{
    return native_behind_wait((struct native_engine *)engine, 0, deadline_ns, err);
}

static uint32_t native_under_way(struct engine *engine)
{
    return native_behind_under_way((struct native_engine *)engine);
}

static bool native_stop(struct engine *engine)
{
    return native_behind_stop((struct native_engine *)engine);
}

const struct engine_ops engine_native_ops = {
    .name = "native",
    .open = native_open,
    .save = native_save,
    .load = native_load,
    .wait = native_wait,
    .under_way = native_under_way,
    .stop = native_stop,
    .close = native_close,
};
