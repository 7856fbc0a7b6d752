/* JSON: what is written reads back, what is not JSON is refused with its place. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/json.h"

static void what_is_written_reads_back(void **unused)
{
    (void)unused;
    static const double numbers[] = {0.1, 1.0 / 3, 1e300, -5e-324, 123456789.125};
    struct buf out;
    struct json_writer writer;
    struct json_value *root;
    struct cb_err err;
    buf_init(&out, 4096);
    json_writer_init(&writer, &out, 2);
    json_write_begin_object(&writer);
    json_write_key(&writer, "text");
    json_write_text(&writer, "a\"b\\c\n\x01\xC3\xA9");
    json_write_key(&writer, "none");
    json_write_text(&writer, NULL);
    json_write_key(&writer, "big");
    json_write_u64(&writer, INT64_MAX);
    json_write_key(&writer, "numbers");
    json_write_begin_array(&writer);
    for (size_t i = 0; i < 5; i++)
        json_write_double(&writer, numbers[i]);
    json_write_end_array(&writer);
    json_write_key(&writer, "yes");
    json_write_bool(&writer, true);
    json_write_end_object(&writer);
    assert_int_equal(buf_check(&out, "JSON", &err), 0);
    assert_int_equal(json_parse(out.data, out.len, &root, &err), 0);

    const char *text;
    uint64_t big;
    bool yes = false;
    assert_true(json_as_text(json_get(root, "text"), &text));
    assert_string_equal(text, "a\"b\\c\n\x01\xC3\xA9");
    assert_true(json_is_null(json_get(root, "none")));
    assert_true(json_as_u64(json_get(root, "big"), &big));
    assert_int_equal(big, INT64_MAX);
    assert_int_equal(json_count(json_get(root, "numbers")), 5);
    for (size_t i = 0; i < 5; i++) {
        double number;
        assert_true(json_as_double(json_at(json_get(root, "numbers"), i), &number));
        assert_true(number == numbers[i]);
    }
    assert_true(json_as_bool(json_get(root, "yes"), &yes) && yes);
    json_value_free(root);
    buf_release(&out);
}

static void one_line_and_indented_have_a_fixed_shape(void **unused)
{
    (void)unused;
    struct buf out;
    struct json_writer writer;
    buf_init(&out, 4096);
    for (int indent = 0; indent <= 2; indent += 2) {
        json_writer_init(&writer, &out, indent);
        json_write_begin_object(&writer);
        json_write_key(&writer, "a");
        json_write_u64(&writer, 1);
        json_write_key(&writer, "b");
        json_write_begin_array(&writer);
        json_write_end_array(&writer);
        json_write_end_object(&writer);
    }
    assert_string_equal(out.data, "{\"a\": 1, \"b\": []}{\n  \"a\": 1,\n  \"b\": []\n}");
    buf_release(&out);
}

static void what_does_not_exist_is_null_never_zero(void **unused)
{
    (void)unused;
    struct buf out;
    struct json_writer writer;
    buf_init(&out, 4096);
    json_writer_init(&writer, &out, 0);
    json_write_begin_array(&writer);
    json_write_double(&writer, NAN);
    json_write_double(&writer, INFINITY);
    json_write_null(&writer);
    json_write_i64(&writer, -3);
    json_write_end_array(&writer);
    assert_string_equal(out.data, "[null, null, null, -3]");
    buf_release(&out);
}

static void bytes_that_are_not_utf8_become_the_replacement(void **unused)
{
    (void)unused;
    struct buf out;
    struct json_writer writer;
    buf_init(&out, 4096);
    json_writer_init(&writer, &out, 0);
    json_write_text(&writer, "a\xff"
                             "b\xe2\x82");
    assert_string_equal(out.data, "\"a\xEF\xBF\xBD"
                                  "b\xEF\xBF\xBD\xEF\xBF\xBD\"");
    buf_release(&out);
}

static void not_json_is_refused_with_its_place(void **unused)
{
    (void)unused;
    struct json_value *root = NULL;
    struct cb_err err;
    static const char *const bad[] = {"", "{", "{\"a\":1,\"a\":2}", "[1,]", "nul", "{\"a\":99999999999999999999}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(json_parse(bad[i], strlen(bad[i]), &root, &err), CB_ERR_FORMAT);
        assert_non_null(strstr(err.message, "line 1, column"));
        assert_null(root);
    }
    char deep[400];
    memset(deep, '[', 200);
    memset(deep + 200, ']', 200);
    assert_int_equal(json_parse(deep, 400, &root, &err), CB_ERR_FORMAT);
    assert_non_null(strstr(err.message, "deeper than 64"));
}

static void wrong_types_are_no_values(void **unused)
{
    (void)unused;
    static const char text[] = "{\"b\":-1,\"a\":\"x\",\"c\":1.5}";
    struct json_value *root;
    struct cb_err err;
    const char *word;
    uint64_t number = 9;
    double real;
    assert_int_equal(json_parse(text, strlen(text), &root, &err), 0);
    assert_false(json_as_u64(json_get(root, "b"), &number));
    assert_false(json_as_u64(json_get(root, "c"), &number));
    assert_false(json_as_u64(json_get(root, "missing"), &number));
    assert_int_equal(json_need_u64(root, "b", &number, &err), CB_ERR_FORMAT);
    assert_string_equal(err.message, "b: expected a whole number from 0");
    assert_int_equal(number, 9);
    assert_int_equal(json_need_text(root, "c", &word, &err), CB_ERR_FORMAT);
    assert_true(json_as_double(json_get(root, "b"), &real));
    size_t position = 0, seen = 0;
    const char *keys[3], *key;
    const struct json_value *value;
    while (json_next(root, &position, &key, &value))
        keys[seen++] = key;
    assert_int_equal(seen, 3);
    assert_string_equal(keys[0], "b");
    assert_string_equal(keys[2], "c");
    json_value_free(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(one_line_and_indented_have_a_fixed_shape),
        cmocka_unit_test(what_does_not_exist_is_null_never_zero),
        cmocka_unit_test(bytes_that_are_not_utf8_become_the_replacement),
        cmocka_unit_test(not_json_is_refused_with_its_place),
        cmocka_unit_test(wrong_types_are_no_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
