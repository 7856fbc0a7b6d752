/* Plans of loads: which stored bytes go where, in any layout, and every problem that a checkpoint has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ckpt/load/load_plan.h"
#include "tests/unit/stored_words.h"

/* Every element of every piece comes from exactly one read, of a chunk that has it. */
static void check_covered(const struct words *words, const struct stored_checkpoint *checkpoint, uint32_t rank)
{
    struct cb_err err;
    struct piece *pieces;
    size_t count;
    struct load_plan *plan;
    assert_int_equal(layout_pieces(words->layout, rank, &pieces, &count, &err), 0);
    assert_int_equal(load_plan_compute(checkpoint, words->layout, pieces, count, NULL, NULL, &plan, &err), 0);
    uint64_t *covered = calloc(count, sizeof *covered), bytes = 0;
    for (size_t i = 0; i < plan->read_count; i++) {
        const struct load_read *read = &plan->reads[i];
        const struct stored_chunk *chunk = &checkpoint->chunks[read->chunk];
        const struct stored_tensor *tensor = &checkpoint->tensors[chunk->tensor];
        assert_string_equal(tensor->fqn, layout_tensor(words->layout, pieces[read->piece].tensor)->fqn);
        assert_true(region_contains(&pieces[read->piece].region, &read->common));
        if (!tensor->is_bytes) {
            assert_true(region_contains(&chunk->region, &read->common));
            uint64_t elements = region_elements(&read->common);
            covered[read->piece] += elements;
            bytes += elements * dtype_bytes(tensor->dtype);
            assert_true(read->payload_bytes >= elements * dtype_bytes(tensor->dtype));
            assert_true(read->payload_first + read->payload_bytes <=
                        region_elements(&chunk->region) * dtype_bytes(tensor->dtype));
        } else {
            bytes += chunk->length;
        }
        for (size_t k = i + 1; k < plan->read_count; k++) {
            struct region common;
            if (plan->reads[k].piece == read->piece)
                assert_false(!tensor->is_bytes && region_intersect(&plan->reads[k].common, &read->common, &common));
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (layout_tensor(words->layout, pieces[i].tensor)->kind != KIND_BYTES)
            assert_int_equal(covered[i], region_elements(&pieces[i].region));
    }
    assert_int_equal(plan->needed_bytes, bytes);
    free(covered);
    free(pieces);
    load_plan_free(plan);
}

static void each_piece_is_covered_once_in_any_other_layout(void **state)
{
    (void)state;
    static const char *const texts[] = {"model=gpt2-tiny ranks=1", "model=gpt2-tiny ranks=4 tp=2",
                                        "model=gpt2-tiny ranks=3 zero=1", "model=gpt2-tiny ranks=2 zero=3",
                                        "model=gpt2-tiny ranks=2 pp=2"};
    enum { COUNT = sizeof texts / sizeof *texts };
    for (size_t from = 0; from < COUNT; from++) {
        struct words source;
        struct cb_err err;
        assert_int_equal(words_make(&source, texts[from], &err), 0);
        struct stored_checkpoint *checkpoint = words_store(&source, from % 2 ? PLAN_RAW : PLAN_DCP);
        for (size_t to = 0; to < COUNT; to++) {
            struct words target;
            assert_int_equal(words_make(&target, texts[to], &err), 0);
            for (uint32_t rank = 0; rank < layout_world_size(target.layout); rank++)
                check_covered(&target, checkpoint, rank);
            words_release(&target);
        }
        stored_checkpoint_free(checkpoint);
        words_release(&source);
    }
}

struct seen {
    size_t count;
    char text[4096];
};

static void see(void *context, const char *problem)
{
    struct seen *seen = context;
    size_t len = strlen(seen->text);
    seen->count++;
    snprintf(seen->text + len, sizeof seen->text - len, "%s\n", problem);
}

static int plan_for_rank_0(const struct words *words, const struct stored_checkpoint *checkpoint, struct seen *seen,
                           struct load_plan **plan, struct cb_err *err)
{
    struct piece *pieces;
    size_t count;
    assert_int_equal(layout_pieces(words->layout, 0, &pieces, &count, err), 0);
    int code = load_plan_compute(checkpoint, words->layout, pieces, count, see, seen, plan, err);
    free(pieces);
    return code;
}

/* A checkpoint damaged in several ways names each of them. */
static void every_problem_is_reported(void **state)
{
    (void)state;
    struct words words;
    struct cb_err err;
    assert_int_equal(words_make(&words, "model=gpt2-tiny ranks=2 tp=2", &err), 0);
    struct stored_checkpoint *checkpoint = words_store(&words, PLAN_DCP);
    size_t wanted = 0;
    struct stored_tensor *dtype = NULL, *shape = NULL, *hole = NULL, *missing = NULL, *kind = NULL;
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        struct stored_tensor *tensor = &checkpoint->tensors[i];
        if (strncmp(tensor->fqn, "model.", 6) != 0)
            continue;
        struct stored_tensor **slots[] = {&dtype, &shape, &hole, &missing, &kind};
        if (wanted < 5)
            *slots[wanted++] = tensor;
    }
    assert_int_equal(wanted, 5);
    dtype->dtype = DTYPE_F64;
    shape->shape[0]++;
    struct stored_chunk *chunk = &checkpoint->chunks[hole->first_chunk];
    chunk->region.size[0]--;
    missing->fqn[strlen(missing->fqn) - 1] ^= 1;
    kind->is_bytes = true;
    struct seen seen = {0};
    struct load_plan *plan;
    assert_int_equal(plan_for_rank_0(&words, checkpoint, &seen, &plan, &err), CB_ERR_CORRUPT);
    assert_int_equal(seen.count, 5);
    assert_non_null(strstr(seen.text, "the checkpoint has fp64, the model bf16"));
    assert_non_null(strstr(seen.text, "the checkpoint has shape ["));
    assert_non_null(strstr(seen.text, "no stored chunk has its elements ["));
    assert_non_null(strstr(seen.text, "not in the checkpoint"));
    assert_non_null(strstr(seen.text, "the checkpoint has a value here, the model a tensor"));
    assert_non_null(strstr(err.message, "5 problems"));
    stored_checkpoint_free(checkpoint);
    words_release(&words);
}

static void weights_load_from_a_checkpoint_that_has_more(void **state)
{
    (void)state;
    struct words more, less;
    struct cb_err err;
    assert_int_equal(words_make(&more, "model=gpt2-tiny ranks=2 tp=2", &err), 0);
    assert_int_equal(words_make(&less, "model=gpt2-tiny ranks=1 state=weights", &err), 0);
    struct stored_checkpoint *checkpoint = words_store(&more, PLAN_DCP);
    struct seen seen = {0};
    struct load_plan *plan;
    assert_int_equal(plan_for_rank_0(&less, checkpoint, &seen, &plan, &err), 0);
    assert_int_equal(seen.count, 0);
    assert_int_equal(plan->extra_tensors, layout_tensor_count(more.layout) - layout_tensor_count(less.layout));
    char text[512], wanted[64];
    assert_int_equal(load_plan_describe_extra(checkpoint, less.layout, text, sizeof text), plan->extra_tensors);
    snprintf(wanted, sizeof wanted, "%zu keys of the checkpoint are not loaded: optimizer.", plan->extra_tensors);
    assert_memory_equal(text, wanted, strlen(wanted));
    assert_int_equal(load_plan_describe_extra(checkpoint, more.layout, text, sizeof text), 0);
    assert_string_equal(text, "");
    load_plan_free(plan);
    stored_checkpoint_free(checkpoint);
    words_release(&more);
    words_release(&less);
}

/* Two chunks that share elements: each element is read once, from one of them. */
static void overlapping_chunks_are_read_once(void **state)
{
    (void)state;
    struct words words;
    struct cb_err err;
    assert_int_equal(words_make(&words, "model=gpt2-tiny ranks=2 tp=2", &err), 0);
    struct stored_checkpoint *checkpoint = words_store(&words, PLAN_DCP);
    for (size_t i = 0; i + 1 < checkpoint->chunk_count; i++) {
        struct stored_chunk *chunk = &checkpoint->chunks[i];
        if (chunk[1].tensor == chunk->tensor && chunk->region.dims > 0 &&
            chunk[1].region.offset[0] == chunk->region.size[0] && chunk[1].region.size[0] > 1)
            chunk->region.size[0]++;
    }
    struct words whole;
    assert_int_equal(words_make(&whole, "model=gpt2-tiny ranks=1", &err), 0);
    check_covered(&whole, checkpoint, 0);
    stored_checkpoint_free(checkpoint);
    words_release(&whole);
    words_release(&words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_piece_is_covered_once_in_any_other_layout),
        cmocka_unit_test(every_problem_is_reported),
        cmocka_unit_test(weights_load_from_a_checkpoint_that_has_more),
        cmocka_unit_test(overlapping_chunks_are_read_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
