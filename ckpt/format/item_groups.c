/* Groups a plan's items by tensor. */
#include "ckpt/format/item_groups.h"

#include <string.h>

#include "core/alloc.h"

struct plan_item item_span_at(const struct plan *plan, const struct item_span *span, uint32_t index)
{
    const struct plan_pattern *pattern = &plan->patterns[plan->ranks[span->rank].pattern];
    return plan_item_at(plan, span->rank + index * plan->rank_step, span->item - pattern->first_item);
}

static uint64_t row_at(const struct plan *plan, const struct item_span *span, uint32_t index)
{
    uint32_t first = plan->patterns[plan->ranks[span->rank].pattern].rank;
    uint32_t steps = plan->rank_step > 0 ? (span->rank - first) / plan->rank_step + index : 0;
    return plan->items[span->item].region.offset[0] + steps * plan->items[span->item].row_step;
}

/* Compares item `index` of a with the first item of b, by position in their tensor. */
static int compare_positions(const struct plan *plan, const struct item_span *a, uint32_t index,
                             const struct item_span *b)
{
    const struct region *x = &plan->items[a->item].region, *y = &plan->items[b->item].region;
    uint64_t row = x->dims ? row_at(plan, a, index) : 0, other = x->dims ? row_at(plan, b, 0) : 0;
    if (row != other)
        return row < other ? -1 : 1;
    for (uint32_t i = 1; i < x->dims; i++) {
        if (x->offset[i] != y->offset[i])
            return x->offset[i] < y->offset[i] ? -1 : 1;
    }
    return 0;
}

/* By the position of their first items; equal ones by rank. */
static int compare_spans(const void *a, const void *b, void *plan)
{
    const struct item_span *x = a, *y = b;
    int order = compare_positions(plan, x, 0, y);
    if (order)
        return order;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->item < y->item ? -1 : x->item > y->item;
}

int item_groups_init(struct item_groups *self, const struct plan *plan, size_t tensor_count, struct cb_err *err)
{
    size_t count = plan->patterns[plan->pattern_count].first_item;
    struct item_span *all = malloc((count + 1) * sizeof *all);
    size_t *first = calloc(tensor_count + 1, sizeof *first);
    if (!all || !first || count >= UINT32_MAX) {
        free(all);
        free(first);
        return alloc_fail(err, "for the metadata of %zu items", count);
    }
    /* A counting sort by tensor: at the end the items of tensor t are at first[t] … first[t + 1] - 1. */
    for (size_t i = 0; i < count; i++)
        first[plan->items[i].tensor]++;
    for (size_t t = 1; t <= tensor_count; t++)
        first[t] += first[t - 1];
    for (size_t p = plan->pattern_count; p-- > 0;) {
        const struct plan_pattern *pattern = &plan->patterns[p];
        for (size_t i = pattern[1].first_item; i-- > pattern->first_item;)
            all[--first[plan->items[i].tensor]] = (struct item_span){(uint32_t)i, pattern->rank, pattern->count};
    }
    *self = (struct item_groups){.plan = plan, .all = all, .first = first};
    return 0;
}

void item_groups_release(struct item_groups *self)
{
    free(self->all);
    free(self->first);
    free(self->spans);
    *self = (struct item_groups){0};
}

static int add_span(struct item_groups *self, struct item_span span, struct cb_err *err)
{
    int rc = alloc_grow(&self->spans, self->span_count, sizeof *self->spans, err);
    if (!rc)
        self->spans[self->span_count++] = span;
    return rc;
}

static void sort_spans(struct item_groups *self)
{
    size_t i = 1;
    while (i < self->span_count && compare_spans(&self->spans[i - 1], &self->spans[i], (void *)self->plan) <= 0)
        i++;
    if (i < self->span_count)
        qsort_r(self->spans, self->span_count, sizeof *self->spans, compare_spans, (void *)self->plan);
}

/* Whether each span ends before the next begins. */
static bool in_order(const struct item_groups *self)
{
    for (size_t i = 1; i < self->span_count; i++) {
        const struct item_span *before = &self->spans[i - 1];
        if (compare_positions(self->plan, before, before->count - 1, &self->spans[i]) >= 0)
            return false;
    }
    return true;
}

static bool same_region(const struct plan *plan, const struct item_span *a, const struct item_span *b)
{
    const struct region *x = &plan->items[a->item].region, *y = &plan->items[b->item].region;
    return compare_positions(plan, a, 0, b) == 0 && memcmp(x->size, y->size, x->dims * sizeof *x->size) == 0;
}

/* Keeps only the first of the items with the same region. */
static void drop_repeated(struct item_groups *self)
{
    size_t kept = 0;
    for (size_t i = 0; i < self->span_count; i++) {
        if (kept == 0 || !same_region(self->plan, &self->spans[i], &self->spans[kept - 1]))
            self->spans[kept++] = self->spans[i];
    }
    self->span_count = kept;
}

/* Makes each item a span of its own. Spans of columns begin and end together, so the items of
 * neighbouring spans with equal counts are taken in turn, which mostly puts them in order. */
static int take_apart(struct item_groups *self, const struct item_span *spans, size_t count, struct cb_err *err)
{
    int rc = 0;
    for (size_t begin = 0, end; begin < count && !rc; begin = end) {
        for (end = begin; end < count && spans[end].count == spans[begin].count;)
            end++;
        for (uint32_t k = 0; k < spans[begin].count; k++) {
            for (size_t i = begin; i < end && !rc; i++)
                rc = add_span(self, (struct item_span){spans[i].item, spans[i].rank + k * self->plan->rank_step, 1},
                              err);
        }
    }
    return rc;
}

int item_groups_select(struct item_groups *self, uint32_t tensor, struct cb_err *err)
{
    int rc = 0;
    free(self->spans);
    self->spans = NULL;
    self->span_count = 0;
    for (size_t i = self->first[tensor]; i < self->first[tensor + 1] && !rc; i++)
        rc = add_span(self, self->all[i], err);
    sort_spans(self);
    if (rc || self->any_order || in_order(self))
        return rc;
    struct item_span *interleaved = self->spans;
    size_t count = self->span_count;
    self->spans = NULL;
    self->span_count = 0;
    rc = take_apart(self, interleaved, count, err);
    sort_spans(self);
    drop_repeated(self);
    free(interleaved);
    return rc;
}

uint64_t item_groups_count(const struct item_groups *self)
{
    uint64_t count = 0;
    for (size_t i = 0; i < self->span_count; i++)
        count += self->spans[i].count;
    return count;
}
