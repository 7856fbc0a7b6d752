/* The option table: every row parses its own default, values are checked, wrong words find right ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "run/options.h"

static void every_row_takes_its_own_default_and_its_canonical_text(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        struct option_value value, again;
        struct cb_err err;
        const struct option *row = option_row((enum option_id)i);
        assert_int_equal(option_parse((enum option_id)i, row->fallback, &value, &err), 0);
        assert_int_equal(option_parse((enum option_id)i, value.text, &again, &err), 0);
        assert_string_equal(value.text, again.text);
        assert_true(strlen(row->help) > 0 && row->help[strlen(row->help) - 1] != '.');
        option_value_release(&value);
        option_value_release(&again);
    }
}

static void every_name_finds_its_row(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        enum option_id id;
        struct cb_err err;
        assert_int_equal(option_find(option_row((enum option_id)i)->name, &id, &err), 0);
        assert_int_equal(id, i);
    }
}

static void a_wrong_key_names_the_nearest(void **unused)
{
    (void)unused;
    static const char *const pairs[][2] = {{"io.dept", "io.depth"},      {"modle", "model"},     {"depth", "io.depth"},
                                           {"itarations", "iterations"}, {"iter", "iterations"}, {"rank", "ranks"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct cb_err err;
        enum option_id id = OPT_NAME;
        char wanted[64] = "did you mean '";
        strcat(strcat(wanted, pairs[i][1]), "'?");
        assert_int_equal(option_find(pairs[i][0], &id, &err), CB_ERR_NOT_FOUND);
        assert_non_null(strstr(err.message, wanted));
        assert_int_equal(id, OPT_NAME);
    }
    struct cb_err err;
    enum option_id id;
    assert_int_equal(option_find("xylophone", &id, &err), CB_ERR_NOT_FOUND);
    assert_null(strstr(err.message, "did you mean"));
}

static void expect_refused(enum option_id id, const char *text, const char *part)
{
    struct cb_err err;
    struct option_value value = {.text = (char *)"untouched"};
    assert_int_equal(option_parse(id, text, &value, &err), CB_ERR_USAGE);
    assert_non_null(strstr(err.message, part));
    assert_string_equal(value.text, "untouched");
}

static void values_out_of_range_say_the_range_in_their_unit(void **unused)
{
    (void)unused;
    expect_refused(OPT_IO_DEPTH, "2000", "io.depth=2000: must be 1 to 1024 requests");
    expect_refused(OPT_IO_BLOCK, "1KiB", "io.block=1KiB: must be 4KiB to 1GiB");
    expect_refused(OPT_TIMEOUT_OP, "1us", "timeout.op=1us: must be at least 1ms");
    expect_refused(OPT_TP, "0", "must be 1 to 65536 ranks");
    expect_refused(OPT_IO_BLOCK, "4Mbit", "io.block: '4Mbit' is not a size such as 4MiB");
}

static void numbers_are_no_larger_than_what_is_stored_can_be_read_again(void **unused)
{
    (void)unused;
    struct option_value value;
    struct cb_err err;
    expect_refused(OPT_SEED, "18446744073709551615", "too large");
    expect_refused(OPT_TRAIN_MIN_NUM_PARAMS, "9223372036854775808", "too large");
    assert_int_equal(option_parse(OPT_SEED, "9223372036854775807", &value, &err), 0);
    option_value_release(&value);
}

static void choices_are_listed_and_the_nearest_named(void **unused)
{
    (void)unused;
    expect_refused(OPT_IO_ENGINE, "iouring",
                   "io.engine=iouring: must be one of io_uring|psync; did you mean 'io_uring'?");
    expect_refused(OPT_FORMAT, "", "must be one of dcp|raw");
}

static void values_have_one_canonical_text(void **unused)
{
    (void)unused;
    static const struct {
        enum option_id id;
        const char *text, *canonical;
    } cases[] = {{OPT_IO_BLOCK, "4096KiB", "4MiB"},    {OPT_IO_FSYNC, "yes", "true"},
                 {OPT_TIMEOUT_OP, "1m30s", "90s"},     {OPT_DP, "008", "8"},
                 {OPT_RATE_RANK, "1.5G", "1536MiB/s"}, {OPT_NAME, "a b", "a b"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct option_value value;
        struct cb_err err;
        assert_int_equal(option_parse(cases[i].id, cases[i].text, &value, &err), 0);
        assert_string_equal(value.text, cases[i].canonical);
        option_value_release(&value);
    }
}

static void texts_must_be_utf8(void **unused)
{
    (void)unused;
    expect_refused(OPT_NAME, "a\xff", "byte 2 of the text is not UTF-8");
    expect_refused(OPT_NAME, "\xc0\x80", "not UTF-8");
    expect_refused(OPT_NAME, "\xed\xa0\x80", "not UTF-8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_takes_its_own_default_and_its_canonical_text),
        cmocka_unit_test(every_name_finds_its_row),
        cmocka_unit_test(a_wrong_key_names_the_nearest),
        cmocka_unit_test(values_out_of_range_say_the_range_in_their_unit),
        cmocka_unit_test(numbers_are_no_larger_than_what_is_stored_can_be_read_again),
        cmocka_unit_test(choices_are_listed_and_the_nearest_named),
        cmocka_unit_test(values_have_one_canonical_text),
        cmocka_unit_test(texts_must_be_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
