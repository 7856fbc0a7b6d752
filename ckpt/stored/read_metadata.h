/* Reads the metadata of a checkpoint in a store, in any format: DCP and raw by their metadata, including the per-rank
 * metadata (__R.metadata) of PyTorch's saves without collectives; safetensors by the index and the headers of its
 * files, even without a marker. Blocking reads of metadata and headers only. */
#ifndef CKPT_STORED_READ_METADATA_H
#define CKPT_STORED_READ_METADATA_H

#include "ckpt/format/format.h"
#include "store/store.h"

/* Appends bytes that format_read_metadata() accepts, for the checkpoint in `folder` of the store ("" is the store
 * itself). CB_ERR_NOT_FOUND if nothing looks like a checkpoint. */
int metadata_read(struct store *store, const char *folder, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
/* Both at once. */
int metadata_read_checkpoint(struct store *store, const char *folder, struct stored_checkpoint **checkpoint,
                             struct cb_err *err) CB_MUST_CHECK;
/* The same for one safetensors file. */
int metadata_read_file(struct store *store, const char *file, struct stored_checkpoint **checkpoint,
                       struct cb_err *err) CB_MUST_CHECK;

#endif
