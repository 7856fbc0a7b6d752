/* Groups a plan's items by tensor. */
#include "ckpt/format/item_groups.h"

#include "core/alloc.h"

struct plan_item item_span_at(const struct plan *plan, const struct item_span *span, uint32_t index)
{
    const struct plan_pattern *pattern = &plan->patterns[plan->ranks[span->rank].pattern];
    return plan_item_at(plan, span->rank + index * plan->rank_step, span->item - pattern->first_item);
}

static int compare_positions(const struct region *a, const struct region *b)
{
    for (uint32_t i = 0; i < a->dims; i++) {
        if (a->offset[i] != b->offset[i])
            return a->offset[i] < b->offset[i] ? -1 : 1;
    }
    return 0;
}

static struct region region_at(const struct plan *plan, const struct item_span *span, uint32_t index)
{
    struct region region = plan->items[span->item].region;
    uint32_t first = plan->patterns[plan->ranks[span->rank].pattern].rank;
    if (plan->rank_step > 0)
        region.offset[0] += ((span->rank - first) / plan->rank_step + index) * plan->items[span->item].row_step;
    return region;
}

/* By the position of their first items; equal ones by rank. */
static int compare_spans(const void *a, const void *b, void *plan)
{
    const struct item_span *x = a, *y = b;
    struct region first = region_at(plan, x, 0), second = region_at(plan, y, 0);
    int order = compare_positions(&first, &second);
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
    /* Sorted by tensor, by counting: at the end those of t are at first[t] … first[t + 1] - 1. */
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
    if (self->span_count > 1)
        qsort_r(self->spans, self->span_count, sizeof *self->spans, compare_spans, (void *)self->plan);
}

/* Whether each span ends before the next begins. */
static bool in_order(const struct item_groups *self)
{
    for (size_t i = 1; i < self->span_count; i++) {
        const struct item_span *before = &self->spans[i - 1];
        struct region last = region_at(self->plan, before, before->count - 1);
        struct region next = region_at(self->plan, &self->spans[i], 0);
        if (compare_positions(&last, &next) >= 0)
            return false;
    }
    return true;
}

/* Of the items with the same region, leaves the first. */
static void drop_repeated(struct item_groups *self)
{
    size_t kept = 0;
    for (size_t i = 0; i < self->span_count; i++) {
        struct region region = region_at(self->plan, &self->spans[i], 0), last;
        if (kept > 0)
            last = region_at(self->plan, &self->spans[kept - 1], 0);
        if (kept == 0 || !region_equal(&region, &last))
            self->spans[kept++] = self->spans[i];
    }
    self->span_count = kept;
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
    if (rc || in_order(self))
        return rc;
    /* Spans interleave: each item becomes a span of its own. */
    free(self->spans);
    self->spans = NULL;
    self->span_count = 0;
    for (size_t i = self->first[tensor]; i < self->first[tensor + 1] && !rc; i++) {
        struct item_span span = {self->all[i].item, self->all[i].rank, 1};
        for (uint32_t k = 0; k < self->all[i].count && !rc; k++, span.rank += self->plan->rank_step)
            rc = add_span(self, span, err);
    }
    sort_spans(self);
    drop_repeated(self);
    return rc;
}

uint64_t item_groups_count(const struct item_groups *self)
{
    uint64_t count = 0;
    for (size_t i = 0; i < self->span_count; i++)
        count += self->spans[i].count;
    return count;
}
