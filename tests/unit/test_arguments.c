/* The command line: what is a flag, a word, a setting or a file, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/cli.h"
#include "run/experiment.h"
#include "run/options.h"

static int parse(struct cli *cli, const char *const *words, struct cb_err *err)
{
    int argc = 0;
    while (words[argc])
        argc++;
    return cli_init(cli, argc, (char **)words, err);
}

#define ARGV(...) ((const char *const[]){"ckptbench", __VA_ARGS__, NULL})

static void expect_settings(const char *const *argv, const char *wanted)
{
    struct cli cli;
    struct cb_err err = {0};
    struct buf text;
    buf_init(&text, 65536);
    if (parse(&cli, argv, &err))
        fail_msg("%s", err.message);
    for (size_t i = 0; i < cli.settings.count; i++) {
        buf_printf(&text, "%s=", cli.settings.items[i].key);
        for (size_t j = 0; j < cli.settings.items[i].value_count; j++)
            buf_printf(&text, "%s%s", j ? "|" : "", cli.settings.items[i].values[j]);
        buf_append_char(&text, ' ');
    }
    assert_string_equal(text.data, wanted);
    buf_release(&text);
    cli_release(&cli);
}

static void expect_refused(const char *const *argv, const char *wanted)
{
    struct cli cli;
    struct cb_err err = {0};
    int rc = parse(&cli, argv, &err);
    assert_int_equal(cb_exit_code(rc), CB_EXIT_USAGE);
    if (!strstr(err.message, wanted))
        fail_msg("'%s' is not in '%s'", wanted, err.message);
    cli_release(&cli);
}

static void keys_come_as_words_and_as_flags(void **unused)
{
    (void)unused;
    expect_settings(ARGV("run", "model=gpt2", "--io.depth", "1,8", "--tp=2", "--label.kind", "x", "--zip", "a,b"),
                    "model=gpt2 io.depth=1|8 tp=2 label.kind=x zip=a|b ");
    expect_settings(ARGV("plan", "store=a.yaml"), "store=a.yaml ");
}

static void words_win_over_files_wherever_they_stand(void **unused)
{
    (void)unused;
    char path[] = "/tmp/ckptbench-test-XXXXXX.yaml";
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0 && write(fd, "model: gpt2\ntp: 4\n", 18) == 18);
    close(fd);
    expect_settings(ARGV("run", "tp=2", path), "model=gpt2 tp=4 tp=2 ");
    unlink(path);
}

static void flags_of_a_verb_have_values_or_none(void **unused)
{
    (void)unused;
    struct cli cli;
    struct cb_err err = {0};
    assert_int_equal(parse(&cli, ARGV("-q", "run", "--resume", "s1", "--json"), &err), 0);
    assert_true(cli.quiet && cli.json && !cli.verbose);
    assert_true(cli_has_flag(&cli, "resume"));
    assert_string_equal(cli_flag_value(&cli, "resume"), "s1");
    cli_release(&cli);
    expect_refused(ARGV("run", "--resume"), "--resume needs a value");
    expect_refused(ARGV("run", "--json=1"), "--json takes no value");
}

static void words_of_other_verbs_stay_words(void **unused)
{
    (void)unused;
    struct cli cli;
    struct cb_err err = {0};
    assert_int_equal(parse(&cli, ARGV("options", "a=b,c", "--", "--io"), &err), 0);
    assert_int_equal(cli.word_count, 2);
    assert_string_equal(cli.words[0], "a=b,c");
    assert_string_equal(cli.words[1], "--io");
    assert_int_equal(cli.settings.count, 0);
    cli_release(&cli);
}

static void mistakes_name_what_was_meant(void **unused)
{
    (void)unused;
    expect_refused(ARGV("rnu"), "unknown verb 'rnu'");
    expect_refused(ARGV("modles"), "did you mean 'models'?");
    expect_refused(ARGV("run", "--io.dept", "3"), "unknown flag --io.dept: did you mean --io.depth?");
    expect_refused(ARGV("run", "--jsno"), "did you mean --json?");
    expect_refused(ARGV("run", "gpt2"), "did you mean model=gpt2?");
    expect_refused(ARGV("run", "missing.yaml"), "missing.yaml");
    expect_refused(ARGV("models", "--tp", "2"), "unknown flag --tp");
}

static void without_a_verb_the_verbs_are_printed(void **unused)
{
    (void)unused;
    struct cli cli;
    struct cb_err err = {0};
    assert_int_equal(parse(&cli, (const char *const[]){"ckptbench", NULL}, &err), 0);
    assert_true(cli.help && !cli.verb);
    assert_int_equal(cli.exit_code, CB_EXIT_USAGE);
    cli_release(&cli);
}

static void help_asks_for_no_more(void **unused)
{
    (void)unused;
    struct cli cli;
    struct cb_err err = {0};
    assert_int_equal(parse(&cli, ARGV("run", "--help", "missing.yaml"), &err), 0);
    assert_true(cli.help && cli.verb == &verb_run);
    cli_write_help(&cli);
    assert_non_null(strstr(cli.out.data, "usage: ckptbench run"));
    assert_non_null(strstr(cli.out.data, "io.depth"));
    cli_release(&cli);
    assert_int_equal(parse(&cli, ARGV("help"), &err), 0);
    assert_true(cli.help && !cli.verb);
    cli_release(&cli);
}

static size_t count_keys_in_help(const char *const *argv)
{
    struct cli cli;
    struct cb_err err = {0};
    char line[64];
    size_t count = 0;
    assert_int_equal(parse(&cli, argv, &err), 0);
    cli_write_help(&cli);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        snprintf(line, sizeof line, "\n  %-16s ", option_row((enum option_id)i)->name);
        count += strstr(cli.out.data, line) != NULL;
    }
    cli_release(&cli);
    return count;
}

static void help_shows_the_keys_that_matter_and_all_on_request(void **unused)
{
    (void)unused;
    assert_int_equal(count_keys_in_help(ARGV("run", "--help")), 20);
    assert_int_equal(count_keys_in_help(ARGV("run", "--help", "all")), OPTION_COUNT);
    assert_int_equal(count_keys_in_help(ARGV("help", "submit", "all")), OPTION_COUNT);
}

static void help_of_watch_shows_the_keys_that_it_takes(void **unused)
{
    (void)unused;
    struct cli cli;
    struct cb_err err = {0};
    size_t shown = 0;
    assert_int_equal(parse(&cli, ARGV("watch", "--help"), &err), 0);
    cli_write_help(&cli);
    for (enum option_id id = 0; id < OPTION_COUNT; id++) {
        struct experiment *experiment;
        char line[64];
        snprintf(line, sizeof line, "\n  %-16s ", option_row(id)->name);
        if (!strstr(cli.out.data, line))
            continue;
        shown++;
        assert_int_equal(experiment_new(&experiment, &err), 0);
        assert_int_equal(experiment_set(experiment, "workload", "watch", "test", &err), 0);
        assert_int_equal(experiment_set(experiment, option_row(id)->name, option_row(id)->fallback, "test", &err), 0);
        assert_int_equal(experiment_validate(experiment, &err), 0);
        experiment_free(experiment);
    }
    assert_true(shown >= 5 && strstr(cli.out.data, "label.NAME") && !strstr(cli.out.data, "sweep"));
    cli_release(&cli);
    assert_int_equal(count_keys_in_help(ARGV("watch", "--help", "all")), shown);
}

static void every_verb_has_a_row_that_help_can_show(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < verb_count(); i++) {
        const struct verb *verb = verb_at(i), *found;
        struct cb_err err;
        assert_int_equal(verb_find(verb->name, &found, &err), 0);
        assert_ptr_equal(verb, found);
        assert_non_null(verb->run);
        assert_non_null(verb->arguments);
        assert_true(verb->summary && verb->summary[strlen(verb->summary) - 1] != '.');
        for (size_t j = 0; j < verb->flag_count; j++)
            assert_true(*verb->flags[j].name != '-' && verb->flags[j].help);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_come_as_words_and_as_flags),
        cmocka_unit_test(words_win_over_files_wherever_they_stand),
        cmocka_unit_test(flags_of_a_verb_have_values_or_none),
        cmocka_unit_test(words_of_other_verbs_stay_words),
        cmocka_unit_test(mistakes_name_what_was_meant),
        cmocka_unit_test(without_a_verb_the_verbs_are_printed),
        cmocka_unit_test(help_asks_for_no_more),
        cmocka_unit_test(help_shows_the_keys_that_matter_and_all_on_request),
        cmocka_unit_test(help_of_watch_shows_the_keys_that_it_takes),
        cmocka_unit_test(every_verb_has_a_row_that_help_can_show),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
