/* Job scripts: golden, and hostile words that must reach no shell. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/version.h"
#include "jobs/slurm/job_script.h"

static struct experiment *make(const char *const *settings)
{
    struct experiment *experiment;
    struct cb_err err;
    assert_int_equal(experiment_new(&experiment, NULL), 0);
    for (size_t i = 0; settings[i]; i += 2)
        if (experiment_set(experiment, settings[i], settings[i + 1], "test", &err))
            fail_msg("%s", err.message);
    return experiment;
}

static int write_script(const struct experiment *experiment, const struct job_script *given, struct buf *out,
                        struct cb_err *err)
{
    struct job_script script = *given;
    script.experiment = experiment;
    buf_init(out, 1u << 16);
    return job_script_write(&script, out, err);
}

static const struct job_script plain = {.name = "20261121-k3f9.01",
                                        .agent = "/opt/ckptbench/bin/ckptbench-agent",
                                        .run_folder = "/home/u/runs/20261121-k3f9.01",
                                        .log = "/home/u/runs/20261121-k3f9.01/job.log",
                                        .time_limit_ns = 90 * NS_PER_S};

static void test_a_script_is_short_and_as_it_was(void **state)
{
    static const char *const settings[] = {"ranks", "8", "nodes", "2", "slurm.partition", "train", NULL};
    static const char golden[] = "#!/bin/sh\n"
                                 "#SBATCH --job-name=20261121-k3f9.01\n"
                                 "#SBATCH --comment=ckptbench/20261121-k3f9.01\n"
                                 "#SBATCH --nodes=2\n"
                                 "#SBATCH --exclusive\n"
                                 "#SBATCH --mem=0\n"
                                 "#SBATCH --time=2\n"
                                 "#SBATCH --signal=B:USR1@60\n"
                                 "#SBATCH --no-requeue\n"
                                 "#SBATCH --partition=train\n"
                                 "#SBATCH --open-mode=append\n"
                                 "#SBATCH --output=\"/home/u/runs/20261121-k3f9.01/job.log\"\n"
                                 "# Made by ckptbench %s. What is run is frozen in experiment.yaml of the run folder.\n"
                                 "exec '/opt/ckptbench/bin/ckptbench-agent' run '/home/u/runs/20261121-k3f9.01'\n";
    struct experiment *experiment = make(settings);
    char wanted[sizeof golden + 64];
    struct buf out;
    (void)state;
    snprintf(wanted, sizeof wanted, golden, version_text());
    assert_int_equal(write_script(experiment, &plain, &out, NULL), 0);
    assert_string_equal(out.data, wanted);
    buf_release(&out);
    experiment_free(experiment);
}

static void test_an_allocation_asks_for_the_same_and_becomes_salloc(void **state)
{
    static const char *const settings[] = {"ranks", "8",           "nodes",      "2", "slurm.partition",
                                           "train", "slurm.extra", "--nice=100", NULL};
    static const char golden[] =
        "#!/bin/sh\n"
        "# Made by ckptbench %s. What is run is frozen in experiment.yaml of the run folder.\n"
        "exec salloc --kill-command=TERM --wait-all-nodes=1 \\\n"
        "    '--job-name=20261121-k3f9.01' \\\n"
        "    '--comment=ckptbench/20261121-k3f9.01' \\\n"
        "    '--nodes=2' \\\n"
        "    '--exclusive' \\\n"
        "    '--mem=0' \\\n"
        "    '--time=2' \\\n"
        "    '--partition=train' \\\n"
        "    '--nice=100' \\\n"
        "    '/opt/ckptbench/bin/ckptbench-agent' run '/home/u/runs/it'\\''s' '/home/u/runs/b'\n";
    static const char *const others[] = {"/home/u/runs/b"};
    struct experiment *experiment = make(settings);
    struct job_script script = plain;
    char wanted[sizeof golden + 64];
    struct cb_err err;
    struct buf out;
    (void)state;
    script.run_folder = "/home/u/runs/it's";
    script.others = others;
    script.other_count = 1;
    script.experiment = experiment;
    snprintf(wanted, sizeof wanted, golden, version_text());
    buf_init(&out, 1u << 16);
    assert_int_equal(job_script_write_allocation(&script, &out, NULL), 0);
    assert_string_equal(out.data, wanted);
    buf_release(&out);
    script.run_folder = "/home/u/runs/a/array";
    script.array_count = 3;
    assert_int_equal(experiment_set(experiment, "slurm.sbcast", "/it's", "test", NULL), 0);
    buf_init(&out, 1u << 16);
    assert_int_equal(job_script_write_allocation(&script, &out, NULL), 0);
    assert_non_null(strstr(out.data, "id=$(sbatch --parsable <<'TASK'\n#!/bin/sh\n#SBATCH --job-name="));
    assert_non_null(strstr(out.data, "#SBATCH --array=0-2\n"));
    assert_non_null(strstr(out.data, "set -- '/it'\\''s'/ckptbench-programs-*.\"$SLURM_JOB_ID\"\n"));
    assert_non_null(strstr(
        out.data,
        "\nexec '/opt/ckptbench/bin/ckptbench-agent' array '/home/u/runs/a/array' \"$id\" '20261121-k3f9.01'\n"));
    buf_release(&out);
    assert_int_equal(experiment_set(experiment, "slurm.account", "$(id)", "test", NULL), 0);
    buf_init(&out, 1u << 16);
    assert_int_equal(job_script_write_allocation(&script, &out, &err), CB_ERR_USAGE);
    buf_release(&out);
    experiment_free(experiment);
}

static void test_a_share_of_a_node_asks_for_tasks_and_keys_are_options(void **state)
{
    static const char *const settings[] = {"ranks",
                                           "8",
                                           "nodes",
                                           "2",
                                           "slurm.exclusive",
                                           "false",
                                           "slurm.requeue",
                                           "true",
                                           "slurm.cpus_per_task",
                                           "3",
                                           "slurm.gpus_per_node",
                                           "4",
                                           "slurm.constraint",
                                           "[a|b]&c",
                                           "slurm.account",
                                           "lab",
                                           "slurm.mail",
                                           "a@b.example",
                                           "slurm.extra",
                                           "--nice=100 --switches=1",
                                           NULL};
    static const char *const lines[] = {"#SBATCH --ntasks-per-node=4\n",
                                        "#SBATCH --cpus-per-task=3\n",
                                        "#SBATCH --gpus-per-node=4\n",
                                        "#SBATCH --requeue\n",
                                        "#SBATCH --constraint=[a|b]&c\n",
                                        "#SBATCH --account=lab\n",
                                        "#SBATCH --mail-user=a@b.example\n",
                                        "#SBATCH --nice=100\n",
                                        "#SBATCH --switches=1\n",
                                        "#SBATCH --dependency=afterok:4711\n",
                                        "#SBATCH --kill-on-invalid-dep=yes\n"};
    struct experiment *experiment = make(settings);
    struct job_script script = plain;
    struct buf out;
    (void)state;
    script.after = "4711";
    assert_int_equal(write_script(experiment, &script, &out, NULL), 0);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(out.data, lines[i]))
            fail_msg("missing: %s in\n%s", lines[i], out.data);
    assert_null(strstr(out.data, "--exclusive"));
    buf_release(&out);
    experiment_free(experiment);
}

static void test_an_array_finds_its_run_without_logic(void **state)
{
    static const char *const settings[] = {"ranks", "1", NULL};
    struct experiment *experiment = make(settings);
    struct job_script script = plain;
    struct buf out;
    (void)state;
    script.array_count = 7;
    script.run_folder = "/h/array";
    assert_int_equal(write_script(experiment, &script, &out, NULL), 0);
    assert_non_null(strstr(out.data, "#SBATCH --array=0-6\n"));
    assert_non_null(strstr(out.data, "job.log.%a\"\n"));
    assert_non_null(strstr(out.data, " run '/h/array'/\"$SLURM_ARRAY_TASK_ID\"\n"));
    buf_release(&out);
    experiment_free(experiment);
}

static void test_several_runs_are_one_start_of_the_agent(void **state)
{
    static const char *const settings[] = {"ranks", "1", NULL};
    static const char *const others[] = {"/h/r.02", "/h/o'r.03"};
    struct experiment *experiment = make(settings);
    struct job_script script = plain;
    struct buf out;
    (void)state;
    script.run_folder = "/h/r.01";
    script.others = others;
    script.other_count = 2;
    assert_int_equal(write_script(experiment, &script, &out, NULL), 0);
    assert_non_null(strstr(out.data, "-agent' run '/h/r.01' '/h/r.02' '/h/o'\\''r.03'\n"));
    buf_release(&out);
    experiment_free(experiment);
}

static void check_refused(const char *key, const char *value)
{
    const char *const settings[] = {"ranks", "1", key, value, NULL};
    struct experiment *experiment = make(settings);
    struct cb_err err;
    struct buf out;
    assert_int_equal(write_script(experiment, &plain, &out, &err), CB_ERR_USAGE);
    assert_non_null(strstr(err.message, key));
    buf_release(&out);
    experiment_free(experiment);
}

static void test_hostile_keys_are_refused(void **state)
{
    static const char *const keys[] = {"slurm.partition",   "slurm.account", "slurm.qos",  "slurm.constraint",
                                       "slurm.reservation", "slurm.mail",    "slurm.extra"};
    static const char *const values[] = {
        "a b", "$(touch /tmp/x)", "`id`", "a\n#SBATCH --uid=0", "a'b", "a\"b", "a\\b", "a;b", "-p", "a#b", "\xc3\xa9"};
    char *long_value = malloc(10001);
    (void)state;
    memset(long_value, 'a', 10000);
    long_value[10000] = '\0';
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        for (size_t k = 0; k < sizeof values / sizeof *values; k++)
            check_refused(keys[i], values[k]);
        check_refused(keys[i], long_value);
    }
    check_refused("slurm.extra", "--job-name=other");
    check_refused("slurm.extra", "--nice=1 --wrap=id");
    free(long_value);
}

static void test_labels_and_stores_stay_out_of_the_script(void **state)
{
    static const char *const settings[] = {"ranks", "1",       "label.x", "$(touch /tmp/x)", "store", "/s/`id`\n'\"",
                                           "name",  "evil;rm", NULL};
    struct experiment *experiment = make(settings);
    struct buf out;
    (void)state;
    assert_int_equal(write_script(experiment, &plain, &out, NULL), 0);
    assert_null(strstr(out.data, "touch"));
    assert_null(strstr(out.data, "evil"));
    assert_null(strstr(out.data, "`"));
    buf_release(&out);
    experiment_free(experiment);
}

static void test_paths_are_quoted_for_both_parsers_or_refused(void **state)
{
    static const char *const settings[] = {"ranks", "1", NULL};
    struct experiment *experiment = make(settings);
    struct job_script script = plain;
    struct buf out;
    struct cb_err err;
    (void)state;
    script.run_folder = "/a b/it's $(x)/run";
    script.log = "/a b/100%x/job.log";
    assert_int_equal(write_script(experiment, &script, &out, NULL), 0);
    assert_non_null(strstr(out.data, " run '/a b/it'\\''s $(x)/run'\n"));
    assert_non_null(strstr(out.data, "#SBATCH --output=\"/a b/100%%x/job.log\"\n"));
    buf_release(&out);
    static const char *const bad[] = {"/a\nb", "/a\"b", "/a\\b", "/a'b", "/a`b", "/a$b"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        script.log = bad[i];
        assert_int_equal(write_script(experiment, &script, &out, &err), CB_ERR_USAGE);
        assert_non_null(strstr(err.message, "CKPTBENCH_HOME"));
        buf_release(&out);
    }
    experiment_free(experiment);
}

static void test_a_shell_gets_back_what_was_quoted(void **state)
{
    static const char *const words[] = {"", "'", "a'b''c", "$(id) `id` \\ \" !", "two\nlines", "*?[a]"};
    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct buf command;
        char got[64] = "";
        buf_init(&command, 1024);
        buf_append_text(&command, "printf %s ");
        buf_append_quoted(&command, words[i]);
        FILE *shell = popen(command.data, "r");
        assert_non_null(shell);
        size_t len = fread(got, 1, sizeof got - 1, shell);
        got[len] = '\0';
        assert_int_equal(pclose(shell), 0);
        assert_string_equal(got, words[i]);
        buf_release(&command);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_script_is_short_and_as_it_was),
        cmocka_unit_test(test_an_allocation_asks_for_the_same_and_becomes_salloc),
        cmocka_unit_test(test_a_share_of_a_node_asks_for_tasks_and_keys_are_options),
        cmocka_unit_test(test_an_array_finds_its_run_without_logic),
        cmocka_unit_test(test_several_runs_are_one_start_of_the_agent),
        cmocka_unit_test(test_hostile_keys_are_refused),
        cmocka_unit_test(test_labels_and_stores_stay_out_of_the_script),
        cmocka_unit_test(test_paths_are_quoted_for_both_parsers_or_refused),
        cmocka_unit_test(test_a_shell_gets_back_what_was_quoted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
