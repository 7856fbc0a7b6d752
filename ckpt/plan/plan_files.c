/* Decides where items are written: their order, files and offsets. */
#include <stdio.h>
#include <string.h>

#include "ckpt/format/format.h"
#include "ckpt/format/format_ops.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/plan/plan_internal.h"
#include "core/alloc.h"

/* Groups the items by rank, and records where those of each planned rank begin, in `first` (world_size + 2). */
static int gather_by_rank(const struct planner *planner, struct plan *plan, size_t *first, struct cb_err *err)
{
    size_t count = planner->assignment_count;
    plan->items = calloc(count + 1, sizeof *plan->items);
    if (!plan->items)
        return alloc_fail(err, "for a plan of %zu items", count);
    size_t *next = first + 1; /* while filling, next[r] is the position of rank r's next item */
    for (size_t i = 0; i < count; i++)
        next[planner->assignments[i].rank + 1]++;
    for (uint32_t rank = 1; rank < plan->world_size; rank++)
        next[rank] += next[rank - 1];
    for (size_t i = 0; i < count; i++) {
        const struct assignment *from = &planner->assignments[i];
        plan->items[next[from->rank]++] =
            (struct plan_item){.tensor = from->tensor, .region = from->region, .row_step = from->row_step};
    }
    return 0;
}

/* Bytes items first, as in DCP; then by file group, tensor and position in the tensor. */
static int compare_items(const void *a, const void *b, void *context)
{
    const struct layout *layout = context;
    const struct plan_item *x = a, *y = b;
    const struct state_tensor *s = &layout->tensors[x->tensor], *t = &layout->tensors[y->tensor];
    if ((s->kind == KIND_BYTES) != (t->kind == KIND_BYTES))
        return s->kind == KIND_BYTES ? -1 : 1;
    if (s->file_group != t->file_group)
        return s->file_group < t->file_group ? -1 : 1;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    return region_compare(&x->region, &y->region);
}

/* Most ranks' items are in order already; checking is cheaper than sorting. */
static void sort_items(const struct layout *layout, struct plan_item *items, size_t count)
{
    size_t i = 1;
    while (i < count && compare_items(&items[i - 1], &items[i], (void *)layout) <= 0)
        i++;
    if (i < count)
        qsort_r(items, count, sizeof *items, compare_items, (void *)layout);
}

static bool is_safetensors(const struct plan_options *options)
{
    return format_ops_of(options->format)->has_file_headers;
}

/* A safetensors file can contain a name only once: a rank's second part of a tensor goes after all first parts, the
 * third after all second ones, and each of these layers to a file of its own. `items` are sorted. */
static int sort_in_layers(struct plan_item *items, size_t count, struct cb_err *err)
{
    struct plan_item *sorted = malloc((count + 1) * sizeof *sorted);
    uint32_t *layer = calloc(count + 1, sizeof *layer);
    uint32_t layers = 1;
    int code = sorted && layer ? 0 : alloc_fail(err, "to order %zu items", count);
    for (size_t i = 1; i < count && !code; i++) {
        layer[i] = items[i].tensor == items[i - 1].tensor ? layer[i - 1] + 1 : 0;
        layers = layer[i] >= layers ? layer[i] + 1 : layers;
    }
    size_t used = 0;
    for (uint32_t wanted = 0; wanted < layers && layers > 1 && !code; wanted++) {
        for (size_t i = 0; i < count; i++) {
            if (layer[i] == wanted)
                sorted[used++] = items[i];
        }
    }
    if (used == count && used > 0)
        memcpy(items, sorted, count * sizeof *items);
    free(sorted);
    free(layer);
    return code;
}

/* --- files and offsets --- */

/* State while files and offsets of a pattern are assigned. */
struct placer {
    const struct planner *planner;
    const struct plan_options *options;
    struct plan *plan;
    size_t first_length, length_count; /* of the files of this pattern; the count includes those of earlier ones */
};

static int open_file(struct placer *self, struct cb_err *err)
{
    int code = alloc_grow(&self->plan->lengths, self->length_count, sizeof *self->plan->lengths, err);
    if (!code)
        self->plan->lengths[self->length_count++] = 0;
    return code;
}

/* safetensors: the header, whose length follows from all items of the file, goes before the first of them. */
static int close_file(struct placer *self, struct plan_item *items, size_t count, struct cb_err *err)
{
    struct buf header;
    if (count == 0 || !is_safetensors(self->options))
        return 0;
    buf_init(&header, SAFETENSORS_LENGTH_BYTES + SAFETENSORS_MAX_HEADER + (size_t)self->options->payload_alignment);
    int code =
        safetensors_put_header(self->planner->layout, items, count, format_ops_of(self->options->format)->has_parts,
                               self->options->payload_alignment, 0, &header, err);
    for (size_t i = 0; i < count && !code; i++) {
        items[i].payload_offset += header.len;
        if (i == 0)
            items[i].length += header.len;
        else
            items[i].offset += header.len;
    }
    if (!code)
        self->plan->lengths[self->length_count - 1] += header.len;
    buf_release(&header);
    return code;
}

/* Puts the item at the end of the last file. */
static int place_item(struct placer *self, struct plan_item *item, struct cb_err *err)
{
    uint64_t *length = &self->plan->lengths[self->length_count - 1];
    struct item_frame frame = {0};
    const struct state_tensor *tensor = &self->planner->layout->tensors[item->tensor];
    int code = format_item_frame(self->options->format, tensor, &item->region, *length,
                                 self->options->payload_alignment, &frame, err);
    if (code)
        return cb_context(err, "planning %s", tensor->fqn);
    item->file = (uint32_t)(self->length_count - 1 - self->first_length);
    item->offset = *length;
    item->payload_offset = item->offset + frame.header_bytes;
    item->payload_bytes = frame.payload_bytes;
    item->length = frame.header_bytes + frame.payload_bytes + frame.trailer_bytes;
    *length += item->length;
    return 0;
}

/* Whether the item begins a file: `before` of the rank's `total` bytes precede it. */
static bool starts_file(const struct placer *self, const struct plan_item *item, size_t index, uint64_t before,
                        uint64_t total)
{
    const struct state_tensor *tensors = self->planner->layout->tensors;
    if (index == 0)
        return true;
    if (self->options->files != FILES_PER_RANK)
        return self->options->files == FILES_PER_ITEM;
    const struct state_tensor *tensor = &tensors[item->tensor], *before_it = &tensors[item[-1].tensor];
    if (tensor->file_group != before_it->file_group)
        return true;
    if (format_ops_of(self->options->format)->has_parts && before_it->kind != KIND_BYTES &&
        item->tensor <= item[-1].tensor)
        return true; /* the item belongs to another layer */
    uint64_t files = self->options->files_per_rank, opened = self->length_count - self->first_length;
    return files > 1 && opened < files && before >= total / files * opened;
}

static int place_pattern(struct placer *self, uint32_t rank, struct plan_item *items, size_t count, struct cb_err *err)
{
    uint64_t total = self->planner->loads[rank], before = 0;
    int code = 0;
    sort_items(self->planner->layout, items, count);
    if (format_ops_of(self->options->format)->has_parts)
        code = sort_in_layers(items, count, err);
    self->first_length = self->length_count;
    size_t first = 0; /* of the file's items */
    for (size_t i = 0; i < count && !code; i++) {
        if (starts_file(self, &items[i], i, before, total)) {
            code = close_file(self, items + first, i - first, err);
            first = i;
            if (!code)
                code = open_file(self, err);
        }
        if (!code)
            code = place_item(self, &items[i], err);
        before += items[i].payload_bytes;
    }
    return code ? code : close_file(self, items + first, count - first, err);
}

/* Places the items of each planned rank; `first` is from gather_by_rank. */
static int place_patterns(struct placer *self, const size_t *first, struct cb_err *err)
{
    struct plan *plan = self->plan;
    int code = 0;
    for (uint32_t rank = 0; rank < plan->world_size && !code; rank++) {
        uint32_t planned = planner_planned(self->planner, rank);
        if (planned != rank) {
            plan->ranks[rank].pattern = plan->ranks[planned].pattern;
            plan->patterns[plan->ranks[rank].pattern].count++;
            continue;
        }
        code = alloc_grow(&plan->patterns, plan->pattern_count, sizeof *plan->patterns, err);
        if (code)
            return code;
        plan->ranks[rank].pattern = (uint32_t)plan->pattern_count;
        plan->patterns[plan->pattern_count++] = (struct plan_pattern){
            .rank = rank, .count = 1, .first_item = first[rank], .first_length = self->length_count};
        code = place_pattern(self, rank, plan->items + first[rank], first[rank + 1] - first[rank], err);
    }
    if (!code)
        code = alloc_grow(&plan->patterns, plan->pattern_count, sizeof *plan->patterns, err);
    if (!code)
        plan->patterns[plan->pattern_count] = (struct plan_pattern){
            .rank = plan->world_size, .first_item = first[plan->world_size], .first_length = self->length_count};
    return code;
}

/* Numbers the files of all ranks. A shared file is created by the first rank with items; two ranks never share a block
 * of it. */
static void place_ranks(struct plan *plan)
{
    bool shared = plan->options.files == FILES_SHARED;
    uint64_t end = 0, mask = plan->options.payload_alignment - 1;
    for (uint32_t rank = 0; rank < plan->world_size; rank++) {
        struct plan_rank *place = &plan->ranks[rank];
        const struct plan_pattern *pattern = &plan->patterns[place->pattern];
        uint32_t files = (uint32_t)(pattern[1].first_length - pattern->first_length);
        place->first_file = (uint32_t)plan->file_count;
        plan->most_files = files > plan->most_files ? files : plan->most_files;
        plan->file_count += shared && plan->file_count > 0 ? 0 : files;
        if (shared && files > 0) {
            place->first_byte = (end + mask) & ~mask;
            end = place->first_byte + plan->lengths[pattern->first_length];
        }
    }
    plan->ranks[plan->world_size] = (struct plan_rank){.first_file = (uint32_t)plan->file_count, .first_byte = end};
}

/* Counts the items of all ranks. */
static void count_items(struct plan *plan)
{
    for (size_t i = 0; i < plan->pattern_count; i++) {
        const struct plan_pattern *pattern = &plan->patterns[i];
        plan->item_count += (pattern[1].first_item - pattern->first_item) * pattern->count;
        for (size_t k = pattern->first_item; k < pattern[1].first_item; k++)
            plan->payload_bytes += plan->items[k].payload_bytes * pattern->count;
    }
}

int plan_place(const struct planner *planner, const struct plan_options *options, struct plan *plan, struct cb_err *err)
{
    struct placer placer = {.planner = planner, .options = options, .plan = plan};
    size_t *first = calloc((size_t)plan->world_size + 2, sizeof *first);
    plan->ranks = calloc((size_t)plan->world_size + 1, sizeof *plan->ranks);
    plan->rank_step = planner->layout->mesh.stride[AXIS_FSDP];
    int code = first && plan->ranks ? 0 : alloc_fail(err, "to plan for %u ranks", plan->world_size);
    if (!code)
        code = gather_by_rank(planner, plan, first, err);
    if (!code)
        code = place_patterns(&placer, first, err);
    if (!code) {
        place_ranks(plan);
        count_items(plan);
    }
    free(first);
    return code;
}
