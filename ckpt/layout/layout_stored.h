/* A layout for what a stored checkpoint has: all of its tensors under their own names, over the mesh that keys give
 * (ranks, tp, pp, dp, zero, …), and what is no tensor as bytes items. For conversions. */
#ifndef CKPT_LAYOUT_LAYOUT_STORED_H
#define CKPT_LAYOUT_LAYOUT_STORED_H

#include "ckpt/layout/layout.h"
#include "ckpt/stored/stored.h"

/* Something that is no tensor: its literal, or the torch.save as it was stored, or both. */
struct stored_value {
    const struct stored_tensor *tensor;
    char *literal; /* NULL where it has none */
    void *blob;    /* NULL where it was stored as a literal */
    size_t blob_bytes;
};

/* Takes literal and blob of each value over. `experiment` is changed: state=weights. */
int layout_from_stored(const struct stored_checkpoint *checkpoint, struct experiment *experiment,
                       struct stored_value *values, size_t value_count, struct layout **layout,
                       struct cb_err *err) CB_MUST_CHECK;

#endif
