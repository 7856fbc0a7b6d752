/* Decides where items are written: their order, files, names and offsets. */
#include <stdio.h>
#include <string.h>

#include "ckpt/format/format.h"
#include "ckpt/format/format_ops.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/plan/plan_internal.h"
#include "core/alloc.h"

/* Groups the items by rank, and records where each rank's begin. */
static int gather_by_rank(const struct planner *planner, struct plan *plan, struct cb_err *err)
{
    size_t count = planner->assignment_count;
    plan->items = calloc(count + 1, sizeof *plan->items);
    plan->first_item = calloc((size_t)plan->world_size + 2, sizeof *plan->first_item);
    if (!plan->items || !plan->first_item)
        return alloc_fail(err, "for a plan of %zu items", count);
    size_t *next = plan->first_item + 1; /* while filling, next[r] is the position of rank r's next item */
    for (size_t i = 0; i < count; i++)
        next[planner->assignments[i].rank + 1]++;
    for (uint32_t rank = 1; rank < plan->world_size; rank++)
        next[rank] += next[rank - 1];
    for (size_t i = 0; i < count; i++) {
        const struct assignment *from = &planner->assignments[i];
        plan->items[next[from->rank]++] = (struct plan_item){.tensor = from->tensor, .region = from->region};
    }
    plan->item_count = count;
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

/* --- names; in an object store the varying part comes first, to spread them over its partitions --- */

/* Element `index` modulo their number of "a+b+c". */
static void pick(const char *list, uint32_t index, char *folder, size_t room)
{
    uint32_t count = 1;
    for (const char *c = list; *c; c++)
        count += *c == '+';
    for (index %= count; index > 0; index--)
        list = strchr(list, '+') + 1;
    snprintf(folder, room, "%.*s/", (int)strcspn(list, "+"), list);
}

/* The digits of the rank, the last first, as many as the highest rank has. */
static void reverse_digits(uint32_t rank, uint32_t ranks, uint32_t base, char *folder)
{
    static const char digits[] = "0123456789abcdef";
    uint32_t highest = ranks > 1 ? ranks - 1 : 1;
    for (; highest > 0; highest /= base, rank /= base)
        *folder++ = digits[rank % base];
    *folder++ = '/';
    *folder = '\0';
}

void plan_prefix(const struct plan_options *options, uint32_t rank, uint32_t ranks, char folder[PLAN_PREFIX_BYTES])
{
    folder[0] = '\0';
    if (options->prefix == PREFIX_ROUND_ROBIN)
        pick(options->prefixes, rank, folder, PLAN_PREFIX_BYTES);
    else if (options->prefix == PREFIX_BINARY || options->prefix == PREFIX_HEX)
        reverse_digits(rank, ranks, options->prefix == PREFIX_HEX ? 16 : 2, folder);
}

/* --- files and offsets --- */

/* State while files and offsets are assigned. */
struct placer {
    const struct planner *planner;
    const struct plan_options *options;
    struct plan *plan;
    uint32_t rank_file; /* files of this rank so far */
};

/* Names of safetensors contain the number of files: name_safetensors(). */
static int open_file(struct placer *self, uint32_t rank, struct cb_err *err)
{
    struct plan *plan = self->plan;
    char *name = NULL, folder[PLAN_PREFIX_BYTES];
    int code = alloc_grow(&plan->files, plan->file_count, sizeof *plan->files, err);
    if (code)
        return code;
    plan_prefix(self->options, rank, plan->world_size, folder);
    if (self->options->fanout)
        snprintf(folder, sizeof folder, "d%05u/", (uint32_t)(plan->file_count % self->options->fanout));
    const char *suffix = format_ops_of(self->options->format)->suffix;
    if (suffix && asprintf(&name, "%s__%u_%u.%s", folder, rank, self->rank_file, suffix) < 0)
        return alloc_fail(err, "for a plan of %zu files", plan->file_count);
    plan->files[plan->file_count++] = (struct plan_file){.name = name, .rank = rank};
    self->rank_file++;
    return 0;
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
        self->plan->files[items[0].file].length += header.len;
    buf_release(&header);
    return code;
}

/* Names that contain the number of files, as other readers expect. */
static int name_safetensors(struct placer *self, struct cb_err *err)
{
    struct plan *plan = self->plan;
    uint32_t index = 0, most = 0;
    bool parts = format_ops_of(self->options->format)->has_parts;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < plan->file_count; i++) {
            struct plan_file *file = &plan->files[i];
            index = parts && i > 0 && file->rank != plan->files[i - 1].rank ? 1 : i == 0 ? 1 : index + 1;
            most = index > most ? index : most;
            if (pass == 0)
                continue;
            int written = parts ? asprintf(&file->name, "shard-%05u-model-%05u-of-%05u" SAFETENSORS_SUFFIX,
                                           file->rank + 1, index, most)
                                : asprintf(&file->name, "model-%05u-of-%05u" SAFETENSORS_SUFFIX, index, most);
            if (written < 0) {
                file->name = NULL;
                return alloc_fail(err, "for a plan of %zu files", plan->file_count);
            }
        }
    }
    return 0;
}

/* Puts the item at the end of the last file. */
static int place_item(struct placer *self, struct plan_item *item, struct cb_err *err)
{
    struct plan *plan = self->plan;
    struct plan_file *file = &plan->files[plan->file_count - 1];
    struct item_frame frame = {0};
    const struct state_tensor *tensor = &self->planner->layout->tensors[item->tensor];
    int code = format_item_frame(self->options->format, tensor, &item->region, file->length,
                                 self->options->payload_alignment, &frame, err);
    if (code)
        return cb_context(err, "planning %s", tensor->fqn);
    item->file = (uint32_t)(plan->file_count - 1);
    item->offset = file->length;
    item->payload_offset = item->offset + frame.header_bytes;
    item->payload_bytes = frame.payload_bytes;
    item->length = frame.header_bytes + frame.payload_bytes + frame.trailer_bytes;
    file->length += item->length;
    plan->payload_bytes += item->payload_bytes;
    return 0;
}

/* Whether the item begins a file: `share` of the rank's `total` bytes precede it. */
static bool starts_file(const struct placer *self, const struct plan_item *item, size_t index, uint64_t before,
                        uint64_t total)
{
    const struct state_tensor *tensors = self->planner->layout->tensors;
    if (self->options->files == FILES_SHARED)
        return self->plan->file_count == 0;
    if (index == 0 || self->options->files == FILES_PER_ITEM)
        return true;
    const struct state_tensor *tensor = &tensors[item->tensor], *before_it = &tensors[item[-1].tensor];
    if (tensor->file_group != before_it->file_group)
        return true;
    if (format_ops_of(self->options->format)->has_parts && before_it->kind != KIND_BYTES &&
        item->tensor <= item[-1].tensor)
        return true; /* the item belongs to another layer */
    uint64_t files = self->options->files_per_rank;
    return files > 1 && self->rank_file < files && before >= total / files * self->rank_file;
}

static int place_rank(struct placer *self, uint32_t rank, struct cb_err *err)
{
    struct plan *plan = self->plan;
    struct plan_item *items = plan->items + plan->first_item[rank];
    size_t count = plan->first_item[rank + 1] - plan->first_item[rank];
    uint64_t total = self->planner->loads[rank], before = 0;
    int code = 0;
    sort_items(self->planner->layout, items, count);
    if (format_ops_of(self->options->format)->has_parts)
        code = sort_in_layers(items, count, err);
    self->rank_file = 0;
    size_t first = 0; /* of the file's items */
    if (count > 0 && plan->file_count > 0 && self->options->files == FILES_SHARED) {
        uint64_t mask = self->options->payload_alignment - 1;
        struct plan_file *file = &plan->files[0];
        file->length = (file->length + mask) & ~mask; /* two ranks never share a block */
    }
    for (size_t i = 0; i < count && !code; i++) {
        if (starts_file(self, &items[i], i, before, total)) {
            code = close_file(self, items + first, i - first, err);
            first = i;
            if (!code)
                code = open_file(self, rank, err);
        }
        if (!code)
            code = place_item(self, &items[i], err);
        before += items[i].payload_bytes;
    }
    return code ? code : close_file(self, items + first, count - first, err);
}

int plan_place(const struct planner *planner, const struct plan_options *options, struct plan *plan, struct cb_err *err)
{
    struct placer placer = {.planner = planner, .options = options, .plan = plan};
    int code = gather_by_rank(planner, plan, err);
    for (uint32_t rank = 0; rank < plan->world_size && !code; rank++)
        code = place_rank(&placer, rank, err);
    return code || !is_safetensors(options) ? code : name_safetensors(&placer, err);
}
