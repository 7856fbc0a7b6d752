/* Groups units into wraps and plans the order of their visits. */
#include "train/fsdp_units.h"

#include "core/alloc.h"

#include <assert.h>
#include <string.h>

/* Whether a wrap that has `elements` so far is complete. */
static bool is_full(const struct training *training, uint64_t elements)
{
    switch (training->wrap) {
    case WRAP_MODULE:
        return true;
    case WRAP_SIZE:
        return elements >= training->min_num_params;
    case WRAP_NONE:
        break;
    }
    return false;
}

static void fill_wraps(struct fsdp_units *self, const struct training *training, const uint64_t *units,
                       size_t unit_count)
{
    struct fsdp_unit *wrap = NULL;
    for (size_t unit = 0; unit < unit_count; unit++) {
        bool whole = training->ddp || !wrap ? false : is_full(training, wrap->elements);
        if (!wrap || whole) {
            wrap = &self->items[self->count++];
            *wrap = (struct fsdp_unit){.first_unit = unit, .root = unit == 0 && !training->linear};
        }
        self->wrap_of[unit] = self->count - 1;
        self->offset_of[unit] = wrap->elements;
        wrap->elements += units[unit];
        wrap->unit_count++;
    }
    for (size_t i = 0; i < self->count; i++) {
        wrap = &self->items[i];
        wrap->share = (wrap->elements + training->shard_ranks - 1) / training->shard_ranks;
        wrap->begin = self->share;
        self->share += wrap->share;
        uint64_t padded = wrap->share * training->shard_ranks;
        if (wrap->root)
            self->root_padded = padded;
        else if (padded > self->largest)
            self->largest = padded;
    }
}

static void add_stage(struct fsdp_units *self, size_t wrap, size_t stage, bool backward)
{
    struct visit *last = self->visit_count ? &self->visits[self->visit_count - 1] : NULL;
    if (last && last->wrap == wrap && last->backward == backward)
        last->stage_count++;
    else
        self->visits[self->visit_count++] =
            (struct visit){.wrap = wrap, .first_stage = stage, .stage_count = 1, .backward = backward};
}

static void fill_visits(struct fsdp_units *self, const size_t *stage_unit, size_t stage_count)
{
    for (size_t stage = 0; stage < stage_count; stage++)
        add_stage(self, self->wrap_of[stage_unit[stage]], stage, false);
    self->forward_count = self->visit_count;
    for (size_t stage = stage_count; stage-- > 0;)
        add_stage(self, self->wrap_of[stage_unit[stage]], stage, true);
    for (size_t i = self->forward_count; i < self->visit_count; i++) {
        bool later = false;
        for (size_t k = i + 1; k < self->visit_count; k++)
            later = later || self->visits[k].wrap == self->visits[i].wrap;
        self->visits[i].last = !later;
    }
}

int fsdp_units_init(struct fsdp_units *self, const struct training *training, const uint64_t *units, size_t unit_count,
                    const size_t *stage_unit, size_t stage_count, struct cb_err *err)
{
    struct fsdp_units made = {
        .items = calloc(unit_count + 1, sizeof *made.items),
        .wrap_of = calloc(unit_count + 1, sizeof *made.wrap_of),
        .offset_of = calloc(unit_count + 1, sizeof *made.offset_of),
        .visits = calloc(2 * stage_count + 1, sizeof *made.visits),
    };
    if (!made.items || !made.wrap_of || !made.offset_of || !made.visits) {
        fsdp_units_release(&made);
        return alloc_fail(err, "for the list of %zu units", unit_count);
    }
    fill_wraps(&made, training, units, unit_count);
    if (stage_unit)
        fill_visits(&made, stage_unit, stage_count);
    *self = made;
    return 0;
}

void fsdp_units_release(struct fsdp_units *self)
{
    free(self->items);
    free(self->wrap_of);
    free(self->offset_of);
    free(self->visits);
    memset(self, 0, sizeof *self);
}

size_t fsdp_units_next(const struct fsdp_units *self, size_t visit)
{
    for (visit++; visit < self->visit_count; visit++)
        if (!self->items[self->visits[visit].wrap].root)
            return visit;
    return self->visit_count;
}
