/* Groups a plan's items by tensor. */
#include "ckpt/format/item_groups.h"

#include "core/alloc.h"

static int compare_items(const void *a, const void *b, void *context)
{
    const struct plan_item *items = context;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    for (uint32_t i = 0; i < items[x].region.dims; i++) {
        if (items[x].region.offset[i] != items[y].region.offset[i])
            return items[x].region.offset[i] < items[y].region.offset[i] ? -1 : 1;
    }
    return x < y ? -1 : x > y;
}

int item_groups_init(struct item_groups *self, const struct plan *plan, size_t tensor_count, struct cb_err *err)
{
    uint32_t *order = malloc((plan->item_count + 1) * sizeof *order);
    uint32_t *first = calloc(tensor_count + 1, sizeof *first);
    if (!order || !first || plan->item_count >= UINT32_MAX) {
        free(order);
        free(first);
        return alloc_fail(err, "for the metadata of %zu items", plan->item_count);
    }
    /* Sorted by tensor, by counting: at the end the items of t are at first[t] … first[t + 1] - 1. */
    for (size_t i = 0; i < plan->item_count; i++)
        first[plan->items[i].tensor]++;
    for (size_t t = 1; t <= tensor_count; t++)
        first[t] += first[t - 1];
    for (size_t i = plan->item_count; i-- > 0;)
        order[--first[plan->items[i].tensor]] = (uint32_t)i;
    uint32_t kept = 0;
    for (size_t t = 0; t < tensor_count; t++) {
        uint32_t begin = first[t], end = first[t + 1];
        if (end - begin > 1)
            qsort_r(order + begin, end - begin, sizeof *order, compare_items, plan->items);
        first[t] = kept;
        for (uint32_t i = begin; i < end; i++) {
            bool again = i > begin && region_equal(&plan->items[order[i]].region, &plan->items[order[kept - 1]].region);
            if (!again)
                order[kept++] = order[i];
        }
    }
    first[tensor_count] = kept;
    *self = (struct item_groups){order, first};
    return 0;
}

void item_groups_release(struct item_groups *self)
{
    free(self->order);
    free(self->first);
    *self = (struct item_groups){0};
}
