/* Reads the metadata of a checkpoint in a store, in any format: DCP and raw by their metadata, including the per-rank
 * metadata (__R.metadata) of PyTorch's saves without collectives; safetensors by the index and the headers of its
 * files, even without a marker. Blocking reads of metadata and headers only. */
#ifndef CKPT_STORED_READ_METADATA_H
#define CKPT_STORED_READ_METADATA_H

#include <limits.h>

#include "ckpt/format/format.h"
#include "store/store.h"

/* Metadata up to this length are read as a whole, longer ones twice, in pieces. */
#define METADATA_WHOLE_BYTES ((size_t)16 << 20)

/* Metadata that are open for reading. */
struct metadata {
    struct store *store;
    char name[PATH_MAX]; /* in the store */
    struct buf bytes;
    struct byte_source source;
    struct store_object *object;      /* read in pieces; else NULL */
    struct stored_checkpoint *joined; /* of a checkpoint whose files list what they have; else NULL */
};

/* The checkpoint in `folder` of the store ("" is the store itself). CB_ERR_NOT_FOUND if nothing looks like a
 * checkpoint. After a failure nothing is open. */
int metadata_open(struct metadata *self, struct store *store, const char *folder, struct cb_err *err) CB_MUST_CHECK;
/* Passes on what they list, once. Their own memory does not grow with their length, except with names, with the chunks
 * of one tensor, and if they are not in one file. */
int metadata_pass(struct metadata *self, const struct stored_sink *sink, struct cb_err *err) CB_MUST_CHECK;
void metadata_close(struct metadata *self);

/* All at once: what is needed of it. */
int metadata_read_needed(struct store *store, const char *folder, stored_need_fn need, void *context,
                         struct stored_checkpoint **checkpoint, struct cb_err *err) CB_MUST_CHECK;
/* Everything. */
int metadata_read_checkpoint(struct store *store, const char *folder, struct stored_checkpoint **checkpoint,
                             struct cb_err *err) CB_MUST_CHECK;
/* The same for one safetensors file. */
int metadata_read_file(struct store *store, const char *file, struct stored_checkpoint **checkpoint,
                       struct cb_err *err) CB_MUST_CHECK;

#endif
