/* Checks every stored checkpoint, whatever its format. */
#include "ckpt/stored.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/units.h"

#define MAX_ELEMENTS (UINT64_C(1) << 56)
#define MAX_FILE_BYTES (UINT64_C(1) << 60)

void stored_checkpoint_free(struct stored_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        free(checkpoint->tensors[i].fqn);
        free(checkpoint->tensors[i].literal);
        free(checkpoint->tensors[i].path);
    }
    for (size_t i = 0; i < checkpoint->file_count; i++)
        free(checkpoint->files[i]);
    free(checkpoint->tensors);
    free(checkpoint->chunks);
    free(checkpoint->files);
    free(checkpoint);
}

static int compare_fqn(const void *fqn, const void *tensor)
{
    return strcmp(fqn, ((const struct stored_tensor *)tensor)->fqn);
}

const struct stored_tensor *stored_checkpoint_find(const struct stored_checkpoint *checkpoint, const char *fqn)
{
    if (checkpoint->tensor_count == 0) /* then there may be no array */
        return NULL;
    return bsearch(fqn, checkpoint->tensors, checkpoint->tensor_count, sizeof *checkpoint->tensors, compare_fqn);
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const struct stored_tensor *)a)->fqn, ((const struct stored_tensor *)b)->fqn);
}

int stored_chunk_compare(const void *a, const void *b)
{
    return region_compare(&((const struct stored_chunk *)a)->region, &((const struct stored_chunk *)b)->region);
}

int stored_check_file_name(const char *name, const char *file, struct cb_err *err)
{
    bool leaves = *file == '\0' || *file == '/';
    for (const char *part = file; part && !leaves; part = strchr(part, '/')) {
        part += *part == '/';
        size_t len = strcspn(part, "/");
        leaves = len == 0 || (len == 2 && memcmp(part, "..", 2) == 0);
    }
    if (leaves)
        return cb_fail(err, CB_ERR_FORMAT, "%s: \"%s\" is no name of a file inside the checkpoint", name, file);
    return 0;
}

static int check_tensor(const char *name, const struct stored_tensor *tensor, struct cb_err *err)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < tensor->dims; i++) {
        if (tensor->shape[i] > MAX_ELEMENTS || (tensor->shape[i] > 0 && elements > MAX_ELEMENTS / tensor->shape[i]))
            return cb_fail(err, CB_ERR_FORMAT, "%s: %s: the shape is impossibly large", name, tensor->fqn);
        elements *= tensor->shape[i];
    }
    return 0;
}

int stored_check_region(const char *name, const struct stored_tensor *tensor, const struct region *region,
                        struct cb_err *err)
{
    bool inside = region->dims == tensor->dims;
    for (uint32_t i = 0; i < tensor->dims && inside; i++)
        inside = region->offset[i] <= tensor->shape[i] && region->size[i] <= tensor->shape[i] - region->offset[i];
    if (!inside)
        return cb_fail(err, CB_ERR_FORMAT, "%s: %s: a chunk lies outside of the tensor's shape", name, tensor->fqn);
    return 0;
}

static int check_chunk(const struct stored_checkpoint *self, const char *name, const struct stored_tensor *tensor,
                       const struct stored_chunk *chunk, struct cb_err *err)
{
    if (chunk->file >= self->file_count || chunk->offset > MAX_FILE_BYTES || chunk->length > MAX_FILE_BYTES)
        return cb_fail(err, CB_ERR_FORMAT, "%s: %s: an item at an impossible place", name, tensor->fqn);
    return stored_check_region(name, tensor, &chunk->region, err);
}

static void sort_chunks(struct stored_chunk *chunks, uint32_t count)
{
    uint32_t sorted = 1;
    while (sorted < count && stored_chunk_compare(&chunks[sorted - 1], &chunks[sorted]) <= 0)
        sorted++;
    if (sorted < count) /* most writers list them in order */
        qsort(chunks, count, sizeof *chunks, stored_chunk_compare);
}

/* Moves the tensor's chunks to `place`, which may be their present place, sorted and without duplicates. */
static uint32_t settle_chunks(struct stored_checkpoint *self, struct stored_tensor *tensor,
                              const struct stored_chunk *chunks, uint32_t index, struct stored_chunk *place)
{
    uint32_t kept = 0;
    if (tensor->chunk_count > 0 && place != chunks + tensor->first_chunk)
        memmove(place, chunks + tensor->first_chunk, tensor->chunk_count * sizeof *place);
    sort_chunks(place, tensor->chunk_count);
    for (uint32_t i = 0; i < tensor->chunk_count; i++) {
        const struct stored_chunk *last = i > 0 ? &place[kept - 1] : NULL;
        if (last && stored_chunk_compare(&place[i], last) == 0) {
            self->duplicates += place[i].file != last->file || place[i].offset != last->offset;
            continue;
        }
        if (kept != i)
            place[kept] = place[i];
        place[kept++].tensor = index;
    }
    return kept;
}

/* Tensors sorted by name, and their chunks one after another in that order. */
static bool lies_in_order(const struct stored_checkpoint *self)
{
    uint64_t next = 0;
    for (size_t i = 0; i < self->tensor_count; i++) {
        if (self->tensors[i].first_chunk != next ||
            (i > 0 && compare_tensors(&self->tensors[i - 1], &self->tensors[i]) > 0))
            return false;
        next += self->tensors[i].chunk_count;
    }
    return true;
}

static int settle_all(struct stored_checkpoint *self, const char *name, struct stored_chunk *chunks, struct cb_err *err)
{
    uint32_t count = 0;
    int code = 0;
    for (size_t i = 0; i < self->tensor_count && !code; i++) {
        struct stored_tensor *tensor = &self->tensors[i];
        assert(self->chunks || tensor->chunk_count == 0);
        code = check_tensor(name, tensor, err);
        if (!code && i > 0 && strcmp(tensor->fqn, tensor[-1].fqn) == 0)
            code = cb_fail(err, CB_ERR_FORMAT, "%s: %s is listed twice", name, tensor->fqn);
        for (uint32_t k = 0; k < tensor->chunk_count && !code; k++)
            code = check_chunk(self, name, tensor, &self->chunks[tensor->first_chunk + k], err);
        if (code)
            break;
        uint32_t kept = settle_chunks(self, tensor, self->chunks, (uint32_t)i, chunks + count);
        tensor->first_chunk = count;
        tensor->chunk_count = kept;
        count += kept;
    }
    if (!code)
        self->chunk_count = count;
    return code;
}

int stored_checkpoint_settle(struct stored_checkpoint *self, const char *name, struct cb_err *err)
{
    struct stored_chunk *chunks = self->chunks;
    int code = 0;
    for (size_t i = 0; i < self->file_count && !code; i++)
        code = stored_check_file_name(name, self->files[i], err);
    if (code)
        return code;
    if (!lies_in_order(self) || !chunks) { /* sorting again needs no further memory */
        chunks = malloc((self->chunk_count + 1) * sizeof *chunks);
        if (!chunks)
            return cb_fail(err, CB_ERR_MEMORY, "%s: no memory for %zu chunks", name, self->chunk_count);
        if (self->tensor_count > 0) /* else there may be no array */
            qsort(self->tensors, self->tensor_count, sizeof *self->tensors, compare_tensors);
    }
    code = settle_all(self, name, chunks, err);
    if (chunks == self->chunks)
        return code;
    free(code ? chunks : self->chunks);
    if (!code)
        self->chunks = chunks;
    return code;
}

/* The dimension along which the chunks are thinnest, so that the fewest overlap in it. */
static uint32_t thinnest_axis(const struct stored_tensor *tensor, const struct stored_chunk *chunks)
{
    uint32_t best = 0;
    double least = 0;
    for (uint32_t axis = 0; axis < tensor->dims; axis++) {
        double sum = 0;
        for (uint32_t i = 0; i < tensor->chunk_count && tensor->shape[axis] > 0; i++)
            sum += (double)chunks[i].region.size[axis] / (double)tensor->shape[axis];
        if (axis == 0 || sum < least) {
            best = axis;
            least = sum;
        }
    }
    return best;
}

static int compare_along(const void *a, const void *b, void *axis)
{
    uint64_t one = (*(const struct stored_chunk *const *)a)->region.offset[*(const uint32_t *)axis];
    uint64_t other = (*(const struct stored_chunk *const *)b)->region.offset[*(const uint32_t *)axis];
    return one < other ? -1 : one > other;
}

/* Sorted by their offset along one axis, chunks that may overlap are neighbours. */
int stored_each_overlap(const struct stored_checkpoint *self, const struct stored_tensor *tensor,
                        stored_overlap_fn each, void *context, struct cb_err *err)
{
    const struct stored_chunk *chunks = self->chunks + tensor->first_chunk;
    uint32_t count = tensor->chunk_count, axis;
    struct region common;
    if (count < 2)
        return 0;
    const struct stored_chunk **sorted = malloc(count * sizeof *sorted);
    if (!sorted)
        return cb_fail(err, CB_ERR_MEMORY, "%s: no memory for %u chunks", tensor->fqn, count);
    for (uint32_t i = 0; i < count; i++)
        sorted[i] = &chunks[i];
    axis = thinnest_axis(tensor, chunks);
    if (axis > 0)
        qsort_r(sorted, count, sizeof *sorted, compare_along, &axis);
    int code = 0;
    for (uint32_t i = 0; i < count && !code; i++) {
        const struct region *region = &sorted[i]->region;
        for (uint32_t k = i + 1; k < count && !code; k++) {
            if (tensor->dims > 0 && sorted[k]->region.offset[axis] >= region->offset[axis] + region->size[axis])
                break;
            if (region_intersect(region, &sorted[k]->region, &common))
                code = each(context, sorted[i], sorted[k], region_elements(&common), err);
        }
    }
    free(sorted);
    return code;
}

static int refuse_overlap(void *context, const struct stored_chunk *a, const struct stored_chunk *b, uint64_t elements,
                          struct cb_err *err)
{
    const struct stored_tensor *tensor = context;
    (void)a, (void)b, (void)elements;
    return cb_fail(err, CB_ERR_CORRUPT, "%s: some of its elements are stored twice", tensor->fqn);
}

int stored_check_coverage(const struct stored_checkpoint *self, const struct stored_tensor *tensor, struct cb_err *err)
{
    struct region whole = region_whole(tensor->dims, tensor->shape);
    const struct stored_chunk *chunks = self->chunks + tensor->first_chunk;
    uint64_t elements = 0;
    if (tensor->is_bytes && (tensor->literal || tensor->chunk_count > 0))
        return 0;
    for (uint32_t i = 0; i < tensor->chunk_count; i++)
        elements += region_elements(&chunks[i].region);
    int code = stored_each_overlap(self, tensor, refuse_overlap, (void *)tensor, err);
    if (!code && elements != region_elements(&whole))
        code = cb_fail(err, CB_ERR_CORRUPT, "%s: %llu of its %llu elements are in no stored chunk", tensor->fqn,
                       (unsigned long long)(region_elements(&whole) - elements),
                       (unsigned long long)region_elements(&whole));
    return code;
}

void stored_count(const struct stored_checkpoint *self, struct stored_counts *counts)
{
    *counts = (struct stored_counts){.items = self->chunk_count, .files = self->file_count};
    for (size_t i = 0; i < self->tensor_count; i++) {
        const struct stored_tensor *tensor = &self->tensors[i];
        struct region whole = region_whole(tensor->dims, tensor->shape);
        counts->values += tensor->is_bytes;
        counts->tensors += !tensor->is_bytes;
        counts->tensor_bytes += tensor->is_bytes ? 0 : region_elements(&whole) * dtype_bytes(tensor->dtype);
    }
}

void stored_describe(const char *format, const struct stored_counts *counts, char text[STORED_TEXT_BYTES])
{
    char bytes[32];
    snprintf(text, STORED_TEXT_BYTES,
             "%s, %" PRIu64 " tensor%s (%s), %" PRIu64 " value%s, %" PRIu64 " item%s in %" PRIu64 " file%s", format,
             counts->tensors, units_plural(counts->tensors), units_format_bytes((double)counts->tensor_bytes, bytes),
             counts->values, units_plural(counts->values), counts->items, units_plural(counts->items), counts->files,
             units_plural(counts->files));
}
