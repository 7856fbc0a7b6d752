/* Merges the metadata of several ranks into one. */
#include "ckpt/stored/read_rank_metadata.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/stored.h"
#include "core/alloc.h"

#define MAX_METADATA_BYTES (UINT64_C(8) << 30)

/* A tensor of one rank. */
struct part {
    struct stored_checkpoint *from;
    struct stored_tensor *tensor;
    uint32_t rank, first_file; /* of the rank's, among those of all */
};

struct joining {
    struct store *store;
    const char *folder;
    struct stored_checkpoint **sources;
    struct part *parts;
    size_t part_count;
    struct cb_err *err;
};

bool metadata_is_of_rank(const char *name, uint32_t *rank)
{
    char *end;
    if (strncmp(name, "__", 2) != 0 || name[2] < '0' || name[2] > '9')
        return false;
    unsigned long number = strtoul(name + 2, &end, 10);
    if (number >= UINT32_MAX || strcmp(end, STORED_MARKER) != 0)
        return false;
    *rank = (uint32_t)number;
    return true;
}

static int no_memory(const struct joining *self)
{
    return alloc_fail(self->err, "for what the checkpoint in %s has", self->folder);
}

static int read_rank(const struct joining *self, uint32_t rank, struct stored_checkpoint **checkpoint)
{
    char name[PATH_MAX];
    struct buf bytes;
    int len = snprintf(name, sizeof name, "%s%s__%" PRIu32 STORED_MARKER, self->folder, *self->folder ? "/" : "", rank);
    if (len >= (int)sizeof name)
        return cb_fail(self->err, CB_ERR_USAGE, "the name %.200s… is too long", name);
    buf_init(&bytes, MAX_METADATA_BYTES);
    int code = store_read_small(self->store, name, &bytes, self->err);
    if (!code)
        code = format_read_metadata(name, bytes.data, bytes.len, checkpoint, self->err);
    buf_release(&bytes);
    return code;
}

static int compare_ranks(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static int compare_parts(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    int order = strcmp(x->tensor->fqn, y->tensor->fqn);
    return order ? order : x->rank < y->rank ? -1 : x->rank > y->rank;
}

static bool is_alike(const struct stored_tensor *a, const struct stored_tensor *b)
{
    return a->is_bytes == b->is_bytes && a->dtype == b->dtype && a->dims == b->dims &&
           memcmp(a->shape, b->shape, a->dims * sizeof *a->shape) == 0;
}

/* Parts of one name, from *next on. */
static int add_tensor(struct joining *self, size_t *next, struct stored_checkpoint *all)
{
    struct part *first = &self->parts[*next];
    struct stored_tensor *tensor = &all->tensors[all->tensor_count++];
    *tensor = *first->tensor;
    tensor->first_chunk = (uint32_t)all->chunk_count;
    tensor->chunk_count = 0;
    *first->tensor = (struct stored_tensor){.chunk_count = first->tensor->chunk_count,
                                            .first_chunk = first->tensor->first_chunk}; /* its texts are handed over */
    for (struct part *part = first; part < self->parts + self->part_count; part++, ++*next) {
        const struct stored_tensor *given = part->tensor;
        if (part != first && strcmp(given->fqn, tensor->fqn) != 0)
            break;
        if (part != first && !is_alike(given, tensor))
            return cb_fail(self->err, CB_ERR_CORRUPT,
                           "%s: rank %" PRIu32 " and rank %" PRIu32 " stored it with different types or shapes",
                           tensor->fqn, first->rank, part->rank);
        for (uint32_t i = 0; i < given->chunk_count; i++) {
            struct stored_chunk *chunk = &all->chunks[all->chunk_count++];
            *chunk = part->from->chunks[given->first_chunk + i];
            chunk->file += part->first_file;
            tensor->chunk_count++;
        }
    }
    return 0;
}

static int join(struct joining *self, const uint32_t *ranks, size_t count, struct stored_checkpoint *all)
{
    size_t tensors = 0, chunks = 0, files = 0;
    assert(count > 0 && self->sources[0]);
    for (size_t i = 0; i < count; i++) {
        tensors += self->sources[i]->tensor_count;
        chunks += self->sources[i]->chunk_count;
        files += self->sources[i]->file_count;
    }
    all->format = self->sources[0]->format;
    all->tensors = calloc(tensors + 1, sizeof *all->tensors);
    all->chunks = calloc(chunks + 1, sizeof *all->chunks);
    all->files = calloc(files + 1, sizeof *all->files);
    self->parts = calloc(tensors + 1, sizeof *self->parts);
    if (!all->tensors || !all->chunks || !all->files || !self->parts || chunks >= UINT32_MAX)
        return no_memory(self);
    for (size_t i = 0; i < count; i++) {
        struct stored_checkpoint *from = self->sources[i];
        for (size_t k = 0; k < from->tensor_count; k++)
            self->parts[self->part_count++] =
                (struct part){from, &from->tensors[k], ranks[i], (uint32_t)all->file_count};
        for (size_t k = 0; k < from->file_count; k++) {
            all->files[all->file_count++] = from->files[k];
            from->files[k] = NULL; /* handed over */
        }
    }
    qsort(self->parts, self->part_count, sizeof *self->parts, compare_parts);
    int code = 0;
    for (size_t next = 0; next < self->part_count && !code;)
        code = add_tensor(self, &next, all);
    return code ? code : stored_checkpoint_settle(all, "__R" STORED_MARKER, self->err);
}

int metadata_read_ranks(struct store *store, const char *folder, uint32_t *ranks, size_t count,
                        struct stored_checkpoint **checkpoint, struct cb_err *err)
{
    struct joining self = {.store = store, .folder = folder, .err = err};
    struct stored_checkpoint *all = calloc(1, sizeof *all);
    self.sources = calloc(count + 1, sizeof(struct stored_checkpoint *));
    int code = all && self.sources ? 0 : no_memory(&self);
    qsort(ranks, count, sizeof *ranks, compare_ranks);
    for (size_t i = 0; i < count && !code; i++)
        code = read_rank(&self, ranks[i], &self.sources[i]);
    if (!code)
        code = join(&self, ranks, count, all);
    for (size_t i = 0; self.sources && i < count; i++)
        stored_checkpoint_free(self.sources[i]);
    free(self.sources);
    free(self.parts);
    if (code)
        stored_checkpoint_free(all);
    else
        *checkpoint = all;
    return code;
}
