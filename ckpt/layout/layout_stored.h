/* A layout for a stored checkpoint: all of its tensors under their own names, over the mesh of the options, and values that are not tensors as bytes items. For conversions. */
#ifndef CKPT_LAYOUT_LAYOUT_STORED_H
#define CKPT_LAYOUT_LAYOUT_STORED_H

#include "ckpt/layout/layout.h"
#include "ckpt/stored.h"

/* A value that is not a tensor: its literal, or the torch.save as it was stored, or both. */
struct stored_value {
    const struct stored_tensor *tensor;
    char *literal; /* NULL if it has none */
    void *blob;    /* NULL if it was stored as a literal */
    size_t blob_bytes;
};

/* Takes ownership of literal and blob of each value; the options' state has no meaning. */
int layout_from_stored(const struct stored_checkpoint *checkpoint, const struct layout_options *options,
                       struct stored_value *values, size_t value_count, struct layout **layout,
                       struct cb_err *err) CB_MUST_CHECK;

#endif
