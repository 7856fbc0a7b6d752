/* The engine: save(path, state, options) and load(path, state, options).
 *
 * State names a model and an optimizer, laid out over the ranks; ranks, mesh, plan and files stay
 * behind the two calls. Both are collective. Three engines: native, torch-dcp and command, chosen when
 * the engine is made. Nothing of ours allocates, logs or locks between the first and the last byte of
 * the data path. */
#ifndef WORKER_ENGINE_H
#define WORKER_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/layout.h"
#include "ckpt/payload.h"
#include "ckpt/plan.h"
#include "core/err.h"
#include "core/experiment.h"
#include "core/status_page.h"
#include "store/store.h"
#include "worker/comm.h"

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
    int shared_fd;         /* the memory file behind it, for engines in another process; else -1 */
};

struct engine;

struct engine_setup {
    const struct experiment *experiment;
    const struct layout *layout;
    struct comm *comm;
    struct status_page *page;
    struct store *store;    /* NULL for engines that do their own I/O */
    const char *store_path; /* for those: a path, or s3://… */
    struct store *plain;    /* the same place for small things, without faults */
    const char *run_folder;
};
int engine_new(const struct engine_setup *setup, struct engine **engine, struct cb_err *err) CB_MUST_CHECK;
void engine_free(struct engine *engine);

struct engine_options {
    uint32_t iteration;
    uint64_t deadline_ns; /* monotonic */
};

/* Both fill the sample's values that the engine knows (state times, bytes, requests, …) and return
 * when the checkpoint is committed / loaded by all ranks, or with the reason of the first failing
 * rank. A load adds a line to the status page for every missing, short or corrupt item. */
int engine_save(struct engine *engine, const char *path, struct state *state, const struct engine_options *options,
                struct sample *sample, struct cb_err *err) CB_MUST_CHECK;
int engine_load(struct engine *engine, const char *path, struct state *state, const struct engine_options *options,
                struct sample *sample, struct cb_err *err) CB_MUST_CHECK;

#endif
