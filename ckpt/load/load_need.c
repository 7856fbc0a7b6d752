/* Pieces are found by the name of their tensor. */
#include "ckpt/load/load_need.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"

static const char *name_of(const struct load_need *self, size_t place)
{
    return layout_tensor(self->layout, self->pieces[self->order[place]].tensor)->fqn;
}

static int compare_names(const void *a, const void *b, void *context)
{
    const struct load_need *self = context;
    uint32_t x = self->pieces[*(const uint32_t *)a].tensor, y = self->pieces[*(const uint32_t *)b].tensor;
    return x == y ? 0 : strcmp(layout_tensor(self->layout, x)->fqn, layout_tensor(self->layout, y)->fqn);
}

int load_need_init(struct load_need *self, const struct layout *layout, const struct piece *pieces, size_t piece_count,
                   bool whole_rows, struct cb_err *err)
{
    *self =
        (struct load_need){.layout = layout, .pieces = pieces, .piece_count = piece_count, .whole_rows = whole_rows};
    self->order = malloc((piece_count + 1) * sizeof *self->order);
    if (!self->order)
        return alloc_fail(err, "to order %zu pieces", piece_count);
    for (size_t i = 0; i < piece_count; i++)
        self->order[i] = (uint32_t)i;
    qsort_r(self->order, piece_count, sizeof *self->order, compare_names, self);
    return 0;
}

void load_need_release(struct load_need *self)
{
    free(self->order);
    self->order = NULL;
}

static void find_pieces(struct load_need *self, const struct stored_tensor *tensor)
{
    size_t low = 0, high = self->piece_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(name_of(self, middle), tensor->fqn) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    self->last = tensor->fqn;
    self->first = self->end = low;
    while (self->end < self->piece_count && strcmp(name_of(self, self->end), tensor->fqn) == 0)
        self->end++;
}

bool load_need_of(void *need, const struct stored_tensor *tensor, const struct region *box)
{
    struct load_need *self = need;
    struct region common;
    if (tensor->is_bytes)
        return true;
    if (self->last != tensor->fqn) /* the tensors of a list that grows move, their names do not */
        find_pieces(self, tensor);
    for (size_t i = self->first; i < self->end; i++) {
        struct region wanted = self->pieces[self->order[i]].region;
        if (wanted.dims != box->dims)
            continue;
        for (uint32_t d = 1; d < wanted.dims && self->whole_rows; d++) {
            wanted.offset[d] = 0;
            wanted.size[d] = tensor->shape[d];
        }
        if (region_intersect(&wanted, box, &common))
            return true;
    }
    return false;
}
