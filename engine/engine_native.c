/* The native engine: opens and closes it, and dispatches to synchronous or asynchronous saves. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "engine/save/bounce_ring.h"
#include "engine/save/native_save.h"
#include "engine/store_metrics.h"

/* O_DIRECT transfers payloads at multiples of a page without a copy; otherwise a cache line is enough. */
#define ALIGNMENT_DIRECT 4096
#define ALIGNMENT_BUFFERED 64

static uint32_t payload_alignment(const struct store_capabilities *capabilities)
{
    uint32_t alignment = capabilities->offset_alignment > 1 ? ALIGNMENT_DIRECT : ALIGNMENT_BUFFERED;
    return capabilities->offset_alignment > alignment ? capabilities->offset_alignment : alignment;
}

/* Alignment of payloads that suits the store. */
static int fit_store(struct native_engine *self, struct cb_err *err)
{
    const struct store_capabilities *capabilities = store_capabilities(self->setup.store);
    self->setup.config.plan.payload_alignment = payload_alignment(capabilities);
    if (self->setup.config.plan.files == FILES_SHARED && capabilities->part_bytes > 0)
        return cb_fail(err, CB_ERR_USAGE, "io.files=shared: an object in S3 is written by one rank; use io.files=rank");
    return 0;
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
        .depth = self->setup.config.depth,
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
    int rc = fit_store(self, err);
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

/* Nothing to wait for: all asynchronous saves have ended. */
static int idle(struct native_engine *engine, struct cb_err *err)
{
    (void)engine, (void)err;
    return 0;
}

static int save_run(struct native_operation *operation, struct cb_err *err)
{
    struct native_engine *engine = operation->engine;
    struct agreement agreement;
    int rc = native_save_make(engine, err);
    if (!rc && operation->options->async)
        rc = async_save_make(engine, err);
    rc = native_agree(operation, rc, 0, &agreement, err);
    if (!rc && operation->options->async)
        return async_save_run(operation, err);
    if (!rc && engine->async_save)
        rc = async_save_wait(engine, 0, operation->options->deadline_ns, err);
    if (rc)
        return cb_context(err, "saving %s, rank %" PRIu32, operation->path, engine->rank);
    native_begin(operation, STATE_PLAN);
    rc = native_persist(operation, NULL, native_prepare(operation, false, idle, err), err);
    native_end(operation);
    if (rc)
        return cb_context(err, "saving %s, rank %" PRIu32, operation->path, engine->rank);
    operation->sample->values[METRIC_STALL_S] = operation->sample->values[METRIC_OP_S];
    if (engine->setup.config.copies > 1)
        operation->sample->values[METRIC_COPIES] = engine->setup.config.copies;
    if (engine->setup.config.fsync)
        operation->sample->values[METRIC_DURABLE_S] = operation->sample->values[METRIC_OP_S];
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
    return run_operation(engine, path, state, options, sample, save_run, err);
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
