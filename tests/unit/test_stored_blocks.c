/* A stored checkpoint that is passed on in blocks: whole, or what a rank needs of it, which plans the same load as the
 * whole. This program's own malloc counts the memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ckpt/load/load_need.h"
#include "ckpt/load/load_plan.h"
#include "ckpt/load/load_share.h"
#include "ckpt/stored/stored_blocks.h"
#include "core/units.h"
#include "tests/unit/malloc_peak.h"
#include "tests/unit/random_layouts.h"
#include "tests/unit/stored_words.h"

#define MOST_BLOCKS 64

struct blocks {
    char *bytes[MOST_BLOCKS];
    size_t len[MOST_BLOCKS];
    size_t count;
};

static int add_block(void *context, const void *bytes, size_t len, struct cb_err *err)
{
    struct blocks *blocks = context;
    (void)err;
    assert_true(blocks->count < MOST_BLOCKS);
    assert_true(len < 2 * STORED_BLOCK_BYTES);
    blocks->len[blocks->count] = len;
    blocks->bytes[blocks->count] = malloc(len);
    assert_non_null(blocks->bytes[blocks->count]);
    memcpy(blocks->bytes[blocks->count++], bytes, len);
    return 0;
}

static void send(const struct stored_checkpoint *checkpoint, struct blocks *blocks)
{
    struct stored_sender sender = {.put = add_block, .context = blocks};
    struct cb_err err;
    blocks->count = 0;
    stored_sender_init(&sender);
    struct stored_sink sink = stored_sender_sink(&sender);
    assert_int_equal(stored_checkpoint_pass(checkpoint, &sink, &err), 0);
    stored_sender_release(&sender);
}

static void release(struct blocks *blocks)
{
    for (size_t i = 0; i < blocks->count; i++)
        free(blocks->bytes[i]);
}

static int receive(const struct blocks *blocks, stored_need_fn need, void *context,
                   struct stored_checkpoint **checkpoint, struct cb_err *err)
{
    struct stored_receiver receiver = {.collector = {.name = "it", .need = need, .context = context}};
    int code = 0;
    for (size_t i = 0; i < blocks->count && !code; i++)
        code = stored_block_read(&receiver, blocks->bytes[i], blocks->len[i], err);
    if (!code)
        code = stored_collector_take(&receiver.collector, checkpoint, err);
    stored_collector_release(&receiver.collector);
    return code;
}

static void check_same_text(const char *a, const char *b)
{
    assert_true(!a == !b);
    if (a)
        assert_string_equal(a, b);
}

static void check_same_chunk(const struct stored_checkpoint *a, const struct stored_chunk *x,
                             const struct stored_checkpoint *b, const struct stored_chunk *y)
{
    assert_int_equal(x->tensor, y->tensor);
    assert_true(region_equal(&x->region, &y->region));
    assert_string_equal(a->files[x->file], b->files[y->file]);
    assert_int_equal(x->offset, y->offset);
    assert_int_equal(x->length, y->length);
    assert_int_equal(x->compressed, y->compressed);
}

static void check_same_tensors(const struct stored_checkpoint *a, const struct stored_checkpoint *b)
{
    assert_int_equal(a->format, b->format);
    assert_int_equal(a->marked, b->marked);
    assert_int_equal(a->save_id, b->save_id);
    assert_int_equal(a->duplicates, b->duplicates);
    assert_int_equal(a->tensor_count, b->tensor_count);
    for (size_t i = 0; i < a->tensor_count; i++) {
        const struct stored_tensor *x = &a->tensors[i], *y = &b->tensors[i];
        check_same_text(x->fqn, y->fqn);
        check_same_text(x->literal, y->literal);
        check_same_text(x->path, y->path);
        assert_int_equal(x->is_bytes, y->is_bytes);
        assert_int_equal(x->dtype, y->dtype);
        assert_int_equal(x->dims, y->dims);
        assert_memory_equal(x->shape, y->shape, x->dims * sizeof *x->shape);
    }
}

static void all_of_it_arrives(void **state)
{
    (void)state;
    static const enum plan_format formats[] = {PLAN_DCP, PLAN_RAW, PLAN_DCP_SAFETENSORS};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        struct words words;
        struct blocks blocks;
        struct stored_checkpoint *arrived;
        struct cb_err err;
        assert_int_equal(words_make(&words, "model=llama3-8b ranks=288 sharding=full", &err), 0);
        struct stored_checkpoint *whole = words_store(&words, formats[f]);
        whole->chunks[7].compressed = true;
        whole->save_id = 77;
        whole->duplicates = 3;
        free(whole->tensors[3].path);
        whole->tensors[3].path = strdup("('a', 'b')");
        send(whole, &blocks);
        assert_true(blocks.count > 1);
        assert_int_equal(receive(&blocks, NULL, NULL, &arrived, &err), 0);
        check_same_tensors(whole, arrived);
        assert_int_equal(whole->file_count, arrived->file_count);
        assert_int_equal(whole->chunk_count, arrived->chunk_count);
        for (size_t i = 0; i < whole->chunk_count; i++)
            check_same_chunk(whole, &whole->chunks[i], arrived, &arrived->chunks[i]);
        for (size_t i = 0; i < whole->tensor_count; i++) {
            assert_int_equal(whole->tensors[i].first_chunk, arrived->tensors[i].first_chunk);
            assert_int_equal(whole->tensors[i].chunk_count, arrived->tensors[i].chunk_count);
        }
        stored_checkpoint_free(arrived);
        stored_checkpoint_free(whole);
        release(&blocks);
        words_release(&words);
    }
}

/* --- what a rank needs --- */

static void check_same_load(const struct words *words, const struct piece *pieces, size_t count,
                            const struct stored_checkpoint *whole, const struct stored_checkpoint *part)
{
    struct load_plan *a = NULL, *b = NULL;
    struct cb_err err = {0}, other = {0};
    int code = load_plan_compute(whole, words->layout, pieces, count, NULL, NULL, &a, &err);
    assert_int_equal(load_plan_compute(part, words->layout, pieces, count, NULL, NULL, &b, &other), code);
    if (code) {
        assert_string_equal(err.message, other.message);
        return;
    }
    assert_int_equal(a->read_count, b->read_count);
    assert_int_equal(a->needed_bytes, b->needed_bytes);
    assert_int_equal(a->span_bytes, b->span_bytes);
    assert_int_equal(a->extra_tensors, b->extra_tensors);
    for (size_t i = 0; i < a->read_count; i++) {
        const struct load_read *x = &a->reads[i], *y = &b->reads[i];
        check_same_chunk(whole, &whole->chunks[x->chunk], part, &part->chunks[y->chunk]);
        assert_int_equal(x->piece, y->piece);
        assert_true(region_equal(&x->common, &y->common));
    }
    load_plan_free(a);
    load_plan_free(b);
}

/* Also plans what each rank reads for others. */
static void check_same_share(const struct words *words, uint32_t rank, const struct piece *pieces, size_t count,
                             const struct stored_checkpoint *whole, const struct stored_checkpoint *part)
{
    for (int mode = SHARE_BROADCAST; mode <= SHARE_SPLIT; mode++) {
        struct share_options options = {.mode = (enum share_mode)mode, .block_bytes = 64, .transit_bytes = 256};
        struct load_share *a, *b;
        struct cb_err err;
        assert_int_equal(load_share_compute(words->layout, rank, pieces, count, whole, &options, &a, &err), 0);
        assert_int_equal(load_share_compute(words->layout, rank, pieces, count, part, &options, &b, &err), 0);
        assert_int_equal(a->region_count, b->region_count);
        assert_int_equal(a->part_count, b->part_count);
        assert_int_equal(a->block_count, b->block_count);
        struct piece *read = calloc(a->part_count + 1, sizeof *read);
        assert_non_null(read);
        for (size_t i = 0; i < a->part_count; i++) {
            assert_int_equal(a->parts[i].region, b->parts[i].region);
            assert_true(region_equal(&a->parts[i].extent, &b->parts[i].extent));
            read[i] = (struct piece){a->regions[a->parts[i].region].tensor, a->parts[i].extent};
        }
        check_same_load(words, read, a->part_count, whole, part);
        free(read);
        load_share_free(a);
        load_share_free(b);
    }
}

static void make_random(uint64_t *random, struct words *words, char text[512])
{
    struct cb_err err;
    do {
        snprintf(text, 512, "model=%s tp=%s dp=%s pp=%s zero=%s state=%s", list_path, PICK(random, "1", "2", "3", "4"),
                 PICK(random, "1", "2", "3"), PICK(random, "1", "2"), PICK(random, "0", "1", "3"),
                 PICK(random, "weights", "training"));
        if (words_make(words, text, &err) == 0)
            return;
        words_release(words);
    } while (true);
}

/* A checkpoint of one layout loaded in another one. */
static void what_ranks_need_plans_the_same_load_as_all_of_it(void **state)
{
    (void)state;
    uint64_t random = 20261128, left_out = 0;
    for (int round = 0; round < 150; round++) {
        struct words saved, words;
        struct blocks blocks;
        struct cb_err err;
        char text[512];
        make_random(&random, &saved, text);
        make_random(&random, &words, text);
        struct stored_checkpoint *whole = words_store(&saved, round % 2 ? PLAN_DCP : PLAN_RAW);
        send(whole, &blocks);
        for (uint32_t rank = 0; rank < layout_world_size(words.layout); rank++) {
            struct piece *pieces = NULL;
            size_t count = 0;
            assert_int_equal(layout_pieces(words.layout, rank, &pieces, &count, &err), 0);
            for (int whole_rows = 0; whole_rows < 2; whole_rows++) {
                struct load_need need;
                struct stored_checkpoint *part;
                assert_int_equal(load_need_init(&need, words.layout, pieces, count, whole_rows, &err), 0);
                assert_int_equal(receive(&blocks, load_need_of, &need, &part, &err), 0);
                check_same_tensors(whole, part);
                check_same_load(&words, pieces, count, whole, part);
                if (whole_rows)
                    check_same_share(&words, rank, pieces, count, whole, part);
                left_out += whole->chunk_count - part->chunk_count;
                stored_checkpoint_free(part);
                load_need_release(&need);
            }
            free(pieces);
        }
        stored_checkpoint_free(whole);
        release(&blocks);
        words_release(&saved);
        words_release(&words);
    }
    assert_true(left_out > 10000);
}

struct counted {
    struct load_need need;
    uint64_t calls;
};

static bool count_need(void *context, const struct stored_tensor *tensor, const struct region *box)
{
    struct counted *self = context;
    self->calls++;
    return load_need_of(&self->need, tensor, box);
}

/* Memory and work of a rank of FSDP, when `ranks` have saved. */
static void receive_fsdp(const char *text, uint64_t *memory, uint64_t *calls, uint64_t *chunks)
{
    struct words words;
    struct blocks blocks;
    struct cb_err err;
    struct counted counted = {0};
    struct stored_checkpoint *part;
    struct piece *pieces = NULL;
    size_t count = 0;
    assert_int_equal(words_make(&words, text, &err), 0);
    struct stored_checkpoint *whole = words_store(&words, PLAN_RAW);
    send(whole, &blocks);
    assert_int_equal(layout_pieces(words.layout, 5, &pieces, &count, &err), 0);
    malloc_peak_start();
    assert_int_equal(load_need_init(&counted.need, words.layout, pieces, count, false, &err), 0);
    assert_int_equal(receive(&blocks, count_need, &counted, &part, &err), 0);
    *memory = malloc_peak_end();
    *calls = counted.calls;
    *chunks = part->chunk_count;
    check_same_load(&words, pieces, count, whole, part);
    load_need_release(&counted.need);
    stored_checkpoint_free(part);
    stored_checkpoint_free(whole);
    free(pieces);
    release(&blocks);
    words_release(&words);
}

static void a_rank_needs_no_more_of_a_checkpoint_that_more_ranks_saved(void **state)
{
    (void)state;
    uint64_t memory[2], calls[2], chunks[2];
    receive_fsdp("model=llama3-8b layers=4 ranks=32 sharding=full", &memory[0], &calls[0], &chunks[0]);
    receive_fsdp("model=llama3-8b layers=4 ranks=512 sharding=full", &memory[1], &calls[1], &chunks[1]);
    assert_int_equal(chunks[0], chunks[1]);
    assert_true(chunks[1] < 200);
    assert_true(memory[1] <= memory[0] + 4096);
    assert_true(memory[1] < 200000);
    assert_true(calls[1] < calls[0] + 200 * 256); /* own runs are looked at; the others are skipped as a whole */
}

/* --- damage --- */

static void blocks_that_are_missing_or_damaged_are_refused(void **state)
{
    (void)state;
    struct words words;
    struct blocks blocks, some;
    struct stored_checkpoint *arrived;
    struct cb_err err;
    uint64_t random = 5;
    assert_int_equal(words_make(&words, "model=llama3-8b ranks=288 sharding=full", &err), 0);
    struct stored_checkpoint *whole = words_store(&words, PLAN_RAW);
    send(whole, &blocks);
    for (size_t missing = 0; missing < blocks.count; missing++) {
        some = blocks;
        some.count--;
        for (size_t i = missing; i < some.count; i++) {
            some.bytes[i] = blocks.bytes[i + 1];
            some.len[i] = blocks.len[i + 1];
        }
        assert_int_equal(receive(&some, NULL, NULL, &arrived, &err), CB_ERR_CORRUPT);
    }
    some = blocks;
    some.count = 1;
    for (int round = 0; round < 500; round++) {
        some.len[0] = 1 + next_random(&random) % 5000;
        some.bytes[0] = malloc(some.len[0]); /* so that a sanitizer sees its end */
        assert_non_null(some.bytes[0]);
        memcpy(some.bytes[0], blocks.bytes[0], some.len[0]);
        some.bytes[0][next_random(&random) % some.len[0]] ^= (char)(1 << next_random(&random) % 8);
        int code = receive(&some, NULL, NULL, &arrived, &err);
        assert_true(code == CB_ERR_CORRUPT || code == CB_ERR_MEMORY);
        free(some.bytes[0]);
    }
    stored_checkpoint_free(whole);
    release(&blocks);
    words_release(&words);
}

static int write_list(void **state)
{
    (void)state;
    return write_list_with("- {name: q, shape: 64x30, layer: 0, tp_dim: 0}\n"
                           "- {name: w, shape: 37x40, layer: 1, tp_dim: 1}\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_of_it_arrives),
        cmocka_unit_test_setup_teardown(what_ranks_need_plans_the_same_load_as_all_of_it, write_list, remove_list),
        cmocka_unit_test(a_rank_needs_no_more_of_a_checkpoint_that_more_ranks_saved),
        cmocka_unit_test(blocks_that_are_missing_or_damaged_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
