/* Which checkpoint of a folder was committed last. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ckpt/stored/resolve_checkpoint.h"
#include "core/clock.h"

static struct store *open_null(void)
{
    struct store_options options = {.depth = 1, .threads = 1};
    struct store *store;
    struct cb_err err = {0};
    if (store_open("null:", &options, &store, &err))
        fail_msg("%s", err.message);
    return store;
}

/* Each at another time. */
static void publish(struct store *store, const char *name)
{
    struct cb_err err = {0};
    clock_sleep_ns(1000);
    if (store_publish(store, name, "x", 1, &err))
        fail_msg("%s", err.message);
}

static void expect(struct store *store, const char *folder, const char *wanted)
{
    char name[64] = "untouched";
    uint64_t files = 0;
    struct cb_err err = {0};
    if (resolve_newest_checkpoint(store, folder, name, sizeof name, &files, &err))
        fail_msg("%s", err.message);
    assert_string_equal(name, wanted);
}

static void the_marker_written_last_wins_whatever_its_name(void **unused)
{
    (void)unused;
    struct store *store = open_null();
    publish(store, "run/iteration-10/.metadata");
    publish(store, "run/iteration-9/.metadata");
    publish(store, "other/iteration-11/.metadata");
    expect(store, "run", "run/iteration-9");
    expect(store, "", "other/iteration-11");
    publish(store, "run/iteration-10/.metadata");
    expect(store, "run", "run/iteration-10");
    store_free(store);
}

static void a_folder_with_a_marker_is_the_checkpoint_itself(void **unused)
{
    (void)unused;
    struct store *store = open_null();
    publish(store, "run/.metadata");
    publish(store, "run/iteration-1/.metadata");
    expect(store, "run", "run");
    store_free(store);
}

static void without_a_marker_the_files_are_counted_and_the_name_is_left_alone(void **unused)
{
    (void)unused;
    struct store *store = open_null();
    char name[64] = "untouched";
    uint64_t files = 0;
    struct cb_err err = {0};
    publish(store, "run/__0_0.distcp");
    publish(store, "run/__1_0.distcp");
    assert_int_equal(resolve_newest_checkpoint(store, "run", name, sizeof name, &files, &err), CB_ERR_NOT_FOUND);
    assert_int_equal(files, 2);
    assert_string_equal(name, "untouched");
    publish(store, "run/iteration-1/.metadata");
    assert_int_equal(resolve_newest_checkpoint(store, "run", name, 4, &files, &err), CB_ERR_USAGE);
    store_free(store);
}

static void expect_meant(struct store *store, const char *folder, const char *wanted, uint64_t wanted_of)
{
    char name[64] = "untouched";
    uint64_t of = 99;
    struct cb_err err = {0};
    if (resolve_checkpoint(store, folder, folder, name, sizeof name, &of, &err))
        fail_msg("%s", err.message);
    assert_string_equal(name, wanted);
    assert_int_equal(of, wanted_of);
}

static void expect_refusal(struct store *store, const char *folder, const char *text)
{
    char name[64] = "untouched";
    uint64_t of;
    struct cb_err err = {0};
    assert_int_equal(resolve_checkpoint(store, folder, "PLACE", name, sizeof name, &of, &err), CB_ERR_USAGE);
    assert_non_null(strstr(err.message, text));
    assert_string_equal(name, "untouched");
}

static void of_the_folder_of_a_run_the_last_is_meant(void **unused)
{
    (void)unused;
    struct store *store = open_null();
    publish(store, "run/iteration-2/.metadata");
    publish(store, "run/iteration-10/.metadata");
    publish(store, "run/iteration-11/model.safetensors"); /* no marker: it was stopped */
    expect_meant(store, "run", "run/iteration-10", 2);
    expect_meant(store, "", "run/iteration-10", 2); /* the only run of the store */
    expect_meant(store, "run/iteration-2", "run/iteration-2", 0);
    publish(store, "run/iteration-x/.metadata");
    expect_refusal(store, "run", "PLACE is no checkpoint, but 3 lie below it: name one of iteration-10");
    store_free(store);
}

static void of_several_none_is_chosen_and_ten_are_named(void **unused)
{
    (void)unused;
    struct store *store = open_null();
    char name[32];
    publish(store, "many/a/.metadata");
    expect_meant(store, "many", "many/a", 1);
    publish(store, "many/b/one.safetensors");
    publish(store, "many/b/two.safetensors");
    expect_refusal(store, "many", "2 lie below it: name one of a, b");
    expect_refusal(store, "", "name one of many/a, many/b");
    for (int i = 0; i < 11; i++) {
        snprintf(name, sizeof name, "many/c%02d/.metadata", i);
        publish(store, name);
    }
    expect_refusal(store, "many", "name one of a, b, c00, c01, c02, c03, c04, c05, c06, c07 and 3 more");
    store_free(store);
}

static void one_far_below_is_named_and_not_taken(void **unused)
{
    (void)unused;
    struct store *store = open_null();
    publish(store, "x/of/somebody/else/.metadata");
    expect_refusal(store, "", "1 lies below it: name one of x/of/somebody/else");
    publish(store, "mine/.metadata");
    expect_meant(store, "", "mine", 1);
    store_free(store);
}

static void too_many_files_are_not_looked_through(void **unused)
{
    (void)unused;
    struct store *store = open_null();
    struct cb_err err = {0};
    char name[64];
    for (int i = 0; i <= 200000; i++) {
        snprintf(name, sizeof name, "mail/%d/%d", i % 100, i);
        if (store_publish(store, name, "", 0, &err))
            fail_msg("%s", err.message);
    }
    expect_refusal(store, "", "PLACE has more than 200000 files");
    publish(store, "mail/.metadata");
    expect_meant(store, "mail", "mail", 0);
    store_free(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_marker_written_last_wins_whatever_its_name),
        cmocka_unit_test(a_folder_with_a_marker_is_the_checkpoint_itself),
        cmocka_unit_test(without_a_marker_the_files_are_counted_and_the_name_is_left_alone),
        cmocka_unit_test(of_the_folder_of_a_run_the_last_is_meant),
        cmocka_unit_test(of_several_none_is_chosen_and_ten_are_named),
        cmocka_unit_test(one_far_below_is_named_and_not_taken),
        cmocka_unit_test(too_many_files_are_not_looked_through),
    };
    return cmocka_run_group_tests_name("newest", tests, NULL, NULL);
}
