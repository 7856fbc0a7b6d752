/* What a store's URI says, and the rows of the table of kinds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "run/options.h"
#include "setup/s3_keys.h"
#include "store/kind.h"

static void expect(const char *uri, const char *name, const char *inner, bool has_faults)
{
    struct store_uri parsed;
    struct cb_err err = {0};
    if (store_uri_parse(uri, &parsed, &err))
        fail_msg("%s: %s", uri, err.message);
    assert_string_equal(parsed.kind->name, name);
    assert_string_equal(parsed.inner, inner);
    assert_int_equal(parsed.has_faults, has_faults);
}

static void the_kind_is_found_behind_all_faults(void **unused)
{
    (void)unused;
    expect("./ckpt", "posix", "./ckpt", false);
    expect("null:", "null", "null:", false);
    expect("s3://bucket/a", "s3", "s3://bucket/a", false);
    expect("fault:delay=1ms:/a/b", "posix", "/a/b", true);
    expect("fault:delay=1ms:null:", "null", "null:", true);
    expect("fault:a=1:fault:b=2:s3://bucket", "s3", "s3://bucket", true);
}

static void a_plus_joins_folders_unless_it_ends_a_folders_name(void **unused)
{
    (void)unused;
    char folder[] = "/tmp/ckptbench-unit-XXXXXX", with_plus[64], inside[64], mounts[64], first[PATH_MAX];
    assert_non_null(mkdtemp(folder));
    snprintf(with_plus, sizeof with_plus, "%s/x+", folder);
    snprintf(inside, sizeof inside, "%s/x+/c", folder);
    snprintf(mounts, sizeof mounts, "%s/x+/y+/c", folder);
    expect(inside, "mounts", inside, false);
    assert_int_equal(mkdir(with_plus, 0700), 0);
    expect(inside, "posix", inside, false);
    expect(mounts, "mounts", mounts, false); /* x+/y and c */
    const char *rest = mounts;
    assert_int_equal(store_next_mount(&rest, first, NULL), 0);
    assert_int_equal(strncmp(first, mounts, strlen(folder) + strlen("/x+/y")), 0);
    assert_string_equal(rest, "/c");
    expect("/data/c++/ckpt", "posix", "/data/c++/ckpt", false);
    expect("fault:delay=1ms:/nowhere/a+/nowhere/b", "mounts", "/nowhere/a+/nowhere/b", true);
    assert_int_equal(rmdir(with_plus), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void malformed_uris_are_refused_and_have_no_property(void **unused)
{
    (void)unused;
    static const struct {
        const char *uri, *says;
    } cases[] = {
        {"fault:", "a fault store is fault:SPEC:STORE"},
        {"fault:delay=1s", "a fault store is"},
        {"fault:delay=1s:", "a fault store is"},
        {"fault:delay=1s:fault:error_at=1", "a fault store is"},
        {"s3:bucket/x", "did you mean s3://bucket/x? A folder of that name is ./s3:bucket/x"},
        {"fault:delay=1s:s3:/bucket", "did you mean s3://bucket?"},
        {"gs://bucket", "no such kind of store; known are a path, s3://BUCKET/PREFIX, null: and fault:SPEC:STORE"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct store_uri parsed;
        struct cb_err err = {0};
        assert_int_equal(store_uri_parse(cases[i].uri, &parsed, &err), CB_ERR_USAGE);
        if (!strstr(err.message, cases[i].says))
            fail_msg("%s: '%s' lacks '%s'", cases[i].uri, err.message, cases[i].says);
        parsed = store_uri_of(cases[i].uri);
        assert_false(parsed.kind->is_path || parsed.kind->is_objects || parsed.kind->keeps_data || parsed.has_faults);
        assert_string_equal(parsed.inner, cases[i].uri);
    }
}

static void the_block_option_of_each_kind_is_a_size(void **unused)
{
    (void)unused;
    static const char *const uris[] = {"./ckpt", "null:", "s3://bucket", "gs://malformed"};
    for (size_t i = 0; i < sizeof uris / sizeof *uris; i++) {
        enum option_id id;
        assert_int_equal(option_find(store_uri_of(uris[i]).kind->block_option, &id, NULL), 0);
        assert_int_equal(option_row(id)->type, OPTION_BYTES);
    }
}

static void a_store_without_an_experiment_has_the_defaults_of_the_keys(void **unused)
{
    (void)unused;
    struct experiment *experiment;
    struct s3_options read;
    struct cb_err err = {0};
    assert_int_equal(experiment_new(&experiment, &err), 0);
    assert_int_equal(s3_keys_read(experiment, &read, &err), 0);
    assert_true(!read.endpoint[0] && !read.region[0] && !read.profile[0] && !read.interface[0] && !read.tls_ca[0]);
    assert_int_equal(read.path_style, s3_options_default.path_style);
    assert_int_equal(read.checksum, s3_options_default.checksum);
    assert_int_equal(read.part_bytes, s3_options_default.part_bytes);
    assert_int_equal(read.loops, s3_options_default.loops);
    assert_int_equal(read.attempts, s3_options_default.attempts);
    assert_int_equal(read.requester_pays, s3_options_default.requester_pays);
    assert_int_equal(read.stall_ns, s3_options_default.stall_ns);
    assert_int_equal(read.deadline_ns, s3_options_default.deadline_ns);
    experiment_free(experiment);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kind_is_found_behind_all_faults),
        cmocka_unit_test(a_plus_joins_folders_unless_it_ends_a_folders_name),
        cmocka_unit_test(malformed_uris_are_refused_and_have_no_property),
        cmocka_unit_test(a_store_without_an_experiment_has_the_defaults_of_the_keys),
        cmocka_unit_test(the_block_option_of_each_kind_is_a_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
