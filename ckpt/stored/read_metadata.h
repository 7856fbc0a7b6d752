/* What a checkpoint in a store consists of, whatever its format: DCP and raw by their metadata, that of each rank where
 * PyTorch's ranks wrote without talking to each other (__R.metadata), safetensors by the index and the headers of its
 * files, also where no marker says that they are all. Blocking reads through the store;
 * nothing but metadata and headers is read. */
#ifndef CKPT_STORED_READ_METADATA_H
#define CKPT_STORED_READ_METADATA_H

#include "ckpt/format/format.h"
#include "store/store.h"

/* Appends bytes that format_read_metadata() takes, for the checkpoint in `folder` of the store ("" is the store
 * itself). CB_ERR_NOT_FOUND where there is nothing that looks like a checkpoint. */
int collect_metadata(struct store *store, const char *folder, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
/* Both at once. */
int collect_checkpoint(struct store *store, const char *folder, struct stored_checkpoint **checkpoint,
                       struct cb_err *err) CB_MUST_CHECK;
/* The same of one safetensors file. */
int collect_file(struct store *store, const char *file, struct stored_checkpoint **checkpoint,
                 struct cb_err *err) CB_MUST_CHECK;

#endif
