/* Passes a stored checkpoint to a sink, and collects one from what a sink is given. */
#include <string.h>

#include "ckpt/stored_sink.h"
#include "core/alloc.h"

#define NO_FILE UINT32_MAX /* of a chunk whose place has not come */

/* --- passing --- */

int stored_checkpoint_pass(const struct stored_checkpoint *self, const struct stored_sink *sink, struct cb_err *err)
{
    int code = 0;
    for (size_t i = 0; i < self->tensor_count && !code; i++) {
        const struct stored_tensor *tensor = &self->tensors[i];
        code = sink->tensor(sink->context, tensor, err);
        for (uint32_t k = 0; k < tensor->chunk_count && !code; k += STORED_AT_ONCE) {
            uint32_t left = tensor->chunk_count - k, count = left < STORED_AT_ONCE ? left : STORED_AT_ONCE;
            code = sink->chunks(sink->context, (uint32_t)i, STORED_ALL, self->chunks + tensor->first_chunk + k, count,
                                err);
        }
        if (!code && tensor->path)
            code = sink->path(sink->context, (uint32_t)i, tensor->path, err);
    }
    for (size_t i = 0; i < self->file_count && !code; i++)
        code = sink->file(sink->context, self->files[i], err);
    return code ? code : sink->end(sink->context, self, err);
}

/* --- collecting --- */

static int malformed(const struct stored_collector *self, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_CORRUPT, "%s: what it lists did not come in order", self->name);
}

static int bad(const struct stored_collector *self, const struct stored_tensor *tensor, const char *what,
               struct cb_err *err)
{
    return cb_fail(err, CB_ERR_FORMAT, "%s: %s: %s", self->name, tensor->fqn, what);
}

static int no_memory(const struct stored_collector *self, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_MEMORY, "%s: no memory for what it lists", self->name);
}

static struct stored_tensor *tensor_of(const struct stored_collector *self, uint32_t tensor)
{
    struct stored_checkpoint *made = self->checkpoint;
    return made && tensor < made->tensor_count ? &made->tensors[tensor] : NULL;
}

static char *copy_text(const char *text, bool *failed)
{
    char *copy = text ? strdup(text) : NULL;
    *failed |= text && !copy;
    return copy;
}

static int collect_tensor(void *context, const struct stored_tensor *tensor, struct cb_err *err)
{
    struct stored_collector *self = context;
    bool failed = false;
    if (!self->checkpoint)
        self->checkpoint = calloc(1, sizeof *self->checkpoint);
    struct stored_checkpoint *made = self->checkpoint;
    if (!made)
        return no_memory(self, err);
    if (self->sorted || self->files || made->tensor_count >= UINT32_MAX - 1)
        return malformed(self, err);
    int code = alloc_grow(&made->tensors, made->tensor_count, sizeof *made->tensors, err);
    if (code)
        return code;
    struct stored_tensor *added = &made->tensors[made->tensor_count++];
    *added = *tensor;
    added->first_chunk = (uint32_t)made->chunk_count;
    added->chunk_count = 0;
    added->path = NULL;
    added->fqn = copy_text(tensor->fqn, &failed);
    added->literal = copy_text(tensor->literal, &failed);
    return failed ? no_memory(self, err) : 0;
}

static int collect_path(void *context, uint32_t number, const char *path, struct cb_err *err)
{
    struct stored_collector *self = context;
    struct stored_tensor *tensor = tensor_of(self, number);
    bool failed = false;
    if (!tensor)
        return malformed(self, err);
    if (!tensor->path)
        tensor->path = copy_text(path, &failed);
    return failed ? no_memory(self, err) : 0;
}

bool stored_collector_needs(const struct stored_collector *self, uint32_t tensor, const struct region *box)
{
    return !self->need || self->need(self->context, &self->checkpoint->tensors[tensor], box);
}

static int add_region(struct stored_collector *self, uint32_t number, const struct stored_chunk *chunk, bool is_placed,
                      struct cb_err *err)
{
    struct stored_checkpoint *made = self->checkpoint;
    struct stored_tensor *tensor = &made->tensors[number];
    if (chunk->region.dims != tensor->dims || made->chunk_count >= UINT32_MAX - 1)
        return malformed(self, err);
    if (!stored_collector_needs(self, number, &chunk->region))
        return 0;
    if (tensor->chunk_count == 0)
        tensor->first_chunk = (uint32_t)made->chunk_count;
    else if (made->chunk_count != (size_t)tensor->first_chunk + tensor->chunk_count)
        return malformed(self, err);
    int code = alloc_grow(&made->chunks, made->chunk_count, sizeof *made->chunks, err);
    if (code)
        return code;
    struct stored_chunk *added = &made->chunks[made->chunk_count++];
    *added = *chunk;
    added->tensor = number;
    if (!is_placed)
        added->file = NO_FILE;
    tensor->chunk_count++;
    return 0;
}

static void sort_chunks(struct stored_collector *self)
{
    struct stored_checkpoint *made = self->checkpoint;
    for (size_t i = 0; i < made->tensor_count && !self->sorted; i++)
        if (made->tensors[i].chunk_count > 1)
            qsort(made->chunks + made->tensors[i].first_chunk, made->tensors[i].chunk_count, sizeof *made->chunks,
                  stored_chunk_compare);
    self->sorted = true;
}

/* The first chunk of the tensor that does not lie before this offset, or NULL. The chunks must be sorted. */
static struct stored_chunk *find_chunk(struct stored_collector *self, const struct stored_tensor *tensor,
                                       const struct region *at)
{
    struct stored_chunk *chunks = self->checkpoint->chunks;
    size_t low = tensor->first_chunk, end = low + tensor->chunk_count, high = end;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (region_compare_offsets(&chunks[middle].region, at) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < end ? &chunks[low] : NULL;
}

bool stored_collector_has(struct stored_collector *self, uint32_t number, const struct region *low,
                          const struct region *high)
{
    const struct stored_tensor *tensor = &self->checkpoint->tensors[number];
    if (!self->need)
        return true;
    sort_chunks(self);
    const struct stored_chunk *found = find_chunk(self, tensor, low);
    return found && region_compare_offsets(&found->region, high) <= 0;
}

/* Chunks at one offset share their item, as in PyTorch, which finds items by name and offset: empty chunks, and a chunk
 * that several ranks wrote. */
static int add_place(struct stored_collector *self, uint32_t number, const struct stored_chunk *place,
                     struct cb_err *err)
{
    const struct stored_tensor *tensor = &self->checkpoint->tensors[number];
    struct stored_chunk *chunk = place->region.dims == tensor->dims ? find_chunk(self, tensor, &place->region) : NULL;
    struct stored_chunk *end = self->checkpoint->chunks + tensor->first_chunk + tensor->chunk_count;
    if (place->file == NO_FILE)
        return malformed(self, err);
    if (!chunk || region_compare_offsets(&chunk->region, &place->region) != 0)
        return self->need && place->region.dims == tensor->dims
                   ? 0
                   : bad(self, tensor, "an item that is none of its chunks", err);
    for (; chunk < end && chunk->file == NO_FILE && region_compare_offsets(&chunk->region, &place->region) == 0;
         chunk++) {
        chunk->file = place->file;
        chunk->offset = place->offset;
        chunk->length = place->length;
        chunk->compressed = place->compressed;
    }
    return 0;
}

static int collect_chunks(void *context, uint32_t tensor, enum stored_known known, const struct stored_chunk *chunks,
                          uint32_t count, struct cb_err *err)
{
    struct stored_collector *self = context;
    int code = 0;
    if (!tensor_of(self, tensor) || self->files || (self->sorted && known & STORED_REGIONS))
        return malformed(self, err);
    if (known == STORED_PLACES)
        sort_chunks(self);
    for (uint32_t i = 0; i < count && !code; i++)
        code = known & STORED_REGIONS ? add_region(self, tensor, &chunks[i], known & STORED_PLACES, err)
                                      : add_place(self, tensor, &chunks[i], err);
    return code;
}

static int compare_numbers(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* The files of the chunks that are kept. */
static int choose_files(struct stored_collector *self, struct cb_err *err)
{
    const struct stored_checkpoint *made = self->checkpoint;
    size_t most = self->need ? made->chunk_count : 0, count = 0;
    self->files = malloc((most + 1) * sizeof *self->files);
    if (!self->files)
        return no_memory(self, err);
    for (size_t i = 0; i < most; i++)
        self->files[i] = made->chunks[i].file;
    if (most > 0)
        qsort(self->files, most, sizeof *self->files, compare_numbers);
    for (size_t i = 0; i < most; i++)
        if (count == 0 || self->files[count - 1] != self->files[i])
            self->files[count++] = self->files[i];
    self->files_wanted = count;
    return 0;
}

static int collect_file(void *context, const char *name, struct cb_err *err)
{
    struct stored_collector *self = context;
    struct stored_checkpoint *made = self->checkpoint;
    int code = made && !self->files ? choose_files(self, err) : 0;
    if (code || !made)
        return code ? code : malformed(self, err);
    size_t number = self->files_come++;
    if (self->need && (made->file_count >= self->files_wanted || self->files[made->file_count] != number))
        return 0;
    return alloc_add_text(&made->files, &made->file_count, name, strlen(name), err);
}

static int collect_end(void *context, const struct stored_checkpoint *facts, struct cb_err *err)
{
    struct stored_collector *self = context;
    if (!self->checkpoint) /* it has nothing */
        self->checkpoint = calloc(1, sizeof *self->checkpoint);
    if (!self->checkpoint)
        return no_memory(self, err);
    self->checkpoint->format = facts->format;
    self->checkpoint->marked = facts->marked;
    self->checkpoint->save_id = facts->save_id;
    self->checkpoint->duplicates = facts->duplicates;
    self->ended = true;
    return 0;
}

struct stored_sink stored_collector_sink(struct stored_collector *self)
{
    return (struct stored_sink){collect_tensor, collect_chunks, collect_path, collect_file, collect_end, self};
}

/* Files are numbered anew, as some are left out. */
static int number_files(struct stored_collector *self, struct cb_err *err)
{
    struct stored_checkpoint *made = self->checkpoint;
    for (size_t i = 0; i < made->chunk_count; i++) {
        struct stored_chunk *chunk = &made->chunks[i];
        if (chunk->file == NO_FILE)
            return bad(self, &made->tensors[chunk->tensor], "a chunk that no file holds", err);
        if (!self->need)
            continue;
        const uint32_t *found =
            self->files ? bsearch(&chunk->file, self->files, self->files_wanted, sizeof *found, compare_numbers) : NULL;
        chunk->file = found ? (uint32_t)(found - self->files) : NO_FILE;
    }
    return 0;
}

int stored_collector_take(struct stored_collector *self, struct stored_checkpoint **checkpoint, struct cb_err *err)
{
    if (!self->ended)
        return malformed(self, err);
    int code = number_files(self, err);
    if (!code)
        code = stored_checkpoint_settle(self->checkpoint, self->name, err);
    if (code)
        return code;
    *checkpoint = self->checkpoint;
    self->checkpoint = NULL;
    return 0;
}

void stored_collector_release(struct stored_collector *self)
{
    stored_checkpoint_free(self->checkpoint);
    free(self->files);
    self->checkpoint = NULL;
    self->files = NULL;
}
