/* Numbers with units: what people write, what is refused, and what prints. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/units.h"

static uint64_t bytes_of(const char *text)
{
    uint64_t bytes = 12345;
    struct cb_err err;
    return units_parse_bytes(text, &bytes, &err) ? UINT64_MAX : bytes;
}

static void sizes_read_binary_unless_they_say_MB(void **unused)
{
    (void)unused;
    assert_int_equal(bytes_of("4MiB"), 4194304);
    assert_int_equal(bytes_of("4M"), 4194304);
    assert_int_equal(bytes_of("4m"), 4194304);
    assert_int_equal(bytes_of("4MB"), 4000000);
    assert_int_equal(bytes_of("4194304"), 4194304);
    assert_int_equal(bytes_of("1.5 GiB"), 1610612736);
    assert_int_equal(bytes_of("0.1KiB"), 102);
    assert_int_equal(bytes_of("4mib"), 4 << 20);
    assert_int_equal(bytes_of("0"), 0);
}

static void sizes_that_are_none_are_refused_with_an_example(void **unused)
{
    (void)unused;
    static const char *const bad[] = {"",  "4 MiBs", "MiB", "-4",   "4Mb", "1..2",  "1.",
                                      ".", "4 ",     " 4",  "0x10", "1e3", "4MiB/s"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t bytes = 7;
        struct cb_err err;
        assert_int_equal(units_parse_bytes(bad[i], &bytes, &err), CB_ERR_USAGE);
        assert_int_equal(bytes, 7);
        assert_non_null(strstr(err.message, "such as 4MiB"));
    }
}

static void sizes_beyond_64_bits_are_refused(void **unused)
{
    (void)unused;
    struct cb_err err;
    uint64_t bytes;
    assert_int_equal(units_parse_bytes("16777216TiB", &bytes, &err), CB_ERR_USAGE);
    assert_int_equal(units_parse_bytes("18446744073709551616", &bytes, &err), CB_ERR_USAGE);
    assert_int_equal(bytes_of("18446744073709551614"), UINT64_MAX - 1);
}

static void durations_read_with_units_and_in_parts(void **unused)
{
    (void)unused;
    struct cb_err err;
    uint64_t ns;
    static const struct {
        const char *text;
        uint64_t ns;
    } good[] = {{"250ms", 250 * NS_PER_MS}, {"30", 30 * NS_PER_S},     {"1m30s", 90 * NS_PER_S},
                {"1.5h", 5400 * NS_PER_S},  {"7d", 604800 * NS_PER_S}, {"1w", 604800 * NS_PER_S},
                {"2min", 120 * NS_PER_S},   {"0.5", NS_PER_S / 2},     {"3ns", 3}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(units_parse_duration(good[i].text, &ns, &err), 0);
        assert_int_equal(ns, good[i].ns);
    }
    static const char *const bad[] = {"", "s", "30x", "1s1m", "1m30", "1m 30s ", "-1s", "600y", "6000000000d"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(units_parse_duration(bad[i], &ns, &err), CB_ERR_USAGE);
}

static void rates_read_with_and_without_per_second(void **unused)
{
    (void)unused;
    struct cb_err err;
    uint64_t rate;
    assert_int_equal(units_parse_rate("1.5GiB/s", &rate, &err), 0);
    assert_int_equal(rate, 1610612736);
    assert_int_equal(units_parse_rate("300GB", &rate, &err), 0);
    assert_int_equal(rate, 300000000000);
    assert_int_equal(units_parse_rate("1GiB/h", &rate, &err), CB_ERR_USAGE);
    assert_int_equal(units_parse_rate("/s", &rate, &err), CB_ERR_USAGE);
}

static void people_see_three_digits_and_iec_units(void **unused)
{
    (void)unused;
    char text[32];
    assert_string_equal(units_format_bytes(1739461754, text), "1.62 GiB");
    assert_string_equal(units_format_bytes(4194304, text), "4 MiB");
    assert_string_equal(units_format_bytes(0, text), "0 B");
    assert_string_equal(units_format_bytes(1023.9, text), "1.00 KiB");
    assert_string_equal(units_format_bytes(NAN, text), "-");
    assert_string_equal(units_format_rate(2.03 * 1073741824, text), "2.03 GiB/s");
    assert_string_equal(units_format_decimal(8.97e9, "B/s", text), "8.97 GB/s");
    assert_string_equal(units_format_decimal(3.312e10, "flop/s", text), "33.1 Gflop/s");
    assert_string_equal(units_format_decimal(573.8, "requests/s", text), "574 requests/s");
    assert_string_equal(units_format_decimal(999.6, "B/s", text), "1.00 kB/s");
    assert_string_equal(units_format_decimal((double)NAN, "B/s", text), "-");
    assert_string_equal(units_format_duration(0.8e9, text), "0.80 s");
    assert_string_equal(units_format_duration(1.4e6, text), "1.40 ms");
    assert_string_equal(units_format_duration(12.34e9, text), "12.3 s");
    assert_string_equal(units_format_duration(125e9, text), "2m05s");
    assert_string_equal(units_format_duration(7.5 * 3600e9, text), "7h30m");
    assert_string_equal(units_format_count(1184, text), "1,184");
    assert_string_equal(units_format_count(UINT64_MAX, text), "18,446,744,073,709,551,615");
}

static void exact_texts_are_short_and_read_back_the_same(void **unused)
{
    (void)unused;
    char text[32];
    assert_string_equal(units_format_bytes_exact(4194304, text), "4MiB");
    assert_string_equal(units_format_bytes_exact(1536, text), "1536");
    assert_string_equal(units_format_duration_exact(250 * NS_PER_MS, text), "250ms");
    assert_string_equal(units_format_duration_exact(0, text), "0s");
    assert_string_equal(units_format_duration_exact(90 * NS_PER_S, text), "90s");
    static const uint64_t values[] = {0,          1,        1023,          1024, 3 * GIB, UINT64_MAX, UINT64_MAX - 1023,
                                      1000000000, NS_PER_S, 86400000000000};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        uint64_t back;
        struct cb_err err;
        assert_int_equal(units_parse_bytes(units_format_bytes_exact(values[i], text), &back, &err), 0);
        assert_int_equal(back, values[i]);
        assert_int_equal(units_parse_duration(units_format_duration_exact(values[i], text), &back, &err), 0);
        assert_int_equal(back, values[i]);
    }
}

static void booleans_have_their_usual_words(void **unused)
{
    (void)unused;
    struct cb_err err;
    int value = -1;
    assert_int_equal(units_parse_bool("yes", &value, &err), 0);
    assert_int_equal(value, 1);
    assert_int_equal(units_parse_bool("off", &value, &err), 0);
    assert_int_equal(value, 0);
    assert_int_equal(units_parse_bool("maybe", &value, &err), CB_ERR_USAGE);
    assert_int_equal(units_parse_bool("", &value, &err), CB_ERR_USAGE);
}

static void numbers_must_be_finite_and_whole_texts(void **unused)
{
    (void)unused;
    struct cb_err err;
    double number;
    uint64_t whole;
    assert_int_equal(units_parse_double("0.25", &number, &err), 0);
    assert_true(number == 0.25);
    static const char *const bad[] = {"", "nan", "inf", "1x", " 1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(units_parse_double(bad[i], &number, &err), CB_ERR_USAGE);
    assert_int_equal(units_parse_u64("1.5", &whole, &err), CB_ERR_USAGE);
    assert_int_equal(units_parse_u64("-1", &whole, &err), CB_ERR_USAGE);
    assert_int_equal(units_parse_u64("18446744073709551615", &whole, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_read_binary_unless_they_say_MB),
        cmocka_unit_test(sizes_that_are_none_are_refused_with_an_example),
        cmocka_unit_test(sizes_beyond_64_bits_are_refused),
        cmocka_unit_test(durations_read_with_units_and_in_parts),
        cmocka_unit_test(rates_read_with_and_without_per_second),
        cmocka_unit_test(people_see_three_digits_and_iec_units),
        cmocka_unit_test(exact_texts_are_short_and_read_back_the_same),
        cmocka_unit_test(booleans_have_their_usual_words),
        cmocka_unit_test(numbers_must_be_finite_and_whole_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
