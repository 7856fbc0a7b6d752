/* What is written of an item reads back, in DCP and as literals, and what is damaged or a program is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ckpt/format/format.h"
#include "ckpt/format/literal.h"
#include "ckpt/format/zip.h"
#include "core/hash.h"

#define SAVE_ID UINT64_C(0x1122334455667788)

static struct state_tensor tensor_of(enum dtype dtype, uint32_t dims, const uint64_t *shape)
{
    struct state_tensor tensor = {.fqn = "model.w", .dtype = dtype, .dims = dims};
    for (uint32_t i = 0; i < dims; i++)
        tensor.shape[i] = shape[i];
    return tensor;
}

static struct stored_tensor stored_as(const struct state_tensor *tensor, char *fqn)
{
    struct stored_tensor stored = {.fqn = fqn, .dtype = tensor->dtype, .dims = tensor->dims};
    memcpy(stored.shape, tensor->shape, sizeof stored.shape);
    return stored;
}

/* Header and trailer say what the frame promised, put the payload where it was asked for, and read back. */
static void check_item(enum dtype dtype, uint32_t dims, const uint64_t *shape, uint64_t item_offset, uint32_t alignment)
{
    struct state_tensor tensor = tensor_of(dtype, dims, shape);
    struct region region = region_whole(dims, shape);
    struct item_frame frame;
    struct cb_err err;
    assert_int_equal(format_item_frame(PLAN_DCP, &tensor, &region, item_offset, alignment, &frame, &err), 0);
    struct plan_item item = {.offset = item_offset,
                             .payload_offset = item_offset + frame.header_bytes,
                             .payload_bytes = frame.payload_bytes,
                             .length = frame.header_bytes + frame.payload_bytes + frame.trailer_bytes,
                             .region = region};
    assert_int_equal(item.payload_offset % alignment, 0);
    struct buf header, trailer;
    buf_init(&header, 1 << 20);
    buf_init(&trailer, 1 << 20);
    assert_int_equal(format_item_header(PLAN_DCP, &tensor, &item, SAVE_ID, &header, &err), 0);
    assert_int_equal(format_item_trailer(PLAN_DCP, &tensor, &item, SAVE_ID, 0x12345678, &trailer, &err), 0);
    assert_int_equal(header.len, frame.header_bytes);
    assert_int_equal(trailer.len, frame.trailer_bytes);
    char fqn[] = "model.w";
    struct stored_tensor stored = stored_as(&tensor, fqn);
    struct stored_payload payload, expected;
    assert_int_equal(
        format_parse_item(PLAN_DCP, &stored, &region, header.data, header.len, item.length, &payload, &err), 0);
    assert_int_equal(payload.offset, frame.header_bytes);
    assert_int_equal(payload.bytes, frame.payload_bytes);
    assert_true(payload.contiguous);
    assert_true(format_expect_payload(PLAN_DCP, &stored, &region, item.length, &expected));
    assert_int_equal(expected.offset, payload.offset);
    assert_int_equal(expected.bytes, payload.bytes);
    struct stored_trailer found;
    assert_int_equal(format_parse_trailer(PLAN_DCP, trailer.data, trailer.len, &found, &err), 0);
    assert_int_equal(found.crc, 0x12345678);
    assert_int_not_equal(payload.header_crc, 0);
    assert_int_equal(format_check_header(&payload, &found, &err), 0);
    buf_release(&header);
    buf_release(&trailer);
}

static void items_of_every_type_and_place_read_back(void **state)
{
    (void)state;
    static const uint64_t shape[] = {3, 5, 2, 1, 7, 4};
    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        for (uint32_t dims = 0; dims <= 6; dims++) {
            check_item((enum dtype)dtype, dims, shape, 0, 4096);
            check_item((enum dtype)dtype, dims, shape, 12345, 64);
            check_item((enum dtype)dtype, dims, shape, (UINT64_C(5) << 32) + 1, 4096);
        }
    }
}

static void items_around_4_gib_and_above_have_64_bit_lengths(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {(UINT64_C(1) << 32) - 2, (UINT64_C(1) << 32) - 1, UINT64_C(1) << 32,
                                     UINT64_C(1) << 40};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        check_item(DTYPE_U8, 1, &sizes[i], 77, 4096);
}

static void an_item_of_another_type_or_shape_is_corrupt(void **state)
{
    (void)state;
    static const uint64_t shape[] = {3, 5};
    struct state_tensor tensor = tensor_of(DTYPE_BF16, 2, shape);
    struct region region = region_whole(2, shape);
    struct item_frame frame;
    struct cb_err err;
    assert_int_equal(format_item_frame(PLAN_DCP, &tensor, &region, 0, 64, &frame, &err), 0);
    struct plan_item item = {
        .payload_offset = frame.header_bytes, .payload_bytes = frame.payload_bytes, .region = region};
    uint64_t length = frame.header_bytes + frame.payload_bytes + frame.trailer_bytes;
    struct buf header;
    buf_init(&header, 1 << 20);
    assert_int_equal(format_item_header(PLAN_DCP, &tensor, &item, SAVE_ID, &header, &err), 0);
    char fqn[] = "model.w";
    struct stored_tensor stored = stored_as(&tensor, fqn);
    struct stored_payload payload;
    stored.dtype = DTYPE_F16;
    assert_int_equal(format_parse_item(PLAN_DCP, &stored, &region, header.data, header.len, length, &payload, &err),
                     CB_ERR_CORRUPT);
    assert_string_equal(err.message, "the item holds bf16, the metadata says fp16");
    stored.dtype = DTYPE_BF16;
    struct region other = {2, {0, 0}, {5, 3}};
    assert_int_equal(format_parse_item(PLAN_DCP, &stored, &other, header.data, header.len, length, &payload, &err),
                     CB_ERR_CORRUPT);
    assert_int_equal(
        format_parse_item(PLAN_DCP, &stored, &region, header.data, header.len, frame.header_bytes + 29, &payload, &err),
        CB_ERR_CORRUPT); /* the payload would end after the item */
    for (size_t cut = 0; cut < header.len; cut += 7)
        assert_true(format_parse_item(PLAN_DCP, &stored, &region, header.data, cut, length, &payload, &err) < 0);
    buf_release(&header);
}

/* A whole item of 16 fp32, and where its parts are. */
struct whole {
    struct buf header, trailer;
    struct region region;
    struct state_tensor tensor;
    uint64_t length;
};

static void make_whole(struct whole *self)
{
    static const uint64_t shape[] = {4, 4};
    struct item_frame frame;
    struct cb_err err;
    self->tensor = tensor_of(DTYPE_F32, 2, shape);
    self->region = region_whole(2, shape);
    assert_int_equal(format_item_frame(PLAN_DCP, &self->tensor, &self->region, 0, 64, &frame, &err), 0);
    self->length = frame.header_bytes + frame.payload_bytes + frame.trailer_bytes;
    struct plan_item item = {.payload_offset = frame.header_bytes,
                             .payload_bytes = frame.payload_bytes,
                             .length = self->length,
                             .region = self->region};
    buf_init(&self->header, 1 << 20);
    buf_init(&self->trailer, 1 << 20);
    assert_int_equal(format_item_header(PLAN_DCP, &self->tensor, &item, SAVE_ID, &self->header, &err), 0);
    assert_int_equal(format_item_trailer(PLAN_DCP, &self->tensor, &item, SAVE_ID, 7, &self->trailer, &err), 0);
}

static void release_whole(struct whole *self)
{
    buf_release(&self->header);
    buf_release(&self->trailer);
}

/* An entry of the directory, which follows the payload's descriptor. */
static char *entry_of(struct whole *self, size_t number)
{
    char *at = self->trailer.data + 16;
    while (number-- > 0)
        at += 46 + (unsigned char)at[28];
    return at;
}

static void expect_bad_trailer(const struct whole *self, const char *word)
{
    struct stored_trailer found;
    struct cb_err err;
    assert_int_equal(format_parse_trailer(PLAN_DCP, self->trailer.data, self->trailer.len, &found, &err),
                     CB_ERR_CORRUPT);
    assert_non_null(strstr(err.message, word));
}

static void records_of_an_item_that_overlap_are_corrupt(void **state)
{
    (void)state;
    for (size_t number = 1; number < 4; number++) {
        struct whole item;
        make_whole(&item);
        memset(entry_of(&item, number) + 42, number == 1 ? 5 : 0, 1); /* where its local header is said to be */
        memset(entry_of(&item, number) + 43, 0, 3);
        expect_bad_trailer(&item, "overlap");
        release_whole(&item);
    }
    struct whole item;
    make_whole(&item);
    memset(entry_of(&item, 0) + 24, 0x7f, 4); /* data.pkl is said to reach over all that follows it */
    expect_bad_trailer(&item, "overlap");
    memset(entry_of(&item, 0) + 24, 0xff, 4); /* its length in 64 bits, which nothing has */
    expect_bad_trailer(&item, "damaged");
    release_whole(&item);
}

static void a_storage_that_is_longer_than_its_record_is_corrupt(void **state)
{
    (void)state;
    struct whole item;
    struct stored_payload payload;
    struct cb_err err;
    char fqn[] = "model.w";
    make_whole(&item);
    struct stored_tensor stored = stored_as(&item.tensor, fqn);
    char *name = memmem(item.header.data, item.header.len, "archive/data/0", 14);
    assert_non_null(name);
    name[-30 + 6] = 0;  /* its length stands in the header … */
    name[-30 + 22] = 8; /* … and leaves the last 56 bytes to what follows */
    assert_int_equal(format_parse_item(PLAN_DCP, &stored, &item.region, item.header.data, item.header.len, item.length,
                                       &payload, &err),
                     CB_ERR_CORRUPT);
    assert_non_null(strstr(err.message, "of 64 bytes lies in a record of 8"));
    name[-30 + 22] = 64;
    assert_int_equal(format_parse_item(PLAN_DCP, &stored, &item.region, item.header.data, item.header.len, item.length,
                                       &payload, &err),
                     0);
    release_whole(&item);
}

/* What a reader of the item makes of it; false where it is refused. */
static bool reads(const struct whole *item, const struct stored_tensor *stored, struct stored_payload *payload,
                  struct stored_trailer *trailer)
{
    struct cb_err err;
    return format_parse_item(PLAN_DCP, stored, &item->region, item->header.data, item->header.len, item->length,
                             payload, &err) == 0 &&
           format_parse_trailer(PLAN_DCP, item->trailer.data, item->trailer.len, trailer, &err) == 0 &&
           format_check_header(payload, trailer, &err) == 0;
}

/* Found, or what is read is as long, lies in the same order and is all that the checksum is of: that decides then. */
static void no_bit_that_flips_around_a_payload_makes_another_of_it_unseen(void **state)
{
    (void)state;
    struct whole item;
    struct stored_payload right, payload;
    struct stored_trailer trailer, right_trailer;
    char fqn[] = "model.w";
    size_t found = 0;
    make_whole(&item);
    struct stored_tensor stored = stored_as(&item.tensor, fqn);
    assert_true(reads(&item, &stored, &right, &right_trailer));
    for (size_t bit = 0; bit < 8 * (item.header.len + item.trailer.len); bit++) {
        size_t at = bit / 8;
        char *byte = at < item.header.len ? &item.header.data[at] : &item.trailer.data[at - item.header.len];
        *byte = (char)(*byte ^ (1 << bit % 8));
        if (reads(&item, &stored, &payload, &trailer)) {
            assert_int_equal(payload.bytes, right.bytes);
            assert_true(payload.whole);
            assert_memory_equal(payload.stride, right.stride, item.region.dims * sizeof *right.stride);
        } else {
            found++;
        }
        *byte = (char)(*byte ^ (1 << bit % 8));
    }
    assert_true(found > 1000); /* all of the pickle, and what zips must have */
    release_whole(&item);
}

static void small_values_read_back_as_they_were_written(void **state)
{
    (void)state;
    static const char *const literals[] = {
        "0",    "255",   "256",  "65536",   "-1", "-3000000000", "1099511627776", "0.0003", "1e-08",
        "True", "False", "None", "'adamw'", "[]", "()",          "[0.9, 0.95]",   "(1,)",   "[[1, 'x'], (None, True)]"};
    for (size_t i = 0; i < sizeof literals / sizeof *literals; i++) {
        for (int format = PLAN_DCP; format <= PLAN_RAW; format++) {
            struct state_tensor tensor = {.fqn = "train.x", .kind = KIND_BYTES, .literal = literals[i]};
            struct region region = {0};
            struct item_frame frame;
            struct buf payload, literal;
            struct cb_err err;
            buf_init(&payload, 65536);
            buf_init(&literal, 65536);
            assert_int_equal(format_bytes_payload((enum plan_format)format, &tensor, SAVE_ID, &payload, &err), 0);
            assert_int_equal(format_item_frame((enum plan_format)format, &tensor, &region, 5, 4096, &frame, &err), 0);
            assert_int_equal(frame.header_bytes + frame.trailer_bytes, 0);
            assert_int_equal(frame.payload_bytes, payload.len);
            assert_int_equal(format_parse_bytes_payload((enum plan_format)format, "train.x", payload.data, payload.len,
                                                        &literal, &err),
                             0);
            assert_string_equal(literal.data, literals[i]);
            buf_release(&payload);
            buf_release(&literal);
        }
    }
}

/* Never taken for a value that only Python knows, which would be left alone. */
static void every_bit_that_flips_in_a_value_is_found_or_harmless(void **state)
{
    (void)state;
    static const char text[] = "[0.9, 0.95]";
    struct state_tensor tensor = {.fqn = "train.x", .kind = KIND_BYTES, .literal = text};
    struct buf payload, literal;
    struct cb_err err;
    size_t found = 0;
    buf_init(&payload, 65536);
    buf_init(&literal, 65536);
    assert_int_equal(format_bytes_payload(PLAN_DCP, &tensor, SAVE_ID, &payload, &err), 0);
    for (size_t bit = 0; bit < 8 * payload.len; bit++) {
        char *byte = &payload.data[bit / 8];
        *byte = (char)(*byte ^ (1 << bit % 8));
        buf_clear(&literal);
        int code = format_parse_bytes_payload(PLAN_DCP, "train.x", payload.data, payload.len, &literal, &err);
        if (code)
            assert_int_equal(code, CB_ERR_CORRUPT);
        else
            assert_string_equal(literal.data, text);
        found += code != 0;
        *byte = (char)(*byte ^ (1 << bit % 8));
    }
    assert_true(found > 1000);
    assert_non_null(strstr(err.message, "the value is damaged"));
    buf_release(&payload);
    buf_release(&literal);
}

static void what_is_no_literal_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"'a\\x00b'",           "", "x", "[1", "(1]", "1 2", "'a", "[1,,2]",
                                        "99999999999999999999"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct buf out;
        struct cb_err err;
        buf_init(&out, 4096);
        assert_int_equal(literal_to_pickle(texts[i], &out, &err), CB_ERR_USAGE);
        buf_release(&out);
    }
}

static int read_text(const char *bytes, size_t len, struct cb_err *err)
{
    struct pickle *pickle = NULL;
    int code = pickle_read("test", bytes, len, &pickle, err);
    pickle_free(pickle);
    return code;
}

#define READ(bytes) read_text(bytes, sizeof(bytes) - 1, &err)

static void pickles_that_are_programs_or_broken_are_refused(void **state)
{
    (void)state;
    struct cb_err err;
    assert_int_equal(READ("\x80\x02]."), 0);
    assert_int_equal(READ("\x80\x02"
                          "cos\nsystem\nX\x02\0\0\0ls\x85R."),
                     CB_ERR_FORMAT);
    assert_non_null(strstr(err.message, "os.system"));
    assert_int_equal(READ("\x80\x04\x8c\x08"
                          "builtins\x8c\x04"
                          "eval\x93."),
                     CB_ERR_FORMAT);
    assert_non_null(strstr(err.message, "builtins.eval"));
    static const char *const broken[] = {"",         ".",     "]",
                                         "]].",      "0.",    "(.",
                                         "\x85.",    "]K",    "h\x01.",
                                         "a.",       "]a.",   "e.",
                                         "}(Ku.",    "NNR.",  "Nb.",
                                         "Q.",       "cx\ny", "X\xff\xff\xff\xff.",
                                         "\x8a\x09", "]q",    "]r\xff\xff\xff\x7f."};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        assert_int_equal(read_text(broken[i], strlen(broken[i]), &err), CB_ERR_FORMAT);
}

/* A list that holds itself, many times over, is a value like any other: nothing walks it without bound. */
static void a_value_that_holds_itself_has_no_literal(void **state)
{
    (void)state;
    static const char bytes[] = "\x80\x02]q\0(h\0h\0e.";
    struct pickle *pickle;
    struct cb_err err;
    struct buf out;
    buf_init(&out, 65536);
    assert_int_equal(pickle_read("test", bytes, sizeof bytes - 1, &pickle, &err), 0);
    assert_true(literal_from_pickle(pickle, pickle_root(pickle), &out, &err) < 0);
    pickle_free(pickle);
    buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_of_every_type_and_place_read_back),
        cmocka_unit_test(items_around_4_gib_and_above_have_64_bit_lengths),
        cmocka_unit_test(an_item_of_another_type_or_shape_is_corrupt),
        cmocka_unit_test(records_of_an_item_that_overlap_are_corrupt),
        cmocka_unit_test(a_storage_that_is_longer_than_its_record_is_corrupt),
        cmocka_unit_test(no_bit_that_flips_around_a_payload_makes_another_of_it_unseen),
        cmocka_unit_test(every_bit_that_flips_in_a_value_is_found_or_harmless),
        cmocka_unit_test(small_values_read_back_as_they_were_written),
        cmocka_unit_test(what_is_no_literal_is_refused),
        cmocka_unit_test(pickles_that_are_programs_or_broken_are_refused),
        cmocka_unit_test(a_value_that_holds_itself_has_no_literal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
