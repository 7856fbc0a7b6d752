/* Conversion of a stored checkpoint into another format and layout, in bounded memory.
 *
 * Each new file is written by one thread, from its first byte to its last, while it reads what the next block needs.
 * Order as in a save: a claim (CONVERT_CLAIM) in the empty target, data, fsync of each file, fsync of the folder, the
 * stored checksums of the source compared with what was read, the commit marker, the claim removed. So a conversion
 * that was stopped leaves no checkpoint, and the same one started again goes on: files that the claim lists as done are
 * kept where their length and checksum are still right, all others are written anew. Uploads to a bucket end with the
 * attempt that began them, or, where that was killed, with the next one. A target that holds anything else is refused. */
#ifndef CKPT_CONVERT_CONVERT_H
#define CKPT_CONVERT_CONVERT_H

#include "ckpt/format/format.h"
#include "ckpt/layout/layout.h"
#include "ckpt/plan/plan.h"

#define CONVERT_CLAIM ".ckptbench-convert"
#define CONVERT_LEAST_MEMORY (UINT64_C(4) << 20)

struct convert_job {
    const char *source; /* as store_open takes it: the checkpoint's folder */
    const struct stored_checkpoint *checkpoint;
    const char *target;          /* the same; its parent exists */
    const struct layout *layout; /* from layout_from_stored() */
    const struct plan *plan;
    enum plan_format format;
    uint64_t memory_bytes; /* for data; what is known of tensors and files comes on top */
    uint32_t threads;      /* at most */
    bool durable, checksum;
    /* May be NULL. Called by any thread, at least every 100 ms while it waits for the target; a failure ends the
     * conversion with it, in order. */
    int (*watch)(void *context, struct cb_err *err);
    void *watch_context;
};

struct convert_result {
    uint64_t files, files_kept; /* kept: finished by an earlier attempt */
    uint64_t bytes_read, bytes_written;
    uint64_t checksums; /* of the source, compared */
    bool was_complete;  /* an earlier attempt had committed */
};

int convert_checkpoint(const struct convert_job *job, struct convert_result *result, struct cb_err *err) CB_MUST_CHECK;

/* What of a checkpoint a format cannot hold, NULL where it can: of a tensor, its type. */
const char *convert_refuses(enum plan_format format, const struct stored_tensor *tensor);

#endif
