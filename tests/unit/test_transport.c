/* The transport of this machine: commands with bounds, files that arrive whole. */
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

#include "core/clock.h"
#include "jobs/transport.h"

static struct transport *transport;
static char folder[] = "/tmp/ckptbench-transport-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) ? transport_local_open(&transport, NULL) : -1;
}

static int tear_down(void **state)
{
    char command[128];
    (void)state;
    transport_close(transport);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static int run(const char *const *argv, const char *input, size_t max_bytes, uint64_t timeout_ns, bool without_slurm,
               struct transport_answer *answer, struct cb_err *err)
{
    const struct transport_command command = {.argv = argv,
                                              .without_slurm = without_slurm,
                                              .input = input,
                                              .input_bytes = input ? strlen(input) : 0,
                                              .max_bytes = max_bytes,
                                              .timeout_ns = timeout_ns};
    transport_answer_init(answer);
    return transport->run(transport, &command, answer, err);
}

static void test_words_arrive_as_they_are_and_both_outputs_come_back(void **state)
{
    static const char *const argv[] = {"sh", "-c", "cat; printf %s \"$1\" >&2; exit 3", "sh", "$(id) 'x' \n *", NULL};
    struct transport_answer answer;
    (void)state;
    assert_int_equal(run(argv, "in\n", 4096, 10 * NS_PER_S, false, &answer, NULL), 0);
    assert_int_equal(answer.exit_status, 3);
    assert_string_equal(answer.out.data, "in\n");
    assert_string_equal(answer.errors.data, "$(id) 'x' \n *");
    transport_answer_release(&answer);
}

static void test_a_signal_is_128_more(void **state)
{
    static const char *const argv[] = {"sh", "-c", "kill -9 $$", NULL};
    struct transport_answer answer;
    (void)state;
    assert_int_equal(run(argv, NULL, 4096, 10 * NS_PER_S, false, &answer, NULL), 0);
    assert_int_equal(answer.exit_status, 137);
    transport_answer_release(&answer);
}

static void test_what_takes_or_says_too_much_is_ended(void **state)
{
    static const char *const slow[] = {"sleep", "60", NULL}, *const loud[] = {"yes", NULL},
                             *const none[] = {"/no/such", NULL};
    struct transport_answer answer;
    struct cb_err err;
    (void)state;
    assert_int_equal(run(slow, NULL, 4096, 50 * NS_PER_MS, false, &answer, &err), CB_ERR_TIMEOUT);
    transport_answer_release(&answer);
    assert_int_equal(run(loud, NULL, 4096, 10 * NS_PER_S, false, &answer, &err), CB_ERR_MEMORY);
    transport_answer_release(&answer);
    assert_int_equal(run(none, NULL, 4096, 10 * NS_PER_S, false, &answer, &err), CB_ERR_NOT_FOUND);
    transport_answer_release(&answer);
}

static void test_variables_of_slurm_are_left_out_but_for_where_it_is(void **state)
{
    static const char *const argv[] = {"env", NULL};
    struct transport_answer answer;
    (void)state;
    setenv("SLURM_NTASKS", "64", 1);
    setenv("SBATCH_PARTITION", "x", 1);
    setenv("SLURM_CONF", "/etc/x", 1);
    assert_int_equal(run(argv, NULL, 1u << 20, 10 * NS_PER_S, true, &answer, NULL), 0);
    assert_null(strstr(answer.out.data, "SLURM_NTASKS"));
    assert_null(strstr(answer.out.data, "SBATCH_PARTITION"));
    assert_non_null(strstr(answer.out.data, "SLURM_CONF=/etc/x\n"));
    transport_answer_release(&answer);
    assert_int_equal(run(argv, NULL, 1u << 20, 10 * NS_PER_S, false, &answer, NULL), 0);
    assert_non_null(strstr(answer.out.data, "SLURM_NTASKS=64\n"));
    transport_answer_release(&answer);
    unsetenv("SLURM_NTASKS");
    unsetenv("SBATCH_PARTITION");
    unsetenv("SLURM_CONF");
}

static void write_text(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    fclose(file);
}

static void path_of(const char *name, char path[256])
{
    snprintf(path, 256, "%s/%s", folder, name);
}

static void test_folders_are_copied_and_the_same_one_is_left_alone(void **state)
{
    static const char *const names[] = {"a"};
    char from[256], to[256], file[256];
    struct transport_stat status;
    struct buf text;
    (void)state;
    path_of("a", from);
    path_of("new", to);
    assert_int_equal(mkdir(from, 0755), 0);
    path_of("a/deep", file);
    assert_int_equal(mkdir(file, 0755), 0);
    write_text("a/deep/file", "bytes\n");
    assert_int_equal(transport->get_folders(transport, folder, names, 1, to, NULL), 0);
    path_of("new/a/deep/file", file);
    assert_int_equal(transport->stat(transport, file, &status, NULL), 0);
    assert_int_equal(status.bytes, 6);
    assert_false(status.is_folder);
    assert_int_equal(transport->get_folders(transport, folder, names, 1, folder, NULL), 0);
    assert_int_equal(transport->get_file(transport, file, file, NULL), 0);
    buf_init(&text, 100);
    assert_int_equal(transport->read(transport, file, 2, 3, &text, NULL), 0);
    assert_string_equal(text.data, "tes");
    assert_int_equal(transport->read(transport, file, 6, 3, &text, NULL), 0);
    assert_string_equal(text.data, "tes");
    buf_release(&text);
}

static void test_what_is_not_there_is_named(void **state)
{
    struct transport_stat status;
    struct cb_err err;
    char path[256];
    (void)state;
    path_of("nothing", path);
    assert_int_equal(transport->stat(transport, path, &status, &err), CB_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, path));
    assert_int_equal(transport->put_file(transport, path, "/tmp/x", &err), CB_ERR_NOT_FOUND);
}

static void check_last_line(const char *out, const char *errors, const char *wanted)
{
    struct transport_answer answer;
    char line[64];
    transport_answer_init(&answer);
    buf_append_text(&answer.out, out);
    buf_append_text(&answer.errors, errors);
    assert_string_equal(transport_answer_last_line(&answer, line, sizeof line), wanted);
    transport_answer_release(&answer);
}

static void test_the_last_line_that_says_something_is_quoted(void **state)
{
    (void)state;
    check_last_line("out\n", "one\ntwo\n\n  \n", "two");
    check_last_line("out\n", "", "out");
    check_last_line("", "", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_arrive_as_they_are_and_both_outputs_come_back),
        cmocka_unit_test(test_a_signal_is_128_more),
        cmocka_unit_test(test_what_takes_or_says_too_much_is_ended),
        cmocka_unit_test(test_variables_of_slurm_are_left_out_but_for_where_it_is),
        cmocka_unit_test(test_folders_are_copied_and_the_same_one_is_left_alone),
        cmocka_unit_test(test_what_is_not_there_is_named),
        cmocka_unit_test(test_the_last_line_that_says_something_is_quoted),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
