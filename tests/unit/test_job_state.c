/* The run's state machine: what Slurm says and what the folder holds, and the state that follows. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "jobs/slurm/job_state.h"

#define NOW_NS (UINT64_C(1795274740) * NS_PER_S)

/* A submitted run whose job Slurm shows in `state` since `since_s` seconds. */
struct scene {
    struct job_record record;
    struct slurm_job slurm;
    struct job_folder folder;
    struct job_observation observation;
    struct job_verdict verdict;
};

static void set_scene(struct scene *self, const char *state, uint64_t since_s)
{
    memset(self, 0, sizeof *self);
    job_record_init(&self->record);
    strcpy(self->record.job, "4711");
    self->record.intent_wall_ns = self->record.submitted_wall_ns = NOW_NS - 100 * NS_PER_S;
    self->record.state = JOB_SUBMITTED;
    strcpy(self->slurm.id, "4711");
    strcpy(self->slurm.state_name, state);
    strcpy(self->slurm.nodes, "n[1-4]");
    self->slurm.state = slurm_state_find(state);
    self->observation = (struct job_observation){
        .slurm = &self->slurm, .asked = true, .now_wall_ns = NOW_NS, .folder = &self->folder, .down_nodes = ""};
    job_record_observe(&self->record, &self->slurm, NOW_NS - since_s * NS_PER_S);
}

static void judge(struct scene *self)
{
    job_state_judge(&self->record, &self->observation, &self->verdict);
}

static void set_attempt(struct scene *self, uint64_t sign_age_s, const char *progress_state, const char *op)
{
    self->folder.attempts = 1;
    self->folder.has_progress = true;
    self->folder.sign_wall_ns = NOW_NS - sign_age_s * NS_PER_S;
    self->folder.progress.iteration = 2;
    self->folder.progress.iterations = 5;
    strcpy(self->folder.progress.state, progress_state);
    strcpy(self->folder.progress.op, op);
}

static void set_sealed(struct scene *self, enum outcome outcome)
{
    set_attempt(self, 10, "sealing", "");
    self->folder.sealed = true;
    self->folder.manifest.outcome = outcome;
    self->folder.manifest.ended_wall_ns = NOW_NS - 10 * NS_PER_S;
}

/* Without a manifest, once every grace has passed. */
static void test_every_state_of_slurm_has_one_of_ours(void **state)
{
    static const struct {
        const char *slurm;
        enum job_state ours;
        bool seal;
        enum outcome outcome;
    } rows[] = {
        {"PENDING", JOB_PENDING, false, 0},
        {"CONFIGURING", JOB_BOOTING, false, 0},
        {"POWER_UP_NODE", JOB_BOOTING, false, 0},
        {"RUNNING", JOB_RUNNING, false, 0},
        {"SUSPENDED", JOB_RUNNING, false, 0},
        {"STOPPED", JOB_RUNNING, false, 0},
        {"RESIZING", JOB_RUNNING, false, 0},
        {"SIGNALING", JOB_RUNNING, false, 0},
        {"COMPLETING", JOB_SEALING, false, 0},
        {"STAGE_OUT", JOB_SEALING, false, 0},
        {"REQUEUED", JOB_PENDING, false, 0},
        {"REQUEUE_HOLD", JOB_PENDING, false, 0},
        {"SPECIAL_EXIT", JOB_PENDING, false, 0},
        {"RESV_DEL_HOLD", JOB_PENDING, false, 0},
        {"EXPEDITING", JOB_PENDING, false, 0},
        {"COMPLETED", JOB_LOST, true, OUTCOME_LOST},
        {"CANCELLED", JOB_CANCELLED, true, OUTCOME_CANCELLED},
        {"REVOKED", JOB_CANCELLED, true, OUTCOME_CANCELLED},
        {"FAILED", JOB_FAILED, true, OUTCOME_INFRASTRUCTURE},
        {"TIMEOUT", JOB_FAILED, true, OUTCOME_TIMEOUT},
        {"DEADLINE", JOB_FAILED, true, OUTCOME_TIMEOUT},
        {"NODE_FAIL", JOB_FAILED, true, OUTCOME_INFRASTRUCTURE},
        {"BOOT_FAIL", JOB_FAILED, true, OUTCOME_INFRASTRUCTURE},
        {"LAUNCH_FAILED", JOB_FAILED, true, OUTCOME_INFRASTRUCTURE},
        {"RECONFIG_FAIL", JOB_FAILED, true, OUTCOME_INFRASTRUCTURE},
        {"OUT_OF_MEMORY", JOB_FAILED, true, OUTCOME_INFRASTRUCTURE},
        {"PREEMPTED", JOB_FAILED, true, OUTCOME_PREEMPTED},
        {"HIBERNATING", JOB_SUBMITTED, false, 0}, /* of a release to come: nothing is concluded */
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct scene scene;
        set_scene(&scene, rows[i].slurm, 1000);
        judge(&scene);
        if (scene.verdict.state != rows[i].ours || scene.verdict.seal != rows[i].seal ||
            (rows[i].seal && scene.verdict.outcome != rows[i].outcome))
            fail_msg("%s gave %s, seal %d as %s", rows[i].slurm, job_state_name(scene.verdict.state),
                     scene.verdict.seal, outcome_name(scene.verdict.outcome));
    }
}

static void test_a_job_that_cleans_up_keeps_its_nodes(void **state)
{
    struct scene scene;
    (void)state;
    set_scene(&scene, "RUNNING", 1000);
    scene.slurm.node_count = 4;
    job_record_observe(&scene.record, &scene.slurm, NOW_NS);
    scene.slurm.state = SLURM_COMPLETING;
    strcpy(scene.slurm.state_name, "COMPLETING");
    strcpy(scene.slurm.nodes, "n3");
    scene.slurm.node_count = 1; /* of four, the others are done */
    job_record_observe(&scene.record, &scene.slurm, NOW_NS);
    assert_int_equal(scene.record.node_count, 4);
    assert_string_equal(scene.record.nodes, "n[1-4]");
}

static void test_a_job_given_up_in_the_queue_says_what_it_waited_for(void **state)
{
    struct scene scene;
    (void)state;
    set_scene(&scene, "PENDING", 1000);
    scene.slurm.node_count = 4;
    strcpy(scene.slurm.reason, "Resources");
    job_record_observe(&scene.record, &scene.slurm, NOW_NS);
    scene.slurm.state = SLURM_DEADLINE;
    strcpy(scene.slurm.state_name, "DEADLINE");
    strcpy(scene.slurm.reason, "DeadLine");
    job_record_observe(&scene.record, &scene.slurm, NOW_NS);
    judge(&scene);
    assert_true(scene.verdict.seal && scene.verdict.outcome == OUTCOME_TIMEOUT);
    assert_string_equal(scene.verdict.note, "not started in time (slurm.pending), because of Resources; fewer nodes "
                                            "(nodes=2) may start sooner");
    set_scene(&scene, "DEADLINE", 1000);
    set_attempt(&scene, 1000, "running", "save");
    judge(&scene);
    assert_non_null(strstr(scene.verdict.note, "time limit"));
}

static void test_the_folder_alone_decides_success(void **state)
{
    static const char *const names[] = {"COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "CANCELLED", "RUNNING"};
    struct scene scene;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        set_scene(&scene, names[i], 0);
        set_sealed(&scene, OUTCOME_PASS);
        judge(&scene);
        assert_int_equal(scene.verdict.state, JOB_DONE);
        assert_false(scene.verdict.seal);
    }
    set_scene(&scene, "COMPLETED", 0);
    set_sealed(&scene, OUTCOME_BENCHMARK_FAILED);
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_FAILED);
}

static void test_a_lost_node_is_named_with_the_place(void **state)
{
    struct scene scene;
    (void)state;
    set_scene(&scene, "NODE_FAIL", 1000);
    set_attempt(&scene, 30, "running", "save");
    scene.observation.down_nodes = "n3";
    judge(&scene);
    assert_string_equal(scene.verdict.note, "node n3 lost at save 2/5 (NODE_FAIL)");
    scene.observation.down_nodes = "";
    judge(&scene);
    assert_string_equal(scene.verdict.note, "a node of n[1-4] was lost at save 2/5 (NODE_FAIL)");
}

static void test_an_agent_has_time_to_seal_after_its_job_ended(void **state)
{
    struct scene scene;
    (void)state;
    set_scene(&scene, "COMPLETED", 1);
    set_attempt(&scene, 1, "sealing", "");
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_SEALING);
    assert_false(scene.verdict.seal);
}

static void test_what_may_be_requeued_is_not_final_before_the_grace_has_passed(void **state)
{
    struct scene scene;
    (void)state;
    set_scene(&scene, "PREEMPTED", 2);
    set_attempt(&scene, 2, "running", "save");
    scene.observation.may_requeue = true;
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_PENDING);
    set_scene(&scene, "PREEMPTED", JUDGE_GRACE_S + 1);
    scene.observation.may_requeue = true;
    judge(&scene);
    assert_int_equal(scene.verdict.outcome, OUTCOME_PREEMPTED);
    assert_true(scene.verdict.seal);
}

static void test_a_sealed_attempt_of_a_job_in_the_queue_comes_back(void **state)
{
    struct scene scene;
    (void)state;
    set_scene(&scene, "PENDING", 2);
    set_sealed(&scene, OUTCOME_PREEMPTED);
    scene.observation.may_requeue = true;
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_PENDING);
    set_scene(&scene, "RUNNING", 2);
    set_sealed(&scene, OUTCOME_PREEMPTED);
    scene.observation.may_requeue = true;
    scene.slurm.start_s = NOW_NS / NS_PER_S - 1; /* the next attempt */
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_RUNNING);
    scene.slurm.start_s = NOW_NS / NS_PER_S - 60; /* this one, not gone yet */
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_FAILED);
    scene.slurm.has_details = true; /* then no clock has a word: that of the nodes may be an hour ahead */
    scene.slurm.restarts = 1;
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_RUNNING);
    scene.slurm.restarts = 0;
    scene.slurm.start_s = NOW_NS / NS_PER_S;
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_FAILED);
    set_scene(&scene, "PENDING", 2);
    set_sealed(&scene, OUTCOME_PASS);
    scene.observation.may_requeue = true;
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_DONE);
}

static void test_a_job_that_slurm_forgot_is_lost_once_its_agent_is_silent(void **state)
{
    struct scene scene;
    (void)state;
    set_scene(&scene, "RUNNING", 300);
    scene.record.state = JOB_RUNNING;
    scene.observation.slurm = NULL;
    set_attempt(&scene, 2, "running", "save");
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_RUNNING); /* it moves: alive, whatever Slurm forgot */
    set_attempt(&scene, JUDGE_SILENCE_S + 1, "running", "save");
    judge(&scene);
    assert_int_equal(scene.verdict.outcome, OUTCOME_LOST);
    assert_non_null(strstr(scene.verdict.note, "at save 2/5 (last seen as RUNNING)"));
    scene.record.cancel_asked = true;
    judge(&scene);
    assert_int_equal(scene.verdict.outcome, OUTCOME_CANCELLED);
}

static void test_where_accounting_is_silent_it_is_waited_for_a_while(void **state)
{
    struct scene scene;
    (void)state;
    set_scene(&scene, "RUNNING", 300);
    scene.record.state = JOB_RUNNING;
    scene.observation.slurm = NULL;
    scene.observation.accounting_is_silent = true;
    set_attempt(&scene, JUDGE_SILENCE_S + 1, "running", "save");
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_RUNNING);
    assert_false(scene.verdict.seal);
    assert_non_null(strstr(scene.verdict.note, "accounting does not answer"));
    set_attempt(&scene, JUDGE_PATIENCE_S + 1, "running", "save");
    scene.record.slurm_state_wall_ns = scene.record.submitted_wall_ns = NOW_NS - (JUDGE_PATIENCE_S + 1) * NS_PER_S;
    judge(&scene);
    assert_int_equal(scene.verdict.outcome, OUTCOME_LOST);
}

static void test_a_task_called_off_before_it_began_is_cancelled_at_once(void **state)
{
    struct scene scene;
    (void)state;
    set_scene(&scene, "PENDING", 1);
    scene.record.state = JOB_PENDING;
    scene.record.cancel_asked = true;
    scene.observation.slurm = NULL;
    judge(&scene);
    assert_false(scene.verdict.seal); /* of a job of its own Slurm keeps the end: it is only late */
    scene.record.in_array = true;
    judge(&scene);
    assert_true(scene.verdict.seal);
    assert_int_equal(scene.verdict.outcome, OUTCOME_CANCELLED);
    scene.observation.asked = false;
    judge(&scene);
    assert_false(scene.verdict.seal);
    scene.observation.asked = true;
    scene.record.began_s = 1;
    judge(&scene);
    assert_false(scene.verdict.seal);
    scene.record.began_s = 0;
    set_attempt(&scene, 2, "running", "save");
    judge(&scene);
    assert_false(scene.verdict.seal);
}

static void test_a_job_just_sent_is_not_lost_because_squeue_is_late(void **state)
{
    struct scene scene;
    (void)state;
    set_scene(&scene, "PENDING", 0);
    scene.record.slurm_state[0] = '\0';
    scene.record.slurm_state_wall_ns = 0;
    scene.record.submitted_wall_ns = NOW_NS - NS_PER_S;
    scene.observation.slurm = NULL;
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_SUBMITTED);
    assert_false(scene.verdict.seal);
}

static void test_without_an_answer_of_slurm_the_state_stands(void **state)
{
    struct scene scene;
    (void)state;
    set_scene(&scene, "RUNNING", 1000);
    scene.record.state = JOB_RUNNING;
    scene.observation.slurm = NULL;
    scene.observation.asked = false;
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_RUNNING);
    assert_false(scene.verdict.seal);
    set_sealed(&scene, OUTCOME_PASS); /* which needs no Slurm */
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_DONE);
}

static void test_intended_but_unanswered_is_submitted_and_never_lost(void **state)
{
    struct scene scene;
    (void)state;
    set_scene(&scene, "PENDING", 0);
    scene.record.job[0] = '\0';
    scene.observation.slurm = NULL;
    scene.record.intent_wall_ns = NOW_NS - 10000 * NS_PER_S;
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_SUBMITTED);
    assert_false(scene.verdict.seal);
    scene.record.intent_wall_ns = 0;
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_PLANNED);
}

static void observe(struct job_record *record, const char *state, uint64_t submit_s, uint64_t start_s)
{
    struct slurm_job job = {.state = slurm_state_find(state), .submit_s = submit_s, .start_s = start_s};
    snprintf(job.state_name, sizeof job.state_name, "%s", state);
    job_record_observe(record, &job, NOW_NS);
}

static void test_queue_and_boot_are_told_apart_though_slurm_overwrites_the_start(void **state)
{
    struct job_record record;
    (void)state;
    job_record_init(&record);
    observe(&record, "PENDING", 100, 500); /* what Slurm reckons counts for nothing */
    assert_true(isnan(record.queue_s) && isnan(record.boot_s));
    observe(&record, "CONFIGURING", 100, 130);
    assert_true(record.queue_s == 30 && isnan(record.boot_s));
    observe(&record, "RUNNING", 100, 150);
    assert_true(record.queue_s == 30 && record.boot_s == 20);
    observe(&record, "PENDING", 160, 0);
    observe(&record, "CONFIGURING", 160, 170);
    observe(&record, "NODE_FAIL", 160, 190); /* never up */
    assert_true(record.queue_s == 10 && isnan(record.boot_s));
    observe(&record, "PENDING", 200, 0); /* requeued: of the last attempt */
    assert_true(isnan(record.queue_s) && isnan(record.boot_s));
    observe(&record, "RUNNING", 200, 207);
    assert_true(record.queue_s == 7 && record.boot_s == 0);
}

static void test_a_boot_that_nobody_watched_is_what_the_scheduler_says(void **state)
{
    struct job_record record;
    struct slurm_job job = {.state = SLURM_COMPLETED, .submit_s = 100, .start_s = 150, .has_details = true};
    (void)state;
    job_record_init(&record);
    job.scheduled_s = 130;
    job_record_observe(&record, &job, NS_PER_S);
    assert_true(record.queue_s == 30 && record.boot_s == 20);
    job_record_init(&record);
    job.scheduled_s = 149; /* whole seconds: as good as at once */
    job_record_observe(&record, &job, NS_PER_S);
    assert_true(record.queue_s == 50 && record.boot_s == 0);
    job_record_init(&record);
    job.scheduled_s = 90; /* before it was submitted again: of another start */
    job_record_observe(&record, &job, NS_PER_S);
    assert_true(record.queue_s == 50 && record.boot_s == 0);
}

static void test_a_run_that_comes_after_another_of_its_job_waits_for_it(void **state)
{
    struct scene scene;
    (void)state;
    set_scene(&scene, "RUNNING", 30);
    strcpy(scene.record.before, "20261121-k3f9.01");
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_PENDING);
    assert_string_equal(scene.verdict.note, "comes after 20261121-k3f9.01 in the same job");
    set_attempt(&scene, 1, "running", "step");
    judge(&scene);
    assert_int_equal(scene.verdict.state, JOB_RUNNING);
    job_record_release(&scene.record);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_state_of_slurm_has_one_of_ours),
        cmocka_unit_test(test_a_job_that_cleans_up_keeps_its_nodes),
        cmocka_unit_test(test_a_job_given_up_in_the_queue_says_what_it_waited_for),
        cmocka_unit_test(test_the_folder_alone_decides_success),
        cmocka_unit_test(test_a_lost_node_is_named_with_the_place),
        cmocka_unit_test(test_an_agent_has_time_to_seal_after_its_job_ended),
        cmocka_unit_test(test_what_may_be_requeued_is_not_final_before_the_grace_has_passed),
        cmocka_unit_test(test_a_sealed_attempt_of_a_job_in_the_queue_comes_back),
        cmocka_unit_test(test_a_job_that_slurm_forgot_is_lost_once_its_agent_is_silent),
        cmocka_unit_test(test_where_accounting_is_silent_it_is_waited_for_a_while),
        cmocka_unit_test(test_a_task_called_off_before_it_began_is_cancelled_at_once),
        cmocka_unit_test(test_a_job_just_sent_is_not_lost_because_squeue_is_late),
        cmocka_unit_test(test_without_an_answer_of_slurm_the_state_stands),
        cmocka_unit_test(test_intended_but_unanswered_is_submitted_and_never_lost),
        cmocka_unit_test(test_queue_and_boot_are_told_apart_though_slurm_overwrites_the_start),
        cmocka_unit_test(test_a_run_that_comes_after_another_of_its_job_waits_for_it),
        cmocka_unit_test(test_a_boot_that_nobody_watched_is_what_the_scheduler_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
