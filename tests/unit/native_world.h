/* For tests of the native engine: a world of ranks as threads, each with its own store, page, engine
 * and state, that saves and loads together. */
#ifndef TESTS_NATIVE_WORLD_H
#define TESTS_NATIVE_WORLD_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include "engine/engine_ops.h"
#include "engine/state.h"
#include "setup/engine_config.h"
#include "tests/unit/layout_words.h"
#include "tests/unit/thread_comm.h"

#define WORLD_TIMEOUT_NS (20 * NS_PER_S)
#define WORLD_SAMPLES 64
#define WORLD_SAVES 16 /* samples of so many saves are kept */

struct world;

struct world_rank {
    struct world *world;
    struct comm comm, async_comm;
    struct status_page *page;
    struct store *store, *async_store;
    struct device *device;
    struct engine *engine;
    struct state state; /* filled, for saving */
    struct state loaded;
    struct sample sample;
    struct sample saves[WORLD_SAVES]; /* of iterations modulo so many, where they go on behind */
    const char *path;
    uint32_t iteration;
    uint64_t deadline_ns;
    int rc;
    struct cb_err err;
};

struct world {
    struct words words;
    struct meeting meeting, behind_meeting;
    bool async;
    struct device *(*make_device)(uint32_t rank); /* NULL: the host's */
    bool on_device;                               /* states lie in memory of make_device's devices */
    const struct device_comm_ops *device_comm;    /* how those talk; NULL: they do not */
    bool leaves_memory;                           /* loads end with messages under way, whose memory stays on purpose */
    uint32_t size, shift;
    char uri[256];
    struct payload_settings payload;
    struct world_rank ranks[THREAD_COMM_MAX_RANKS];
};

/* For worlds that are opened after it was set. */
static int (*world_check_owner)(void *folder, struct cb_err *err);

/* Of the threads that call engines, and of the one that starts them: not of those that engines make. */
static _Thread_local bool world_thread __attribute__((unused));

static inline void world_each(struct world *self, void *(*work)(void *rank))
{
    pthread_t threads[THREAD_COMM_MAX_RANKS];
    for (uint32_t i = 0; i < self->size; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &self->ranks[i]), 0);
    for (uint32_t i = 0; i < self->size; i++)
        pthread_join(threads[i], NULL);
}

static inline enum store_direct world_direct(const struct experiment *experiment)
{
    if (experiment_is(experiment, OPT_IO_DIRECT, "true"))
        return STORE_DIRECT_YES;
    return experiment_is(experiment, OPT_IO_DIRECT, "auto") ? STORE_DIRECT_AUTO : STORE_DIRECT_NO;
}

static inline int world_open_rank(struct world_rank *self, struct cb_err *err)
{
    struct world *world = self->world;
    const struct experiment *experiment = world->words.experiment;
    struct store_options options = {
        .use_io_uring = experiment_is(experiment, OPT_IO_ENGINE, "io_uring"),
        .direct = world_direct(experiment),
        .depth = (uint32_t)experiment_u64(experiment, OPT_IO_DEPTH),
        .threads = (uint32_t)experiment_u64(experiment, OPT_IO_THREADS),
        .durable = experiment_bool(experiment, OPT_IO_FSYNC),
        .rank = self->comm.rank,
    };
    int rc = store_open(world->uri, &options, &self->store, err);
    if (!rc && world->async)
        rc = store_open(world->uri, &options, &self->async_store, err);
    if (!rc && (world->async || world->on_device) && world->make_device)
        self->device = world->make_device(self->comm.rank);
    else if (!rc && world->async)
        rc = device_host_open(2, &self->device, err);
    if (rc)
        return rc;
    struct engine_setup setup = {
        .layout = world->words.layout,
        .comm = &self->comm,
        .page = self->page,
        .store = self->store,
        .store_path = world->uri,
        .async_comm = world->async ? &self->async_comm : NULL,
        .async_store = self->async_store,
        .device = self->device,
        .device_comm = world->device_comm,
        .check_owner = world_check_owner,
    };
    rc = engine_config_read(experiment, &setup.config, err);
    return rc ? rc : engine_native_ops.open(&setup, &self->engine, err);
}

static inline void world_allocate(struct world_rank *self, struct state *state)
{
    struct cb_err err;
    int rc = self->world->on_device ? state_allocate_on(state, self->device, 0, &err)
                                    : state_allocate(state, STATE_MEMORY_OWN, 0, &err);
    if (rc)
        fail_msg("%s", err.message);
}

static inline void world_open_talking(struct world *self, const char *words, const char *uri, uint32_t shift,
                                      struct device *(*make_device)(uint32_t rank), bool on_device,
                                      const struct device_comm_ops *device_comm)
{
    struct cb_err err = {0};
    memset(self, 0, sizeof *self);
    self->device_comm = device_comm;
    self->make_device = make_device;
    self->on_device = on_device;
    if (words_make(&self->words, words, &err) != 0)
        fail_msg("%s: %s", words, err.message);
    snprintf(self->uri, sizeof self->uri, "%s", uri);
    self->size = layout_world_size(self->words.layout);
    self->shift = shift;
    self->payload = (struct payload_settings){.kind = PAYLOAD_WEIGHTS, .seed = 42};
    assert_true(self->size <= THREAD_COMM_MAX_RANKS);
    meeting_init(&self->meeting, self->size);
    meeting_init(&self->behind_meeting, self->size);
    self->async = experiment_bool(self->words.experiment, OPT_SAVE_ASYNC);
    for (uint32_t i = 0; i < self->size; i++) {
        struct world_rank *rank = &self->ranks[i];
        rank->world = self;
        rank->comm = (struct comm){.meeting = &self->meeting, .rank = i};
        rank->async_comm = (struct comm){.meeting = &self->behind_meeting, .rank = i};
        rank->page = calloc(1, status_page_bytes(WORLD_SAMPLES));
        assert_non_null(rank->page);
        comm_watch(&rank->comm, status_page_check, rank->page);
        comm_watch(&rank->async_comm, status_page_check, rank->page);
        if (world_open_rank(rank, &err) != 0)
            fail_msg("%s on %s: %s", words, uri, err.message);
        assert_int_equal(state_init(&rank->state, self->words.layout, i, &err), 0);
        world_allocate(rank, &rank->state);
        assert_int_equal(state_set_values(&rank->state, &self->payload, &err), 0);
        assert_int_equal(state_init(&rank->loaded, self->words.layout, (i + shift) % self->size, &err), 0);
        world_allocate(rank, &rank->loaded);
    }
}

static inline void world_open_on(struct world *self, const char *words, const char *uri, uint32_t shift,
                                 struct device *(*make_device)(uint32_t rank), bool on_device)
{
    world_open_talking(self, words, uri, shift, make_device, on_device, NULL);
}

static inline void world_open_with(struct world *self, const char *words, const char *uri, uint32_t shift,
                                   struct device *(*make_device)(uint32_t rank))
{
    world_open_on(self, words, uri, shift, make_device, false);
}

static inline void world_open(struct world *self, const char *words, const char *uri, uint32_t shift)
{
    world_open_with(self, words, uri, shift, NULL);
}

static inline void world_close(struct world *self)
{
    for (uint32_t i = 0; i < self->size; i++) {
        struct world_rank *rank = &self->ranks[i];
        assert_true(engine_native_ops.stop(rank->engine));
        engine_native_ops.close(rank->engine);
        store_free(rank->store);
        if (rank->async_store)
            store_free(rank->async_store);
        state_release(&rank->state);
        state_release(&rank->loaded);
        device_close(rank->device);
        free(rank->page);
    }
    free(self->meeting.messages);
    words_release(&self->words);
}

static inline void *world_save_rank(void *context)
{
    world_thread = true;
    struct world_rank *self = context;
    struct engine_options options = {
        .iteration = self->iteration, .deadline_ns = self->deadline_ns, .async = self->world->async};
    struct sample *sample = &self->sample;
    if (options.async) {
        sample = &self->saves[self->iteration % WORLD_SAVES];
        *sample = self->sample;
    }
    self->rc = engine_native_ops.save(self->engine, self->path, &self->state, &options, sample, &self->err);
    return NULL;
}

static inline void *world_wait_rank(void *context)
{
    world_thread = true;
    struct world_rank *self = context;
    self->rc = engine_native_ops.wait(self->engine, self->deadline_ns, &self->err);
    return NULL;
}

static inline void *world_load_rank(void *context)
{
    world_thread = true;
    struct world_rank *self = context;
    struct engine_options options = {.iteration = self->iteration, .deadline_ns = self->deadline_ns};
#ifdef __SANITIZE_ADDRESS__
    if (self->world->leaves_memory)
        __lsan_disable(); /* of this thread, which ends with the load */
#endif
    self->rc = state_set_poison(&self->loaded, &self->err);
    if (self->rc)
        return NULL;
    self->rc = engine_native_ops.load(self->engine, self->path, &self->loaded, &options, &self->sample, &self->err);
    return NULL;
}

/* The lowest failing code; 0 where all passed. Each rank has its own in rank->rc. */
static inline int world_run(struct world *self, enum operation op, const char *path, uint64_t timeout_ns)
{
    int lowest = 0;
    for (uint32_t i = 0; i < self->size; i++) {
        struct world_rank *rank = &self->ranks[i];
        rank->sample = (struct sample){.op = op, .iteration = rank->iteration};
        for (int j = 0; j < METRIC_SAMPLE_COUNT; j++)
            rank->sample.values[j] = (double)NAN;
        rank->path = path;
        rank->deadline_ns = clock_monotonic_ns() + timeout_ns;
    }
    world_each(self, op == OP_SAVE ? world_save_rank : world_load_rank);
    for (uint32_t i = self->size; i-- > 0;) {
        self->ranks[i].iteration++;
        lowest = self->ranks[i].rc ? self->ranks[i].rc : lowest;
    }
    return lowest;
}

/* Until all saves have ended; the lowest code. */
static inline int world_wait(struct world *self)
{
    int lowest = 0;
    for (uint32_t i = 0; i < self->size; i++)
        self->ranks[i].deadline_ns = clock_monotonic_ns() + WORLD_TIMEOUT_NS;
    world_each(self, world_wait_rank);
    for (uint32_t i = self->size; i-- > 0;)
        lowest = self->ranks[i].rc ? self->ranks[i].rc : lowest;
    return lowest;
}

static inline void world_pass(struct world *self, enum operation op, const char *path)
{
    if (world_run(self, op, path, WORLD_TIMEOUT_NS) == 0)
        return;
    for (uint32_t i = 0; i < self->size; i++) {
        if (self->ranks[i].rc)
            print_message("rank %u: %s\n", i, self->ranks[i].err.message);
    }
    fail_msg("%s of %s failed", operation_name(op), path);
}

/* Every byte of every piece that was loaded is the tensor's. */
static inline void world_check_loaded(struct world *self)
{
    for (uint32_t i = 0; i < self->size; i++) {
        const struct state *state = &self->ranks[i].loaded;
        for (size_t j = 0; j < state->piece_count; j++) {
            const struct state_tensor *tensor = layout_tensor(state->layout, state->pieces[j].tensor);
            struct payload_source source = state_payload_source(tensor, &self->payload);
            uint64_t wrong;
            if (state->device) {
                struct device_values values = state_values(tensor, &state->pieces[j].region, &self->payload);
                struct device_difference difference = {0};
                assert_int_equal(state->device->ops->check(state->device, &values, state->memory[j], &difference, NULL),
                                 0);
                if (difference.wrong)
                    fail_msg("rank %u loaded %s wrong from element %llu", i, tensor->fqn,
                             (unsigned long long)difference.first);
                continue;
            }
            if (!payload_check_region(&source, tensor->shape, &state->pieces[j].region, state->memory[j], &wrong))
                fail_msg("rank %u loaded %s wrong from element %llu", i, tensor->fqn, (unsigned long long)wrong);
        }
    }
}

#endif
