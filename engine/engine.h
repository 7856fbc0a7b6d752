/* The engine: save(path, state, options) and load(path, state, options).
 *
 * The state is a model and an optimizer, distributed over the ranks. Both calls are collective. There are three engines:
 * native, torch-dcp, torch-native and command. While bytes move, nothing of ours allocates, logs or locks.
 *
 * An asynchronous save continues on its own thread with its own store and communicator, in parallel with loads and with
 * the caller's work. */
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

/* The pieces of one rank that are checkpointed, and their memory. */
struct state {
    const struct layout *layout;
    struct piece *pieces; /* of `holder`: comm_rank + shift for shifted loads */
    void **memory;        /* one address a piece, page-aligned */
    size_t piece_count;
    uint64_t bytes; /* of all pieces */
    uint32_t holder;
    void *base;            /* all of the memory, page-aligned; pieces lie in it in order */
    uint64_t base_bytes;   /* with each piece rounded up to whole pages */
    uint64_t mapped_bytes; /* size of the mapping, at least base_bytes */
    bool borrowed;         /* the memory belongs to another state */
    struct device *device; /* the device whose memory it is; NULL: host memory */
    uint32_t skipped;      /* bytes of the device's memory before `base` */
    int shared_fd;         /* the memory file, if another process maps it; else -1 */
};

struct engine;

#define ENGINE_WASTE_AUTO UINT64_MAX /* chosen for the kind of store */

/* The options of an engine. Texts are borrowed and must outlive it. */
struct engine_config {
    const char *engine; /* native, torch-dcp, torch-native or command */
    const char *store;  /* the URI as given */
    bool fsync;
    /* native */
    uint64_t block_bytes, staging_bytes; /* staging_bytes 0: as much as the state needs */
    uint32_t depth, inflight, copies;
    bool checksum, caches_plans;
    bool replaces;             /* saves go to a folder that may hold an older checkpoint */
    struct plan_options plan;  /* without its alignment, which depends on the store */
    const char *load_exchange; /* off, broadcast, split or auto */
    uint64_t load_gap_bytes;
    uint64_t load_waste_percent; /* or ENGINE_WASTE_AUTO */
    /* torch-dcp, torch-native */
    const char *format, *dedup, *torch_async;
    uint32_t threads;
    uint64_t timeout_ns; /* of an operation */
    const char *s3_endpoint, *s3_region, *s3_profile, *s3_path_style;
    uint64_t s3_part_bytes;
    const char *library_words; /* torch-native: lines "key=value" for libckptbench */
    /* command */
    const char *command;
};

struct engine_setup {
    struct engine_config config;
    const struct layout *layout;
    struct comm *comm;
    struct status_page *page;
    struct store *store;    /* NULL for engines that do their own I/O */
    const char *store_path; /* for such engines: a path, or s3://… */
    struct store *plain;    /* the same place without injected faults, for metadata and removal */
    const char *run_folder;
    /* Fails if the run no longer owns the folder of its checkpoints. Rank 0 calls it before removing an older
     * checkpoint, and before and after writing the metadata of a new one, on the thread that saves. NULL: no other run
     * can own the folder. */
    int (*check_owner)(void *folder, struct cb_err *err);
    /* For callers that own no folder yet: rank 0 calls `enter` on the thread that saves, before it changes the folder of
     * checkpoint `path`, and `leave` when a save that has entered has ended. NULL: nothing to do. */
    int (*enter)(void *folder, const char *path, struct cb_err *err);
    void (*leave)(void *folder);
    void *folder;
    /* For the thread of asynchronous saves only; NULL without asynchronous saves. */
    struct comm *async_comm;
    struct store *async_store;
    /* Allocates staging memory and copies to it. Required for asynchronous saves and for states in device memory. Used by
     * the caller's thread only. */
    struct device *device;
    /* For exchanges from device to device; NULL: ranks exchange through host memory. */
    const struct device_comm_ops *device_comm;
    /* Receives each value of a load that is not a tensor, as stored, on every rank. The content is not parsed then, so it
     * may be anything; of a torch.save the checksum is verified. A failure ends the load. NULL: rank 0 checks values, and
     * no rank keeps them. */
    int (*keep_value)(void *context, const char *fqn, const void *bytes, size_t len, struct cb_err *err);
    void *values;
};
int engine_new(const struct engine_setup *setup, struct engine **engine, struct cb_err *err) CB_MUST_CHECK;
/* Aborts the saves in flight, for a run that failed; a run that did not fail calls engine_wait. Returns false if a save
 * hangs in the store: then neither the engine nor what was passed to it may be freed. Not collective. */
bool engine_stop(struct engine *engine) CB_MUST_CHECK;
void engine_free(struct engine *engine); /* no save may be in flight */

struct engine_options {
    uint32_t iteration;
    uint64_t deadline_ns; /* monotonic */
    bool async;           /* of a save */
    /* Of a save: not 0, and the number of an earlier save, if the state's layout is the one of that save and nothing in it
     * has changed but the content of values. Then the plan's key is known without computing it. */
    uint64_t layout_number;
};

/* Saves `state` as checkpoint `path` of the store, and fills the values of the sample that the engine knows (state
 * times, bytes, requests, …). Returns when the checkpoint is committed by all ranks, or with the reason of the first
 * failing rank.
 *
 * With options->async it returns after the stall, when the state may change again. `path` and `options` are copied;
 * `sample` and state->layout must stay valid until engine_under_way reports that the save has ended. It first waits
 * until fewer than save.inflight saves are in flight. If an earlier save failed, it returns that failure, once, and
 * saves nothing; the sample of the failed save has SAMPLE_FAILED. */
int engine_save(struct engine *engine, const char *path, struct state *state, const struct engine_options *options,
                struct sample *sample, struct cb_err *err) CB_MUST_CHECK;
/* Waits until all asynchronous saves have ended, in the order in which they began, and returns a failure that was not
 * returned yet. If a save failed, every rank reports it, with its own reason or that of another rank. */
int engine_wait(struct engine *engine, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
/* How many of the newest saves have not ended; the samples of the others are complete. Not collective. */
uint32_t engine_under_way(struct engine *engine);
/* Loads checkpoint `path` into `state`, fills the sample as engine_save does, and returns when all ranks have loaded,
 * or with the reason of the first failing rank. Adds a line to the status page for every missing, short or corrupt
 * item. */
int engine_load(struct engine *engine, const char *path, struct state *state, const struct engine_options *options,
                struct sample *sample, struct cb_err *err) CB_MUST_CHECK;

#endif
