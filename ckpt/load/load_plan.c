/* Matches a rank's pieces with stored chunks.
 *
 * A piece starts as one uncovered region; each chunk that overlaps it covers a part, in the order of the tensor's
 * elements, so only few uncovered regions remain. As long as chunks do not overlap, a read is the whole part that chunk
 * and piece share; where they do, the first chunk provides the elements. */
#include "ckpt/load/load_plan.h"
#include "core/alloc.h"
#include "core/units.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define PROBLEM_BYTES 512
#define PLACE_BYTES 256
#define EXTRA_NAMED 3 /* limit of names in the list of keys that are not loaded */

struct regions {
    struct region *data;
    size_t count, capacity;
};

struct planner {
    const struct stored_checkpoint *checkpoint;
    const struct layout *layout;
    const struct piece *pieces;
    load_problem_fn report;
    void *context;
    struct load_plan *plan;
    struct regions uncovered, next;
    uint8_t *checked; /* a state tensor: 0 not yet, 1 usable, 2 reported as wrong */
    size_t problems;
    char first[PROBLEM_BYTES];
    struct cb_err *err;
};

static int no_memory(struct planner *self)
{
    return alloc_fail(self->err, "for the load plan");
}

CB_PRINTF(2, 3)
static void report(struct planner *self, const char *format, ...)
{
    char text[PROBLEM_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (self->problems++ == 0)
        memcpy(self->first, text, sizeof text);
    if (self->report)
        self->report(self->context, text);
}

static int regions_push(struct planner *self, struct regions *regions, const struct region *region)
{
    if (regions->count == regions->capacity) {
        size_t capacity = regions->capacity ? regions->capacity * 2 : 16;
        struct region *data = realloc(regions->data, capacity * sizeof *data);
        if (!data)
            return no_memory(self);
        regions->data = data;
        regions->capacity = capacity;
    }
    regions->data[regions->count++] = *region;
    return 0;
}

/* The rest of `from` without `part`, which lies inside it: at most two slabs per dimension. */
static int push_rest(struct planner *self, const struct region *from, const struct region *part)
{
    struct region rest = *from;
    int code = 0;
    for (uint32_t i = 0; i < from->dims && !code; i++) {
        struct region slab = rest;
        uint64_t end = rest.offset[i] + rest.size[i], part_end = part->offset[i] + part->size[i];
        slab.size[i] = part->offset[i] - rest.offset[i];
        if (slab.size[i] > 0)
            code = regions_push(self, &self->next, &slab);
        slab.offset[i] = part_end;
        slab.size[i] = end - part_end;
        if (!code && slab.size[i] > 0)
            code = regions_push(self, &self->next, &slab);
        rest.offset[i] = part->offset[i];
        rest.size[i] = part->size[i];
    }
    return code;
}

/* Bytes of the chunk's row-major payload from the part's first element to its last. */
static void span_in_chunk(const struct region *chunk, const struct region *part, uint64_t element,
                          struct load_read *read)
{
    uint64_t first = 0, last = 0;
    for (uint32_t i = 0; i < chunk->dims; i++) {
        uint64_t begin = part->offset[i] - chunk->offset[i];
        first = first * chunk->size[i] + begin;
        last = last * chunk->size[i] + begin + part->size[i] - 1;
    }
    read->payload_first = first * element;
    read->payload_bytes = (last - first + 1) * element;
}

static int add_read(struct planner *self, uint32_t chunk, uint32_t piece, const struct region *common)
{
    struct load_plan *plan = self->plan;
    int rc = alloc_grow(&plan->reads, plan->read_count, sizeof *plan->reads, self->err);
    if (rc)
        return rc;
    struct load_read *read = &plan->reads[plan->read_count++];
    const struct stored_chunk *stored = &self->checkpoint->chunks[chunk];
    const struct stored_tensor *tensor = &self->checkpoint->tensors[stored->tensor];
    *read = (struct load_read){.chunk = chunk, .piece = piece, .common = *common};
    if (tensor->is_bytes) {
        read->payload_bytes = stored->length;
        plan->needed_bytes += stored->length;
    } else {
        span_in_chunk(&stored->region, common, dtype_bytes(tensor->dtype), read);
        plan->needed_bytes += region_elements(common) * dtype_bytes(tensor->dtype);
    }
    plan->span_bytes += read->payload_bytes;
    return 0;
}

/* Subtracts the chunk's part from the uncovered regions, with one read for each region that it overlaps. */
static int cover(struct planner *self, uint32_t chunk, uint32_t piece)
{
    const struct region *region = &self->checkpoint->chunks[chunk].region;
    int code = 0;
    self->next.count = 0;
    for (size_t i = 0; i < self->uncovered.count && !code; i++) {
        struct region common;
        if (!region_intersect(&self->uncovered.data[i], region, &common)) {
            code = regions_push(self, &self->next, &self->uncovered.data[i]);
            continue;
        }
        code = push_rest(self, &self->uncovered.data[i], &common);
        if (!code)
            code = add_read(self, chunk, piece, &common);
    }
    struct regions swap = self->uncovered;
    self->uncovered = self->next;
    self->next = swap;
    return code;
}

static void describe_shape(uint32_t dims, const uint64_t *shape, char text[PLACE_BYTES])
{
    const size_t size = PLACE_BYTES;
    size_t len = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < dims && len < size; i++)
        len += (size_t)snprintf(text + len, size - len, "%s%" PRIu64, i ? ", " : "", shape[i]);
}

static void describe(const struct region *region, char text[PLACE_BYTES])
{
    const size_t size = PLACE_BYTES;
    size_t len = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < region->dims && len < size; i++)
        len += (size_t)snprintf(text + len, size - len, "%s%" PRIu64 ":%" PRIu64, i ? ", " : "", region->offset[i],
                                region->offset[i] + region->size[i]);
}

/* Replaces the reads of a piece by one read for each part that a chunk shares with it. */
static int read_whole_parts(struct planner *self, const struct stored_tensor *tensor, uint32_t piece, size_t first_read)
{
    struct load_plan *plan = self->plan;
    const struct region *region = &self->pieces[piece].region;
    uint64_t parts = 0;
    for (uint32_t i = 0; i < tensor->chunk_count; i++) {
        struct region common;
        if (region_intersect(region, &self->checkpoint->chunks[tensor->first_chunk + i].region, &common))
            parts += region_elements(&common);
    }
    if (parts != region_elements(region))
        return 0; /* chunks overlap: keep the reads of cover() */
    for (size_t i = first_read; i < plan->read_count; i++) {
        plan->needed_bytes -= region_elements(&plan->reads[i].common) * dtype_bytes(tensor->dtype);
        plan->span_bytes -= plan->reads[i].payload_bytes;
    }
    plan->read_count = first_read;
    int code = 0;
    for (uint32_t i = 0; i < tensor->chunk_count && !code; i++) {
        struct region common;
        uint32_t chunk = tensor->first_chunk + i;
        if (region_intersect(region, &self->checkpoint->chunks[chunk].region, &common))
            code = add_read(self, chunk, piece, &common);
    }
    return code;
}

static int plan_piece(struct planner *self, const struct stored_tensor *tensor, uint32_t piece)
{
    size_t first_read = self->plan->read_count, chunks_met = 0;
    if (tensor->is_bytes)
        return tensor->chunk_count ? add_read(self, tensor->first_chunk, piece, &self->pieces[piece].region) : 0;
    self->uncovered.count = 0;
    if (region_elements(&self->pieces[piece].region) == 0)
        return 0;
    int code = regions_push(self, &self->uncovered, &self->pieces[piece].region);
    for (uint32_t i = 0; i < tensor->chunk_count && !code && self->uncovered.count > 0; i++) {
        size_t before = self->plan->read_count;
        code = cover(self, tensor->first_chunk + i, piece);
        chunks_met += self->plan->read_count > before;
    }
    if (code)
        return code;
    for (size_t i = 0; i < self->uncovered.count; i++) {
        char place[PLACE_BYTES];
        describe(&self->uncovered.data[i], place);
        report(self, "%s: no stored chunk has its elements [%s]", tensor->fqn, place);
    }
    bool in_fragments = self->plan->read_count - first_read > chunks_met;
    return in_fragments ? read_whole_parts(self, tensor, piece, first_read) : 0;
}

/* --- checking the fit --- */

static bool check_tensor(struct planner *self, const struct state_tensor *wanted, const struct stored_tensor *stored)
{
    bool wants_bytes = wanted->kind == KIND_BYTES;
    uint64_t before = self->problems;
    bool lacks_bytes = stored && stored->is_bytes && !stored->literal && stored->chunk_count == 0;
    if (!stored || lacks_bytes) {
        report(self, "%s: not in the checkpoint", wanted->fqn);
    } else if (stored->is_bytes != wants_bytes) {
        report(self, "%s: the checkpoint has a %s here, the model a %s", wanted->fqn,
               stored->is_bytes ? "value" : "tensor", wants_bytes ? "value" : "tensor");
    } else if (!wants_bytes && stored->dtype != wanted->dtype) {
        report(self, "%s: the checkpoint has %s, the model %s", wanted->fqn, dtype_name(stored->dtype),
               dtype_name(wanted->dtype));
    } else if (!wants_bytes) {
        struct region a = region_whole(wanted->dims, wanted->shape), b = region_whole(stored->dims, stored->shape);
        char want[PLACE_BYTES], have[PLACE_BYTES];
        if (!region_equal(&a, &b)) {
            describe_shape(wanted->dims, wanted->shape, want);
            describe_shape(stored->dims, stored->shape, have);
            report(self, "%s: the checkpoint has shape [%s], the model [%s]", wanted->fqn, have, want);
        }
    }
    return self->problems == before;
}

static size_t count_extra(const struct stored_checkpoint *checkpoint, const struct layout *layout)
{
    size_t known = 0;
    for (size_t i = 0; i < layout_tensor_count(layout); i++)
        known += stored_checkpoint_find(checkpoint, layout_tensor(layout, i)->fqn) != NULL;
    return checkpoint->tensor_count - known;
}

static int compare_reads(const void *a, const void *b, void *context)
{
    const struct stored_checkpoint *checkpoint = context;
    const struct load_read *x = a, *y = b;
    const struct stored_chunk *c = &checkpoint->chunks[x->chunk], *d = &checkpoint->chunks[y->chunk];
    if (c->file != d->file)
        return c->file < d->file ? -1 : 1;
    if (c->offset != d->offset)
        return c->offset < d->offset ? -1 : 1;
    if (x->chunk != y->chunk)
        return x->chunk < y->chunk ? -1 : 1;
    if (x->payload_first != y->payload_first)
        return x->payload_first < y->payload_first ? -1 : 1;
    return x->piece < y->piece ? -1 : x->piece > y->piece;
}

int load_plan_compute(const struct stored_checkpoint *checkpoint, const struct layout *layout,
                      const struct piece *pieces, size_t piece_count, load_problem_fn report_fn, void *context,
                      struct load_plan **plan, struct cb_err *err)
{
    struct planner self = {checkpoint, layout, pieces, report_fn, context};
    self.err = err;
    self.plan = calloc(1, sizeof *self.plan);
    self.checked = calloc(layout_tensor_count(layout) + 1, 1);
    int code = self.plan && self.checked ? 0 : no_memory(&self);
    for (size_t i = 0; i < piece_count && !code; i++) {
        const struct state_tensor *wanted = layout_tensor(layout, pieces[i].tensor);
        const struct stored_tensor *stored = stored_checkpoint_find(checkpoint, wanted->fqn);
        uint8_t *checked = &self.checked[pieces[i].tensor];
        if (!*checked)
            *checked = check_tensor(&self, wanted, stored) ? 1 : 2;
        if (*checked == 1)
            code = plan_piece(&self, stored, (uint32_t)i);
    }
    for (size_t i = 0; i < layout_tensor_count(layout) && !code; i++) {
        const struct state_tensor *wanted = layout_tensor(layout, i);
        if (wanted->kind == KIND_BYTES && !self.checked[i])
            (void)check_tensor(&self, wanted, stored_checkpoint_find(checkpoint, wanted->fqn));
    }
    if (!code && self.problems > 0)
        code = cb_fail(err, CB_ERR_CORRUPT, "the checkpoint does not hold what is to be loaded (%zu problem%s): %s",
                       self.problems, units_plural(self.problems), self.first);
    free(self.checked);
    free(self.uncovered.data);
    free(self.next.data);
    if (code) {
        load_plan_free(self.plan);
        return code;
    }
    if (self.plan->read_count > 0)
        qsort_r(self.plan->reads, self.plan->read_count, sizeof *self.plan->reads, compare_reads, (void *)checkpoint);
    self.plan->extra_tensors = count_extra(checkpoint, layout);
    *plan = self.plan;
    return 0;
}

size_t load_plan_describe_extra(const struct stored_checkpoint *checkpoint, const struct layout *layout, char *text,
                                size_t size)
{
    size_t extra = count_extra(checkpoint, layout), named = 0;
    uint8_t *wanted = extra ? calloc(checkpoint->tensor_count, 1) : NULL;
    text[0] = '\0';
    if (!extra)
        return 0;
    size_t len = (size_t)snprintf(text, size, "%zu keys of the checkpoint are not loaded", extra);
    for (size_t i = 0; wanted && i < layout_tensor_count(layout); i++) {
        const struct stored_tensor *stored = stored_checkpoint_find(checkpoint, layout_tensor(layout, i)->fqn);
        if (stored)
            wanted[stored - checkpoint->tensors] = 1;
    }
    for (size_t i = 0; wanted && i < checkpoint->tensor_count && named < EXTRA_NAMED; i++) {
        if (!wanted[i] && len < size)
            len += (size_t)snprintf(text + len, size - len, "%s%s", named++ ? ", " : ": ", checkpoint->tensors[i].fqn);
    }
    if (named < extra && len < size)
        snprintf(text + len, size - len, ", …");
    free(wanted);
    return extra;
}

void load_plan_free(struct load_plan *plan)
{
    if (!plan)
        return;
    free(plan->reads);
    free(plan);
}
