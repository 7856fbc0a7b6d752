/* Run folders: exclusive attempts and manifests, and what reads back. */
#include <fcntl.h>
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

#include "core/child.h"
#include "core/clock.h"
#include "run/record.h"
#include "run/run_folder.h"

struct fixture {
    char home[64], run[96];
    struct experiment *experiment;
    struct buf attempt;
    struct cb_err err;
};

static int set_up(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->home, "/tmp/ckptbench-test-XXXXXX");
    if (!mkdtemp(fixture->home))
        return -1;
    snprintf(fixture->run, sizeof fixture->run, "%s/runs/20261121-abcd", fixture->home);
    buf_init(&fixture->attempt, 4096);
    *state = fixture;
    int rc = experiment_new(&fixture->experiment, &fixture->err);
    if (!rc)
        rc = experiment_set(fixture->experiment, "label.note", "\"a\": {b}\n", "test", &fixture->err);
    if (!rc)
        rc = run_folder_create(NULL, fixture->run, fixture->experiment, &fixture->err);
    return rc;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;
    struct buf out;
    buf_init(&out, 100);
    struct child_options options = {.argv = (const char *const[4]){"rm", "-rf", fixture->home, NULL}, .stdin_fd = -1};
    int rc = child_capture(&options, 10 * NS_PER_S, &out, NULL);
    buf_release(&out);
    buf_release(&fixture->attempt);
    experiment_free(fixture->experiment);
    free(fixture);
    return rc;
}

static void frozen_experiment_reads_back(void **state)
{
    struct fixture *fixture = *state;
    struct experiment *back;
    char before[EXPERIMENT_HASH_LENGTH + 1], after[EXPERIMENT_HASH_LENGTH + 1];
    assert_int_equal(run_folder_read_experiment(fixture->run, &back, &fixture->err), 0);
    experiment_hash(fixture->experiment, before);
    experiment_hash(back, after);
    assert_string_equal(before, after);
    assert_string_equal(experiment_label_value(back, 0), "\"a\": {b}\n");
    experiment_free(back);
}

static void folder_that_exists_is_refused(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(run_folder_create(NULL, fixture->run, fixture->experiment, &fixture->err), CB_ERR_EXISTS);
    assert_non_null(strstr(fixture->err.message, fixture->run));
}

static void attempts_count_up_from_1(void **state)
{
    struct fixture *fixture = *state;
    uint32_t attempt = 99;
    assert_int_equal(run_folder_last_attempt(fixture->run, &attempt, &fixture->err), 0);
    assert_int_equal(attempt, 0);
    for (uint32_t wanted = 1; wanted <= 11; wanted++) {
        char path[128];
        buf_clear(&fixture->attempt);
        assert_int_equal(run_folder_new_attempt(fixture->run, &attempt, &fixture->attempt, &fixture->err), 0);
        assert_int_equal(attempt, wanted);
        snprintf(path, sizeof path, "%s/attempts/%u", fixture->run, wanted);
        assert_string_equal(fixture->attempt.data, path);
    }
    assert_int_equal(run_folder_last_attempt(fixture->run, &attempt, &fixture->err), 0);
    assert_int_equal(attempt, 11);
    assert_int_equal(run_folder_last_attempt("/nonexistent", &attempt, &fixture->err), CB_ERR_NOT_FOUND);
}

static struct manifest example(void)
{
    struct manifest manifest = {.run = "20261121-abcd",
                                .attempt = 1,
                                .outcome = OUTCOME_BENCHMARK_FAILED,
                                .message = "rank 2: \"quoted\"",
                                .started_wall_ns = UINT64_C(1795262400123456789),
                                .ended_wall_ns = UINT64_C(1795262401123456789),
                                .ranks = 4,
                                .samples = 12,
                                .sealed_by = "agent"};
    return manifest;
}

static void manifest_reads_back_and_the_first_seal_wins(void **state)
{
    struct fixture *fixture = *state;
    struct manifest back, manifest = example();
    uint32_t attempt;
    assert_int_equal(run_folder_new_attempt(fixture->run, &attempt, &fixture->attempt, &fixture->err), 0);
    const char *path = fixture->attempt.data;
    assert_int_equal(manifest_read(path, &back, &fixture->err), CB_ERR_NOT_FOUND);
    assert_int_equal(manifest_write(path, &manifest, &fixture->err), 0);
    strcpy(manifest.sealed_by, "collect");
    manifest.outcome = OUTCOME_LOST;
    assert_int_equal(manifest_write(path, &manifest, &fixture->err), CB_ERR_EXISTS);
    assert_int_equal(manifest_read(path, &back, &fixture->err), 0);
    assert_string_equal(back.sealed_by, "agent");
    assert_int_equal(back.outcome, OUTCOME_BENCHMARK_FAILED);
    assert_string_equal(back.message, "rank 2: \"quoted\"");
    assert_true(back.started_wall_ns == UINT64_C(1795262400123456789));
    assert_int_equal(back.ranks, 4);
    assert_int_equal(back.samples, 12);
}

static void records_that_changed_after_the_seal_are_found(void **state)
{
    struct fixture *fixture = *state;
    struct manifest back, manifest = example();
    uint32_t attempt;
    struct buf text;
    char path[160];
    assert_int_equal(run_folder_new_attempt(fixture->run, &attempt, &fixture->attempt, &fixture->err), 0);
    snprintf(path, sizeof path, "%s/records", fixture->attempt.data);
    buf_init(&text, 100);
    buf_append_text(&text, "abc");
    assert_int_equal(buf_write_file(&text, path, 0644, &fixture->err), 0);
    assert_int_equal(manifest_hash_records(fixture->attempt.data, manifest.records_sha256, &fixture->err), 0);
    assert_string_equal(manifest.records_sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_int_equal(manifest_write(fixture->attempt.data, &manifest, &fixture->err), 0);
    assert_int_equal(manifest_read(fixture->attempt.data, &back, &fixture->err), 0);
    buf_append_text(&text, "d");
    assert_int_equal(buf_write_file(&text, path, 0644, &fixture->err), 0);
    assert_int_equal(manifest_read(fixture->attempt.data, &back, &fixture->err), CB_ERR_CORRUPT);
    unlink(path);
    assert_int_equal(manifest_read(fixture->attempt.data, &back, &fixture->err), CB_ERR_CORRUPT);
    buf_release(&text);
}

static void write_text(const char *path, const char *content)
{
    struct buf text;
    struct cb_err err;
    buf_init(&text, 1000);
    buf_append_text(&text, content);
    assert_int_equal(buf_write_file(&text, path, 0644, &err), 0);
    buf_release(&text);
}

static void records_that_come_after_the_seal_are_no_part_of_it(void **state)
{
    struct fixture *fixture = *state;
    struct manifest back, manifest = example();
    uint32_t attempt;
    char path[160];
    assert_int_equal(run_folder_new_attempt(fixture->run, &attempt, &fixture->attempt, &fixture->err), 0);
    manifest.ranks = manifest.samples = 0;
    assert_int_equal(manifest_write_for_agent(fixture->attempt.data, &manifest, &fixture->err), 0);
    snprintf(path, sizeof path, "%s/records", fixture->attempt.data);
    write_text(path, "too late");
    assert_int_equal(manifest_read(fixture->attempt.data, &back, &fixture->err), 0);
    assert_string_equal(back.records_sha256, "");
    assert_string_equal(back.sealed_by, "collect");
}

static void records_of_an_agent_that_died_before_its_seal_are_sealed(void **state)
{
    struct fixture *fixture = *state;
    struct manifest back, manifest = example();
    struct record record;
    uint32_t attempt;
    char path[160];
    assert_int_equal(run_folder_new_attempt(fixture->run, &attempt, &fixture->attempt, &fixture->err), 0);
    snprintf(path, sizeof path, "%s/records", fixture->attempt.data);
    record_init(&record, "20261121-abcd", 1, 3);
    record.ranks = calloc(1, sizeof *record.ranks);
    assert_non_null(record.ranks);
    record.ranks[0] = (struct record_rank){.failures = strdup(""), .facts = strdup(""), .sample_count = 2};
    record.ranks[0].samples = calloc(2, sizeof *record.ranks[0].samples);
    assert_non_null(record.ranks[0].samples);
    record.ranks[0].samples[0].op = record.ranks[0].samples[1].op = OP_SAVE;
    record.rank_count = 1;
    assert_int_equal(record_write(&record, path, &fixture->err), 0);
    record_release(&record);
    manifest.ranks = manifest.samples = 0;
    assert_int_equal(manifest_write_for_agent(fixture->attempt.data, &manifest, &fixture->err), 0);
    assert_int_equal(manifest_read(fixture->attempt.data, &back, &fixture->err), 0);
    assert_string_equal(back.message, "rank 2: \"quoted\"");
    assert_int_equal(strlen(back.records_sha256), 64);
    assert_int_equal(back.ranks, 1);
    assert_int_equal(back.samples, 2);
}

static void records_that_are_damaged_are_left_out_of_the_seal_and_the_message_says_so(void **state)
{
    struct fixture *fixture = *state;
    struct manifest back, manifest = example();
    uint32_t attempt;
    char path[160];
    assert_int_equal(run_folder_new_attempt(fixture->run, &attempt, &fixture->attempt, &fixture->err), 0);
    snprintf(path, sizeof path, "%s/records", fixture->attempt.data);
    write_text(path, "CBRECORDnothing like it");
    manifest.ranks = manifest.samples = 0;
    assert_int_equal(manifest_write_for_agent(fixture->attempt.data, &manifest, &fixture->err), 0);
    assert_int_equal(manifest_read(fixture->attempt.data, &back, &fixture->err), 0);
    assert_string_equal(back.records_sha256, "");
    assert_int_equal(back.samples, 0);
    assert_non_null(strstr(back.message, "its records are left out: "));
}

static void foreign_manifests_are_refused_by_name(void **state)
{
    struct fixture *fixture = *state;
    struct manifest manifest;
    const char *const texts[] = {"", "[]", "{\"version\":2}", "{\"version\":1,\"run\":\"x\"}", "{"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        int rc = manifest_parse("M", texts[i], strlen(texts[i]), &manifest, &fixture->err);
        assert_int_not_equal(rc, 0);
        assert_int_equal(strncmp(fixture->err.message, "M: ", 3), 0);
    }
}

static void progress_is_replaced_and_reads_back(void **state)
{
    struct fixture *fixture = *state;
    struct progress back, progress = {.state = "running",
                                      .op = "save",
                                      .iteration = 3,
                                      .iterations = 5,
                                      .bytes_done = 10,
                                      .bytes_total = 20,
                                      .bytes_per_s = 1.5,
                                      .slowest_rank = -1};
    assert_int_equal(progress_write(fixture->run, &progress, &fixture->err), 0);
    progress.slowest_rank = 2;
    strcpy(progress.note, "rank 2 moves nothing");
    assert_int_equal(progress_write(fixture->run, &progress, &fixture->err), 0);
    assert_int_equal(progress_read(fixture->run, &back, &fixture->err), 0);
    assert_string_equal(back.op, "save");
    assert_int_equal(back.slowest_rank, 2);
    assert_int_equal(back.bytes_total, 20);
    assert_string_equal(back.note, "rank 2 moves nothing");
    assert_int_equal(progress_read("/nonexistent", &back, &fixture->err), CB_ERR_NOT_FOUND);
}

static void a_lock_that_fails_leaves_no_number_of_a_closed_file(void **state)
{
    struct fixture *fixture = *state;
    char path[128];
    snprintf(path, sizeof path, "%s/lock", fixture->run);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666); /* which cannot be locked for reading */
    assert_true(fd >= 0);
    assert_true(run_folder_share_lock(fixture->run, &fd, &fixture->err) < 0);
    assert_int_equal(fd, -1);
}

static void an_unlocked_run_is_free_even_if_another_process_has_the_descriptor(void **state)
{
    struct fixture *fixture = *state;
    int fd, other, again;
    assert_int_equal(run_folder_lock(fixture->run, &fd, &fixture->err), 0);
    assert_true(fd >= 0);
    other = dup(fd);
    assert_int_equal(run_folder_lock(fixture->run, &again, &fixture->err), 0);
    assert_int_equal(again, -1);
    run_folder_unlock(fd);
    assert_int_equal(run_folder_lock(fixture->run, &again, &fixture->err), 0);
    assert_true(again >= 0);
    run_folder_unlock(again);
    close(other);
}

static void home_is_the_first_that_is_set(void **state)
{
    struct fixture *fixture = *state;
    struct buf path;
    struct stat facts;
    char wanted[128];
    buf_init(&path, 4096);
    unsetenv("CKPTBENCH_HOME");
    setenv("XDG_DATA_HOME", fixture->home, 1);
    assert_int_equal(home_folder(&path, &fixture->err), 0);
    snprintf(wanted, sizeof wanted, "%s/ckptbench", fixture->home);
    assert_string_equal(path.data, wanted);
    assert_int_equal(stat(wanted, &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0700);
    snprintf(wanted, sizeof wanted, "%s/deep/down", fixture->home);
    setenv("CKPTBENCH_HOME", wanted, 1);
    buf_clear(&path);
    assert_int_equal(home_folder(&path, &fixture->err), 0);
    assert_string_equal(path.data, wanted);
    buf_release(&path);
}

static void run_ids_have_a_date_and_differ(void **unused)
{
    (void)unused;
    char a[RUN_ID_BYTES], b[RUN_ID_BYTES];
    run_id_new(a);
    run_id_new(b);
    assert_int_equal(strlen(a), 13);
    assert_int_equal(a[8], '-');
    assert_int_equal(strspn(a, "0123456789"), 8);
    assert_string_not_equal(a, b);
}

static void outcomes_have_names_and_exit_codes(void **unused)
{
    (void)unused;
    for (unsigned i = 0; i < OUTCOME_COUNT; i++) {
        enum outcome outcome;
        assert_true(outcome_find(outcome_name((enum outcome)i), &outcome));
        assert_int_equal(outcome, i);
    }
    assert_int_equal(outcome_exit_code(OUTCOME_PASS), 0);
    assert_int_equal(outcome_exit_code(OUTCOME_BENCHMARK_FAILED), 3);
    assert_int_equal(outcome_exit_code(OUTCOME_TIMEOUT), 4);
    assert_int_equal(outcome_exit_code(OUTCOME_LOST), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(frozen_experiment_reads_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(folder_that_exists_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(attempts_count_up_from_1, set_up, tear_down),
        cmocka_unit_test_setup_teardown(manifest_reads_back_and_the_first_seal_wins, set_up, tear_down),
        cmocka_unit_test_setup_teardown(records_that_come_after_the_seal_are_no_part_of_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(records_of_an_agent_that_died_before_its_seal_are_sealed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(records_that_are_damaged_are_left_out_of_the_seal_and_the_message_says_so,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(records_that_changed_after_the_seal_are_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(foreign_manifests_are_refused_by_name, set_up, tear_down),
        cmocka_unit_test_setup_teardown(progress_is_replaced_and_reads_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_lock_that_fails_leaves_no_number_of_a_closed_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_unlocked_run_is_free_even_if_another_process_has_the_descriptor, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(home_is_the_first_that_is_set, set_up, tear_down),
        cmocka_unit_test(run_ids_have_a_date_and_differ),
        cmocka_unit_test(outcomes_have_names_and_exit_codes),
    };
    return cmocka_run_group_tests_name("run_folder", tests, NULL, NULL);
}
