/* Boxes and the runs of their elements in memory; types of elements. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ckpt/dtype.h"
#include "ckpt/region.h"

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void a_scalar_is_one_element(void **state)
{
    (void)state;
    struct region region = region_whole(0, NULL);
    assert_int_equal(region_elements(&region), 1);
    struct region regions[BOX_MAX_OF_INTERVAL];
    assert_int_equal(region_of_interval(&region, 0, 1, regions), 1);
    assert_int_equal(region_of_interval(&region, 0, 0, regions), 0);
    uint64_t runs, run_elements;
    region_runs(&region, &region, &runs, &run_elements);
    assert_int_equal(runs, 1);
    assert_int_equal(run_elements, 1);
}

static void regions_that_touch_share_nothing(void **state)
{
    (void)state;
    struct region a = {2, {0, 0}, {2, 4}}, b = {2, {2, 0}, {2, 4}}, c = {2, {1, 3}, {2, 4}}, common;
    assert_false(region_intersect(&a, &b, &common));
    assert_true(region_intersect(&a, &c, &common));
    struct region expected = {2, {1, 3}, {1, 1}};
    assert_true(region_equal(&common, &expected));
    assert_true(region_contains(&a, &common));
    assert_false(region_contains(&common, &a));
}

static void an_interval_is_head_middle_and_tail(void **state)
{
    (void)state;
    struct region whole = {2, {0, 0}, {4, 6}}, regions[BOX_MAX_OF_INTERVAL];
    assert_int_equal(region_of_interval(&whole, 3, 20, regions), 3);
    struct region head = {2, {0, 3}, {1, 3}}, middle = {2, {1, 0}, {2, 6}}, tail = {2, {3, 0}, {1, 2}};
    assert_true(region_equal(&regions[0], &head));
    assert_true(region_equal(&regions[1], &middle));
    assert_true(region_equal(&regions[2], &tail));
    assert_int_equal(region_of_interval(&whole, 0, 24, regions), 1);
    assert_int_equal(region_of_interval(&whole, 7, 9, regions), 1);
    assert_int_equal(region_of_interval(&whole, 5, 7, regions), 2);
}

/* Every interval of a small tensor: regions follow each other in order and give exactly the interval. */
static void intervals_are_covered_exactly_and_in_order(void **state)
{
    (void)state;
    static const uint64_t shapes[][CKPT_MAX_DIMS] = {{13},         {5, 7},       {3, 4, 5},
                                                     {2, 3, 2, 3}, {1, 5, 1, 4}, {2, 1, 3, 2, 2, 3}};
    static const uint32_t dims[] = {1, 2, 3, 4, 4, 6};
    for (size_t s = 0; s < sizeof dims / sizeof *dims; s++) {
        struct region whole = region_whole(dims[s], shapes[s]);
        uint64_t total = region_elements(&whole);
        for (uint64_t begin = 0; begin <= total; begin++) {
            for (uint64_t end = begin; end <= total; end++) {
                struct region regions[BOX_MAX_OF_INTERVAL];
                uint32_t count = region_of_interval(&whole, begin, end, regions);
                assert_true(count <= 2 * (dims[s] - 1) + 1);
                uint64_t at = begin;
                for (uint32_t i = 0; i < count; i++) {
                    assert_true(region_contains(&whole, &regions[i]));
                    assert_int_equal(region_first_element(&regions[i], shapes[s]), at);
                    uint64_t runs, run_elements;
                    region_runs(&whole, &regions[i], &runs, &run_elements);
                    assert_int_equal(runs, 1);
                    at += region_elements(&regions[i]);
                }
                assert_int_equal(at, end);
            }
        }
    }
}

/* Element by element: the runs of a random inner region visit what nested loops visit. */
static void runs_visit_each_element_of_the_inner_region(void **state)
{
    (void)state;
    uint64_t seed = 88172645463325252u;
    for (int round = 0; round < 500; round++) {
        struct region outer = {.dims = (uint32_t)(1 + next_random(&seed) % 4)}, inner = {.dims = outer.dims};
        for (uint32_t i = 0; i < outer.dims; i++) {
            outer.offset[i] = next_random(&seed) % 3;
            outer.size[i] = 1 + next_random(&seed) % 5;
            uint64_t skip = next_random(&seed) % 2 ? next_random(&seed) % outer.size[i] : 0;
            inner.offset[i] = outer.offset[i] + skip;
            inner.size[i] = next_random(&seed) % 2 ? outer.size[i] - skip : 1;
        }
        uint64_t runs, run_elements, visited = 0;
        region_runs(&outer, &inner, &runs, &run_elements);
        assert_int_equal(runs * run_elements, region_elements(&inner));
        uint64_t elements = region_elements(&inner);
        for (uint64_t r = 0; r < runs; r++) {
            uint64_t outer_element, inner_element;
            region_run(&outer, &inner, r, &outer_element, &inner_element);
            assert_int_equal(inner_element, visited);
            for (uint64_t k = 0; k < run_elements; k++, visited++) {
                uint64_t left = visited, expected = 0, stride = 1;
                for (uint32_t i = outer.dims; i-- > 0;) {
                    expected += (inner.offset[i] - outer.offset[i] + left % inner.size[i]) * stride;
                    left /= inner.size[i];
                    stride *= outer.size[i];
                }
                assert_int_equal(outer_element + k, expected);
            }
        }
        assert_int_equal(visited, elements);
    }
}

static void element_types_have_the_names_of_torch_and_safetensors(void **state)
{
    (void)state;
    enum dtype dtype;
    assert_true(dtype_find("bf16", &dtype));
    assert_int_equal(dtype, DTYPE_BF16);
    assert_int_equal(dtype_bytes(dtype), 2);
    assert_string_equal(dtype_torch_name(dtype), "bfloat16");
    assert_string_equal(dtype_torch_storage(dtype), "BFloat16Storage");
    assert_true(dtype_find("float8_e4m3fn", &dtype));
    assert_null(dtype_torch_storage(dtype));
    assert_true(dtype_find("F32", &dtype));
    assert_string_equal(dtype_name(dtype), "fp32");
    assert_false(dtype_find("float", &dtype));
    for (unsigned i = 0; i < DTYPE_COUNT; i++) {
        assert_true(dtype_find(dtype_name((enum dtype)i), &dtype));
        assert_int_equal(dtype, i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_scalar_is_one_element),
        cmocka_unit_test(regions_that_touch_share_nothing),
        cmocka_unit_test(an_interval_is_head_middle_and_tail),
        cmocka_unit_test(intervals_are_covered_exactly_and_in_order),
        cmocka_unit_test(runs_visit_each_element_of_the_inner_region),
        cmocka_unit_test(element_types_have_the_names_of_torch_and_safetensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
