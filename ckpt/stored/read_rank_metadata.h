/* DCP checkpoints that were saved without collectives (PyTorch's use_collectives=False): rank R has a metadata file
 * of its own, __R.metadata, and no marker says that all ranks are there. */
#ifndef CKPT_STORED_READ_RANK_METADATA_H
#define CKPT_STORED_READ_RANK_METADATA_H

#include "ckpt/format/format.h"
#include "store/store.h"

/* Whether a file of the checkpoint's folder is such a file, and of which rank. */
bool metadata_is_of_rank(const char *name, uint32_t *rank);
/* Merges the files of these ranks in `folder`. Of items that several ranks stored, the lowest rank's is used and the
 * others are counted as duplicates; a name with two types or shapes is CB_ERR_CORRUPT. */
int metadata_read_ranks(struct store *store, const char *folder, uint32_t *ranks, size_t count,
                        struct stored_checkpoint **checkpoint, struct cb_err *err) CB_MUST_CHECK;

#endif
