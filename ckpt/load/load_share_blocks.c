/* Cuts shared regions: which rank reads which rows, which parts are sent together, and in which order. */
#include <string.h>

#include "ckpt/load/load_share_internal.h"
#include "core/alloc.h"

/* A cut is placed between two regions instead of rows if it then misses its target by less than this part of a
 * share. */
#define TOLERANCE 32

struct cutter {
    struct load_share *share;
    const struct layout *layout;
    const struct share_options *options;
    uint32_t *readers; /* one per part */
    int code;          /* the first failure */
    struct cb_err *err;
    /* of the current group */
    uint32_t group, reader, reader_count;
    uint64_t share_bytes, position;
};

static uint64_t region_bytes(const struct cutter *self, uint32_t region, const struct region *extent)
{
    uint32_t tensor = self->share->regions[region].tensor;
    return region_elements(extent) * dtype_bytes(layout_tensor(self->layout, tensor)->dtype);
}

static void add_part(struct cutter *self, uint32_t region, const struct region *extent)
{
    struct load_share *share = self->share;
    self->code = alloc_grow(&share->parts, share->part_count, sizeof *share->parts, self->err);
    if (!self->code)
        self->code = alloc_grow(&self->readers, share->part_count, sizeof *self->readers, self->err);
    if (self->code)
        return;
    self->readers[share->part_count] = self->reader;
    share->parts[share->part_count++] = (struct share_part){.region = region, .extent = *extent};
}

/* Removes whole rows of at most `bytes`, or `least` rows, from the front of *rest. False if it is empty. */
static bool take_rows(const struct cutter *self, uint32_t region, struct region *rest, uint64_t bytes, uint64_t least,
                      struct region *taken)
{
    uint32_t dim = region_row_dim(rest);
    *taken = *rest;
    if (rest->dims == 0)
        return least > 0;
    uint64_t row = region_bytes(self, region, rest) / rest->size[dim];
    uint64_t rows = bytes / row > least ? bytes / row : least;
    rows = rows < rest->size[dim] ? rows : rest->size[dim];
    taken->size[dim] = rows;
    rest->offset[dim] += rows;
    rest->size[dim] -= rows;
    return rows > 0;
}

/* Assigns the rest of the extent to the current reader, in parts of at most a block. */
static void give(struct cutter *self, uint32_t region, struct region extent)
{
    struct region taken;
    self->position += region_bytes(self, region, &extent);
    bool scalar = extent.dims == 0;
    while (!self->code && region_elements(&extent) > 0 &&
           take_rows(self, region, &extent, self->options->block_bytes, 1, &taken)) {
        add_part(self, region, &taken);
        if (scalar)
            break;
    }
}

/* Assigns the region to one reader after another, each up to the end of its share. */
static void share_region(struct cutter *self, uint32_t region)
{
    struct region rest = self->share->regions[region].extent, taken;
    uint64_t tolerance = self->share_bytes / TOLERANCE;
    while (!self->code && region_elements(&rest) > 0) {
        uint64_t end = self->share_bytes * (self->reader + 1);
        uint64_t room = end > self->position ? end - self->position : 0;
        bool is_last = self->reader + 1 == self->reader_count;
        if (is_last || (room > 0 && region_bytes(self, region, &rest) <= room + tolerance)) {
            give(self, region, rest);
            return;
        }
        if (room > tolerance && take_rows(self, region, &rest, room, 0, &taken))
            give(self, region, taken);
        else
            self->reader++;
    }
}

static void add_block(struct cutter *self, const struct share_block *block)
{
    struct load_share *share = self->share;
    if (!self->code)
        self->code = alloc_grow(&share->blocks, share->block_count, sizeof *share->blocks, self->err);
    if (!self->code)
        share->blocks[share->block_count++] = *block;
}

/* Combines successive parts of one reader to blocks: large ones alone, small ones together. */
static void make_blocks(struct cutter *self, size_t first_part)
{
    struct load_share *share = self->share;
    uint64_t most = self->options->block_bytes;
    struct share_block block = {0};
    for (size_t i = first_part; i < share->part_count; i++) {
        uint64_t bytes = region_bytes(self, share->parts[i].region, &share->parts[i].extent);
        bool joins = block.part_count > 0 && block.reader == self->readers[i] && bytes < most / 4 &&
                     block.bytes + bytes <= most && block.bytes < most / 4 * 3;
        if (!joins && block.part_count > 0)
            add_block(self, &block);
        if (!joins)
            block = (struct share_block){.group = self->group, .reader = self->readers[i], .first_part = i};
        block.part_count++;
        block.bytes += bytes;
    }
    if (block.part_count > 0)
        add_block(self, &block);
}

struct travel {
    struct share_block block;
    size_t turn; /* among its reader's */
};

static int compare_travels(const void *a, const void *b)
{
    const struct travel *x = a, *y = b;
    if (x->block.stage != y->block.stage)
        return x->block.stage < y->block.stage ? -1 : 1;
    if (x->turn != y->turn)
        return x->turn < y->turn ? -1 : 1;
    return x->block.reader < y->block.reader ? -1 : x->block.reader > y->block.reader;
}

/* Divides the blocks into stages by a reader's limit of bytes in transit; within a stage the readers take turns. */
static void order_blocks(struct cutter *self, size_t first_block)
{
    struct load_share *share = self->share;
    size_t count = share->block_count - first_block;
    bool transit = self->options->all_in_transit || share->groups[self->group].classes > 1;
    struct travel *travels = malloc((count + 1) * sizeof *travels);
    if (!travels) {
        self->code = alloc_fail(self->err, "to share a load of %zu regions among ranks", share->region_count);
        return;
    }
    uint32_t base = transit ? share->stage_count : 0, stage = base;
    uint64_t in_transit = 0;
    size_t turn = 0;
    for (size_t i = 0; i < count; i++) {
        struct share_block *block = &share->blocks[first_block + i];
        bool same_reader = i > 0 && block->reader == block[-1].reader;
        turn = same_reader ? turn + 1 : 0;
        stage = same_reader ? stage : base;
        in_transit = same_reader ? in_transit : 0;
        if (transit && in_transit > 0 && in_transit + block->bytes > self->options->transit_bytes) {
            stage++;
            in_transit = 0;
        }
        in_transit += transit ? block->bytes : 0;
        block->stage = stage;
        share->stage_count = stage + 1 > share->stage_count ? stage + 1 : share->stage_count;
        if (block->reader == share->groups[self->group].mine && in_transit > share->transit_most)
            share->transit_most = in_transit;
        travels[i] = (struct travel){*block, turn};
    }
    qsort(travels, count, sizeof *travels, compare_travels);
    for (size_t i = 0; i < count; i++) {
        share->blocks[first_block + i] = travels[i].block;
        share->blocks[first_block + i].number = (uint32_t)i;
    }
    free(travels);
}

/* Regions [first, end) are those of one group. */
static void cut_group(struct cutter *self, uint32_t first, uint32_t end)
{
    const struct share_group *group = &self->share->groups[self->share->regions[first].group];
    uint64_t bytes = 0;
    for (uint32_t i = first; i < end; i++)
        bytes += region_bytes(self, i, &self->share->regions[i].extent);
    self->group = self->share->regions[first].group;
    self->reader = 0;
    self->reader_count = self->options->mode == SHARE_SPLIT ? group->classes * group->replicas : 1;
    self->share_bytes = (bytes + self->reader_count - 1) / self->reader_count;
    self->position = 0;
    size_t first_part = self->share->part_count, first_block = self->share->block_count;
    for (uint32_t i = first; i < end; i++)
        share_region(self, i);
    if (!self->code)
        make_blocks(self, first_part);
    if (!self->code)
        order_blocks(self, first_block);
}

int load_share_make_blocks(struct load_share *self, const struct layout *layout, const struct share_options *options,
                           struct cb_err *err)
{
    struct cutter cutter = {.share = self, .layout = layout, .options = options, .err = err};
    for (uint32_t first = 0; first < self->region_count && !cutter.code;) {
        uint32_t end = first;
        while (end < self->region_count && self->regions[end].group == self->regions[first].group)
            end++;
        cut_group(&cutter, first, end);
        first = end;
    }
    free(cutter.readers);
    return cutter.code;
}
