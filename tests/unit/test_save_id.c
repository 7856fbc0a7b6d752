/* Every format stores the id of the save in its metadata and in the first bytes of items or files, and finds another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ckpt/format/format.h"
#include "ckpt/format/format_ops.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/format/save_id.h"
#include "core/hash.h"
#include "tests/unit/layout_words.h"

#define SAVE_ID UINT64_C(0x1122334455667788)
#define OTHER_ID UINT64_C(0x8877665544332211)
#define VERSION_AT 7 /* in the magic of an index */

struct planned {
    struct words words;
    struct plan *plan;
    enum plan_format format;
};

static void make(struct planned *self, enum plan_format format)
{
    struct plan_options options = {.files_per_rank = 1, .payload_alignment = 64, .format = format};
    struct cb_err err;
    self->format = format;
    assert_int_equal(words_make(&self->words, "model=gpt2-tiny", &err), 0);
    assert_int_equal(plan_compute(self->words.layout, &options, &self->plan, &err), 0);
}

static void release(struct planned *self)
{
    plan_free(self->plan);
    words_release(&self->words);
}

/* The beginning of an item, or, for the first one of a file with a header, of the file. */
static void put_front(const struct planned *self, const struct plan_item *item, size_t left, uint64_t save_id,
                      struct buf *front)
{
    const struct state_tensor *tensor = layout_tensor(self->words.layout, item->tensor);
    struct cb_err err;
    buf_clear(front);
    assert_int_equal(format_plan_header(self->format, self->words.layout, self->plan, item, left, save_id, front, &err),
                     0);
    if (front->len == 0 && tensor->kind == KIND_BYTES)
        assert_int_equal(format_bytes_payload(self->format, tensor, save_id, front, &err), 0);
    if (front->len > SAVE_ID_FRONT_BYTES)
        front->len = SAVE_ID_FRONT_BYTES;
}

static void each_item_or_file_has_the_id_in_its_first_bytes(void **state)
{
    (void)state;
    for (int format = 0; format < PLAN_FORMATS; format++) {
        struct planned self;
        struct buf front;
        struct cb_err err;
        make(&self, (enum plan_format)format);
        buf_init(&front, 1 << 20);
        struct stored_checkpoint checkpoint = {.format = self.format, .save_id = SAVE_ID};
        bool in_files = format_ops_of(self.format)->has_file_headers;
        struct plan_item *items;
        size_t count;
        assert_int_equal(plan_items_of_rank(self.plan, 0, &items, &count, &err), 0);
        for (size_t i = 0; i < (in_files ? 1 : count); i++) {
            const struct plan_item *item = &items[i];
            bool is_value = layout_tensor(self.words.layout, item->tensor)->kind == KIND_BYTES;
            put_front(&self, item, count - i, SAVE_ID, &front);
            assert_int_equal(format_check_save(&checkpoint, is_value, front.data, front.len, &err), 0);
            put_front(&self, item, count - i, OTHER_ID, &front);
            assert_int_equal(format_check_save(&checkpoint, is_value, front.data, front.len, &err), CB_ERR_CORRUPT);
            assert_string_equal(err.message, "the file is of another save: its save id is 8877665544332211, the "
                                             "checkpoint's 1122334455667788");
        }
        free(items);
        buf_release(&front);
        release(&self);
    }
}

static void a_tensor_without_an_id_is_of_another_save_and_a_value_may_be_foreign(void **state)
{
    (void)state;
    static const char front[SAVE_ID_FRONT_BYTES] = "PK";
    for (int format = 0; format < PLAN_FORMATS; format++) {
        struct stored_checkpoint checkpoint = {.format = (enum plan_format)format, .save_id = SAVE_ID};
        struct cb_err err;
        assert_int_equal(format_check_save(&checkpoint, false, front, sizeof front, &err), CB_ERR_CORRUPT);
        assert_non_null(strstr(err.message, "its save id is missing"));
        assert_int_equal(format_check_save(&checkpoint, true, front, sizeof front, &err), 0);
        checkpoint.save_id = 0; /* of an older version, or another program */
        assert_int_equal(format_check_save(&checkpoint, false, front, sizeof front, &err), 0);
    }
}

static void write_metadata(const struct planned *self, uint64_t save_id, struct buf *out)
{
    struct metadata_sink sink = metadata_sink_to(out);
    struct cb_err err;
    assert_int_equal(format_write_metadata(self->format, self->words.layout, self->plan, "/ck", save_id, &sink, &err),
                     0);
}

static uint64_t read_metadata(const struct planned *self, const struct buf *metadata)
{
    struct stored_checkpoint *checkpoint;
    struct safetensors_index index;
    uint64_t save_id;
    struct cb_err err;
    if (self->format == PLAN_SAFETENSORS) {
        assert_int_equal(safetensors_read_index("index", metadata->data, metadata->len, &index, &err), 0);
        save_id = index.save_id;
        safetensors_index_release(&index);
        return save_id;
    }
    assert_int_equal(format_read_metadata("test", metadata->data, metadata->len, &checkpoint, &err), 0);
    save_id = checkpoint->save_id;
    stored_checkpoint_free(checkpoint);
    return save_id;
}

static void the_metadata_has_the_id(void **state)
{
    (void)state;
    for (int format = 0; format < PLAN_FORMATS; format++) {
        struct planned self;
        make(&self, (enum plan_format)format);
        for (int has_id = 0; has_id < 2; has_id++) {
            struct buf metadata;
            buf_init(&metadata, 1 << 24);
            write_metadata(&self, has_id ? SAVE_ID : 0, &metadata);
            assert_true(read_metadata(&self, &metadata) == (has_id ? SAVE_ID : 0));
            buf_release(&metadata);
        }
        release(&self);
    }
}

static void an_index_of_an_older_version_has_no_id(void **state)
{
    (void)state;
    static const enum plan_format formats[] = {PLAN_RAW, PLAN_DCP_SAFETENSORS};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        struct planned self;
        struct buf metadata;
        make(&self, formats[i]);
        buf_init(&metadata, 1 << 24);
        write_metadata(&self, SAVE_ID, &metadata);
        size_t after = VERSION_AT + 1 + sizeof(uint64_t);
        metadata.data[VERSION_AT] = '1';
        memmove(metadata.data + VERSION_AT + 1, metadata.data + after, metadata.len - after);
        metadata.len -= sizeof(uint64_t);
        uint32_t crc = crc32c(0, metadata.data, metadata.len - sizeof crc);
        memcpy(metadata.data + metadata.len - sizeof crc, &crc, sizeof crc);
        assert_true(read_metadata(&self, &metadata) == 0);
        buf_release(&metadata);
        release(&self);
    }
}

static void a_foreign_value_that_is_converted_keeps_its_bytes_but_for_an_id_of_ours(void **state)
{
    (void)state;
    static const char foreign[] = "what another program stored";
    struct state_tensor ours = {.fqn = "train.x", .kind = KIND_BYTES, .literal = "3"};
    struct state_tensor blob = {
        .fqn = "train.x", .kind = KIND_BYTES, .literal = "3", .blob = foreign, .blob_bytes = sizeof foreign};
    struct buf written, copied;
    struct cb_err err;
    buf_init(&written, 1 << 16);
    buf_init(&copied, 1 << 16);
    assert_int_equal(format_bytes_payload(PLAN_DCP, &blob, SAVE_ID, &copied, &err), 0);
    assert_memory_equal(copied.data, foreign, sizeof foreign);
    buf_clear(&copied);
    assert_int_equal(format_bytes_payload(PLAN_DCP, &ours, OTHER_ID, &written, &err), 0);
    blob.blob = written.data;
    blob.blob_bytes = written.len;
    assert_int_equal(format_bytes_payload(PLAN_DCP, &blob, SAVE_ID, &copied, &err), 0);
    buf_clear(&written);
    assert_int_equal(format_bytes_payload(PLAN_DCP, &ours, SAVE_ID, &written, &err), 0);
    assert_int_equal(copied.len, written.len);
    assert_memory_equal(copied.data, written.data, written.len);
    buf_release(&written);
    buf_release(&copied);
}

static void an_id_is_16_digits_and_nothing_else(void **state)
{
    (void)state;
    char text[SAVE_ID_TEXT_BYTES];
    save_id_format(SAVE_ID, text);
    assert_string_equal(text, "1122334455667788");
    assert_true(save_id_parse(text, strlen(text)) == SAVE_ID);
    static const char *const others[] = {"",
                                         "112233445566778",
                                         "112233445566778G",
                                         "112233445566778A",
                                         "11223344556677889",
                                         "6a1bb0cc-2f5e-4a0e-9a3c-27a6a9d2f7a1"}; /* as PyTorch has it */
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_true(save_id_parse(others[i], strlen(others[i])) == 0);
    assert_true(save_id_draw() != save_id_draw());
}

static void only_names_of_data_files_are_those_of_data_files(void **state)
{
    (void)state;
    static const char *const ours[] = {"__0_0.distcp",
                                       "copy-1/__12_3.distcp",
                                       "copy-2/d00001/__0_0.distcp",
                                       "d00001/__0_0.raw",
                                       "model-00001-of-00002.safetensors",
                                       "shard-00001-model-00001-of-00002.safetensors"};
    static const char *const others[] = {".metadata",
                                         "__0_0.txt",
                                         "__0.distcp",
                                         "a__0_0.distcp",
                                         "__0_0.distcp.old",
                                         "notes.txt",
                                         "__a_0.raw",
                                         "model.safetensors",
                                         "model-00001-of-00002.safetensors.index.json",
                                         "shard-x-model-00001-of-00002.safetensors",
                                         "__0_0.distcp/notes",
                                         "step-3/__0_0.distcp", /* of another checkpoint */
                                         "hf/model-00001-of-00002.safetensors",
                                         "d1/d2/__0_0.raw",
                                         "/__0_0.distcp"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        assert_true(format_is_data_file_within(ours[i]) && format_is_file_within(ours[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(format_is_data_file_within(others[i]));
    assert_true(format_is_file_within(".metadata"));
    assert_false(format_is_file_within("step-3/.metadata") || format_is_file_within("notes.txt"));
    assert_true(format_is_data_file("step-3/__0_0.distcp"));
    assert_true(format_is_fanned_out("d00001/__0_0.raw") && format_is_fanned_out("x/d7/model.safetensors"));
    assert_false(format_is_fanned_out("d00001") || format_is_fanned_out("d/__0_0.raw") ||
                 format_is_fanned_out("d1/x/__0_0.raw") || format_is_fanned_out("ad1/__0_0.raw"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_item_or_file_has_the_id_in_its_first_bytes),
        cmocka_unit_test(a_tensor_without_an_id_is_of_another_save_and_a_value_may_be_foreign),
        cmocka_unit_test(the_metadata_has_the_id),
        cmocka_unit_test(an_index_of_an_older_version_has_no_id),
        cmocka_unit_test(a_foreign_value_that_is_converted_keeps_its_bytes_but_for_an_id_of_ours),
        cmocka_unit_test(an_id_is_16_digits_and_nothing_else),
        cmocka_unit_test(only_names_of_data_files_are_those_of_data_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
