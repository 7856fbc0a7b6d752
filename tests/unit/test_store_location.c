/* Where a store lies, and that a frozen experiment names it from any folder. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/plan/store_location.h"

static void expect_frozen(const char *store, const char *wanted)
{
    struct experiment *experiment;
    struct cb_err err = {0};
    assert_int_equal(experiment_new(&experiment, &err), 0);
    assert_int_equal(experiment_set(experiment, "store", store, "test", &err), 0);
    if (store_location_freeze(experiment, &err))
        fail_msg("%s", err.message);
    assert_string_equal(experiment_text(experiment, OPT_STORE), wanted);
    experiment_free(experiment);
}

static void store_paths_become_absolute_also_inside_a_fault_store(void **unused)
{
    (void)unused;
    char here[] = "/tmp/ckptbench-place-XXXXXX", before[4096], wanted[8192];
    assert_non_null(getcwd(before, sizeof before));
    assert_true(mkdtemp(here) && chdir(here) == 0 && mkdir("there", 0700) == 0);
    snprintf(wanted, sizeof wanted, "%s/there", here);
    expect_frozen("there", wanted);
    expect_frozen("./there/", wanted);
    snprintf(wanted, sizeof wanted, "%s/new/one", here);
    expect_frozen("./new/one", wanted);
    snprintf(wanted, sizeof wanted, "fault:delay=5ms+rank=2:%s/there", here);
    expect_frozen("fault:delay=5ms+rank=2:there", wanted);
    expect_frozen("null:", "null:");
    expect_frozen("fault:error_at=1:null:", "fault:error_at=1:null:");
    expect_frozen("/absent/x", "/absent/x");
    assert_true(chdir(before) == 0);
    snprintf(wanted, sizeof wanted, "%s/there", here);
    rmdir(wanted);
    rmdir(here);
}

static void expect_refused(const char *store, const char *ops, const char *part)
{
    struct experiment *experiment;
    struct cb_err err = {0};
    assert_int_equal(experiment_new(&experiment, &err), 0);
    assert_int_equal(experiment_set(experiment, "store", store, "test", &err), 0);
    assert_int_equal(experiment_set(experiment, "ops", ops, "test", &err), 0);
    int rc = store_location_freeze(experiment, &err);
    if (rc == 0)
        rc = store_location_check(experiment, &err);
    if (!part && rc)
        fail_msg("%s", err.message);
    else if (part)
        assert_int_equal(cb_exit_code(rc), CB_EXIT_USAGE);
    if (part && !strstr(err.message, part))
        fail_msg("'%s' does not say '%s'", err.message, part);
    experiment_free(experiment);
}

static void stores_that_cannot_work_are_refused_before_a_rank_starts(void **unused)
{
    (void)unused;
    expect_refused("gs://bucket/prefix", "save", "no such kind of store");
    expect_refused("fault:delay=1s:gs://bucket", "save", "no such kind of store");
    expect_refused("s3://a b/prefix", "save", "a bucket's name");
    expect_refused("fault:delay=1s:s3://bucket/prefix", "save+load", NULL);
    expect_refused("fault:dealy=1s:/tmp", "save", "no such fault");
    expect_refused("fault:delay=1s:fault:dealy=1s:/tmp", "save", "no such fault");
    expect_refused("/dev/null", "save", "is not a folder");
    expect_refused("/absent/x", "save", "nor does the folder above it");
    expect_refused("fault:delay=1s:/absent/x/", "save", "nor does the folder above it");
    expect_refused("/absent", "load", "nothing to load");
    expect_refused("null:", "save+load", "use ops=save");
    expect_refused("null:", "save", NULL);
    expect_refused("/absent", "save", NULL);
    expect_refused("/tmp", "save+load", NULL);
}

static void malformed_fault_stores_are_refused(void **unused)
{
    (void)unused;
    struct store_location place;
    struct cb_err err;
    assert_int_equal(store_location_find("fault:delay=1s", &place, &err), CB_ERR_USAGE);
}

static void a_place_that_is_not_there_yet_is_its_nearest_folder(void **unused)
{
    (void)unused;
    char here[] = "/tmp/ckptbench-place-XXXXXX", path[4096];
    struct store_location place;
    struct cb_err err = {0};
    assert_non_null(mkdtemp(here));
    snprintf(path, sizeof path, "%s/a/b", here);
    assert_int_equal(store_location_find(path, &place, &err), 0);
    assert_true(place.is_path);
    assert_string_equal(place.existing, here);
    assert_true(*place.filesystem && place.free_bytes > 0 && place.writable);
    assert_int_equal(rmdir(here), 0); /* the probe left nothing behind */
    assert_int_equal(store_location_find("null:", &place, &err), 0);
    assert_false(place.is_path);
}

static void paths_under_home_are_shown_as_people_write_them(void **unused)
{
    (void)unused;
    char text[64];
    assert_int_equal(setenv("HOME", "/home/ada", 1), 0);
    assert_string_equal(store_location_shorten("/home/ada/ckpt", text, sizeof text), "~/ckpt");
    assert_string_equal(store_location_shorten("/home/adam/ckpt", text, sizeof text), "/home/adam/ckpt");
    assert_string_equal(store_location_shorten("/scratch", text, sizeof text), "/scratch");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(store_paths_become_absolute_also_inside_a_fault_store),
        cmocka_unit_test(stores_that_cannot_work_are_refused_before_a_rank_starts),
        cmocka_unit_test(malformed_fault_stores_are_refused),
        cmocka_unit_test(paths_under_home_are_shown_as_people_write_them),
        cmocka_unit_test(a_place_that_is_not_there_yet_is_its_nearest_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
