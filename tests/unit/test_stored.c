/* Whether the chunks of a tensor hold each of its elements once, whichever way it was cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ckpt/stored.h"

/* A tensor of rows x columns in rows_cut x columns_cut chunks of the same size. */
struct cut {
    uint64_t rows, columns, rows_cut, columns_cut;
};

static const struct cut cuts[] = {{8, 12, 4, 1}, {8, 12, 1, 6}, {8, 12, 4, 3}, {1, 600, 1, 600}, {600, 1, 600, 1}};

#define MOST_CHUNKS 600

static struct stored_chunk chunks[MOST_CHUNKS];
static struct stored_tensor tensor;

static struct stored_checkpoint cut_tensor(const struct cut *cut)
{
    uint64_t height = cut->rows / cut->rows_cut, width = cut->columns / cut->columns_cut;
    tensor = (struct stored_tensor){.fqn = "w", .dims = 2, .shape = {cut->rows, cut->columns}};
    memset(chunks, 0, sizeof chunks);
    for (uint64_t row = 0; row < cut->rows_cut; row++)
        for (uint64_t column = 0; column < cut->columns_cut; column++)
            chunks[tensor.chunk_count++].region =
                (struct region){.dims = 2, .offset = {row * height, column * width}, .size = {height, width}};
    return (struct stored_checkpoint){.tensors = &tensor, .tensor_count = 1, .chunks = chunks};
}

static void every_way_to_cut_covers_each_element_once(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        struct stored_checkpoint checkpoint = cut_tensor(&cuts[i]);
        assert_int_equal(stored_check_coverage(&checkpoint, &tensor, NULL), 0);
    }
}

static void a_chunk_that_lies_over_another_is_found_whichever_way_it_was_cut(void **unused)
{
    (void)unused;
    struct cb_err err;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        struct stored_checkpoint checkpoint = cut_tensor(&cuts[i]);
        chunks[tensor.chunk_count - 1].region = chunks[tensor.chunk_count - 2].region; /* as many elements as before */
        assert_int_equal(stored_check_coverage(&checkpoint, &tensor, &err), CB_ERR_CORRUPT);
        assert_non_null(strstr(err.message, "stored twice"));
    }
}

static void a_missing_chunk_is_found_whichever_way_it_was_cut(void **unused)
{
    (void)unused;
    struct cb_err err;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        struct stored_checkpoint checkpoint = cut_tensor(&cuts[i]);
        tensor.chunk_count--;
        assert_int_equal(stored_check_coverage(&checkpoint, &tensor, &err), CB_ERR_CORRUPT);
        assert_non_null(strstr(err.message, "in no stored chunk"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_to_cut_covers_each_element_once),
        cmocka_unit_test(a_chunk_that_lies_over_another_is_found_whichever_way_it_was_cut),
        cmocka_unit_test(a_missing_chunk_is_found_whichever_way_it_was_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
