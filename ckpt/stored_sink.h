/* A stored checkpoint as a sequence of calls, by which readers of metadata pass on what they find, so that nobody has
 * to keep all of it: tensors and their regions, then where these are stored, files, and the end. */
#ifndef CKPT_STORED_SINK_H
#define CKPT_STORED_SINK_H

#include "ckpt/stored.h"

#define STORED_AT_ONCE 256 /* chunks that readers pass at once */

/* What is known of chunks. */
enum stored_known {
    STORED_REGIONS = 1, /* which elements of the tensor they have */
    STORED_PLACES = 2,  /* file, offset, length and compression, for the region's offset */
    STORED_ALL = 3,
};

struct stored_sink {
    /* Tensors are numbered from 0 in the order in which they come. Only its name, type, shape and literal
     * count. */
    int (*tensor)(void *context, const struct stored_tensor *tensor, struct cb_err *err);
    /* The regions of a tensor come before its places, and before those of the next tensor. */
    int (*chunks)(void *context, uint32_t tensor, enum stored_known known, const struct stored_chunk *chunks,
                  uint32_t count, struct cb_err *err);
    int (*path)(void *context, uint32_t tensor, const char *path, struct cb_err *err);
    /* Numbered from 0, too. Files come after all chunks. */
    int (*file)(void *context, const char *name, struct cb_err *err);
    /* Format, mark, save id and duplicates. */
    int (*end)(void *context, const struct stored_checkpoint *facts, struct cb_err *err);
    void *context;
};

/* Passes all of a checkpoint to a sink. */
int stored_checkpoint_pass(const struct stored_checkpoint *self, const struct stored_sink *sink,
                           struct cb_err *err) CB_MUST_CHECK;

/* Whether chunks of a tensor may be needed that lie in a box. */
typedef bool (*stored_need_fn)(void *context, const struct stored_tensor *tensor, const struct region *box);

/* Makes a stored checkpoint of what comes: all tensors, and of chunks and files those that are needed. Its memory does
 * not grow with the others. Zero it, and set `name` for messages, and `need`; NULL keeps everything. Release it after a
 * failure, too. */
struct stored_collector {
    const char *name;
    stored_need_fn need;
    void *context;
    struct stored_checkpoint *checkpoint;
    uint32_t *files; /* the numbers of the files to keep, ascending; from the first file that comes on */
    size_t files_come, files_wanted;
    bool sorted; /* the chunks of each tensor */
    bool ended;
};
struct stored_sink stored_collector_sink(struct stored_collector *self);
/* Whether chunks in this box are to be kept; whether there is one with an offset from `low` to `high`. The tensor has
 * come. */
bool stored_collector_needs(const struct stored_collector *self, uint32_t tensor, const struct region *box);
bool stored_collector_has(struct stored_collector *self, uint32_t tensor, const struct region *low,
                          const struct region *high);
/* After the end: gives the checked checkpoint to the caller, who frees it. */
int stored_collector_take(struct stored_collector *self, struct stored_checkpoint **checkpoint,
                          struct cb_err *err) CB_MUST_CHECK;
void stored_collector_release(struct stored_collector *self);

#endif
