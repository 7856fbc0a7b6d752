/* Passes a stored checkpoint from rank 0 to all ranks, of which each keeps what it needs. */
#ifndef ENGINE_SHARE_STORED_H
#define ENGINE_SHARE_STORED_H

#include "ckpt/stored/stored_blocks.h"
#include "comm/comm.h"

/* On rank 0 *checkpoint is the checkpoint, which stays as it is; the others receive the part of it that `need` names
 * (NULL: all of it). It is sent in blocks of 4 MiB, so memory beyond the result does not depend on its size. A rank that
 * fails for itself takes part until the end, so the caller can agree on the result later. Collective. */
int share_stored(struct comm *comm, stored_need_fn need, void *context, uint64_t deadline_ns,
                 struct stored_checkpoint **checkpoint, struct cb_err *err) CB_MUST_CHECK;

#endif
