/* The native engine: open, close, options.
 *
 * Owns the engine's parts; native_save.c and native_load.c do the work. Must not know MPI or how a
 * store moves bytes. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "engine/save/bounce_ring.h"
#include "engine/save/native_save.h"
#include "engine/store_metrics.h"

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
    async_save_free(self);
    native_save_free(self->save);
    native_load_free(self->load);
    bounce_ring_free(self->ring);
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
        .async = lane->async,
        .depth = (uint32_t)experiment_u64(self->setup.experiment, OPT_IO_DEPTH),
    };
    return transfer_new(&transfer, &lane->transfer, err);
}

static int native_open(const struct engine_setup *setup, struct engine **engine, struct cb_err *err)
{
    struct native_engine *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for the engine");
    self->base.ops = &engine_native_ops;
    self->setup = *setup;
    self->rank = comm_rank(setup->comm);
    self->size = comm_size(setup->comm);
    self->front = (struct native_lane){.store = setup->store, .comm = setup->comm};
    self->back = (struct native_lane){.store = setup->async_store, .comm = setup->async_comm, .async = true};
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
    return async_save_wait((struct native_engine *)engine, 0, deadline_ns, err);
}

static uint32_t native_under_way(struct engine *engine)
{
    return async_save_under_way((struct native_engine *)engine);
}

static bool native_stop(struct engine *engine)
{
    return async_save_stop((struct native_engine *)engine);
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
