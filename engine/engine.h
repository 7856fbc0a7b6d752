/* The engine: save(path, state, options) and load(path, state, options).
 *
 * State names a model and an optimizer, laid out over the ranks; ranks, mesh, plan and files stay
 * behind the two calls. Both are collective. Three engines: native, torch-dcp and command, chosen when
 * the engine is made. Nothing of ours allocates, logs or locks between the first and the last byte of
 * the data path.
 *
 * An asynchronous save continues on a thread of the engine's own, with a store and a communicator of its own, so that
 * loads and whatever else the caller does run beside it. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/layout/layout.h"
#include "ckpt/payload.h"
#include "ckpt/plan.h"
#include "comm/comm.h"
#include "core/err.h"
#include "engine/device.h"
#include "engine/device_comm.h"
#include "run/status_page.h"
#include "store/store.h"

/* What is checkpointed: the pieces of one rank and the memory that holds them. */
struct state {
    const struct layout *layout;
    struct piece *pieces; /* of `holder`: comm_rank + shift for shifted loads */
    void **memory;        /* one address a piece, page-aligned */
    size_t piece_count;
    uint64_t bytes; /* of all pieces */
    uint32_t holder;
    void *base;            /* all of the memory, page-aligned; pieces lie in it in order */
    uint64_t base_bytes;   /* with the rounding of each piece to whole pages */
    uint64_t mapped_bytes; /* of the mapping at base, which may be larger than base_bytes */
    bool borrowed;         /* the memory is another state's */
    struct device *device; /* whose memory it is (only copies reach it); NULL: this machine's */
    int shared_fd;         /* the memory file behind it, for engines in another process; else -1 */
};

struct engine;

#define ENGINE_WASTE_AUTO UINT64_MAX /* as fits the store */

/* What an experiment says of its engine. Texts are borrowed, and outlive the engine. */
struct engine_config {
    const char *engine; /* native, torch-dcp or command */
    const char *store;  /* the URI as given */
    bool fsync;
    /* native */
    uint64_t block_bytes, staging_bytes; /* 0 staging: as much as is needed */
    uint32_t depth, inflight, copies;
    bool checksum, caches_plans;
    bool replaces;             /* saves go to a folder that may hold an older checkpoint */
    struct plan_options plan;  /* but its alignment, which is the store's */
    const char *load_exchange; /* off, broadcast, split or auto */
    uint64_t load_gap_bytes;
    uint64_t load_waste_percent; /* or ENGINE_WASTE_AUTO */
    /* torch-dcp */
    const char *format, *dedup, *torch_async;
    uint32_t threads;
    uint64_t timeout_ns; /* of an operation */
    const char *s3_endpoint, *s3_region, *s3_profile, *s3_path_style;
    uint64_t s3_part_bytes;
    /* command */
    const char *command;
};

struct engine_setup {
    struct engine_config config;
    const struct layout *layout;
    struct comm *comm;
    struct status_page *page;
    struct store *store;    /* NULL for engines that do their own I/O */
    const char *store_path; /* for those: a path, or s3://… */
    struct store *plain;    /* the same place for small things, without faults */
    const char *run_folder;
    /* For asynchronous saves, used by their thread alone; NULL where there are none. */
    struct comm *async_comm;
    struct store *async_store;
    /* Copies the state to staging memory, and allocates that: where there are such saves, or states in
     * memory of that device. For the caller's thread alone. */
    struct device *device;
    /* How ranks talk from device to device; NULL where they do through this machine's memory. */
    const struct device_comm_ops *device_comm;
};
int engine_new(const struct engine_setup *setup, struct engine **engine, struct cb_err *err) CB_MUST_CHECK;
/* Ends saves that are under way, whatever comes of them. False where one is stuck in the store: then
 * neither the engine nor anything it was given may be freed. For runs that failed; engine_wait is for
 * those that did not. Not collective. */
bool engine_stop(struct engine *engine) CB_MUST_CHECK;
void engine_free(struct engine *engine); /* no save is under way */

struct engine_options {
    uint32_t iteration;
    uint64_t deadline_ns; /* monotonic */
    bool async;           /* of a save */
};

/* Saves `state` as checkpoint `path` of the store, and fills the values of the sample that the engine knows (state
 * times, bytes, requests, …). Returns when the checkpoint is committed by all ranks, or with the reason of the first
 * failing rank.
 *
 * With options->async it returns after the stall, when the state may change again. `path` and `options` are copied;
 * `sample` and state->layout stay the save's until engine_under_way says that it has ended. It waits until fewer than
 * save.inflight saves are under way. When an earlier one has failed, it returns that failure and saves nothing; the
 * sample of the one that failed has SAMPLE_FAILED. A failure is returned once. */
int engine_save(struct engine *engine, const char *path, struct state *state, const struct engine_options *options,
                struct sample *sample, struct cb_err *err) CB_MUST_CHECK;
/* Waits until all asynchronous saves have ended, which they do in the order in which they began, and returns a failure
 * that was not returned yet. Every rank learns of the same saves' failures, each with its own or another's reason. */
int engine_wait(struct engine *engine, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
/* How many of the newest saves have not ended; the samples of the others are complete. Not collective. */
uint32_t engine_under_way(struct engine *engine);
/* Loads checkpoint `path` into `state`, fills the sample as engine_save does, and returns when all ranks have loaded,
 * or with the reason of the first failing rank. Adds a line to the status page for every missing, short or corrupt
 * item. */
int engine_load(struct engine *engine, const char *path, struct state *state, const struct engine_options *options,
                struct sample *sample, struct cb_err *err) CB_MUST_CHECK;

#endif
