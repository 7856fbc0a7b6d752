/* Python literals of the small values saved as bytes items: to a pickle and back. */
#ifndef CKPT_FORMAT_LITERAL_H
#define CKPT_FORMAT_LITERAL_H

#include "ckpt/format/pickle.h"

/* Appends the pickle (protocol 2) of an integer, float, text, True, False, None, or a list, tuple or dict of them. */
int literal_to_pickle(const char *literal, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
/* Appends the literal of such a value, or of a dict of such values. */
int literal_from_pickle(const struct pickle *pickle, const struct pickle_node *node, struct buf *out,
                        struct cb_err *err) CB_MUST_CHECK;

#endif
