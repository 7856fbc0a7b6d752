/* Where each file of a checkpoint has its save id, to compare it with one small read. */
#ifndef CKPT_STORED_SAVE_PLACES_H
#define CKPT_STORED_SAVE_PLACES_H

#include "ckpt/stored.h"
#include "core/err.h"

struct save_place {
    uint64_t offset;
    uint32_t bytes; /* at most SAVE_ID_FRONT_BYTES; 0: the file has none, or the checkpoint has none */
    bool is_value;  /* they are those of a value, for format_check_save */
};

/* One for each file; the caller frees them. */
int save_places_of(const struct stored_checkpoint *checkpoint, struct save_place **places,
                   struct cb_err *err) CB_MUST_CHECK;

#endif
