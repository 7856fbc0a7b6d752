/* The text of a claim, and whether its owner can be seen to have ended. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "setup/folder/claim.h"

static struct claim example(void)
{
    struct claim claim = {.run = "20261121-abcd", .keeps = true};
    snprintf(claim.lease.token, sizeof claim.lease.token, "0123456789abcdef0123456789abcdef");
    snprintf(claim.lease.host, sizeof claim.lease.host, "node1");
    snprintf(claim.lease.run_folder, sizeof claim.lease.run_folder, "/home/me/runs/20261121-abcd");
    claim.lease.attempt = 3;
    claim.lease.since_wall_ns = UINT64_C(1763719200000000000);
    claim.lease.lasts_ns = UINT64_C(60000000000);
    process_identify(&claim.lease.process);
    return claim;
}

static void what_is_written_is_read_back(void **unused)
{
    (void)unused;
    char text[CLAIM_TEXT_BYTES], again[CLAIM_TEXT_BYTES], said[CLAIM_TEXT_BYTES], expected[256];
    struct claim claim = example(), found;
    claim_format(&claim, text);
    claim_parse(text, &found);
    claim_format(&found, again);
    assert_string_equal(again, text);
    assert_string_equal(found.lease.process.machine, claim.lease.process.machine);
    snprintf(expected, sizeof expected,
             "run 20261121-abcd (attempt 3, process %d on host node1, since 2025-11-21T10:00:00Z)", (int)getpid());
    assert_string_equal(claim_describe(&found, said), expected);
}

static void the_longest_claim_fits(void **unused)
{
    (void)unused;
    char text[CLAIM_TEXT_BYTES];
    struct claim claim = example(), found;
    memset(claim.run, 'r', sizeof claim.run - 1);
    memset(claim.lease.host, 'h', sizeof claim.lease.host - 1);
    memset(claim.lease.run_folder, 'f', sizeof claim.lease.run_folder - 1);
    claim_format(&claim, text);
    claim_parse(text, &found);
    assert_int_equal(found.lease.process.start_ticks, claim.lease.process.start_ticks);
}

static void claims_of_earlier_versions_have_no_lease(void **unused)
{
    (void)unused;
    static const struct {
        const char *text, *run;
        bool keeps;
    } cases[] = {{"a", "a", true}, {"a\nkept\n", "a", true}, {"a\ntemporary\n", "a", false}, {"", "", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct claim claim;
        claim_parse(cases[i].text, &claim);
        assert_string_equal(claim.run, cases[i].run);
        assert_int_equal(claim.keeps, cases[i].keeps);
        assert_string_equal(claim.lease.token, "");
    }
}

static void what_a_terminal_would_obey_is_hidden(void **unused)
{
    (void)unused;
    struct claim claim;
    claim_parse("a\033]0;b\007\nkept\ntoken=t\nhost=\xc2\x9bh\n", &claim);
    assert_string_equal(claim.run, "a?]0;b?");
    assert_string_equal(claim.lease.host, "??h");
}

static void a_process_has_ended_once_it_is_dead_and_not_before(void **unused)
{
    (void)unused;
    struct process_identity child;
    process_identify(&child);
    assert_false(process_has_ended(&child));
    struct process_identity reused = child;
    reused.start_ticks++;
    assert_true(process_has_ended(&reused));
    pid_t pid = fork();
    if (pid == 0)
        for (;;)
            pause();
    child.pid = (uint64_t)pid;
    reused = child;
    kill(pid, SIGKILL);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    assert_true(process_has_ended(&child)); /* a zombie */
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(process_has_ended(&reused));
}

static void of_a_process_elsewhere_nothing_is_known(void **unused)
{
    (void)unused;
    struct process_identity other = {.machine = "another", .pid = 1};
    assert_false(process_has_ended(&other));
    process_identify(&other);
    other.start_ticks++;
    other.pid = 0; /* ranks on other machines */
    assert_false(process_has_ended(&other));
    other = (struct process_identity){.pid = 1}; /* its machine could not be read */
    assert_false(process_has_ended(&other));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(the_longest_claim_fits),
        cmocka_unit_test(claims_of_earlier_versions_have_no_lease),
        cmocka_unit_test(what_a_terminal_would_obey_is_hidden),
        cmocka_unit_test(a_process_has_ended_once_it_is_dead_and_not_before),
        cmocka_unit_test(of_a_process_elsewhere_nothing_is_known),
    };
    return cmocka_run_group_tests_name("claims", tests, NULL, NULL);
}
