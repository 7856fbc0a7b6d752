/* Reads regions of stored tensors through a store, in any format, with any strides and compression: for conversion and
 * for tools. A reader belongs to one thread and uses only the memory that it was given. */
#ifndef CKPT_STORED_STORED_READ_H
#define CKPT_STORED_STORED_READ_H

#include <pthread.h>

#include "ckpt/format/format.h"
#include "store/store.h"

/* Which bytes of each item have been read, and their checksums, so that stored checksums can be verified although
 * several readers read parts of an item in any order. Shared by readers; thread-safe. */
struct read_ledger {
    pthread_mutex_t lock;
    struct read_part {
        uint64_t begin, bytes; /* of the payload */
        uint32_t chunk, crc;
    } * parts;
    size_t count;
};

int read_ledger_init(struct read_ledger *self, struct cb_err *err) CB_MUST_CHECK;
void read_ledger_release(struct read_ledger *self);

struct stored_reader;

/* `store` is opened for reading, without O_DIRECT, at the checkpoint's folder; `ledger` may be NULL. A compressed
 * item must fit into `scratch_bytes` when decompressed. */
int stored_reader_new(struct store *store, const struct stored_checkpoint *checkpoint, uint64_t scratch_bytes,
                      struct read_ledger *ledger, struct stored_reader **reader, struct cb_err *err) CB_MUST_CHECK;
void stored_reader_free(struct stored_reader *self);

/* Fills `memory` with the region, row-major. A stored chunk must contain every element of it. */
int stored_reader_region(struct stored_reader *self, const struct stored_tensor *tensor, const struct region *region,
                         void *memory, struct cb_err *err) CB_MUST_CHECK;
/* Appends a bytes item, decompressed. */
int stored_reader_value(struct stored_reader *self, const struct stored_tensor *tensor, struct buf *out,
                        struct cb_err *err) CB_MUST_CHECK;
/* Appends the value of such an item to `literal` as a Python literal; nothing if it is of a class that only Python
 * can load. CB_ERR_CORRUPT if its checksum does not match. */
int stored_reader_literal(struct stored_reader *self, const struct stored_tensor *tensor, const struct buf *value,
                          struct buf *literal, struct cb_err *err) CB_MUST_CHECK;
/* Verifies the checksum of every item that has one; items of which only some pieces were read are read again for
 * that. *checked counts them. */
int stored_reader_check(struct stored_reader *self, uint64_t *checked, struct cb_err *err) CB_MUST_CHECK;
/* Passes the latest read to the ledger; call before another reader verifies. */
int stored_reader_flush(struct stored_reader *self, struct cb_err *err) CB_MUST_CHECK;
uint64_t stored_reader_bytes(const struct stored_reader *self); /* read so far */

#endif
