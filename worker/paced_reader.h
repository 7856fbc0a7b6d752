/* Reads an object at a given rate on a thread of its own, over and over, as the data loader of a training reads its
 * dataset. Used from one thread; the store is the reader's alone. */
#ifndef WORKER_PACED_READER_H
#define WORKER_PACED_READER_H

#include <stdint.h>

#include "core/err.h"
#include "store/store.h"

struct paced_reader;

struct paced_reader_setup {
    struct store *store; /* borrowed */
    uint64_t bytes_per_s, block_bytes;
    uint32_t depth; /* most requests in flight */
    void *memory;   /* borrowed; depth x block_bytes, page-aligned */
};

int paced_reader_new(const struct paced_reader_setup *setup, struct paced_reader **reader,
                     struct cb_err *err) CB_MUST_CHECK;
/* Only after paced_reader_stop, and only if the reader is not stuck. Accepts NULL. */
void paced_reader_free(struct paced_reader *self);

/* Starts to read the first `bytes` of an object, a multiple of the block, from where the last reader of the same object
 * stopped. Block n is requested once n blocks are due at the rate, so a reader that waited for the store catches up.
 * Returns when the first block has been requested. */
int paced_reader_start(struct paced_reader *self, const char *name, uint64_t bytes, struct cb_err *err) CB_MUST_CHECK;
/* Bytes that have been read since the start, and the time since then. Meaningful between start and stop. */
uint64_t paced_reader_progress(const struct paced_reader *self, uint64_t *elapsed_ns);
/* Ends the reading. Fails if a request failed before. Requests in flight that do not end within some seconds stay in the
 * store: then the reader is stuck and must not be used again. */
int paced_reader_stop(struct paced_reader *self, struct cb_err *err) CB_MUST_CHECK;
bool paced_reader_is_stuck(const struct paced_reader *self);

#endif
