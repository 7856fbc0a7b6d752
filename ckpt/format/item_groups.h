/* The items of a plan by tensor, as metadata lists them. */
#ifndef CKPT_FORMAT_ITEM_GROUPS_H
#define CKPT_FORMAT_ITEM_GROUPS_H

#include <stdint.h>

#include "ckpt/plan.h"

/* An item of `count` ranks, from `rank` on: see struct plan_pattern. Their positions ascend. */
struct item_span {
    uint32_t item; /* index into the plan's items */
    uint32_t rank, count;
};

struct item_groups {
    const struct plan *plan;
    struct item_span *all; /* by tensor */
    size_t *first;         /* of each tensor in `all`, and the end */
    struct item_span *spans;
    size_t span_count;
    bool any_order; /* spans may interleave: enough to measure them, if each item is written once */
};

int item_groups_init(struct item_groups *self, const struct plan *plan, size_t tensor_count,
                     struct cb_err *err) CB_MUST_CHECK;
void item_groups_release(struct item_groups *self);
/* Sets `spans` to the items of a tensor, in the order of their positions in it. An item that several ranks write (dedup
 * none) is listed once: the first rank's. */
int item_groups_select(struct item_groups *self, uint32_t tensor, struct cb_err *err) CB_MUST_CHECK;
/* The number of items selected. */
uint64_t item_groups_count(const struct item_groups *self);
/* Item `index` of a span. */
struct plan_item item_span_at(const struct plan *plan, const struct item_span *span, uint32_t index);

#endif
