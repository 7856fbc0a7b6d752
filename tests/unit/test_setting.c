/* Settings of a command line: commas and ranges that sweep, and words that are none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/buf.h"
#include "core/setting.h"

/* "key=a|b" */
static void expect_setting(const struct setting *setting, const char *wanted)
{
    struct buf out;
    buf_init(&out, 65536);
    buf_printf(&out, "%s=", setting->key);
    for (size_t i = 0; i < setting->value_count; i++)
        buf_printf(&out, "%s%s", i ? "|" : "", setting->values[i]);
    assert_string_equal(out.data, wanted);
    assert_string_equal(setting->origin, "command line");
    buf_release(&out);
}

static void expect_word(const char *word, const char *wanted)
{
    struct setting_list list = {0};
    struct cb_err err = {0};
    if (setting_parse_word(word, &list, &err))
        fail_msg("%s", err.message);
    assert_int_equal(list.count, 1);
    expect_setting(&list.items[0], wanted);
    setting_list_release(&list);
}

static void words_sweep_at_commas_but_not_at_escaped_ones(void **unused)
{
    (void)unused;
    expect_word("nodes=2,4,8", "nodes=2|4|8");
    expect_word("name=a\\,b,c", "name=a,b|c");
    expect_word("name=", "name=");
    expect_word("command=x=y", "command=x=y");
    expect_word("ops=save+load", "ops=save+load");
    expect_word("name=a\\b", "name=a\\b");
    expect_word("store=../x", "store=../x");
}

static void ranges_count_and_multiply(void **unused)
{
    (void)unused;
    expect_word("io.depth=2..5,9", "io.depth=2|3|4|5|9");
    expect_word("io.depth=2..64*2", "io.depth=2|4|8|16|32|64");
    expect_word("io.depth=3..3", "io.depth=3");
    expect_word("io.depth=2..7*3", "io.depth=2|6");
    expect_word("seed=18446744073709551614..18446744073709551615", "seed=18446744073709551614|18446744073709551615");
}

static void words_that_are_no_settings_are_refused(void **unused)
{
    (void)unused;
    static const char *const bad[][2] = {
        {"gpt2", "'gpt2' is not key=value"}, {"=x", "without a key"},    {"a=5..2", "ends before it begins"},
        {"a=0..8*2", "never ends"},          {"a=1..8*1", "never ends"}, {"a=1..999999999", "more than 100000 values"},
        {"a=x,", "an empty value"},          {"a=,", "an empty value"},  {"a=1..99999999999999999999", "below 2^64"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct setting_list list = {0};
        struct cb_err err = {0};
        assert_int_equal(setting_parse_word(bad[i][0], &list, &err), CB_ERR_USAGE);
        if (!strstr(err.message, bad[i][1]))
            fail_msg("'%s' is not in '%s'", bad[i][1], err.message);
        assert_int_equal(list.count, 0);
        setting_list_release(&list);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_sweep_at_commas_but_not_at_escaped_ones),
        cmocka_unit_test(ranges_count_and_multiply),
        cmocka_unit_test(words_that_are_no_settings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
