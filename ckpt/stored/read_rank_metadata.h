/* A DCP checkpoint whose ranks did not talk to each other when they wrote it (PyTorch's use_collectives=False): rank R
 * has a metadata file of its own, __R.metadata, and no marker says that all ranks are there. */
#ifndef CKPT_STORED_READ_RANK_METADATA_H
#define CKPT_STORED_READ_RANK_METADATA_H

#include "ckpt/format/format.h"
#include "store/store.h"

/* Whether a file of the checkpoint's folder is one, and whose. */
bool collect_is_rank_metadata(const char *name, uint32_t *rank);
/* What the files of these ranks in `folder` say together. What several ranks stored is taken from the lowest and counted
 * among the duplicates; one name with two types or shapes is CB_ERR_CORRUPT. */
int collect_ranks(struct store *store, const char *folder, uint32_t *ranks, size_t count,
                  struct stored_checkpoint **checkpoint, struct cb_err *err) CB_MUST_CHECK;

#endif
