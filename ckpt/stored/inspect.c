/* Computes the statistics of a stored checkpoint. Recognises the file names of the known writers. */
#include "ckpt/stored/inspect.h"

#include "core/alloc.h"

#include <stdio.h>
#include <string.h>

/* --- files and who wrote them --- */

/* "__3_0.distcp" and "d00001/__3_0.raw" are rank 3's, "shard-00004-model-…" rank 3's, too. */
static uint32_t rank_of(const char *name)
{
    const char *slash = strrchr(name, '/'), *last = slash ? slash + 1 : name;
    unsigned rank = 0, number = 0;
    int used = 0;
    if (sscanf(last, "__%u_%u.%n", &rank, &number, &used) == 2 && used > 0)
        return rank;
    if (sscanf(last, "shard-%u-", &rank) == 1 && rank > 0)
        return rank - 1;
    return INSPECT_NO_RANK;
}

static int look_at_files(struct store *store, const struct stored_checkpoint *checkpoint, struct inspection *self,
                         struct cb_err *err)
{
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        struct inspect_file *file = &self->files[i];
        *file = (struct inspect_file){.name = checkpoint->files[i], .rank = rank_of(checkpoint->files[i])};
        int code = store_stat(store, file->name, &file->bytes, err);
        if (code && code != CB_ERR_NOT_FOUND)
            return code;
        file->missing = code != 0;
        self->missing_files += file->missing;
        self->file_bytes += file->bytes;
    }
    return 0;
}

static uint64_t payload_of(const struct stored_checkpoint *checkpoint, const struct stored_chunk *chunk)
{
    const struct stored_tensor *tensor = &checkpoint->tensors[chunk->tensor];
    if (tensor->is_bytes || chunk->compressed)
        return chunk->length;
    uint64_t bytes = region_elements(&chunk->region) * dtype_bytes(tensor->dtype);
    return bytes < chunk->length ? bytes : chunk->length;
}

static int compare_places(const void *a, const void *b)
{
    const struct stored_chunk *x = *(const struct stored_chunk *const *)a, *y = *(const struct stored_chunk *const *)b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Items in storage order: the bytes of each file that they use, gaps between them, and overlaps. */
static int look_at_items(const struct stored_checkpoint *checkpoint, struct inspection *self, struct cb_err *err)
{
    size_t count = checkpoint->chunk_count;
    const struct stored_chunk **places = malloc((count + 1) * sizeof *places);
    uint64_t end = 0;
    if (!places)
        return alloc_fail(err, "for %zu items", count);
    for (size_t i = 0; i < count; i++)
        places[i] = &checkpoint->chunks[i];
    qsort(places, count, sizeof *places, compare_places);
    for (size_t i = 0; i < count; i++) {
        const struct stored_chunk *chunk = places[i];
        struct inspect_file *file = &self->files[chunk->file];
        uint64_t payload = payload_of(checkpoint, chunk), item_end = chunk->offset + chunk->length;
        if (file->items++ == 0)
            end = 0;
        uint64_t from = chunk->offset > end ? chunk->offset : end;
        file->covered_bytes += item_end > from ? item_end - from : 0;
        self->overlap_bytes += end > chunk->offset ? (end < item_end ? end : item_end) - chunk->offset : 0;
        end = item_end > end ? item_end : end;
        file->payload_bytes += payload;
        self->frame_bytes += chunk->length - payload;
        self->compressed += chunk->compressed;
    }
    free(places);
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        struct inspect_file *file = &self->files[i];
        file->outside_bytes = file->bytes > file->covered_bytes ? file->bytes - file->covered_bytes : 0;
        self->payload_bytes += file->payload_bytes;
        self->outside_bytes += file->outside_bytes;
    }
    return 0;
}

static int compare_ranks(const void *a, const void *b)
{
    const struct inspect_rank *x = a, *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static int add_up_ranks(const struct stored_checkpoint *checkpoint, struct inspection *self, struct cb_err *err)
{
    uint64_t largest = 0, sum = 0;
    size_t used = 0;
    self->ranks = calloc(checkpoint->file_count + 1, sizeof *self->ranks);
    if (!self->ranks)
        return alloc_fail(err, "for %zu files", checkpoint->file_count);
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        if (self->files[i].rank != INSPECT_NO_RANK)
            self->ranks[used++] = (struct inspect_rank){self->files[i].rank, 1, self->files[i].payload_bytes};
    }
    if (used == 0)
        return 0;
    qsort(self->ranks, used, sizeof *self->ranks, compare_ranks);
    for (size_t i = 0; i < used; i++) {
        struct inspect_rank *last = self->rank_count > 0 ? &self->ranks[self->rank_count - 1] : NULL;
        if (last && last->rank == self->ranks[i].rank) {
            last->files++;
            last->payload_bytes += self->ranks[i].payload_bytes;
        } else {
            self->ranks[self->rank_count++] = self->ranks[i];
        }
    }
    for (size_t i = 0; i < self->rank_count; i++) {
        sum += self->ranks[i].payload_bytes;
        largest = self->ranks[i].payload_bytes > largest ? self->ranks[i].payload_bytes : largest;
    }
    self->imbalance = sum > 0 ? (double)largest * (double)self->rank_count / (double)sum : 1;
    return 0;
}

/* --- a guess at the layout --- */

/* How tensors are cut: along one dimension into equally many parts, or otherwise. */
struct cuts {
    uint64_t whole, along[2], other;
    uint32_t parts[2]; /* the smallest number of parts of a tensor: a fused q, k, v has three times as many */
};

/* The only dimension along which chunks differ; UINT32_MAX if there are several. */
static uint32_t cut_dimension(const struct stored_checkpoint *checkpoint, const struct stored_tensor *tensor)
{
    const struct stored_chunk *chunks = checkpoint->chunks + tensor->first_chunk;
    uint32_t found = UINT32_MAX;
    for (uint32_t d = 0; d < tensor->dims; d++) {
        bool cut = false;
        for (uint32_t i = 0; i < tensor->chunk_count && !cut; i++)
            cut = chunks[i].region.size[d] != tensor->shape[d];
        if (cut && found != UINT32_MAX)
            return UINT32_MAX;
        if (cut)
            found = d;
    }
    return found;
}

static void count_cut(struct cuts *cuts, const struct stored_checkpoint *checkpoint, const struct stored_tensor *tensor)
{
    if (tensor->chunk_count <= 1) {
        cuts->whole++;
        return;
    }
    uint32_t d = cut_dimension(checkpoint, tensor);
    if (d > 1) {
        cuts->other++;
        return;
    }
    cuts->along[d]++;
    if (cuts->parts[d] == 0 || tensor->chunk_count < cuts->parts[d])
        cuts->parts[d] = tensor->chunk_count;
}

static void guess_layout(const struct stored_checkpoint *checkpoint, struct inspection *self)
{
    struct cuts cuts = {0};
    size_t room = sizeof self->layout;
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        if (!checkpoint->tensors[i].is_bytes)
            count_cut(&cuts, checkpoint, &checkpoint->tensors[i]);
    }
    unsigned long long rows = cuts.along[0], columns = cuts.along[1], other = cuts.other, whole = cuts.whole;
    if (rows + columns + other + whole == 0)
        snprintf(self->layout, room, "there are no tensors");
    else if (rows + columns + other == 0)
        snprintf(self->layout, room, "every tensor is whole: one rank, data parallel or pipeline stages");
    else if (columns > 0 && cuts.parts[1] > 1)
        snprintf(
            self->layout, room,
            "tensor parallel over %u: %llu tensors are cut along dimension 0, %llu along dimension 1, %llu otherwise",
            cuts.parts[1], rows, columns, other);
    else if (other > 0)
        snprintf(
            self->layout, room,
            "flattened shards (ZeRO, distributed optimizer): %llu tensors are cut in several directions, %llu along "
            "dimension 0",
            other, rows);
    else if (rows > whole)
        snprintf(self->layout, room, "fully sharded over %u: %llu tensors are cut along dimension 0, %llu are whole",
                 cuts.parts[0], rows, whole);
    else
        snprintf(self->layout, room,
                 "data parallel, shared out among the ranks: %llu tensors are whole, %llu cut along dimension 0", whole,
                 rows);
}

int inspect_checkpoint(struct store *store, const struct stored_checkpoint *checkpoint, struct inspection *inspection,
                       struct cb_err *err)
{
    struct inspection made = {0};
    made.files = calloc(checkpoint->file_count + 1, sizeof *made.files);
    if (!made.files)
        return alloc_fail(err, "for %zu files", checkpoint->file_count);
    int code = look_at_files(store, checkpoint, &made, err);
    if (!code)
        code = look_at_items(checkpoint, &made, err);
    if (!code)
        code = add_up_ranks(checkpoint, &made, err);
    if (code) {
        inspection_release(&made);
        return code;
    }
    stored_count(checkpoint, &made.counts);
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        const struct stored_tensor *tensor = &checkpoint->tensors[i];
        struct region whole = region_whole(tensor->dims, tensor->shape);
        made.types[tensor->dtype].tensors += !tensor->is_bytes;
        made.types[tensor->dtype].bytes += tensor->is_bytes ? 0 : region_elements(&whole) * dtype_bytes(tensor->dtype);
    }
    guess_layout(checkpoint, &made);
    *inspection = made;
    return 0;
}

void inspection_release(struct inspection *self)
{
    free(self->files);
    free(self->ranks);
    *self = (struct inspection){0};
}
