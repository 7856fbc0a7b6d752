/* Searches for parts with equal bytes. */
#include "ckpt/plan/duplicates.h"

#include <string.h>
#include <sys/uio.h>

#include "ckpt/stored/stored_read.h"
#include "core/alloc.h"

struct searcher {
    const struct stored_checkpoint *checkpoint;
    struct stored_reader *reader;
    unsigned char *memory;
    uint64_t memory_bytes;
    struct cb_err *err;
};

static uint64_t bytes_of(const struct stored_checkpoint *checkpoint, const struct stored_chunk *chunk)
{
    return region_elements(&chunk->region) * dtype_bytes(checkpoint->tensors[chunk->tensor].dtype);
}

/* Type and shape, then position in the checkpoint. */
static int compare_shapes(const void *a, const void *b, void *context)
{
    const struct stored_checkpoint *checkpoint = context;
    const struct stored_chunk *x = &checkpoint->chunks[((const struct duplicate_part *)a)->chunk];
    const struct stored_chunk *y = &checkpoint->chunks[((const struct duplicate_part *)b)->chunk];
    enum dtype x_type = checkpoint->tensors[x->tensor].dtype, y_type = checkpoint->tensors[y->tensor].dtype;
    if (x_type != y_type)
        return x_type < y_type ? -1 : 1;
    if (x->region.dims != y->region.dims)
        return x->region.dims < y->region.dims ? -1 : 1;
    return memcmp(x->region.size, y->region.size, x->region.dims * sizeof *x->region.size);
}

static int compare_parts(const void *a, const void *b)
{
    const struct duplicate_part *x = a, *y = b;
    int order = memcmp(x->digest, y->digest, sizeof x->digest);
    return order ? order : x->chunk < y->chunk ? -1 : x->chunk > y->chunk;
}

/* Digest of the previous digest and these bytes. */
static void add_to_digest(unsigned char digest[HASH_SHA256_BYTES], void *bytes, uint64_t len)
{
    struct iovec segments[] = {{digest, HASH_SHA256_BYTES}, {bytes, len}};
    unsigned char next[HASH_SHA256_BYTES];
    hash_sha256_segments(segments, 2, next);
    memcpy(digest, next, sizeof next);
}

/* Equal shapes are divided in the same way: whole if they fit, else into slabs of the first dimension that has several
 * indices. */
// NOLINTNEXTLINE(misc-no-recursion): a dimension deeper each time
static int digest_region(struct searcher *self, const struct stored_tensor *tensor, const struct region *region,
                         unsigned char digest[HASH_SHA256_BYTES])
{
    uint64_t bytes = region_elements(region) * dtype_bytes(tensor->dtype);
    uint32_t dim = region_row_dim(region);
    if (bytes <= self->memory_bytes) {
        int code = stored_reader_region(self->reader, tensor, region, self->memory, self->err);
        if (!code)
            add_to_digest(digest, self->memory, bytes);
        return code;
    }
    uint64_t row_bytes = bytes / region->size[dim], rows = self->memory_bytes / row_bytes;
    struct region slab = *region;
    int code = 0;
    rows = rows > 0 ? rows : 1;
    for (uint64_t done = 0; done < region->size[dim] && !code; done += slab.size[dim]) {
        slab.offset[dim] = region->offset[dim] + done;
        slab.size[dim] = region->size[dim] - done < rows ? region->size[dim] - done : rows;
        code = digest_region(self, tensor, &slab, digest);
    }
    return code;
}

/* Candidates: parts whose size and type another part has, too. */
static size_t choose_candidates(const struct stored_checkpoint *checkpoint, struct duplicate_part *parts)
{
    size_t count = 0, kept = 0;
    for (size_t i = 0; i < checkpoint->chunk_count; i++) {
        const struct stored_chunk *chunk = &checkpoint->chunks[i];
        if (!checkpoint->tensors[chunk->tensor].is_bytes && bytes_of(checkpoint, chunk) >= SAME_LEAST_BYTES)
            parts[count++] = (struct duplicate_part){.chunk = (uint32_t)i};
    }
    if (count > 0)
        qsort_r(parts, count, sizeof *parts, compare_shapes, (void *)checkpoint);
    for (size_t i = 0; i < count; i++) {
        bool before = i > 0 && compare_shapes(&parts[i - 1], &parts[i], (void *)checkpoint) == 0;
        bool after = i + 1 < count && compare_shapes(&parts[i], &parts[i + 1], (void *)checkpoint) == 0;
        if (before || after)
            parts[kept++] = parts[i]; /* kept <= i: the parts still to be compared are not overwritten */
    }
    return kept;
}

static int compare_places(const void *a, const void *b, void *context)
{
    const struct stored_checkpoint *checkpoint = context;
    const struct stored_chunk *x = &checkpoint->chunks[((const struct duplicate_part *)a)->chunk];
    const struct stored_chunk *y = &checkpoint->chunks[((const struct duplicate_part *)b)->chunk];
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int digest_all(struct searcher *self, struct duplicate_part *parts, size_t count)
{
    int code = 0;
    if (count > 0)
        qsort_r(parts, count, sizeof *parts, compare_places, (void *)self->checkpoint);
    for (size_t i = 0; i < count && !code; i++) {
        const struct stored_chunk *chunk = &self->checkpoint->chunks[parts[i].chunk];
        const struct stored_tensor *tensor = &self->checkpoint->tensors[chunk->tensor];
        struct { /* so that equal bytes of different shapes are not duplicates */
            uint32_t dtype, dims;
            uint64_t size[CKPT_MAX_DIMS];
        } shape = {.dtype = tensor->dtype, .dims = chunk->region.dims};
        memcpy(shape.size, chunk->region.size, chunk->region.dims * sizeof *shape.size);
        add_to_digest(parts[i].digest, &shape, sizeof shape);
        code = digest_region(self, tensor, &chunk->region, parts[i].digest);
    }
    return code;
}

/* Keeps only the parts that have another part's bytes. */
static void keep_equal(const struct stored_checkpoint *checkpoint, struct duplicates *same, size_t count)
{
    struct duplicate_part *parts = same->parts;
    size_t end;
    if (count > 0)
        qsort(parts, count, sizeof *parts, compare_parts);
    for (size_t first = 0; first < count; first = end) {
        end = first + 1;
        while (end < count && memcmp(parts[first].digest, parts[end].digest, sizeof parts->digest) == 0)
            end++;
        if (end - first < 2)
            continue;
        same->groups++;
        same->extra_bytes += (end - first - 1) * bytes_of(checkpoint, &checkpoint->chunks[parts[first].chunk]);
        memmove(parts + same->count, parts + first, (end - first) * sizeof *parts);
        same->count += end - first;
    }
}

int duplicates_find(struct store *store, const struct stored_checkpoint *checkpoint, uint64_t memory_bytes,
                    struct duplicates *same, struct cb_err *err)
{
    struct searcher self = {.checkpoint = checkpoint, .memory_bytes = memory_bytes / 2, .err = err};
    struct duplicates made = {.parts = calloc(checkpoint->chunk_count + 1, sizeof *made.parts)};
    self.memory = malloc(self.memory_bytes);
    int code = made.parts && self.memory
                   ? stored_reader_new(store, checkpoint, self.memory_bytes, NULL, &self.reader, err)
                   : alloc_fail(err, "to compare parts with");
    size_t count = code ? 0 : choose_candidates(checkpoint, made.parts);
    if (!code)
        code = digest_all(&self, made.parts, count);
    if (!code) {
        keep_equal(checkpoint, &made, count);
        made.read_bytes = stored_reader_bytes(self.reader);
    }
    stored_reader_free(self.reader);
    free(self.memory);
    if (code)
        duplicates_release(&made);
    else
        *same = made;
    return code;
}

void duplicates_release(struct duplicates *self)
{
    free(self->parts);
    *self = (struct duplicates){0};
}
