/* Reads boxes of stored tensors through a store, whatever format, strides and compression they have: for conversion
 * and for tools. A reader belongs to one thread; its memory is what it was given. */
#ifndef CKPT_STORED_STORED_READ_H
#define CKPT_STORED_STORED_READ_H

#include <pthread.h>

#include "ckpt/format/format.h"
#include "store/store.h"

/* Which bytes of each item have been read, and their checksums, so that stored checksums can be compared although
 * several readers read parts of an item in any order. Shared by readers; thread-safe. */
struct read_ledger {
    pthread_mutex_t lock;
    struct read_part {
        uint64_t begin, bytes; /* of the payload */
        uint32_t chunk, crc;
    } * parts;
    size_t count, capacity;
};

int read_ledger_init(struct read_ledger *self, struct cb_err *err) CB_MUST_CHECK;
void read_ledger_release(struct read_ledger *self);

struct stored_reader;

/* `store` is opened to read, without O_DIRECT at the checkpoint's folder; `ledger` may be NULL. An item
 * that is compressed must fit into `scratch_bytes` when it is not. */
int stored_reader_new(struct store *store, const struct stored_checkpoint *checkpoint, uint64_t scratch_bytes,
                      struct read_ledger *ledger, struct stored_reader **reader, struct cb_err *err) CB_MUST_CHECK;
void stored_reader_free(struct stored_reader *self);

/* Fills `memory` with the box, row-major. Every element of it must be in a stored chunk. */
int stored_reader_box(struct stored_reader *self, const struct stored_tensor *tensor, const struct box *box,
                      void *memory, struct cb_err *err) CB_MUST_CHECK;
/* A bytes item: all of it as it was before it was compressed, appended. */
int stored_reader_value(struct stored_reader *self, const struct stored_tensor *tensor, struct buf *out,
                        struct cb_err *err) CB_MUST_CHECK;
/* What such an item holds, as a Python literal appended to `literal`; nothing where it is of a class that only Python
 * knows. CB_ERR_CORRUPT where its bytes are not those that were written. */
int stored_reader_literal(struct stored_reader *self, const struct stored_tensor *tensor, const struct buf *value,
                          struct buf *literal, struct cb_err *err) CB_MUST_CHECK;
/* Compares the checksum of every item that stores one with what was read of it; items that were not read whole, once,
 * are read again for it. *checked counts them. */
int stored_reader_check(struct stored_reader *self, uint64_t *checked, struct cb_err *err) CB_MUST_CHECK;
/* Hands what was read last to the ledger: before another reader checks. */
int stored_reader_flush(struct stored_reader *self, struct cb_err *err) CB_MUST_CHECK;
uint64_t stored_reader_bytes(const struct stored_reader *self); /* read so far */

#endif
