/* What a rank needs of a stored checkpoint to load its pieces. */
#ifndef CKPT_LOAD_LOAD_NEED_H
#define CKPT_LOAD_LOAD_NEED_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/layout/layout.h"
#include "ckpt/stored.h"

struct load_need {
    const struct layout *layout;
    const struct piece *pieces;
    uint32_t *order; /* of the pieces, by the names of their tensors */
    size_t piece_count;
    bool whole_rows;  /* other columns of the same rows, too: load.exchange=split reads them together */
    const char *last; /* the name of the tensor that was asked about, and the places of its pieces in `order` */
    size_t first, end;
};

/* Borrows layout and pieces. */
int load_need_init(struct load_need *self, const struct layout *layout, const struct piece *pieces, size_t piece_count,
                   bool whole_rows, struct cb_err *err) CB_MUST_CHECK;
void load_need_release(struct load_need *self);
/* A stored_need_fn (ckpt/stored_sink.h) with a struct load_need. Every rank needs every value. */
bool load_need_of(void *need, const struct stored_tensor *tensor, const struct region *box);

#endif
