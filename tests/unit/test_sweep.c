/* Sweeps: what several values expand to, in which order, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/buf.h"
#include "run/sweep.h"

static void parse_words(const char *const *words, struct setting_list *list)
{
    struct cb_err err = {0};
    for (size_t i = 0; words[i]; i++)
        if (setting_parse_word(words[i], list, &err))
            fail_msg("%s", err.message);
}

static void expand(const char *const *words, struct sweep *sweep)
{
    struct setting_list list = {0};
    struct cb_err err = {0};
    parse_words(words, &list);
    if (sweep_expand(&list, sweep, &err))
        fail_msg("%s", err.message);
    setting_list_release(&list);
}

static void expect_refused(const char *const *words, const char *wanted)
{
    struct setting_list list = {0};
    struct sweep sweep = {0};
    struct cb_err err = {0};
    parse_words(words, &list);
    assert_int_not_equal(sweep_expand(&list, &sweep, &err), 0);
    if (!strstr(err.message, wanted))
        fail_msg("'%s' is not in '%s'", wanted, err.message);
    assert_null(sweep.members);
    setting_list_release(&list);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void one_value_each_is_a_sweep_of_one(void **unused)
{
    (void)unused;
    struct sweep sweep;
    expand(WORDS("model=gpt2", "label.x=y"), &sweep);
    assert_int_equal(sweep.count, 1);
    assert_int_equal(sweep.varied_count, 0);
    assert_string_equal(experiment_text(sweep.members[0].experiment, OPT_MODEL), "gpt2");
    assert_string_equal(experiment_label_value(sweep.members[0].experiment, 0), "y");
    sweep_release(&sweep);
}

static void in_a_sweep_over_workloads_a_key_is_for_those_that_use_it(void **unused)
{
    (void)unused;
    struct sweep sweep;
    expand(WORDS("workload=suite,train", "model=gpt2-tiny", "iterations=3", "train.steps=40"), &sweep);
    assert_int_equal(sweep.count, 2);
    const struct experiment *suite = sweep.members[0].experiment, *train = sweep.members[1].experiment;
    assert_int_equal(experiment_u64(suite, OPT_ITERATIONS), 3);
    assert_false(experiment_was_set(suite, OPT_TRAIN_STEPS));
    assert_false(experiment_was_set(suite, OPT_MODEL));
    assert_int_equal(experiment_u64(train, OPT_TRAIN_STEPS), 40);
    assert_false(experiment_was_set(train, OPT_ITERATIONS));
    sweep_release(&sweep);
}

static void a_key_that_varies_beside_the_workload_must_fit_all(void **unused)
{
    (void)unused;
    expect_refused(WORDS("workload=suite,train", "model=gpt2-tiny", "iterations=3,4"), "give train.steps instead");
}

static void the_last_key_is_the_fastest(void **unused)
{
    (void)unused;
    struct sweep sweep;
    struct buf seen;
    buf_init(&seen, 1000);
    expand(WORDS("io.engine=io_uring,psync", "model=gpt2", "io.depth=1,2"), &sweep);
    for (size_t i = 0; i < sweep.count; i++) {
        buf_printf(&seen, "%s %s;", experiment_text(sweep.members[i].experiment, OPT_IO_ENGINE),
                   experiment_text(sweep.members[i].experiment, OPT_IO_DEPTH));
        assert_int_equal(sweep.members[i].combination, i);
        assert_int_equal(sweep.members[i].block, 1);
    }
    assert_string_equal(seen.data, "io_uring 1;io_uring 2;psync 1;psync 2;");
    assert_int_equal(sweep.varied_count, 2);
    assert_string_equal(sweep.varied[1], "io.depth");
    sweep_release(&sweep);
    buf_release(&seen);
}

static void zipped_keys_walk_together(void **unused)
{
    (void)unused;
    struct sweep sweep;
    expand(WORDS("ranks=2,4", "io.depth=1,2,3", "tp=1,2", "zip=ranks,tp"), &sweep);
    assert_int_equal(sweep.count, 6);
    for (size_t i = 0; i < 6; i++) {
        const struct experiment *experiment = sweep.members[i].experiment;
        assert_int_equal(experiment_u64(experiment, OPT_RANKS), i < 3 ? 2 : 4);
        assert_int_equal(experiment_u64(experiment, OPT_TP), i < 3 ? 1 : 2);
        assert_int_equal(experiment_u64(experiment, OPT_IO_DEPTH), i % 3 + 1);
    }
    sweep_release(&sweep);
    expand(WORDS("dp=4,1,1", "tp=1,4,1", "pp=1,1,4", "zip=dp,tp,pp"), &sweep);
    assert_int_equal(sweep.count, 3);
    sweep_release(&sweep);
}

static void the_command_line_replaces_what_the_file_said(void **unused)
{
    (void)unused;
    struct sweep sweep;
    expand(WORDS("io.depth=1,2,3", "io.depth=7"), &sweep);
    assert_int_equal(sweep.count, 1);
    assert_int_equal(experiment_u64(sweep.members[0].experiment, OPT_IO_DEPTH), 7);
    sweep_release(&sweep);
}

static void every_block_holds_every_member_once_in_an_order_of_its_own(void **unused)
{
    (void)unused;
    struct sweep sweep, again;
    expand(WORDS("io.depth=1..8", "repeat=4"), &sweep);
    expand(WORDS("io.depth=1..8", "repeat=4"), &again);
    assert_int_equal(sweep.count, 32);
    assert_int_equal(sweep.combinations, 8);
    bool differs = false;
    for (size_t block = 0; block < 4; block++) {
        unsigned seen = 0;
        for (size_t i = 0; i < 8; i++) {
            const struct sweep_member *member = &sweep.members[8 * block + i];
            assert_int_equal(member->block, block + 1);
            assert_int_equal(experiment_u64(member->experiment, OPT_IO_DEPTH), member->combination + 1);
            assert_int_equal(member->combination, again.members[8 * block + i].combination);
            seen |= 1u << member->combination;
            differs |= block > 0 && member->combination != i;
        }
        assert_int_equal(seen, 255);
    }
    assert_true(differs);
    sweep_release(&sweep);
    sweep_release(&again);
}

static void sweeps_that_make_no_sense_are_refused(void **unused)
{
    (void)unused;
    expect_refused(WORDS("ranks=2,4", "tp=1,2,4", "zip=ranks,tp"), "ranks has 2 values and tp has 3");
    expect_refused(WORDS("ranks=2,4", "zip=ranks,tp"), "zip names 'tp', which has no values");
    expect_refused(WORDS("ranks=2,4", "zip=ranks,ranks"), "zip names 'ranks' twice");
    expect_refused(WORDS("ranks=2,4", "zip=ranks"), "two keys or more");
    expect_refused(WORDS("repeat=1,2"), "repeat has one value");
    expect_refused(WORDS("io.depth=1..1000", "seed=1..1000"), "more than 100000 runs");
    expect_refused(WORDS("io.depth=1..1000", "repeat=1000"), "more than 100000 runs");
    expect_refused(WORDS("io.block=4MiB,4096KiB"), "io.block has the value 4MiB twice");
    expect_refused(WORDS("tp=1,2,1", "dp=2,1,2", "zip=tp,dp"), "number 1 and 3 alike");
    expect_refused(WORDS("io.depth=1,0"), "command line: io.depth=0: must be");
    expect_refused(WORDS("io.dept=1,2"), "did you mean 'io.depth'?");
    expect_refused(WORDS("launcher=none", "ranks=1,2"), "launcher=none runs a single rank");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_value_each_is_a_sweep_of_one),
        cmocka_unit_test(in_a_sweep_over_workloads_a_key_is_for_those_that_use_it),
        cmocka_unit_test(a_key_that_varies_beside_the_workload_must_fit_all),
        cmocka_unit_test(the_last_key_is_the_fastest),
        cmocka_unit_test(zipped_keys_walk_together),
        cmocka_unit_test(the_command_line_replaces_what_the_file_said),
        cmocka_unit_test(every_block_holds_every_member_once_in_an_order_of_its_own),
        cmocka_unit_test(sweeps_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
