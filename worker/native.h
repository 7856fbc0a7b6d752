/* Inside the native engine: what engine_native.c, native_save.c and native_load.c share. */
#ifndef WORKER_NATIVE_H
#define WORKER_NATIVE_H

#include <limits.h>
#include <sys/resource.h>

#include "ckpt/format.h"
#include "core/buf.h"
#include "worker/engine_ops.h"
#include "worker/mapping.h"
#include "worker/program.h"
#include "worker/timeline.h"
#include "worker/transfer.h"

enum folder_mode { FOLDER_PER_ITERATION, FOLDER_REPLACE };

struct native_save;
struct native_load;

struct native_engine {
    struct engine base;
    struct engine_setup setup;
    uint32_t rank, size;
    uint64_t block_bytes;
    bool durable;  /* io.fsync */
    bool checksum; /* checksum=crc32 */
    enum folder_mode folder;
    struct plan_options plan_options;
    struct plan *plan; /* of the layout, made by the first save and used by all */
    struct transfer *transfer;
    struct native_save *save; /* NULL until the first save */
    struct native_load *load; /* NULL until the first load */
};

/* One operation under way. */
struct native_operation {
    struct native_engine *engine;
    const char *path; /* of the checkpoint, relative to the store */
    struct state *state;
    const struct engine_options *options;
    struct sample *sample;
    struct timeline timeline;
    struct transfer_counts counts;
    uint64_t bytes_needed, bytes_copied;
    struct rusage usage; /* at the start */
};

/* Where this rank's items of the plan begin and end; a rank beyond the layout that is saved has none. */
static inline size_t native_first_item(const struct native_engine *engine)
{
    const struct plan *plan = engine->plan;
    return plan->first_item[engine->rank < plan->world_size ? engine->rank : plan->world_size];
}
static inline size_t native_item_count(const struct native_engine *engine)
{
    const struct plan *plan = engine->plan;
    return engine->rank < plan->world_size ? plan->first_item[engine->rank + 1] - native_first_item(engine) : 0;
}

void native_begin(struct native_operation *operation, enum rank_state state);
/* Stops the clock and fills the sample. */
void native_end(struct native_operation *operation);

/* Agreement on `code`: 0 when all ranks passed. Else this rank's own code, with `err` as it is, or
 * CB_ERR_ABORTED with a sentence that names the first failing rank. `digest` must be the same on all
 * ranks; *sum (may be NULL) is that of `number`s. */
int native_agree(struct native_operation *operation, int code, uint64_t number, struct agreement *agreement,
                 struct cb_err *err) CB_MUST_CHECK;

/* "PATH/NAME" in `text`. */
int native_name(const char *path, const char *name, char text[PATH_MAX], struct cb_err *err) CB_MUST_CHECK;

int native_save_run(struct native_operation *operation, struct cb_err *err) CB_MUST_CHECK;
void native_save_free(struct native_save *save);
int native_load_run(struct native_operation *operation, struct cb_err *err) CB_MUST_CHECK;
void native_load_free(struct native_load *load);

#endif
