/* A stored checkpoint as a sequence of blocks of bytes, by which the rank that has read it passes it to others. A
 * receiver keeps what it needs: all tensors, and of their chunks and files those that `need` names. It neither decodes
 * nor keeps the others, so its memory does not grow with them.
 *
 * The numbers of tensors stay the same; those of files keep their order. Sender and receiver are the same program. Pure
 * functions. */
#ifndef CKPT_STORED_STORED_BLOCKS_H
#define CKPT_STORED_STORED_BLOCKS_H

#include "ckpt/stored.h"
#include "core/buf.h"

/* A block ends with the entry that makes it this long; entries with long names and values make it longer. */
#define STORED_BLOCK_BYTES ((size_t)4 << 20)
#define STORED_BLOCK_MOST_BYTES ((size_t)1 << 30)

/* What has been sent. Zero it, and set the checkpoint, which is settled. */
struct stored_sender {
    const struct stored_checkpoint *checkpoint;
    bool begun;
    size_t tensor; /* the next one, and the next chunk of it */
    uint32_t chunk;
    size_t file;
};

/* Appends the next block; nothing after the last one. */
int stored_block_write(struct stored_sender *self, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

/* Whether chunks of a tensor may be needed that lie in a box. */
typedef bool (*stored_need_fn)(void *context, const struct stored_tensor *tensor, const struct region *box);

/* Zero it, and set `need`; NULL keeps everything. Release it after a failure, too. */
struct stored_receiver {
    stored_need_fn need;
    void *context;
    struct stored_checkpoint *checkpoint;
    size_t tensor_count, chunk_count, file_count; /* of the sender's checkpoint */
    size_t chunks_come, files_come;
    uint32_t *files; /* the numbers of the files to keep, ascending; from the first file that comes on */
    size_t files_wanted;
};

/* Takes the next block. CB_ERR_CORRUPT if it is malformed. */
int stored_block_read(struct stored_receiver *self, const void *bytes, size_t len, struct cb_err *err) CB_MUST_CHECK;
/* After the last block: gives what was kept to the caller. CB_ERR_CORRUPT if blocks are missing. */
int stored_receiver_take(struct stored_receiver *self, struct stored_checkpoint **checkpoint,
                         struct cb_err *err) CB_MUST_CHECK;
void stored_receiver_release(struct stored_receiver *self);

#endif
