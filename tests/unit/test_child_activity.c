/* What a rank shows of another process that it waits for. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "engine/external/child_activity.h"

#define LATER(n) ((uint64_t)(n)*NS_PER_S)

static struct status_page *new_page(void)
{
    return calloc(1, sizeof(struct status_page));
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void a_process_that_does_nothing_waits(void **unused)
{
    (void)unused;
    struct status_page *page = new_page();
    struct child_activity activity = {0};
    pid_t pid = fork();
    if (pid == 0)
        for (;;)
            pause();
    child_activity_look(&activity, pid, page, LATER(1));
    child_activity_look(&activity, pid, page, LATER(2));
    child_activity_look(&activity, pid, page, LATER(3));
    assert_int_equal(page->state, STATE_WAIT);
    assert_true(page->progress_ns <= LATER(2));
    end(pid);
    free(page);
}

/* Asks for bytes when it is told to by a signal, so that each look sees exactly one write. */
static void a_process_whose_grandchild_writes_makes_progress(void **unused)
{
    (void)unused;
    struct status_page *page = new_page();
    struct child_activity activity = {0};
    int begin[2], done[2];
    char byte = 0;
    assert_int_equal(pipe(begin) | pipe(done), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(begin[1]); /* the grandchild ends when the test closes its side */
        if (fork() == 0)
            while (read(begin[0], &byte, 1) == 1 && write(done[1], &byte, 1) == 1)
                continue;
        while (wait(NULL) > 0)
            continue;
        _exit(0);
    }
    for (unsigned i = 1; i <= 4; i++) {
        assert_int_equal(write(begin[1], &byte, 1), 1);
        assert_int_equal(read(done[0], &byte, 1), 1);
        child_activity_look(&activity, pid, page, LATER(i));
        assert_int_equal(page->progress_ns, LATER(i));
        assert_int_equal(page->state, STATE_OTHER);
    }
    close(begin[1]);
    end(pid);
    close(begin[0]);
    close(done[0]);
    close(done[1]);
    free(page);
}

/* A process that is stopped where it enters fsync stands in it for whoever reads /proc. */
static void a_process_in_fsync_shows_as_fsync(void **unused)
{
    (void)unused;
    struct status_page *page = new_page();
    struct child_activity activity = {0};
    struct user_regs_struct registers = {0};
    pid_t pid = fork();
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        fsync(memfd_create("file", 0));
        _exit(0);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    while (registers.orig_rax != SYS_fsync) {
        assert_int_equal(ptrace(PTRACE_SYSCALL, pid, NULL, NULL), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        assert_int_equal(ptrace(PTRACE_GETREGS, pid, NULL, &registers), 0);
    }
    child_activity_look(&activity, pid, page, LATER(1));
    assert_int_equal(page->state, STATE_FSYNC);
    end(pid);
    free(page);
}

static void a_process_that_computes_makes_progress(void **unused)
{
    (void)unused;
    struct status_page *page = new_page();
    struct child_activity activity = {0};
    pid_t pid = fork();
    if (pid == 0)
        for (volatile uint64_t i = 0;; i++)
            continue;
    child_activity_look(&activity, pid, page, LATER(1));
    for (unsigned i = 2; page->progress_ns < LATER(2); i++) {
        clock_sleep_ns(50 * NS_PER_MS);
        child_activity_look(&activity, pid, page, LATER(i));
    }
    assert_int_equal(page->state, STATE_OTHER);
    end(pid);
    free(page);
}

static void two_looks_within_a_second_are_one(void **unused)
{
    (void)unused;
    struct status_page *page = new_page();
    struct child_activity activity = {0};
    child_activity_look(&activity, getpid(), page, LATER(1));
    child_activity_look(&activity, getpid(), page, LATER(1) + NS_PER_S / 2);
    assert_int_equal(page->progress_ns, LATER(1));
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_that_does_nothing_waits),
        cmocka_unit_test(a_process_whose_grandchild_writes_makes_progress),
        cmocka_unit_test(a_process_in_fsync_shows_as_fsync),
        cmocka_unit_test(a_process_that_computes_makes_progress),
        cmocka_unit_test(two_looks_within_a_second_are_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
