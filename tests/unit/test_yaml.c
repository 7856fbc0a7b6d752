/* Settings from YAML: flattening, sweeps, and mistakes with line and column; items of a list. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/buf.h"
#include "core/yaml.h"

/* "key=a|b@origin" lines. */
static void print_settings(const struct setting_list *list, struct buf *out)
{
    for (size_t i = 0; i < list->count; i++) {
        buf_printf(out, "%s=", list->items[i].key);
        for (size_t j = 0; j < list->items[i].value_count; j++)
            buf_printf(out, "%s%s", j ? "|" : "", list->items[i].values[j]);
        buf_printf(out, "@%s\n", list->items[i].origin);
    }
}

static void expect_settings(const char *text, const char *wanted)
{
    struct setting_list list = {0};
    struct buf out;
    struct cb_err err = {0};
    buf_init(&out, 65536);
    if (yaml_read_settings("n.yaml", text, strlen(text), &list, &err))
        fail_msg("%s", err.message);
    print_settings(&list, &out);
    assert_string_equal(out.data, wanted);
    buf_release(&out);
    setting_list_release(&list);
}

static void expect_refused(const char *text, const char *wanted)
{
    struct setting_list list = {0};
    struct cb_err err = {0};
    assert_int_equal(yaml_read_settings("n.yaml", text, strlen(text), &list, &err), CB_ERR_USAGE);
    if (!strstr(err.message, wanted))
        fail_msg("'%s' is not in '%s'", wanted, err.message);
    assert_int_equal(list.count, 0);
    setting_list_release(&list);
}

static void nested_mappings_become_dotted_keys_with_their_place(void **unused)
{
    (void)unused;
    expect_settings(
        "model: gpt2\nio:\n    block: 4MiB\n    depth: 8\nlabel: {kind: nightly}\n",
        "model=gpt2@n.yaml:1:1\nio.block=4MiB@n.yaml:3:5\nio.depth=8@n.yaml:4:5\nlabel.kind=nightly@n.yaml:5:9\n");
    expect_settings("io.block: 4MiB\n", "io.block=4MiB@n.yaml:1:1\n");
    expect_settings("", "");
    expect_settings("# nothing\n---\n", "");
}

static void lists_commas_and_ranges_sweep(void **unused)
{
    (void)unused;
    expect_settings("io.depth: [1, 2..4]\nio.block: 4MiB,8MiB\nranks: 1..8*2\n",
                    "io.depth=1|2|3|4@n.yaml:1:1\nio.block=4MiB|8MiB@n.yaml:2:1\nranks=1|2|4|8@n.yaml:3:1\n");
    expect_settings("ops:\n  - save\n  - load\n", "ops=save|load@n.yaml:1:1\n");
    expect_settings("hosts: a,b\n", "hosts=a,b@n.yaml:1:1\n"); /* machines of one run */
    expect_settings("hosts: [a, 'b:22', c]\n", "hosts=a,b:22,c@n.yaml:1:1\n");
}

static void a_quoted_value_is_taken_as_it_stands(void **unused)
{
    (void)unused;
    expect_settings("name: 'a, b'\nlabel.x: \"1..3\"\nsuffix: ''\n",
                    "name=a, b@n.yaml:1:1\nlabel.x=1..3@n.yaml:2:1\nsuffix=@n.yaml:3:1\n");
}

static void mistakes_have_line_and_column(void **unused)
{
    (void)unused;
    expect_refused("a: 1\nb: &x 2\n", "n.yaml:2:4: anchors");
    expect_refused("a: *x\n", "n.yaml:1:4: aliases");
    expect_refused("a: !!str 1\n", "n.yaml:1:4: tags");
    expect_refused("a: 1\n---\nb: 1\n", "n.yaml:2:1: a second document");
    expect_refused("a: 1\nb: 2\na: 3\n", "n.yaml:3:1: 'a' is set twice; the first is at n.yaml:1:1");
    expect_refused("io: {a: 1}\nio.a: 3\n", "'io.a' is set twice");
    expect_refused("a:\nb: 1\n", "n.yaml:1:3: a key without a value");
    expect_refused("- a\n", "n.yaml:1:1: expected `key: value` lines");
    expect_refused("a: [1, [2]]\n", "n.yaml:1:8: a list may hold plain values only");
    expect_refused("a: []\n", "an empty list");
    expect_refused("a: 'x\n", "not YAML: found unexpected end of stream");
    expect_refused("a: \t- x: {\n", "not YAML");
    expect_refused("a: \"x\\0y\"\n", "NUL");
    expect_refused("a: 1,,2\n", "n.yaml:1:4: a: an empty value between commas");
}

static void deep_nesting_is_refused(void **unused)
{
    (void)unused;
    char text[600] = "";
    for (int i = 0; i < 40; i++)
        strcat(text, "{a: ");
    expect_refused(text, "nested too deeply");
}

static int print_item(void *context, const char *const *keys, const char *const *values, size_t count, size_t line,
                      struct cb_err *err)
{
    (void)err;
    struct buf *out = context;
    buf_printf(out, "%zu:", line);
    for (size_t i = 0; i < count; i++)
        buf_printf(out, " %s=%s", keys[i], values[i]);
    buf_append_char(out, '\n');
    return 0;
}

static void items_of_a_list_come_one_by_one_with_their_line(void **unused)
{
    (void)unused;
    static const char text[] = "- {name: w, shape: [4, 8], dtype: bf16}\n- name: b\n  shape: [8]\n";
    struct buf out;
    struct cb_err err;
    buf_init(&out, 65536);
    assert_int_equal(yaml_read_items("m.yaml", text, strlen(text), print_item, &out, &err), 0);
    assert_string_equal(out.data, "1: name=w shape=4,8 dtype=bf16\n2: name=b shape=8\n");
    buf_release(&out);
    buf_init(&out, 65536);
    assert_int_equal(yaml_read_items("m.yaml", "a: 1\n", 5, print_item, &out, &err), CB_ERR_USAGE);
    assert_non_null(strstr(err.message, "m.yaml:1:1: expected a list"));
    assert_int_equal(yaml_read_items("m.yaml", "- 1\n", 4, print_item, &out, &err), CB_ERR_USAGE);
    buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nested_mappings_become_dotted_keys_with_their_place),
        cmocka_unit_test(lists_commas_and_ranges_sweep),
        cmocka_unit_test(a_quoted_value_is_taken_as_it_stands),
        cmocka_unit_test(mistakes_have_line_and_column),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(items_of_a_list_come_one_by_one_with_their_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
