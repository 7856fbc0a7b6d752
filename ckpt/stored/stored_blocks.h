/* A stored checkpoint as a sequence of blocks of bytes, by which the rank that reads it passes it on to others while it
 * reads. A receiver keeps what it needs: all tensors, and of their chunks and files those that its collector needs. It
 * neither decodes nor keeps most of the others, so its memory does not grow with them.
 *
 * Sender and receiver are the same program. */
#ifndef CKPT_STORED_STORED_BLOCKS_H
#define CKPT_STORED_STORED_BLOCKS_H

#include "ckpt/stored_sink.h"
#include "core/buf.h"

/* A block ends with the entry that makes it this long; entries with long names and values make it longer. */
#define STORED_BLOCK_BYTES ((size_t)4 << 20)
#define STORED_BLOCK_MOST_BYTES ((size_t)1 << 30)

/* A sink that makes blocks of what it is given. Zero it, and set `put`, which passes a block on; the last block is put
 * at the end. Release it after a failure, too. */
struct stored_sender {
    int (*put)(void *context, const void *block, size_t len, struct cb_err *err);
    void *context;
    struct buf block;
    uint64_t tensors, chunks, files; /* that have been given */
};
void stored_sender_init(struct stored_sender *self);
struct stored_sink stored_sender_sink(struct stored_sender *self);
void stored_sender_release(struct stored_sender *self);

/* What has come, and the collector that it goes to. Zero it, and set the collector's `name` and `need`. Release the
 * collector after a failure, too. */
struct stored_receiver {
    struct stored_collector collector;
    uint64_t tensors, chunks, files;
};

/* Takes the next block. CB_ERR_CORRUPT if it is malformed, or if blocks are missing. */
int stored_block_read(struct stored_receiver *self, const void *bytes, size_t len, struct cb_err *err) CB_MUST_CHECK;

#endif
