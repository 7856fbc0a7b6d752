/* Who reads what and who gets it: every element of every piece comes once, every stored byte is read once,
 * shares are equal, and all ranks of a group see the same blocks in the same order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ckpt/load/load_share.h"
#include "tests/unit/stored_words.h"

#define MAX_RANKS 24
#define BLOCK_BYTES 16384

struct world {
    struct words words;
    struct stored_checkpoint *checkpoint;
    struct share_options options;
    uint32_t ranks;
    struct piece *pieces[MAX_RANKS];
    size_t piece_count[MAX_RANKS];
    struct load_share *shares[MAX_RANKS];
};

static void world_make(struct world *self, const char *text, enum share_mode mode)
{
    struct cb_err err = {0};
    memset(self, 0, sizeof *self);
    if (words_make(&self->words, text, &err))
        fail_msg("%s: %s", text, err.message);
    self->checkpoint = words_store(&self->words, PLAN_DCP);
    self->options = (struct share_options){mode, BLOCK_BYTES, 4 * BLOCK_BYTES};
    self->ranks = layout_world_size(self->words.layout);
    assert_true(self->ranks <= MAX_RANKS);
    for (uint32_t i = 0; i < self->ranks; i++) {
        assert_int_equal(layout_pieces(self->words.layout, i, &self->pieces[i], &self->piece_count[i], &err), 0);
        assert_int_equal(load_share_compute(self->words.layout, i, self->pieces[i], self->piece_count[i],
                                            self->checkpoint, &self->options, &self->shares[i], &err),
                         0);
    }
}

static void world_free(struct world *self)
{
    for (uint32_t i = 0; i < self->ranks; i++) {
        load_share_free(self->shares[i]);
        free(self->pieces[i]);
    }
    stored_checkpoint_free(self->checkpoint);
    words_release(&self->words);
}

static uint64_t region_bytes(const struct world *self, uint32_t tensor, const struct region *extent)
{
    return region_elements(extent) * dtype_bytes(layout_tensor(self->words.layout, tensor)->dtype);
}

/* Marks the extent in a piece's elements; each only once. */
static void mark(uint8_t *seen, const struct region *piece, const struct region *extent)
{
    uint64_t runs, elements;
    assert_true(region_contains(piece, extent));
    region_runs(piece, extent, &runs, &elements);
    for (uint64_t i = 0; i < runs; i++) {
        uint64_t outer, inner;
        region_run(piece, extent, i, &outer, &inner);
        for (uint64_t j = 0; j < elements; j++)
            assert_int_equal(seen[outer + j]++, 0);
    }
}

static void check_pieces(const struct world *self, uint32_t rank)
{
    const struct load_share *share = self->shares[rank];
    uint8_t **seen = calloc(self->piece_count[rank] + 1, sizeof *seen);
    for (size_t i = 0; i < self->piece_count[rank]; i++)
        seen[i] = calloc(region_elements(&self->pieces[rank][i].region) + 1, 1);
    for (size_t i = 0; i < share->alone_count; i++)
        mark(seen[share->alone[i]], &self->pieces[rank][share->alone[i]].region,
             &self->pieces[rank][share->alone[i]].region);
    for (size_t b = 0; b < share->block_count; b++) {
        const struct share_block *block = &share->blocks[b];
        const struct share_group *group = &share->groups[block->group];
        for (size_t i = 0; i < block->part_count; i++) {
            const struct share_part *part = &share->parts[block->first_part + i];
            uint32_t piece = share->regions[part->region].piece;
            struct region extent;
            assert_int_equal(share->regions[part->region].tensor, self->pieces[rank][piece].tensor);
            if (load_share_of_class(share, part, group->mine / group->replicas, &extent))
                mark(seen[piece], &self->pieces[rank][piece].region, &extent);
        }
    }
    for (size_t i = 0; i < self->piece_count[rank]; i++) {
        for (uint64_t j = 0; j < region_elements(&self->pieces[rank][i].region); j++)
            assert_int_equal(seen[i][j], 1);
        free(seen[i]);
    }
    free(seen);
}

static uint64_t bytes_read(const struct world *self, uint32_t rank)
{
    const struct load_share *share = self->shares[rank];
    uint64_t bytes = 0;
    for (size_t i = 0; i < share->alone_count; i++) {
        const struct piece *piece = &self->pieces[rank][share->alone[i]];
        bytes += region_bytes(self, piece->tensor, &piece->region);
    }
    for (size_t i = 0; i < share->block_count; i++) {
        if (share->groups[share->blocks[i].group].mine == share->blocks[i].reader)
            bytes += share->blocks[i].bytes;
    }
    return bytes;
}

/* The blocks of one group in the eyes of two of its ranks. */
static void check_same_blocks(const struct world *self, uint32_t rank, uint32_t group, uint32_t other)
{
    const struct load_share *mine = self->shares[rank], *theirs = self->shares[other];
    uint32_t match = 0;
    while (match < theirs->group_count && theirs->groups[match].code != mine->groups[group].code)
        match++;
    assert_true(match < theirs->group_count);
    const struct share_group *a = &mine->groups[group], *b = &theirs->groups[match];
    assert_true(a->classes == b->classes && a->replicas == b->replicas);
    assert_memory_equal(a->members, b->members, a->classes * a->replicas * sizeof *a->members);
    assert_int_equal(b->members[b->mine], other);
    size_t j = 0;
    for (size_t i = 0; i < mine->block_count; i++) {
        const struct share_block *x = &mine->blocks[i];
        if (x->group != group)
            continue;
        while (j < theirs->block_count && theirs->blocks[j].group != match)
            j++;
        assert_true(j < theirs->block_count);
        const struct share_block *y = &theirs->blocks[j++];
        assert_true(x->reader == y->reader && x->bytes == y->bytes && x->number == y->number);
        assert_int_equal(x->part_count, y->part_count);
        for (size_t k = 0; k < x->part_count; k++) {
            const struct share_part *p = &mine->parts[x->first_part + k], *q = &theirs->parts[y->first_part + k];
            assert_true(region_equal(&p->extent, &q->extent));
            assert_int_equal(mine->regions[p->region].tensor, theirs->regions[q->region].tensor);
        }
    }
}

/* Blocks are small, stages follow each other, and what is in transit is bounded. */
static void check_blocks(const struct world *self, uint32_t rank)
{
    const struct load_share *share = self->shares[rank];
    uint64_t in_transit = 0;
    uint32_t stage = 0;
    for (size_t i = 0; i < share->block_count; i++) {
        const struct share_block *block = &share->blocks[i];
        const struct share_group *group = &share->groups[block->group];
        assert_true(block->stage == stage || block->stage == stage + 1);
        assert_true(block->part_count == 1 || block->bytes <= BLOCK_BYTES);
        assert_true((group->classes > 1) == (block->stage > 0));
        in_transit = block->stage == stage ? in_transit : 0;
        stage = block->stage;
        if (group->classes > 1 && group->mine == block->reader)
            in_transit += block->bytes;
        assert_true(in_transit <= share->transit_most);
    }
    assert_int_equal(share->stage_count, stage + 1);
    assert_true(share->transit_most <= self->options.transit_bytes);
}

static void check_balance(const struct world *self, uint32_t rank)
{
    const struct load_share *share = self->shares[rank];
    for (uint32_t g = 0; g < share->group_count; g++) {
        uint32_t members = share->groups[g].classes * share->groups[g].replicas;
        uint64_t *read = calloc(members, sizeof *read), all = 0, most = 0, row = 0;
        for (size_t i = 0; i < share->block_count; i++) {
            const struct share_block *block = &share->blocks[i];
            if (block->group != g)
                continue;
            read[block->reader] += block->bytes;
            all += block->bytes;
            for (size_t k = 0; k < block->part_count; k++) {
                const struct share_region *region = &share->regions[share->parts[block->first_part + k].region];
                uint64_t rows = region->extent.dims ? region->extent.size[0] : 1;
                uint64_t bytes = region_bytes(self, region->tensor, &region->extent) / rows;
                row = bytes > row ? bytes : row;
            }
        }
        for (uint32_t i = 0; i < members; i++)
            most = read[i] > most ? read[i] : most;
        if (self->options.mode == SHARE_SPLIT && (double)most > (double)all / members * (1 + 1.0 / 16) + (double)row)
            fail_msg("of %llu bytes among %u one reads %llu, a row is %llu", (unsigned long long)all, members,
                     (unsigned long long)most, (unsigned long long)row);
        if (self->options.mode == SHARE_BROADCAST)
            assert_int_equal(most, all);
        free(read);
    }
}

static void check_world(const char *text, enum share_mode mode)
{
    struct world world;
    uint64_t read = 0, held = 0;
    world_make(&world, text, mode);
    for (uint32_t rank = 0; rank < world.ranks; rank++) {
        check_pieces(&world, rank);
        check_blocks(&world, rank);
        check_balance(&world, rank);
        for (uint32_t g = 0; g < world.shares[rank]->group_count; g++) {
            const struct share_group *group = &world.shares[rank]->groups[g];
            for (uint32_t i = 0; i < group->classes * group->replicas; i++)
                check_same_blocks(&world, rank, g, group->members[i]);
        }
        read += bytes_read(&world, rank);
        held += layout_rank_bytes(world.words.layout, rank);
    }
    uint64_t once = layout_total_bytes(world.words.layout);
    print_message("%s: held %llu, read %llu of %llu\n", text, (unsigned long long)held, (unsigned long long)read,
                  (unsigned long long)once);
    /* ZeRO's intervals of what tensor parallelism replicates are not looked for: norms, of little size. */
    bool flat = strstr(text, "zero=") && strstr(text, "tp=");
    assert_true(read >= once && (double)read <= (double)once * (flat ? 1.1 : 1));
    world_free(&world);
}

static void every_byte_is_read_once_and_comes_once(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "model=gpt2-tiny ranks=1",
        "model=gpt2-tiny dp=4",
        "model=gpt2-tiny dp=5",
        "model=gpt2-tiny tp=4",
        "model=gpt2-tiny dp=3 tp=2",
        "model=gpt2-tiny dp=2 tp=2 pp=2",
        "model=gpt2-tiny dp=3 zero=1",
        "model=gpt2-tiny dp=3 zero=3",
        "model=gpt2-tiny dp=2 tp=2 zero=1",
        "model=gpt2-tiny dp=2 tp=4 zero=3",
        "model=gpt2-tiny dp=4 sharding=full",
        "model=gpt2-tiny dp=4 sharding=hybrid(2)",
        "model=gpt2-tiny dp=6 tp=2 sharding=hybrid(3)",
        "model=gpt2-tiny mesh=tp=2+pp=2+dp=3",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        check_world(texts[i], SHARE_BROADCAST);
        check_world(texts[i], SHARE_SPLIT);
    }
}

/* Fewer key-value heads than tp ranks, and experts. */
static void heads_that_ranks_share_and_experts(void **state)
{
    (void)state;
    char path[] = "/tmp/ckptbench-share-XXXXXX.json", text[256];
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    FILE *config = fdopen(fd, "w");
    fputs("{\"model_type\": \"mixtral\", \"vocab_size\": 65, \"hidden_size\": 32, \"intermediate_size\": 48, "
          "\"num_hidden_layers\": 2, \"num_attention_heads\": 8, \"num_key_value_heads\": 2, "
          "\"num_local_experts\": 4, \"tie_word_embeddings\": false}",
          config);
    assert_int_equal(fclose(config), 0);
    static const char *const layouts[] = {"tp=4", "dp=2 tp=4", "dp=4 ep=2 tp=2", "dp=4 ep=4",
                                          "dp=4 ep=2 sharding=full tp=2"};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        snprintf(text, sizeof text, "model=%s %s", path, layouts[i]);
        check_world(text, SHARE_BROADCAST);
        check_world(text, SHARE_SPLIT);
    }
    remove(path);
}

static void a_holder_beyond_the_layout_takes_no_part(void **state)
{
    (void)state;
    struct world world;
    struct load_share *share;
    struct cb_err err;
    world_make(&world, "model=gpt2-tiny dp=2", SHARE_SPLIT);
    assert_int_equal(load_share_compute(world.words.layout, 2, NULL, 0, world.checkpoint, &world.options, &share, &err),
                     0);
    assert_int_equal(share->block_count + share->alone_count, 0);
    assert_int_equal(share->stage_count, 1);
    load_share_free(share);
    world_free(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_read_once_and_comes_once),
        cmocka_unit_test(heads_that_ranks_share_and_experts),
        cmocka_unit_test(a_holder_beyond_the_layout_takes_no_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
