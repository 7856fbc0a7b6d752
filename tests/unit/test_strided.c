/* Payloads with any strides: what arrives in pieces, in any order, is what one would copy element by element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/strided.h"

static uint64_t below(uint64_t limit)
{
    return (uint64_t)rand() % limit;
}

/* A region inside of another. */
static struct region inside(const struct region *outer)
{
    struct region region = *outer;
    for (uint32_t i = 0; i < outer->dims; i++) {
        region.size[i] = 1 + below(outer->size[i]);
        region.offset[i] += below(outer->size[i] - region.size[i] + 1);
    }
    return region;
}

struct sample {
    struct region stored, held, common;
    struct stored_payload payload;
    size_t element_bytes;
    uint64_t held_elements;
};

/* Dimensions in any order in memory, with holes between them now and then; one may be spread out of one element. */
static struct sample make_sample(void)
{
    static const size_t bytes[] = {1, 2, 4, 8, 16};
    struct sample sample = {.element_bytes = bytes[below(5)]};
    uint32_t dims = (uint32_t)below(5), order[CKPT_MAX_DIMS];
    struct region tensor = {.dims = dims};
    for (uint32_t i = 0; i < dims; i++) {
        tensor.size[i] = 1 + below(7);
        order[i] = i;
    }
    sample.stored = inside(&tensor);
    sample.common = inside(&sample.stored);
    sample.held = sample.common;
    for (uint32_t i = 0; i < dims; i++) { /* the held region is larger than what this payload has of it */
        uint64_t before = below(sample.held.offset[i] + 1);
        sample.held.offset[i] -= before;
        sample.held.size[i] += before + below(tensor.size[i] - (sample.common.offset[i] + sample.common.size[i]) + 1);
    }
    for (uint32_t i = dims; i > 1; i--) {
        uint32_t other = (uint32_t)below(i), kept = order[i - 1];
        order[i - 1] = order[other];
        order[other] = kept;
    }
    uint64_t stride = 1, span = 1;
    for (uint32_t i = 0; i < dims; i++) {
        bool spread = below(8) == 0;
        sample.payload.stride[order[i]] = spread ? 0 : stride;
        span += spread ? 0 : (sample.stored.size[order[i]] - 1) * stride;
        stride *= spread ? 1 : sample.stored.size[order[i]] + below(2);
    }
    sample.payload.bytes = span * sample.element_bytes;
    sample.held_elements = region_elements(&sample.held);
    return sample;
}

/* Element by element, as the strides say it. */
static void copy_plainly(const struct sample *self, const char *payload, char *memory)
{
    uint64_t count = region_elements(&self->common);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t from = 0, to = 0, rest = i, held = 1;
        for (uint32_t d = self->common.dims; d-- > 0; rest /= self->common.size[d]) {
            uint64_t at = self->common.offset[d] + rest % self->common.size[d];
            from += (at - self->stored.offset[d]) * self->payload.stride[d];
            to += (at - self->held.offset[d]) * held;
            held *= self->held.size[d];
        }
        memcpy(memory + to * self->element_bytes, payload + from * self->element_bytes, self->element_bytes);
    }
}

/* Pieces of any length, the later half before the earlier one. */
static uint64_t scatter_pieces(const struct strided *strided, const char *payload, uint64_t begin, uint64_t end,
                               char *memory)
{
    uint64_t copied = 0, middle = begin + (end - begin) / 2;
    const uint64_t halves[2][2] = {{middle, end}, {begin, middle}};
    for (int half = 0; half < 2; half++) {
        for (uint64_t at = halves[half][0]; at < halves[half][1];) {
            uint64_t len = 1 + below(37);
            if (len > halves[half][1] - at)
                len = halves[half][1] - at;
            char *piece = malloc(len); /* so that a sanitizer sees what is read beside it */
            memcpy(piece, payload + at, len);
            copied += strided_scatter(strided, at, piece, len, memory);
            free(piece);
            at += len;
        }
    }
    return copied;
}

static void pieces_in_any_order_make_the_whole(void **unused)
{
    (void)unused;
    srand(11);
    for (int round = 0; round < 3000; round++) {
        struct sample sample = make_sample();
        struct strided strided;
        uint64_t begin, end, bytes = sample.held_elements * sample.element_bytes;
        char *payload = malloc(sample.payload.bytes), *wanted = malloc(bytes), *found = malloc(bytes);
        for (uint64_t i = 0; i < sample.payload.bytes; i++)
            payload[i] = (char)rand();
        memset(wanted, 0x5a, bytes);
        memset(found, 0x5a, bytes);
        strided_init(&strided, &sample.payload, &sample.stored, &sample.held, &sample.common, sample.element_bytes);
        strided_span(&strided, &begin, &end);
        assert_true(begin < end && end <= sample.payload.bytes);
        copy_plainly(&sample, payload, wanted);
        assert_int_equal(scatter_pieces(&strided, payload, begin, end, found),
                         region_elements(&sample.common) * sample.element_bytes);
        assert_memory_equal(found, wanted, bytes);
        free(payload);
        free(wanted);
        free(found);
    }
}

static int count_rows(void *context, const struct mapping_rows *rows, struct cb_err *err)
{
    (void)rows, (void)err;
    ++*(uint64_t *)context;
    return 0;
}

/* A piece of a large transposed matrix costs its own rows, not a walk over all of it. */
static void a_piece_costs_its_own_elements(void **unused)
{
    (void)unused;
    const uint64_t shape[] = {UINT64_C(1) << 20, UINT64_C(1) << 20};
    struct region whole = region_whole(2, shape);
    struct stored_payload payload = {.bytes = UINT64_C(4) << 40, .stride = {1, UINT64_C(1) << 20}};
    struct strided strided;
    strided_init(&strided, &payload, &whole, &whole, &whole, 4);
    uint64_t column = UINT64_C(4) << 20, calls = 0;
    assert_int_equal(strided_each(&strided, 12345 * column, column, count_rows, &calls, NULL), 0);
    assert_int_equal(calls, 1);
    calls = 0;
    assert_int_equal(strided_each(&strided, 12345 * column + 2, 2 * column, count_rows, &calls, NULL), 0);
    assert_int_equal(calls, 4); /* a part of an element at both ends, the rest of its column, and a whole one */
}

static int refuse(void *context, const struct mapping_rows *rows, struct cb_err *err)
{
    (void)context, (void)rows;
    return cb_fail(err, CB_ERR_SYSTEM, "no");
}

static void who_is_told_can_end_it(void **unused)
{
    (void)unused;
    struct region scalar = {0};
    struct stored_payload payload = {.bytes = 8};
    struct strided strided;
    struct cb_err err;
    strided_init(&strided, &payload, &scalar, &scalar, &scalar, 8);
    assert_int_equal(strided_each(&strided, 0, 8, refuse, NULL, &err), CB_ERR_SYSTEM);
    assert_int_equal(strided_each(&strided, 8, 8, refuse, NULL, &err), 0);
    assert_int_equal(strided_each(&strided, 0, 0, refuse, NULL, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_in_any_order_make_the_whole),
        cmocka_unit_test(a_piece_costs_its_own_elements),
        cmocka_unit_test(who_is_told_can_end_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
