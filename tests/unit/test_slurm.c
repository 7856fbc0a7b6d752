/* What Slurm says, read: recorded answers of Slurm 22.05, and answers that nobody should give. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "jobs/slurm/slurm.h"

static void read_queue(const char *text, struct slurm_jobs *jobs)
{
    *jobs = (struct slurm_jobs){0};
    assert_int_equal(slurm_parse_queue(text, strlen(text), jobs, NULL), 0);
}

static void test_queue_lines_are_read_with_arrays_and_reasons(void **state)
{
    struct slurm_jobs jobs;
    (void)state;
    read_queue("3_1|1|PENDING|2|1795274740|1795274920||20261121-k3f9.01|ckptbench/20261121-k3f9.01|Resources\n"
               "2|N/A|RUNNING|2|1795274740|1795274741|n[1-2]|20261121-k3f9.02|ckptbench/20261121-k3f9.02|None\n",
               &jobs);
    assert_int_equal(jobs.count, 2);
    assert_string_equal(jobs.items[0].id, "3_1");
    assert_true(jobs.items[0].in_array);
    assert_int_equal(jobs.items[0].array_task, 1);
    assert_int_equal(jobs.items[0].state, SLURM_PENDING);
    assert_string_equal(jobs.items[0].reason, "Resources");
    assert_string_equal(jobs.items[0].nodes, "");
    assert_string_equal(jobs.items[1].name, "20261121-k3f9.02");
    assert_string_equal(jobs.items[1].nodes, "n[1-2]");
    assert_int_equal(jobs.items[1].submit_s, 1795274740);
    assert_int_equal(jobs.items[1].start_s, 1795274741);
    assert_false(jobs.items[1].in_array);
    slurm_jobs_release(&jobs);
}

static void test_a_reason_holds_whatever_slurm_puts_there(void **state)
{
    struct slurm_jobs jobs;
    (void)state;
    read_queue("7|N/A|PENDING|9|1|N/A||a|b|(ReqNodeNotAvail, UnavailableNodes:n3) | \x1b[31m\n", &jobs);
    assert_string_equal(jobs.items[0].reason, "(ReqNodeNotAvail, UnavailableNodes:n3) | ?[31m");
    assert_int_equal(jobs.items[0].start_s, 0);
    slurm_jobs_release(&jobs);
}

static void test_lines_that_are_no_jobs_are_left_out_and_counted(void **state)
{
    struct slurm_jobs jobs;
    (void)state;
    read_queue("Welcome to the cluster!\n|||||||||\n3_[1-2]|1-2|PENDING|2|1|2||n|c|r\n-1|N/A|RUNNING|1|1|1|n|n|c|r\n\n"
               "99999999999999999999|N/A|RUNNING|1|1|1|n|n|c|r\n8|N/A|RUNNING|1|1|1|n1|n|c|None",
               &jobs);
    assert_int_equal(jobs.count, 1);
    assert_int_equal(jobs.left_out, 5);
    assert_string_equal(jobs.items[0].id, "8");
    slurm_jobs_release(&jobs);
}

static void test_details_are_read_from_one_line_a_job(void **state)
{
    static const char text[] =
        "JobId=4 ArrayJobId=3 ArrayTaskId=0 JobName=20261121-k3f9.01 UserId=root(0) Requeue=1 Restarts=2 BatchFlag=1 "
        "JobState=NODE_FAIL Reason=NodeDown ExitCode=0:9 SubmitTime=1795274740 EligibleTime=1795274740 "
        "StartTime=1795274750 EndTime=1795275100 NodeList=n[3-4] BatchHost=n3 NumNodes=2 Comment=ckptbench/x "
        "StdOut=/home/a JobState=RUNNING/job.log\n"
        "JobId=9 JobState=PENDING NodeList=(null) StartTime=Unknown NumNodes=5-5\n";
    struct slurm_jobs jobs = {0};
    (void)state;
    assert_int_equal(slurm_parse_details(text, sizeof text - 1, &jobs, NULL), 0);
    assert_int_equal(jobs.count, 2);
    assert_string_equal(jobs.items[0].id, "3_0");
    assert_int_equal(jobs.items[0].state, SLURM_NODE_FAIL);
    assert_int_equal(jobs.items[0].restarts, 2);
    assert_int_equal(jobs.items[0].exit_signal, 9);
    assert_string_equal(jobs.items[0].nodes, "n[3-4]");
    assert_string_equal(jobs.items[0].head, "n3");
    assert_int_equal(jobs.items[0].end_s, 1795275100);
    assert_true(jobs.items[0].has_details);
    assert_string_equal(jobs.items[1].nodes, "");
    assert_int_equal(jobs.items[1].start_s, 0);
    slurm_jobs_release(&jobs);
}

static void test_accounting_is_read_and_steps_are_left_out(void **state)
{
    static const char text[] = "12|CANCELLED by 1000|0:15|1795274740|1795274750|1795274800|2|n[1-2]|a name\n"
                               "12.batch|CANCELLED|0:15|1|1|1|1|n1|batch\n"
                               "13_4|OUT_OF_MEMORY|0:125|1|Unknown|1|1|n1|x\n"
                               "14|CANCELLED|0:0|1|None|1|1|None assigned|x\n";
    struct slurm_jobs jobs = {0};
    (void)state;
    assert_int_equal(slurm_parse_accounting(text, sizeof text - 1, &jobs, NULL), 0);
    assert_int_equal(jobs.count, 3);
    assert_int_equal(jobs.items[0].state, SLURM_CANCELLED);
    assert_int_equal(jobs.items[0].exit_signal, 15);
    assert_int_equal(jobs.items[1].state, SLURM_OUT_OF_MEMORY);
    assert_int_equal(jobs.items[1].array_task, 4);
    assert_string_equal(jobs.items[2].nodes, "");
    slurm_jobs_release(&jobs);
}

static void check_submitted(const char *text, int rc, const char *id, const char *cluster)
{
    char got_id[64] = "", got_cluster[64] = "";
    assert_int_equal(slurm_parse_submitted(text, strlen(text), got_id, got_cluster, NULL), rc);
    assert_string_equal(got_id, id);
    assert_string_equal(got_cluster, cluster);
}

static void test_the_number_of_a_submitted_job_is_found_behind_banners(void **state)
{
    (void)state;
    check_submitted("4711\n", 0, "4711", "");
    check_submitted("4711;alpha\n", 0, "4711", "alpha");
    check_submitted("*** Welcome, 3 nodes are down ***\n\n4712\n", 0, "4712", "");
    check_submitted("Submitted batch job 4711\n", CB_ERR_FORMAT, "", "");
    check_submitted("", CB_ERR_FORMAT, "", "");
}

static void test_ping_is_up_only_where_a_controller_is(void **state)
{
    (void)state;
    assert_true(slurm_parse_ping("Slurmctld(primary) at vm is UP\n", 31));
    assert_false(slurm_parse_ping("Slurmctld(primary) at vm is DOWN\n", 33));
    assert_true(slurm_parse_ping("Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP", 60));
    assert_false(slurm_parse_ping("", 0));
}

static void test_names_are_joined_once_each(void **state)
{
    char names[64];
    (void)state;
    slurm_parse_names("n3\nn3\nn30 \n\nn3\n", 15, names, sizeof names);
    assert_string_equal(names, "n3,n30");
    slurm_parse_names("a-long-node\nn2\n", 15, names, 6);
    assert_string_equal(names, "n2");
}

static void test_the_size_of_arrays_is_read_from_the_configuration(void **state)
{
    static const char config[] = "Configuration data as of 2026-11-21T22:00:00\nMaxArraySizes = 7\n"
                                 "MaxArraySize            = 1001 \nMaxJobCount             = 10000\n";
    uint64_t number;
    (void)state;
    assert_true(slurm_parse_setting(config, strlen(config), "MaxArraySize", &number));
    assert_int_equal(number, 1001);
    assert_true(slurm_parse_setting("MaxArraySize=5", 14, "MaxArraySize", &number));
    assert_int_equal(number, 5);
    assert_false(slurm_parse_setting("MaxArraySize", 12, "MaxArraySize", &number));
    assert_false(slurm_parse_setting("MaxArraySize = UNLIMITED\n", 25, "MaxArraySize", &number));
    assert_false(slurm_parse_setting("", 0, "MaxArraySize", &number));
}

static void test_every_state_has_a_name_a_phase_and_a_way_back(void **state)
{
    (void)state;
    for (unsigned i = SLURM_UNKNOWN + 1; i < SLURM_STATE_COUNT; i++) {
        enum slurm_state one = (enum slurm_state)i;
        assert_int_equal(slurm_state_find(slurm_state_name(one)), one);
        assert_int_not_equal(slurm_state_phase(one), SLURM_IS_UNKNOWN);
    }
    assert_int_equal(slurm_state_find("CANCELLED by 1000"), SLURM_CANCELLED);
    assert_int_equal(slurm_state_find("CANCELLED+"), SLURM_CANCELLED);
    assert_int_equal(slurm_state_find("HIBERNATING"), SLURM_UNKNOWN);
    assert_int_equal(slurm_state_find(""), SLURM_UNKNOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queue_lines_are_read_with_arrays_and_reasons),
        cmocka_unit_test(test_a_reason_holds_whatever_slurm_puts_there),
        cmocka_unit_test(test_lines_that_are_no_jobs_are_left_out_and_counted),
        cmocka_unit_test(test_details_are_read_from_one_line_a_job),
        cmocka_unit_test(test_accounting_is_read_and_steps_are_left_out),
        cmocka_unit_test(test_the_number_of_a_submitted_job_is_found_behind_banners),
        cmocka_unit_test(test_ping_is_up_only_where_a_controller_is),
        cmocka_unit_test(test_names_are_joined_once_each),
        cmocka_unit_test(test_the_size_of_arrays_is_read_from_the_configuration),
        cmocka_unit_test(test_every_state_has_a_name_a_phase_and_a_way_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
