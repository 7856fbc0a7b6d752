/* Experiments: round trips of hostile texts, a hash that survives releases, rules between keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "run/experiment.h"
#include "run/workload_kind.h"

static struct experiment *new_experiment(void)
{
    struct experiment *experiment;
    struct cb_err err;
    assert_int_equal(experiment_new(&experiment, &err), 0);
    return experiment;
}

static void set(struct experiment *experiment, const char *key, const char *value)
{
    struct cb_err err = {0};
    if (experiment_set(experiment, key, value, "test", &err))
        fail_msg("%s", err.message);
}

static struct experiment *freeze_and_read(const struct experiment *experiment)
{
    struct experiment *back;
    struct buf text;
    struct cb_err err = {0};
    buf_init(&text, 1 << 20);
    assert_int_equal(experiment_write_yaml(experiment, &text, &err), 0);
    if (experiment_read_yaml("experiment.yaml", text.data, text.len, &back, &err))
        fail_msg("%s\n%s", err.message, text.data);
    buf_release(&text);
    return back;
}

static void defaults_are_the_table_and_nothing_was_set(void **unused)
{
    (void)unused;
    struct experiment *experiment = new_experiment();
    assert_string_equal(experiment_text(experiment, OPT_MODEL), "llama3-8b");
    assert_int_equal(experiment_u64(experiment, OPT_IO_BLOCK), 4194304);
    assert_true(experiment_bool(experiment, OPT_IO_FSYNC));
    assert_true(experiment_is(experiment, OPT_IO_ENGINE, "io_uring"));
    assert_false(experiment_was_set(experiment, OPT_MODEL));
    set(experiment, "model", "gpt2");
    assert_true(experiment_was_set(experiment, OPT_MODEL));
    experiment_free(experiment);
}

static void hostile_texts_survive_the_freezer(void **unused)
{
    (void)unused;
    static const char *const texts[] = {
        "",
        " ",
        "a: b",
        "# no comment",
        "it's \"quoted\"",
        "two\nlines\n",
        "\r\n",
        "tab\there",
        "a,b",
        "1..3",
        "back\\slash\\,",
        "- item",
        "{a: b}",
        "*alias &anchor !tag",
        "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80",
        "\x01\x02\x1b[31m\x7f",
        "\xC2\x85next line\xE2\x80\xA8sep\xE2\x80\xA9",
        "\xEF\xBB\xBF"
        "bom",
        "\xEF\xBF\xBE\xEF\xBF\xBF",
        "null",
        "~",
        "trailing ",
        "%d%s",
        "a=b",
        "---",
        "|",
        ">",
        "'",
        "\"",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct experiment *experiment = new_experiment();
        set(experiment, "label.x", texts[i]);
        set(experiment, "name", texts[i]);
        set(experiment, "command", texts[i]);
        struct experiment *back = freeze_and_read(experiment);
        assert_int_equal(experiment_label_count(back), 1);
        assert_string_equal(experiment_label_key(back, 0), "x");
        assert_string_equal(experiment_label_value(back, 0), texts[i]);
        assert_string_equal(experiment_text(back, OPT_NAME), texts[i]);
        assert_string_equal(experiment_text(back, OPT_COMMAND), texts[i]);
        experiment_free(back);
        experiment_free(experiment);
    }
}

static void a_frozen_experiment_is_the_same_experiment(void **unused)
{
    (void)unused;
    struct experiment *experiment = new_experiment();
    set(experiment, "model", "gpt2");
    set(experiment, "io.block", "8M");
    set(experiment, "mtbf", "36h");
    set(experiment, "rate.rank", "1.5GiB/s");
    set(experiment, "label.b", "2");
    set(experiment, "label.a", "1");
    set(experiment, "label.b", "3");
    struct experiment *back = freeze_and_read(experiment);
    char hash[EXPERIMENT_HASH_LENGTH + 1], again[EXPERIMENT_HASH_LENGTH + 1];
    experiment_hash(experiment, hash);
    experiment_hash(back, again);
    assert_string_equal(hash, again);
    for (size_t i = 0; i < OPTION_COUNT; i++)
        assert_string_equal(experiment_text(experiment, (enum option_id)i), experiment_text(back, (enum option_id)i));
    assert_int_equal(experiment_label_count(back), 2);
    assert_string_equal(experiment_label_key(back, 0), "a");
    assert_string_equal(experiment_label_value(back, 1), "3");
    assert_true(experiment_was_set(back, OPT_MODEL));
    assert_false(experiment_was_set(back, OPT_IO_DEPTH));
    experiment_free(back);
    experiment_free(experiment);
}

/* Golden: a hash that changes splits the history of everyone. */
static void the_hash_is_of_identity_keys_that_are_not_default(void **unused)
{
    (void)unused;
    char hash[EXPERIMENT_HASH_LENGTH + 1];
    struct experiment *experiment = new_experiment();
    experiment_hash(experiment, hash);
    assert_string_equal(hash, "4355a46b19d348dc"); /* printf '1\n' | sha256sum */
    set(experiment, "io.depth", "8");              /* the default */
    set(experiment, "store", "/elsewhere");
    set(experiment, "label.x", "y");
    set(experiment, "timeout.op", "1h");
    experiment_hash(experiment, hash);
    assert_string_equal(hash, "4355a46b19d348dc");
    set(experiment, "tp", "2");
    set(experiment, "model", "gpt2");
    set(experiment, "io.block", "8192KiB");
    experiment_hash(experiment, hash);
    /* printf '1\nio.block=8MiB\nmodel=gpt2\ntp=2\n' | sha256sum */
    assert_string_equal(hash, "87b74ae828407091");
    set(experiment, "command", "a\nb=\\c");
    experiment_hash(experiment, hash);
    /* printf '1\ncommand=a\\nb=\\\\c\nio.block=8MiB\nmodel=gpt2\ntp=2\n' | sha256sum */
    assert_string_equal(hash, "43dbff17b1f5f692");
    experiment_free(experiment);
}

static void expect_read_error(const char *text, const char *wanted)
{
    struct experiment *experiment = NULL;
    struct cb_err err = {0};
    assert_int_not_equal(experiment_read_yaml("e.yaml", text, strlen(text), &experiment, &err), 0);
    if (!strstr(err.message, wanted))
        fail_msg("'%s' is not in '%s'", wanted, err.message);
    assert_null(experiment);
}

static void mistakes_in_a_frozen_experiment_name_their_place(void **unused)
{
    (void)unused;
    expect_read_error("version: 2\n", "e.yaml:1:1: experiment of version 2");
    expect_read_error("model: gpt2\n", "no `version:`");
    expect_read_error("version: 1\nio:\n    dept: 3\n", "e.yaml:3:5: unknown key 'io.dept': did you mean 'io.depth'?");
    expect_read_error("version: 1\nio.depth: 0\n", "e.yaml:2:1: io.depth=0: must be 1 to 1024 requests");
    expect_read_error("version: 1\nio.depth: 1,2\n", "e.yaml:2:1: io.depth has 2 values");
}

static void labels_have_names_that_can_be_written(void **unused)
{
    (void)unused;
    struct experiment *experiment = new_experiment();
    struct cb_err err;
    assert_int_equal(experiment_set(experiment, "label.", "x", "o", &err), CB_ERR_USAGE);
    assert_int_equal(experiment_set(experiment, "label.a b", "x", "o", &err), CB_ERR_USAGE);
    assert_int_equal(experiment_set(experiment, "label.a", "\xff", "o", &err), CB_ERR_USAGE);
    assert_int_equal(experiment_label_count(experiment), 0);
    experiment_free(experiment);
}

static void expect_invalid(const char *const *pairs, const char *wanted)
{
    struct experiment *experiment = new_experiment();
    struct cb_err err = {0};
    assert_int_equal(experiment_validate(experiment, &err), 0);
    for (size_t i = 0; pairs[i]; i += 2)
        set(experiment, pairs[i], pairs[i + 1]);
    assert_int_equal(experiment_validate(experiment, &err), CB_ERR_USAGE);
    if (!strstr(err.message, wanted))
        fail_msg("'%s' is not in '%s'", wanted, err.message);
    experiment_free(experiment);
}

#define INVALID(wanted, ...) expect_invalid((const char *const[]){__VA_ARGS__, NULL}, wanted)

static void keys_that_contradict_each_other_are_refused(void **unused)
{
    (void)unused;
    INVALID("engine=command needs command=", "engine", "command");
    INVALID("ops=load needs suffix=", "ops", "load");
    INVALID("give the axes in one way", "mesh", "dp=2+tp=2", "tp", "2");
    INVALID("both shard over dp", "zero", "1", "sharding", "full");
    INVALID("launcher=none runs a single rank", "launcher", "none", "ranks", "2");
    INVALID("workload=raw is done by engine=native", "workload", "raw", "engine", "torch-dcp");
    INVALID("multiple of 4KiB", "io.block", "5000");
    INVALID("io.files=some", "io.files", "some");
    INVALID("io.files=0", "io.files", "0");
    INVALID("pp.split=8+", "pp.split", "8+");
    INVALID("sharding=hybrid()", "sharding", "hybrid()");
    INVALID("sharding=hybrid(0)", "sharding", "hybrid(0)");
    INVALID("suffix=../x", "suffix", "../x");
    INVALID("store= is empty", "store", "");
    INVALID("nodes=3, but hosts names 2", "hosts", "a,b", "nodes", "3");
    INVALID("hosts=-oProxyCommand", "hosts", "-oProxyCommand");
    INVALID("' ' in the name of a machine", "hosts", "a,b c");
    INVALID("';' in the name of a machine", "hosts", "a;b");
    INVALID("hosts=a,,b", "hosts", "a,,b");
    INVALID("launcher=srun does not go with hosts", "hosts", "a,b", "launcher", "srun");
}

static void a_copy_is_independent(void **unused)
{
    (void)unused;
    struct experiment *experiment = new_experiment(), *copy;
    struct cb_err err;
    set(experiment, "label.x", "y");
    assert_int_equal(experiment_copy(experiment, &copy, &err), 0);
    set(copy, "model", "gpt2");
    set(copy, "label.x", "z");
    assert_string_equal(experiment_text(experiment, OPT_MODEL), "llama3-8b");
    assert_string_equal(experiment_label_value(experiment, 0), "y");
    experiment_free(experiment);
    assert_string_equal(experiment_text(copy, OPT_MODEL), "gpt2");
    experiment_free(copy);
}

/* A workload that the option table offers has properties, and none is left over. */
static void every_workload_of_the_option_table_has_its_row(void **unused)
{
    (void)unused;
    char names[256];
    snprintf(names, sizeof names, "%s", option_row(OPT_WORKLOAD)->choices);
    size_t count = 0;
    for (char *rest = names, *name; (name = strsep(&rest, "|")); count++) {
        struct experiment *experiment = new_experiment();
        set(experiment, "workload", name);
        const struct workload_kind *kind = workload_kind_of(experiment);
        assert_string_equal(kind->name, name);
        int does = kind->uses_engine + kind->is_raw + kind->measures_cluster + kind->inspects_checkpoint +
                   kind->trains + kind->watches;
        assert_int_equal(does, kind->has_ranks ? 1 : 0);
        experiment_free(experiment);
    }
    assert_int_equal(count, 7);
}

/* The default was sha256: what had no bucket goes on, and a bucket with another checksum is another experiment. */
static void a_new_default_checksum_counts_only_in_a_bucket(void **unused)
{
    static const char *const stores[] = {"/mnt/a", "null:", "s3://bucket/p", "fault:delay=1ms:s3://bucket/p"};
    static const char *const checksums[] = {"auto", "sha256", "none"};
    char hash[EXPERIMENT_HASH_LENGTH + 1];
    (void)unused;
    for (size_t i = 0; i < 4; i++) {
        for (size_t k = 0; k < 3; k++) {
            struct experiment *experiment = new_experiment();
            set(experiment, "store", stores[i]);
            set(experiment, "s3.checksum", checksums[k]);
            experiment_hash(experiment, hash);
            assert_int_equal(experiment_uses(experiment, OPT_S3_CHECKSUM), i >= 2);
            assert_int_equal(strcmp(hash, "4355a46b19d348dc") == 0, i < 2 || k == 1);
            experiment_free(experiment);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_the_table_and_nothing_was_set),
        cmocka_unit_test(hostile_texts_survive_the_freezer),
        cmocka_unit_test(a_frozen_experiment_is_the_same_experiment),
        cmocka_unit_test(the_hash_is_of_identity_keys_that_are_not_default),
        cmocka_unit_test(a_new_default_checksum_counts_only_in_a_bucket),
        cmocka_unit_test(mistakes_in_a_frozen_experiment_name_their_place),
        cmocka_unit_test(labels_have_names_that_can_be_written),
        cmocka_unit_test(keys_that_contradict_each_other_are_refused),
        cmocka_unit_test(a_copy_is_independent),
        cmocka_unit_test(every_workload_of_the_option_table_has_its_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
