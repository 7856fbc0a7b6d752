/* Which checkpoint of a folder was committed last. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ckpt/newest.h"
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
    if (newest_checkpoint(store, folder, name, sizeof name, &files, &err))
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
    assert_int_equal(newest_checkpoint(store, "run", name, sizeof name, &files, &err), CB_ERR_NOT_FOUND);
    assert_int_equal(files, 2);
    assert_string_equal(name, "untouched");
    publish(store, "run/iteration-1/.metadata");
    assert_int_equal(newest_checkpoint(store, "run", name, 4, &files, &err), CB_ERR_USAGE);
    store_free(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_marker_written_last_wins_whatever_its_name),
        cmocka_unit_test(a_folder_with_a_marker_is_the_checkpoint_itself),
        cmocka_unit_test(without_a_marker_the_files_are_counted_and_the_name_is_left_alone),
    };
    return cmocka_run_group_tests_name("newest", tests, NULL, NULL);
}
