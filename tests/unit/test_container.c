/* The words before programs in an image. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "run/container.h"

static void test_blanks_part_words_and_nothing_is_none(void **state)
{
    struct container container;
    (void)state;
    assert_int_equal(container_parse("  apptainer exec  --bind /a:/b /x.sif ", &container, NULL), 0);
    assert_int_equal(container.count, 5);
    assert_string_equal(container.words[0], "apptainer");
    assert_string_equal(container.words[4], "/x.sif");
    assert_null(container.words[5]);
    assert_int_equal(container_parse("ch-run /i --set-env=A=$(b);c|d --", &container, NULL), 0);
    assert_string_equal(container.words[2], "--set-env=A=$(b);c|d");
    assert_int_equal(container_parse(" ", &container, NULL), 0);
    assert_int_equal(container.count, 0);
}

static void test_what_a_shell_would_have_to_read_is_refused(void **state)
{
    static const char *const wrong[] = {"a 'b c'", "a \"b\"", "a\\ b", "a\nb", "a\tb", "`a`", "--bind /a"};
    struct container container;
    struct cb_err err;
    char many[2 * CONTAINER_MAX_WORDS + 3], large[CONTAINER_MAX_BYTES + 1];
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(container_parse(wrong[i], &container, &err), CB_ERR_USAGE);
        assert_non_null(strstr(err.message, "container="));
    }
    for (size_t i = 0; i < sizeof many; i++)
        many[i] = i % 2 ? ' ' : 'a';
    many[2 * CONTAINER_MAX_WORDS] = '\0';
    assert_int_equal(container_parse(many, &container, NULL), 0);
    assert_int_equal(container.count, CONTAINER_MAX_WORDS);
    many[2 * CONTAINER_MAX_WORDS] = 'a';
    many[2 * CONTAINER_MAX_WORDS + 1] = '\0';
    assert_int_equal(container_parse(many, &container, NULL), CB_ERR_USAGE);
    memset(large, 'a', sizeof large - 1);
    large[sizeof large - 1] = '\0';
    assert_int_equal(container_parse(large, &container, NULL), CB_ERR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blanks_part_words_and_nothing_is_none),
        cmocka_unit_test(test_what_a_shell_would_have_to_read_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
