/* Converts a stored checkpoint to another format and layout, in bounded memory.
 *
 * Each new file is written by one thread, from its first byte to its last, while it reads the data for the next
 * block. The order is that of a save: a claim (CONVERT_CLAIM) in the empty target, data, fsync of each file, fsync of
 * the folder, the source's stored checksums compared with what was read, the commit marker, removal of the claim. So
 * an interrupted conversion leaves no checkpoint, and the same one started again continues: files that the claim
 * lists as done are kept if their length and checksum still match, all others are rewritten. Uploads to a bucket are
 * aborted by the attempt that began them or, if that was killed, by the next one. A target with any other content is
 * rejected. */
#ifndef CKPT_CONVERT_CONVERT_H
#define CKPT_CONVERT_CONVERT_H

#include "ckpt/format/format.h"
#include "ckpt/layout/layout.h"
#include "ckpt/plan.h"

#define CONVERT_CLAIM ".ckptbench-convert"
#define CONVERT_LEAST_MEMORY (UINT64_C(4) << 20)

struct convert_job {
    const char *source; /* the checkpoint's folder, as for store_open */
    const struct stored_checkpoint *checkpoint;
    const char *target;          /* the same; its parent exists */
    const struct layout *layout; /* from layout_from_stored() */
    const struct plan *plan;
    enum plan_format format;
    uint64_t memory_bytes; /* for data; descriptions of tensors and files come on top */
    uint32_t threads;      /* at most */
    bool durable, checksum;
    /* May be NULL. Called by any thread, at least every 100 ms while it waits for the target; a failure ends the
     * conversion cleanly with that error. */
    int (*watch)(void *context, struct cb_err *err);
    void *watch_context;
};

struct convert_result {
    uint64_t files, files_kept; /* kept: finished by an earlier attempt */
    uint64_t bytes_read, bytes_written;
    uint64_t checksums; /* checksums of the source that were compared */
    bool was_complete;  /* an earlier attempt had committed */
};

int convert_checkpoint(const struct convert_job *job, struct convert_result *result, struct cb_err *err) CB_MUST_CHECK;

/* Names what a format cannot represent of a checkpoint (for a tensor its type); NULL if it can represent everything. */
const char *convert_refuses(enum plan_format format, const struct stored_tensor *tensor);

#endif
