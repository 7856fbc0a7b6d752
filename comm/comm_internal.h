/* The interface behind comm/comm.h: what MPI and TCP implement, and what they share. */
#ifndef COMM_COMM_INTERNAL_H
#define COMM_COMM_INTERNAL_H

#include <stddef.h>

#include "comm/comm.h"

/* What ranks reduce in an agreement. */
struct vote {
    uint64_t failed_rank; /* UINT64_MAX if no rank failed */
    uint64_t failed_code; /* -code of that rank */
    uint64_t failed_count;
    uint64_t sum, min, max;
    uint64_t word; /* rank 0's word; 0 on the other ranks */
};
void vote_combine(struct vote *to, const struct vote *from);

/* Shared by a communicator and its twins. */
struct comm_state {
    _Atomic bool broken;   /* a collective hangs: every later call fails */
    _Atomic bool given_up; /* messages hang: collectives still work */
};

/* Every `start_` returns immediately; `test` reports when the operation is done, and must not be called after that. The
 * memory of a collective that never ended stays in use. */
struct comm_ops {
    int (*start_barrier)(struct comm *, struct comm_message *, struct cb_err *);
    int (*start_agree)(struct comm *, bool local, const struct vote *mine, struct vote *all, struct comm_message *,
                       struct cb_err *);
    /* Gives all ranks the only text that is not empty. NULL: not supported. */
    int (*start_share_text)(struct comm *, const char mine[COMM_REASON_BYTES], char text[COMM_REASON_BYTES],
                            struct comm_message *, struct cb_err *);
    int (*start_broadcast)(struct comm *, void *bytes, size_t len, struct comm_message *, struct cb_err *);
    int (*start_all_gather)(struct comm *, const void *mine, void *all, uint64_t values, struct comm_message *,
                            struct cb_err *);
    int (*start_reduce_scatter)(struct comm *, const float *all, float *mine, uint64_t values, struct comm_message *,
                                struct cb_err *);
    int (*start_all_reduce)(struct comm *, const float *mine, float *sum, uint64_t values, struct comm_message *,
                            struct cb_err *);
    int (*send)(struct comm *, const void *bytes, uint64_t len, uint32_t to, uint32_t tag, struct comm_message *,
                struct cb_err *);
    int (*receive)(struct comm *, void *bytes, uint64_t len, uint32_t from, uint32_t tag, struct comm_message *,
                   struct cb_err *);
    int (*test)(struct comm *, struct comm_message *, bool *done, struct cb_err *);
    /* A communicator of the ranks with this color, or of all ranks if `copy_of_all`. */
    int (*split)(struct comm *, uint32_t color, bool copy_of_all, struct comm **part, struct cb_err *);
    void (*free)(struct comm *);
    bool frees_broken; /* `free` also ends operations that hang; else it is only called if comm_can_end */
};

/* First member of every implementation's own struct. */
struct comm {
    const struct comm_ops *ops;
    struct comm_state *state; /* owned by the first communicator, borrowed by its twins */
    const char *library;
    uint32_t rank, size, local_rank, local_size, fullest_node;
    comm_check_fn check; /* NULL until comm_watch */
    const void *check_context;
    bool twin;
    _Atomic bool interrupted;
    /* Not on the stack, because a collective that hangs still uses them. */
    struct vote mine, all;
    char reason[COMM_REASON_BYTES];
};

#endif
