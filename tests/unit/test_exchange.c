/* The exchange of a load step by step: blocks reach all ranks while later ones have not been read yet, a few at a time.
 * The ranks are three exchanges of one thread, so that each step is seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "ckpt/load/load_share.h"
#include "engine/exchange/exchange.h"
#include "engine/state.h"
#include "tests/unit/stored_words.h"
#include "tests/unit/thread_comm.h"

#define RANKS 3
#define BLOCK_BYTES 16384
#define TURNS 20 /* along the chain of ranks and back */

struct world {
    struct words words;
    struct stored_checkpoint *checkpoint;
    struct meeting meeting;
    struct comm comm[RANKS];
    struct state state[RANKS];
    struct load_share *share[RANKS];
    struct exchange *exchange[RANKS];
    struct exchange_targets targets[RANKS];
    struct payload_settings payload;
};

static void open_rank(struct world *self, uint32_t rank, const struct share_options *options)
{
    struct cb_err err;
    struct state *state = &self->state[rank];
    self->comm[rank] = (struct comm){.meeting = &self->meeting, .rank = rank};
    assert_int_equal(state_init(state, self->words.layout, rank, &err), 0);
    assert_int_equal(state_allocate(state, STATE_MEMORY_OWN, 0, &err), 0);
    assert_int_equal(state_set_poison(state, &err), 0);
    assert_int_equal(load_share_compute(self->words.layout, rank, state->pieces, state->piece_count, self->checkpoint,
                                        options, &self->share[rank], &err),
                     0);
    struct exchange_setup setup = {
        .comm = &self->comm[rank], .state = state, .share = self->share[rank], .ranks = RANKS};
    assert_int_equal(exchange_new(&setup, &self->exchange[rank], &err), 0);
    self->targets[rank] = exchange_begin_stage(self->exchange[rank], 0);
}

static void world_open(struct world *self, enum share_mode mode)
{
    struct cb_err err;
    struct share_options options = {.mode = mode, .block_bytes = BLOCK_BYTES, .transit_bytes = 8 * BLOCK_BYTES};
    memset(self, 0, sizeof *self);
    self->payload = (struct payload_settings){.kind = PAYLOAD_WEIGHTS, .seed = 3};
    assert_int_equal(words_make(&self->words, "model=gpt2-tiny state=weights dp=3", &err), 0);
    self->checkpoint = words_store(&self->words, PLAN_DCP);
    meeting_init(&self->meeting, RANKS);
    for (uint32_t i = 0; i < RANKS; i++)
        open_rank(self, i, &options);
}

static void world_close(struct world *self)
{
    for (uint32_t i = 0; i < RANKS; i++) {
        exchange_free(self->exchange[i]);
        load_share_free(self->share[i]);
        state_release(&self->state[i]);
    }
    free(self->meeting.messages);
    stored_checkpoint_free(self->checkpoint);
    words_release(&self->words);
}

static uint64_t part_bytes(const struct world *self, const struct share_part *part)
{
    uint32_t tensor = self->share[0]->regions[part->region].tensor;
    return region_elements(&part->extent) * dtype_bytes(layout_tensor(self->words.layout, tensor)->dtype);
}

/* Where a part lies in a rank's state: contiguous, since all ranks hold the same. */
static char *place_of(const struct world *self, uint32_t rank, const struct share_part *part)
{
    uint32_t piece = self->share[rank]->regions[part->region].piece;
    const struct piece *whole = &self->state[rank].pieces[piece];
    uint64_t outer, inner;
    region_run(&whole->region, &part->extent, 0, &outer, &inner);
    return (char *)self->state[rank].memory[piece] +
           outer * dtype_bytes(layout_tensor(self->words.layout, whole->tensor)->dtype);
}

static bool is_right(const struct world *self, uint32_t rank, const struct share_part *part)
{
    const struct state_tensor *tensor =
        layout_tensor(self->words.layout, self->share[rank]->regions[part->region].tensor);
    struct payload_source source = state_payload_source(tensor, &self->payload);
    uint64_t wrong;
    return payload_check_region(&source, tensor->shape, &part->extent, place_of(self, rank, part), &wrong);
}

/* Whether all of a block has come to a rank. */
static bool has_block(const struct world *self, uint32_t rank, size_t block)
{
    const struct share_block *wanted = &self->share[rank]->blocks[block];
    bool all = true;
    for (size_t i = 0; i < wanted->part_count; i++)
        all = all && is_right(self, rank, &self->share[rank]->parts[wanted->first_part + i]);
    return all;
}

/* The reader's store hands over a block; *target is that of its first part. */
static void land(struct world *self, size_t block, uint32_t target[RANKS])
{
    const struct share_block *read = &self->share[0]->blocks[block];
    uint32_t reader = read->reader;
    for (size_t i = 0; i < read->part_count; i++) {
        const struct share_part *part = &self->share[reader]->parts[read->first_part + i];
        const struct state_tensor *tensor =
            layout_tensor(self->words.layout, self->share[reader]->regions[part->region].tensor);
        struct payload_source source = state_payload_source(tensor, &self->payload);
        payload_fill_region(&source, tensor->shape, &part->extent, place_of(self, reader, part));
        exchange_landed(self->exchange[reader], target[reader]++, part_bytes(self, part));
    }
}

static void turn_all(struct world *self)
{
    for (int turn = 0; turn < TURNS; turn++) {
        for (uint32_t i = 0; i < RANKS; i++)
            (void)exchange_progress(self->exchange[i]);
    }
}

static void a_block_is_everywhere_before_the_next_one_is_read(void **unused)
{
    (void)unused;
    for (int mode = SHARE_BROADCAST; mode <= SHARE_SPLIT; mode++) {
        struct world world;
        struct cb_err err;
        uint32_t target[RANKS] = {0};
        world_open(&world, (enum share_mode)mode);
        size_t blocks = world.share[0]->block_count;
        assert_true(blocks > 2 * EXCHANGE_WINDOW);
        assert_int_equal(world.share[0]->alone_count, 0);
        for (size_t block = 0; block < blocks; block++) {
            turn_all(&world);
            for (uint32_t i = 0; i < RANKS; i++)
                assert_false(has_block(&world, i, block));
            land(&world, block, target);
            turn_all(&world);
            for (uint32_t i = 0; i < RANKS; i++)
                assert_true(has_block(&world, i, block));
        }
        for (uint32_t i = 0; i < RANKS; i++) {
            assert_int_equal(target[i], world.targets[i].count);
            exchange_reading_done(world.exchange[i]);
            assert_int_equal(exchange_finish_stage(world.exchange[i], clock_monotonic_ns() + NS_PER_S, &err), 0);
        }
        world_close(&world);
    }
}

/* Receives are open for a window of blocks and not for more, however many there are. */
static void no_more_than_a_window_is_open(void **unused)
{
    (void)unused;
    struct world world;
    world_open(&world, SHARE_BROADCAST);
    turn_all(&world);
    unsigned receives[RANKS] = {0};
    for (uint32_t i = 0; i < world.meeting.message_count; i++) {
        assert_false(world.meeting.messages[i].is_send);
        receives[world.meeting.messages[i].to]++;
    }
    assert_int_equal(receives[0], 0); /* the reader */
    assert_int_equal(receives[1], EXCHANGE_WINDOW);
    assert_int_equal(receives[2], EXCHANGE_WINDOW);
    world_close(&world);
}

/* Each rank but the reader gets a block once, and each but the last of the chain sends it once. */
static void a_block_goes_along_a_chain(void **unused)
{
    (void)unused;
    struct world world;
    uint32_t target[RANKS] = {0};
    world_open(&world, SHARE_BROADCAST);
    land(&world, 0, target);
    turn_all(&world);
    unsigned sent[RANKS] = {0};
    for (uint32_t i = 0; i < world.meeting.message_count; i++)
        sent[world.meeting.messages[i].from] += world.meeting.messages[i].is_send;
    assert_true(sent[0] == 1 && sent[1] == 1 && sent[2] == 0);
    world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_is_everywhere_before_the_next_one_is_read),
        cmocka_unit_test(no_more_than_a_window_is_open),
        cmocka_unit_test(a_block_goes_along_a_chain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
