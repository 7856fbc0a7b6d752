/* Payloads: the same values whoever computes them, and a wrong one is found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ckpt/payload.h"

static const enum payload_kind kinds[] = {PAYLOAD_WEIGHTS, PAYLOAD_RANDOM, PAYLOAD_ZERO};

static struct payload_source source_of(enum payload_kind kind, enum dtype dtype)
{
    return (struct payload_source){kind, dtype, payload_key(7, "model.layers.0.weight")};
}

/* Wherever a part begins and ends, it is the same as in the whole: also across the key's blocks. */
static void parts_are_the_same_as_the_whole(void **state)
{
    (void)state;
    enum { COUNT = 300, BLOCK = 1 << 20 };
    static const uint64_t firsts[] = {0, 1, 5, BLOCK - 100, 2 * BLOCK - 150, 4 * BLOCK - 17, (UINT64_C(5) << 32) - 9};
    for (unsigned kind = 0; kind < 3; kind++) {
        for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
            struct payload_source source = source_of(kinds[kind], (enum dtype)dtype);
            size_t bytes = dtype_bytes(source.dtype);
            for (size_t f = 0; f < sizeof firsts / sizeof *firsts; f++) {
                unsigned char whole[COUNT * 16], part[COUNT * 16 + 1];
                payload_fill(&source, firsts[f], whole, COUNT);
                for (uint64_t at = 0; at < COUNT; at += 37) {
                    uint64_t count = COUNT - at < 41 ? COUNT - at : 41;
                    payload_fill(&source, firsts[f] + at, part + 1, count); /* not aligned */
                    assert_memory_equal(part + 1, whole + at * bytes, count * bytes);
                }
            }
        }
    }
}

static void a_wrong_element_is_named(void **state)
{
    (void)state;
    enum { COUNT = 20000 };
    unsigned char *memory = malloc(COUNT * 16);
    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        struct payload_source source = source_of(PAYLOAD_WEIGHTS, (enum dtype)dtype);
        payload_fill(&source, 123, memory, COUNT);
        uint64_t wrong = 0;
        assert_true(payload_check(&source, 123, memory, COUNT, &wrong));
        static const uint64_t places[] = {0, 4095, 4096, 12345, COUNT - 1};
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            unsigned char *byte = memory + places[i] * dtype_bytes(source.dtype);
            *byte ^= 0x10;
            assert_false(payload_check(&source, 123, memory, COUNT, &wrong));
            assert_int_equal(wrong, places[i]);
            *byte ^= 0x10;
        }
        if (dtype_bytes(source.dtype) >= 2) /* a byte may well be the same one further on */
            assert_false(payload_check(&source, 124, memory, 8, &wrong));
    }
    free(memory);
}

static void tensors_and_seeds_differ(void **state)
{
    (void)state;
    assert_true(payload_key(0, "model.a") != payload_key(1, "model.a"));
    assert_true(payload_key(0, "model.a") != payload_key(0, "model.b"));
    assert_true(payload_key(0, "model.a") == payload_key(0, "model.a"));
}

static void a_region_holds_its_elements_of_the_tensor(void **state)
{
    (void)state;
    uint64_t shape[] = {5, 7, 9};
    struct region region = {3, {1, 2, 3}, {3, 4, 5}};
    struct payload_source source = source_of(PAYLOAD_WEIGHTS, DTYPE_F32);
    uint32_t whole[5 * 7 * 9], part[3 * 4 * 5];
    payload_fill(&source, 0, whole, 5 * 7 * 9);
    payload_fill_region(&source, shape, &region, part);
    uint32_t *at = part;
    for (uint64_t i = 1; i < 4; i++) {
        for (uint64_t j = 2; j < 6; j++) {
            for (uint64_t k = 3; k < 8; k++)
                assert_int_equal(*at++, whole[(i * 7 + j) * 9 + k]);
        }
    }
    uint64_t wrong = 0;
    assert_true(payload_check_region(&source, shape, &region, part, &wrong));
    part[2 * 20 + 3 * 5 + 4] ^= 1;
    assert_false(payload_check_region(&source, shape, &region, part, &wrong));
    assert_int_equal(wrong, (3 * 7 + 5) * 9 + 7);
    struct region empty = {3, {1, 2, 3}, {3, 0, 5}};
    assert_true(payload_check_region(&source, shape, &empty, part, &wrong));
    struct region scalar = {0};
    payload_fill_region(&source, NULL, &scalar, part);
    assert_int_equal(part[0], whole[0]);
}

/* Finite, of both signs, small, and no constant: what an optimizer could hold. */
static void weights_look_like_weights(void **state)
{
    (void)state;
    enum { COUNT = 100000 };
    struct payload_source source = source_of(PAYLOAD_WEIGHTS, DTYPE_F32);
    float *values = malloc(COUNT * sizeof *values);
    payload_fill(&source, 0, values, COUNT);
    double sum = 0, squares = 0;
    for (int i = 0; i < COUNT; i++) {
        assert_true(values[i] > -0.0626f && values[i] < 0.0626f);
        sum += (double)values[i];
        squares += (double)values[i] * (double)values[i];
    }
    assert_true(sum / COUNT > -0.001 && sum / COUNT < 0.001);
    assert_true(squares / COUNT > 0.0004 && squares / COUNT < 0.0009); /* (1/16)^2 / 6 */
    free(values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_the_same_as_the_whole), cmocka_unit_test(a_wrong_element_is_named),
        cmocka_unit_test(tensors_and_seeds_differ),        cmocka_unit_test(a_region_holds_its_elements_of_the_tensor),
        cmocka_unit_test(weights_look_like_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
