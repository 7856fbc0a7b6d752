/* Internals of the native engine: its options and lanes, an operation in progress, and code shared by saves and
 * loads. */
#ifndef ENGINE_NATIVE_H
#define ENGINE_NATIVE_H

#include <limits.h>
#include <sys/resource.h>

#include "ckpt/format/format.h"
#include "core/buf.h"
#include "engine/engine_ops.h"
#include "engine/io/io_schedule.h"
#include "engine/io/transfer.h"
#include "engine/mapping.h"
#include "engine/timeline.h"

struct native_save;
struct native_load;
struct async_save;
struct bounce_ring;

/* The store, communicator and transfer of one thread. */
struct native_lane {
    struct store *store;
    struct comm *comm;
    struct transfer *transfer;
    bool async;
};

struct native_engine {
    struct engine base;
    struct engine_setup setup;
    uint32_t rank, size;
    struct transfer *transfer;     /* the front lane's */
    struct native_lane front;      /* the caller's thread */
    struct native_lane back;       /* the thread of asynchronous saves; its members are NULL without them */
    struct native_save *save;      /* NULL until the first save */
    struct async_save *async_save; /* NULL until the first asynchronous save */
    struct native_load *load;      /* NULL until the first load */
    struct bounce_ring *ring;      /* NULL until the first state on a device */
};

/* One operation in progress. */
struct native_operation {
    struct native_engine *engine;
    const struct native_lane *lane;
    const char *path;            /* of the checkpoint, relative to the store */
    struct state *state;         /* the caller may change it once an asynchronous save has staged it */
    const struct layout *layout; /* the state's */
    const struct engine_options *options;
    struct sample *sample;
    struct timeline timeline;
    struct transfer_counts counts;
    uint64_t bytes_needed, bytes_copied;
    uint64_t plan_number; /* of a save: identifies its plan; odd if the plan came from the cache */
    uint64_t save_id;     /* of a save, once the ranks have agreed on its plan */
    int usage_of;         /* RUSAGE_SELF, or RUSAGE_THREAD if two threads share the operation */
    struct rusage usage;  /* when the operation, or this thread's part of it, began */
    double cpu_s;         /* CPU seconds of an earlier thread */
};

void native_begin(struct native_operation *operation, enum rank_state state);
/* Stops the clock and fills the sample. */
void native_end(struct native_operation *operation);
/* CPU seconds of this thread or process since native_begin, or since `usage` was last recorded. */
double native_cpu_seconds(const struct native_operation *operation);
void native_fill(struct native_operation *operation);

/* The ranks of the operation's lane agree on `code`: 0 if all passed, else this rank's own code with `err` unchanged,
 * or CB_ERR_ABORTED with a message that names the first failing rank. `agreement` receives the sum, minimum and maximum
 * of the ranks' `number`s. Collective. */
int native_agree(struct native_operation *operation, int code, uint64_t number, struct agreement *agreement,
                 struct cb_err *err) CB_MUST_CHECK;
/* The same; also sets *word to rank 0's, in the same reduction. */
int native_agree_and_share(struct native_operation *operation, int code, uint64_t number, uint64_t *word,
                           struct agreement *agreement, struct cb_err *err) CB_MUST_CHECK;

/* Whether the store reads and writes a state on a device itself. No checksum can be computed of what it moves. */
static inline bool native_skips_host(const struct native_engine *engine)
{
    return store_capabilities(engine->setup.store)->device_memory && !engine->setup.config.checksum;
}

/* "PATH/NAME" in `text`. */
int native_name(const char *path, const char *name, char text[PATH_MAX], struct cb_err *err) CB_MUST_CHECK;
/* The same for a copy of a data file: copy 0 is in PATH itself, later copies are in folders of their own. */
int native_copy_name(const char *path, uint32_t copy, const char *name, char text[PATH_MAX],
                     struct cb_err *err) CB_MUST_CHECK;

void native_save_free(struct native_save *save);
int native_load_run(struct native_operation *operation, struct cb_err *err) CB_MUST_CHECK;
void native_load_free(struct native_load *load);

#endif
