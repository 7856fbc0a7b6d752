/* Plan of a load: if the needed bytes are in many short runs, they are read either together with the gaps between them,
 * or run by run. Reading gaps saves requests but wastes bytes. load.gap limits each gap, load.waste their sum. */
#include "core/alloc.h"
#include "engine/load/load_stages.h"

/* Longer runs get a request of their own. */
#define LONG_RUN_BYTES 131072

struct candidate {
    uint64_t waste, gaps; /* bytes between the runs of a read, and the number of gaps */
    uint32_t read;
};

/* The bytes that one request for the whole read would waste; false if there is nothing to decide. */
static bool look_at(const struct native_load *self, uint32_t read, struct candidate *candidate)
{
    const struct mapping *mapping = &self->plan.mappings[read];
    uint64_t first, second, begin, end, unused;
    bool packed = self->plan.checkpoint->chunks[self->plan.wanted->reads[read].chunk].compressed; /* read as a whole */
    if (packed || mapping->run_count <= 1 || mapping->run_bytes >= LONG_RUN_BYTES)
        return false;
    mapping_run(mapping, 0, &first, &unused);
    mapping_run(mapping, 1, &second, &unused);
    if (second - first - mapping->run_bytes > self->plan.gap_bytes)
        return false;
    mapping_span(mapping, &begin, &end);
    *candidate = (struct candidate){
        .waste = end - begin - mapping->run_count * mapping->run_bytes, .gaps = mapping->run_count - 1, .read = read};
    return true;
}

/* Shortest gaps first: they save the most requests for their bytes. */
static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    double x_mean = (double)x->waste / (double)x->gaps, y_mean = (double)y->waste / (double)y->gaps;
    if (x_mean < y_mean || x_mean > y_mean)
        return x_mean < y_mean ? -1 : 1;
    return x->read < y->read ? -1 : 1;
}

int native_load_choose_gaps(struct native_load *self, struct cb_err *err)
{
    const struct load_plan *plan = self->plan.wanted;
    struct candidate *candidates = malloc((plan->read_count + 1) * sizeof *candidates);
    size_t count = 0;
    self->plan.in_one = calloc(plan->read_count + 1, sizeof *self->plan.in_one);
    if (!candidates || !self->plan.in_one) {
        free(candidates);
        return alloc_fail(err, "to choose how %zu parts are read", plan->read_count);
    }
    for (uint32_t i = 0; i < plan->read_count; i++)
        count += look_at(self, i, &candidates[count]);
    if (count > 0)
        qsort(candidates, count, sizeof *candidates, compare_candidates);
    if (__builtin_mul_overflow(plan->needed_bytes / 100, self->plan.waste_percent, &self->plan.waste_left))
        self->plan.waste_left = UINT64_MAX;
    for (size_t i = 0; i < count; i++) {
        bool fits = candidates[i].waste <= self->plan.waste_left;
        self->plan.in_one[candidates[i].read] = fits;
        self->plan.waste_left -= fits ? candidates[i].waste : 0;
        self->plan.ran_out = self->plan.ran_out || !fits;
    }
    free(candidates);
    return 0;
}
