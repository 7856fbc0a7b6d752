/* The blocks of a stage in order, which of them this rank reads, and their destinations. */
#include "engine/exchange/exchange_window.h"

#include <assert.h>

#include "core/alloc.h"

/* --- blocks and parts --- */

const struct share_block *exchange_block(const struct exchange_window *self, size_t index)
{
    return &self->setup.share->blocks[index];
}

const struct share_group *exchange_group(const struct exchange_window *self, const struct share_block *block)
{
    return &self->setup.share->groups[block->group];
}

const struct share_part *exchange_part(const struct exchange_window *self, const struct share_block *block, size_t i)
{
    return &self->setup.share->parts[block->first_part + i];
}

bool exchange_is_reader(const struct exchange_window *self, const struct share_block *block)
{
    return exchange_group(self, block)->mine == block->reader;
}

bool exchange_in_transit(const struct exchange_window *self, const struct share_block *block)
{
    return self->all_in_transit || exchange_group(self, block)->classes > 1;
}

uint32_t exchange_rank_of(const struct exchange_window *self, const struct share_group *group, uint32_t member)
{
    uint32_t ranks = self->setup.ranks;
    return (group->members[member] + ranks - self->setup.shift % ranks) % ranks;
}

const struct state_tensor *exchange_tensor(const struct exchange_window *self, const struct share_part *part)
{
    return layout_tensor(self->setup.state->layout, self->setup.share->regions[part->region].tensor);
}

size_t exchange_element_bytes(const struct exchange_window *self, const struct share_part *part)
{
    return dtype_bytes(exchange_tensor(self, part)->dtype);
}

uint64_t exchange_part_bytes(const struct exchange_window *self, const struct share_part *part)
{
    return region_elements(&part->extent) * exchange_element_bytes(self, part);
}

const struct piece *exchange_piece(const struct exchange_window *self, const struct share_part *part, char **memory)
{
    uint32_t piece = self->setup.share->regions[part->region].piece;
    *memory = self->setup.state->memory[piece];
    return &self->setup.state->pieces[piece];
}

/* For groups of one class. */
static char *place_in_state(const struct exchange_window *self, const struct share_part *part)
{
    char *memory;
    const struct piece *piece = exchange_piece(self, part, &memory);
    uint64_t outer, inner;
    region_run(&piece->region, &part->extent, 0, &outer, &inner);
    return memory + outer * exchange_element_bytes(self, part);
}

static bool is_direct(const struct exchange_window *self, const struct share_block *block)
{
    return !exchange_in_transit(self, block) && block->part_count == 1;
}

char *exchange_direct(const struct exchange_window *self, const struct share_block *block)
{
    return is_direct(self, block) ? place_in_state(self, exchange_part(self, block, 0)) : NULL;
}

char *exchange_read_to(const struct exchange_window *self, const struct share_block *block, size_t i)
{
    return self->memory[self->target_of[block - self->setup.share->blocks] + i];
}

uint64_t exchange_longest_buffered(const struct exchange_window *self)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < self->setup.share->block_count; i++) {
        const struct share_block *block = exchange_block(self, i);
        if (!is_direct(self, block) && block->bytes > bytes)
            bytes = block->bytes;
    }
    return (bytes + EXCHANGE_PAGE_BYTES - 1) / EXCHANGE_PAGE_BYTES * EXCHANGE_PAGE_BYTES;
}

/* --- stages --- */

static void add_target(struct exchange_window *self, uint32_t tensor, const struct region *extent, void *memory,
                       size_t block)
{
    self->pieces[self->target_count] = (struct piece){.tensor = tensor, .region = *extent};
    self->memory[self->target_count] = memory;
    self->block_of[self->target_count++] = block;
}

static void add_block_targets(struct exchange_window *self, size_t index, uint64_t *used)
{
    const struct share_block *block = exchange_block(self, index);
    bool transit = exchange_in_transit(self, block);
    self->target_of[index] = self->target_count;
    for (size_t i = 0; i < block->part_count; i++) {
        const struct share_part *part = exchange_part(self, block, i);
        char *memory = transit ? self->transit + *used : place_in_state(self, part);
        *used += transit ? exchange_part_bytes(self, part) : 0;
        add_target(self, self->setup.share->regions[part->region].tensor, &part->extent, memory, index);
    }
}

struct exchange_targets exchange_window_begin_stage(struct exchange_window *self, uint32_t stage)
{
    const struct load_share *share = self->setup.share;
    const struct state *state = self->setup.state;
    uint64_t used = 0;
    self->target_count = 0;
    self->reading_done = false;
    for (size_t i = 0; i < share->alone_count && stage == 0; i++) {
        const struct piece *piece = &state->pieces[share->alone[i]];
        add_target(self, piece->tensor, &piece->region, state->memory[share->alone[i]], EXCHANGE_NO_BLOCK);
    }
    for (self->end = self->next; self->end < share->block_count && share->blocks[self->end].stage == stage;) {
        if (exchange_is_reader(self, exchange_block(self, self->end)))
            add_block_targets(self, self->end, &used);
        self->end++;
    }
    assert(used <= share->transit_most);
    return (struct exchange_targets){self->pieces, self->memory, self->target_count};
}

void exchange_window_landed(struct exchange_window *self, uint32_t target, uint64_t bytes)
{
    if (self->block_of[target] != EXCHANGE_NO_BLOCK)
        self->landed[self->block_of[target]] += bytes;
}

bool exchange_window_has_landed(const struct exchange_window *self, size_t index)
{
    return self->reading_done || self->landed[index] >= exchange_block(self, index)->bytes;
}

/* --- starting and ending --- */

int exchange_window_init(struct exchange_window *self, const struct exchange_setup *setup, bool all_in_transit,
                         struct cb_err *err)
{
    const struct load_share *share = setup->share;
    size_t targets = share->part_count + share->alone_count + 1;
    *self = (struct exchange_window){.setup = *setup, .all_in_transit = all_in_transit};
    self->pieces = malloc(targets * sizeof *self->pieces);
    self->memory = malloc(targets * sizeof *self->memory);
    self->block_of = malloc(targets * sizeof *self->block_of);
    self->target_of = malloc((share->block_count + 1) * sizeof *self->target_of);
    self->landed = calloc(share->block_count + 1, sizeof *self->landed);
    if (!self->pieces || !self->memory || !self->block_of || !self->target_of || !self->landed)
        return alloc_fail(err, "to exchange %zu blocks of a load", share->block_count);
    return 0;
}

void exchange_window_release(struct exchange_window *self)
{
    free(self->landed);
    free(self->target_of);
    free(self->block_of);
    free(self->memory);
    free(self->pieces);
    *self = (struct exchange_window){0};
}
