/* Passes a stored checkpoint from rank 0, while that reads it, to all ranks, of which each keeps what it needs. */
#ifndef ENGINE_SHARE_STORED_H
#define ENGINE_SHARE_STORED_H

#include "ckpt/stored/read_metadata.h"
#include "comm/comm.h"

/* On rank 0 `metadata` is open; it is read only once. Every rank, rank 0 too, gets the part of the checkpoint that
 * `need` names (NULL: all of it). It is sent in blocks of 4 MiB, so memory beyond the result does not depend on its
 * size. A rank that fails for itself takes part until the end: the caller agrees on the result. *checkpoint is NULL
 * without an error where rank 0 could not read on. Collective. */
int share_stored(struct comm *comm, struct metadata *metadata, stored_need_fn need, void *context, uint64_t deadline_ns,
                 struct stored_checkpoint **checkpoint, struct cb_err *err) CB_MUST_CHECK;

#endif
