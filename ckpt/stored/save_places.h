/* Finds where each file of a checkpoint has its save id, so that one small read suffices to compare it. */
#ifndef CKPT_STORED_SAVE_PLACES_H
#define CKPT_STORED_SAVE_PLACES_H

#include "ckpt/stored.h"
#include "core/err.h"

struct save_place {
    uint64_t offset;
    uint32_t bytes; /* at most SAVE_ID_FRONT_BYTES; 0 if the file or the checkpoint has no id */
    bool is_value;  /* the bytes are a value's, for format_check_save */
};

/* One per file; the caller frees them. */
int save_places_of(const struct stored_checkpoint *checkpoint, struct save_place **places,
                   struct cb_err *err) CB_MUST_CHECK;

#endif
