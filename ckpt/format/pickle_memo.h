/* The memo of a pickle, which only remembers what the pickle fetches later: most of what Python's pickler puts into it
 * is never fetched, and would keep every value alive. */
#ifndef CKPT_FORMAT_PICKLE_MEMO_H
#define CKPT_FORMAT_PICKLE_MEMO_H

#include "ckpt/format/byte_source.h"

struct pickle_memo_page;

struct pickle_memo {
    struct pickle_memo_page **pages; /* numbers that are fetched; pages without one are NULL */
    size_t page_count;
    uint32_t *values; /* of these numbers, in order; PICKLE_NOWHERE before it is known */
    uint32_t count;
    uint64_t next; /* the number that MEMOIZE uses */
};

/* Passes over all opcodes and finds the numbers that are fetched. Stops without an error at what is malformed, which
 * the parser reports. The window is at its begin again. */
int pickle_memo_init(struct pickle_memo *self, struct byte_window *window, struct cb_err *err) CB_MUST_CHECK;
void pickle_memo_release(struct pickle_memo *self);
/* Where the value of a number is remembered; NULL if it is never fetched. */
uint32_t *pickle_memo_at(const struct pickle_memo *self, uint64_t number);

#endif
