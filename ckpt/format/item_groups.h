/* The items of a plan by tensor, as metadata lists them. */
#ifndef CKPT_FORMAT_ITEM_GROUPS_H
#define CKPT_FORMAT_ITEM_GROUPS_H

#include <stdint.h>

#include "ckpt/plan.h"

/* Tensor t has items order[first[t]] … order[first[t + 1] - 1], sorted by position in the tensor. An item that
 * several ranks write (dedup none) is listed once: the first rank's. */
struct item_groups {
    uint32_t *order, *first;
};

int item_groups_init(struct item_groups *self, const struct plan *plan, size_t tensor_count,
                     struct cb_err *err) CB_MUST_CHECK;
void item_groups_release(struct item_groups *self);

#endif
