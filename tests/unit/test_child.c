/* Children: their output, their end, and that nothing of them is left. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/child.h"
#include "core/clock.h"

static struct child_options shell(const char *const argv[4])
{
    return (struct child_options){.argv = argv, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
}
#define SHELL(script) shell((const char *const[4]){"sh", "-c", script, NULL})

/* Waits up to 5 s until no process has this number. */
static int is_gone(pid_t pid)
{
    for (int i = 0; i < 500; i++) {
        if (kill(pid, 0) < 0 && errno == ESRCH)
            return 1;
        clock_sleep_ns(10 * NS_PER_MS);
    }
    return 0;
}

static void output_is_captured_and_status_is_told(void **unused)
{
    (void)unused;
    struct buf out;
    struct cb_err err;
    buf_init(&out, 1000);
    struct child_options options = SHELL("echo one; echo two");
    assert_int_equal(child_capture(&options, 10 * NS_PER_S, &out, &err), 0);
    assert_string_equal(out.data, "one\ntwo\n");
    options = SHELL("echo first >&2; echo 'no such thing' >&2; exit 3");
    assert_int_equal(child_capture(&options, 10 * NS_PER_S, &out, &err), CB_ERR_SYSTEM);
    assert_string_equal(err.message, "sh: exit status 3: no such thing");
    buf_release(&out);
}

static void output_over_the_limit_is_refused(void **unused)
{
    (void)unused;
    struct buf out;
    struct cb_err err;
    buf_init(&out, 100);
    struct child_options options = SHELL("yes | head -c 100000");
    assert_int_equal(child_capture(&options, 10 * NS_PER_S, &out, &err), CB_ERR_MEMORY);
    buf_release(&out);
}

static void program_that_is_not_there_is_named(void **unused)
{
    (void)unused;
    struct child child;
    struct cb_err err;
    struct child_options options = shell((const char *const[4]){"ckptbench-no-such-program", NULL});
    assert_int_equal(child_start(&child, &options, &err), CB_ERR_NOT_FOUND);
    assert_string_equal(err.message, "starting ckptbench-no-such-program: No such file or directory");
}

static void environment_is_added_and_replaces_ours(void **unused)
{
    (void)unused;
    struct buf out;
    struct cb_err err;
    buf_init(&out, 1000);
    setenv("CHILD_TEST_A", "ours", 1);
    struct child_options options = SHELL("echo $CHILD_TEST_A $CHILD_TEST_AB");
    options.environment = (const char *const[3]){"CHILD_TEST_A=new", "CHILD_TEST_AB=more", NULL};
    assert_int_equal(child_capture(&options, 10 * NS_PER_S, &out, &err), 0);
    assert_string_equal(out.data, "new more\n");
    buf_release(&out);
}

static void wait_has_a_deadline_and_end_takes_the_whole_group(void **unused)
{
    (void)unused;
    int out[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    struct child child;
    struct cb_err err;
    struct child_options options = SHELL("sleep 1000 & echo $!; wait");
    options.stdout_fd = out[1];
    assert_int_equal(child_start(&child, &options, &err), 0);
    char text[32] = "";
    assert_true(read(out[0], text, sizeof text - 1) > 0);
    pid_t grandchild = (pid_t)strtol(text, NULL, 10);
    assert_int_equal(child_wait(&child, clock_monotonic_ns() + 20 * NS_PER_MS, &err), CB_ERR_TIMEOUT);
    child_end(&child, NS_PER_S);
    assert_true(child.exited);
    assert_true(is_gone(grandchild));
    close(out[0]);
    close(out[1]);
}

static void end_kills_one_that_ignores_sigterm(void **unused)
{
    (void)unused;
    int out[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    struct child child;
    struct cb_err err;
    char text[64];
    struct child_options options = SHELL("trap '' TERM; echo ready; while :; do sleep 1; done");
    options.stdout_fd = out[1];
    assert_int_equal(child_start(&child, &options, &err), 0);
    assert_true(read(out[0], text, sizeof text) > 0);
    child_end(&child, 50 * NS_PER_MS);
    assert_string_equal(child_describe(&child, text), "killed by signal 9 (SIGKILL)");
    child_end(&child, 0); /* a second time does nothing */
    close(out[0]);
    close(out[1]);
}

static void rest_of_the_group_goes_when_the_first_process_ends(void **unused)
{
    (void)unused;
    struct buf out;
    struct cb_err err;
    char text[64];
    buf_init(&out, 100);
    struct child_options options = SHELL("sleep 1000 >/dev/null 2>&1 & echo $!");
    assert_int_equal(child_capture(&options, 10 * NS_PER_S, &out, &err), 0);
    assert_true(is_gone((pid_t)strtol(out.data, NULL, 10)));
    struct child child;
    options = SHELL("exit 7");
    assert_int_equal(child_start(&child, &options, &err), 0);
    assert_int_equal(child_wait(&child, UINT64_MAX, &err), 0);
    assert_string_equal(child_describe(&child, text), "exit status 7");
    buf_release(&out);
}

static void child_dies_with_its_parent(void **unused)
{
    (void)unused;
    int out[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    pid_t parent = fork();
    if (parent == 0) {
        struct child child;
        struct child_options options = SHELL("exec sleep 1000");
        if (child_start(&child, &options, NULL) || write(out[1], &child.pid, sizeof child.pid) < 0)
            _exit(1);
        pause();
    }
    pid_t grandchild = 0;
    assert_int_equal(read(out[0], &grandchild, sizeof grandchild), sizeof grandchild);
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    assert_true(is_gone(grandchild));
    close(out[0]);
    close(out[1]);
}

static void capture_ends_a_child_that_is_too_slow(void **unused)
{
    (void)unused;
    struct buf out;
    struct cb_err err;
    buf_init(&out, 100);
    struct child_options options = SHELL("sleep 1000");
    assert_int_equal(child_capture(&options, 50 * NS_PER_MS, &out, &err), CB_ERR_TIMEOUT);
    assert_non_null(strstr(err.message, "sh"));
    options = SHELL("pwd");
    options.folder = "/";
    assert_int_equal(child_capture(&options, 10 * NS_PER_S, &out, &err), 0);
    assert_string_equal(out.data, "/\n");
    buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_is_captured_and_status_is_told),
        cmocka_unit_test(output_over_the_limit_is_refused),
        cmocka_unit_test(program_that_is_not_there_is_named),
        cmocka_unit_test(environment_is_added_and_replaces_ours),
        cmocka_unit_test(wait_has_a_deadline_and_end_takes_the_whole_group),
        cmocka_unit_test(end_kills_one_that_ignores_sigterm),
        cmocka_unit_test(rest_of_the_group_goes_when_the_first_process_ends),
        cmocka_unit_test(child_dies_with_its_parent),
        cmocka_unit_test(capture_ends_a_child_that_is_too_slow),
    };
    return cmocka_run_group_tests_name("child", tests, NULL, NULL);
}
