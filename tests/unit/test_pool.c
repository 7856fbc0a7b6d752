/* Pools: their files, what they cost, when they end, what Slurm's words mean for them, and the spool. */
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

#include "agent/pool/pool_job.h"
#include "core/clock.h"
#include "core/version.h"
#include "jobs/slurm/job_script.h"
#include "jobs/slurm/pool_state.h"
#include "run/pool.h"
#include "run/spool.h"

#define HOUR_NS (3600 * NS_PER_S)

static const struct pool plain = {.id = "20261121-k3f9",
                                  .name = "night",
                                  .mode = POOL_TOUCH,
                                  .nodes = 4,
                                  .created_wall_ns = 1000 * NS_PER_S,
                                  .expires_wall_ns = 1000 * NS_PER_S + 2 * HOUR_NS,
                                  .budget_node_ns = 8 * HOUR_NS,
                                  .period_ns = 300 * NS_PER_S,
                                  .boot_most_ns = 60 * NS_PER_S,
                                  .intent_wall_ns = 1000 * NS_PER_S,
                                  .job = "4711",
                                  .sbcast = "/tmp"};

static char base[64];

static int make_base(void **state)
{
    (void)state;
    snprintf(base, sizeof base, "/tmp/test-pool-XXXXXX");
    return mkdtemp(base) ? setenv("CKPTBENCH_HOME", base, 1) : -1;
}

static int remove_base(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", base);
    return system(command);
}

static void make_pool(const struct pool *pool, char folder[256])
{
    struct buf path;
    struct cb_err err;
    buf_init(&path, 4096);
    assert_int_equal(pool_folder(pool->id, &path, &err), 0);
    if (pool_create(pool, path.data, &err))
        fail_msg("%s", err.message);
    snprintf(folder, 256, "%.255s", path.data);
    buf_release(&path);
}

static void test_names_that_need_no_quotes_are_names(void **state)
{
    static const char *const good[] = {"night", "a", "A-1.b_c", "0"};
    static const char *const bad[] = {"", "-x", ".x", "a/b", "a b", "$(x)", "a\nb", "ä"};
    char longest[POOL_NAME_BYTES + 1];
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(pool_check_name(good[i], NULL), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(pool_check_name(bad[i], NULL), CB_ERR_USAGE);
    memset(longest, 'x', sizeof longest);
    longest[POOL_NAME_BYTES] = '\0';
    assert_int_equal(pool_check_name(longest, NULL), CB_ERR_USAGE);
    longest[POOL_NAME_BYTES - 1] = '\0';
    assert_int_equal(pool_check_name(longest, NULL), 0);
}

static void test_a_pool_reads_back_as_it_was_written(void **state)
{
    char folder[256];
    struct pool read;
    struct cb_err err;
    (void)state;
    make_pool(&plain, folder);
    assert_int_equal(pool_read(folder, &read, &err), 0);
    assert_string_equal(read.id, plain.id);
    assert_string_equal(read.name, plain.name);
    assert_string_equal(read.job, plain.job);
    assert_string_equal(read.sbcast, plain.sbcast);
    assert_int_equal(read.mode, plain.mode);
    assert_int_equal(read.nodes, plain.nodes);
    assert_int_equal(read.expires_wall_ns, plain.expires_wall_ns);
    assert_int_equal(read.budget_node_ns, plain.budget_node_ns);
    assert_int_equal(read.period_ns, plain.period_ns);
    assert_int_equal(read.boot_most_ns, plain.boot_most_ns);
    assert_int_equal(pool_create(&plain, folder, &err), CB_ERR_EXISTS);
}

static void test_foreign_bytes_are_no_pool(void **state)
{
    static const char *const texts[] = {"", "{}", "[]", "{\"version\":2}", "{\"version\":1,\"id\":1}"};
    struct pool pool = plain;
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_int_equal(pool_parse("pool.json", texts[i], strlen(texts[i]), &pool, NULL), CB_ERR_FORMAT);
    assert_string_equal(pool.name, "night"); /* untouched on failure */
}

static void add_share(const char *folder, const char *job, uint64_t restarts, uint64_t nodes, uint64_t allocated_s,
                      uint64_t began_s, uint64_t seen_s, uint64_t kept_s)
{
    struct pool_share share = {.restarts = restarts,
                               .node_count = nodes,
                               .nodes = "n[1-4]",
                               .allocated_wall_ns = allocated_s * NS_PER_S,
                               .began_wall_ns = began_s * NS_PER_S,
                               .seen_wall_ns = seen_s * NS_PER_S,
                               .kept_ns = kept_s * NS_PER_S,
                               .ended = true};
    snprintf(share.job, sizeof share.job, "%s", job);
    assert_int_equal(pool_write_share(folder, &share, NULL), 0);
}

static void test_a_pool_costs_boots_jobs_and_what_it_keeps_up(void **state)
{
    char folder[256], path[512];
    struct pool_usage usage;
    (void)state;
    make_pool(&plain, folder);
    assert_int_equal(pool_sum(&plain, folder, &usage, NULL), 0);
    assert_int_equal(usage.node_ns, 0);
    assert_int_equal(usage.jobs, 0);
    add_share(folder, "4711", 0, 4, 1000, 1020, 1021, 300); /* 20 s of boot, 1 s, then 300 s kept up: 4 nodes */
    add_share(folder, "4712", 0, 1, 1321, 1321, 1322, 300);
    snprintf(path, sizeof path, "%s/jobs/4713.0.tmp", folder); /* half written, of a job that died: no share */
    FILE *garbage = fopen(path, "w");
    fputs("{", garbage);
    fclose(garbage);
    assert_int_equal(pool_sum(&plain, folder, &usage, NULL), 0);
    assert_int_equal(usage.node_ns, (4 * 321 + 301) * NS_PER_S);
    assert_int_equal(usage.job_node_ns, (4 * 21 + 1) * NS_PER_S);
    assert_int_equal(usage.boot_ns, 20 * NS_PER_S);
    assert_int_equal(usage.jobs, 2);
    assert_int_equal(usage.failures, 0);
    assert_string_equal(usage.nodes, "n[1-4]");
}

/* A job whose nodes did not come up twice, then ran, was started again, and failed to come up once more. */
static void test_boots_that_failed_cost_as_long_as_they_may_take(void **state)
{
    char folder[256];
    struct pool_usage usage;
    (void)state;
    make_pool(&plain, folder);
    add_share(folder, "4711", 2, 4, 1000, 1000, 1010, 0);
    assert_int_equal(pool_sum(&plain, folder, &usage, NULL), 0);
    assert_int_equal(usage.failures, 2);
    assert_int_equal(usage.node_ns, (4 * 10 + 2 * 4 * 60) * NS_PER_S);
    add_share(folder, "4711", 3, 4, 2000, 2000, 2010, 0);
    assert_int_equal(pool_sum(&plain, folder, &usage, NULL), 0);
    assert_int_equal(usage.failures, 2);
    add_share(folder, "4711", 5, 4, 3000, 3000, 3010, 0);
    assert_int_equal(pool_sum(&plain, folder, &usage, NULL), 0);
    assert_int_equal(usage.failures, 3);
}

static void test_touches_end_with_time_budget_and_failures(void **state)
{
    struct pool_usage usage = {0};
    char reason[256] = "";
    uint64_t start_ns = plain.created_wall_ns;
    (void)state;
    assert_true(pool_may_touch(&plain, &usage, 1, start_ns, reason, sizeof reason));
    assert_true(pool_may_touch(&plain, &usage, 1, plain.expires_wall_ns - plain.period_ns - 1, reason, sizeof reason));
    assert_false(pool_may_touch(&plain, &usage, 1, plain.expires_wall_ns - plain.period_ns, reason, sizeof reason));
    assert_string_equal(reason, "its time is over");
    usage.node_ns = plain.budget_node_ns - plain.period_ns;
    assert_true(pool_may_touch(&plain, &usage, 1, start_ns, reason, sizeof reason));
    assert_false(pool_may_touch(&plain, &usage, 2, start_ns, reason, sizeof reason));
    assert_string_equal(reason, "its budget is used up");
    usage = (struct pool_usage){.failures = POOL_MOST_FAILURES};
    assert_false(pool_may_touch(&plain, &usage, 1, start_ns, reason, sizeof reason));
    assert_non_null(strstr(reason, "failed"));
}

static void test_a_held_allocation_ends_with_what_comes_first(void **state)
{
    struct pool_usage earlier = {0};
    struct pool_share share = {.node_count = 4, .allocated_wall_ns = plain.created_wall_ns + 10 * NS_PER_S};
    struct pool pool = plain;
    (void)state;
    pool.budget_node_ns = 4 * HOUR_NS;
    assert_int_equal(pool_hold_end_wall_ns(&pool, &earlier, &share), share.allocated_wall_ns + HOUR_NS);
    earlier.node_ns = 2 * HOUR_NS;
    assert_int_equal(pool_hold_end_wall_ns(&pool, &earlier, &share), share.allocated_wall_ns + HOUR_NS / 2);
    earlier.node_ns = 9 * HOUR_NS;
    assert_int_equal(pool_hold_end_wall_ns(&pool, &earlier, &share), share.allocated_wall_ns);
    pool.budget_node_ns = 100 * HOUR_NS;
    assert_int_equal(pool_hold_end_wall_ns(&pool, &earlier, &share), pool.expires_wall_ns);
}

static void test_the_first_to_end_a_pool_says_why(void **state)
{
    char folder[256];
    struct pool_end end;
    (void)state;
    make_pool(&plain, folder);
    assert_false(pool_has_ended(folder));
    assert_int_equal(pool_read_end(folder, &end, NULL), CB_ERR_NOT_FOUND);
    assert_false(pool_is_stopping(folder));
    assert_int_equal(pool_ask_stop(folder, NULL), 0);
    assert_true(pool_is_stopping(folder));
    assert_int_equal(pool_write_end(folder, "first", NULL), 0);
    assert_int_equal(pool_write_end(folder, "second", NULL), 0);
    assert_int_equal(pool_read_end(folder, &end, NULL), 0);
    assert_string_equal(end.reason, "first");
}

/* ---- what Slurm says ---- */

static void test_when_nodes_sleep_is_read_from_the_partition_first(void **state)
{
    static const char config[] = "SuspendRate             = 60 nodes/min\nSuspendTime             = 600 sec\n"
                                 "ResumeTimeout           = 1800 sec\n";
    static const char off[] = "SuspendTime             = INFINITE\nResumeTimeout           = 60 sec\n";
    static const char partitions[] =
        "PartitionName=cpu Default=YES SuspendTime=GLOBAL ResumeTimeout=GLOBAL TRES=x\n"
        "PartitionName=gpu Default=NO ResumeTimeout=90 SuspendTimeout=GLOBAL SuspendTime=120 TRES=x\n"
        "PartitionName=kept Default=NO ResumeTimeout=GLOBAL SuspendTimeout=GLOBAL SuspendTime=INFINITE TRES=x\n";
    struct slurm_power power;
    (void)state;
    slurm_parse_power(config, partitions, "", &power);
    assert_true(power.saves);
    assert_int_equal(power.suspend_ns, 600 * NS_PER_S);
    assert_int_equal(power.resume_most_ns, 1800 * NS_PER_S);
    assert_int_equal(pool_touch_period_ns(&power), 300 * NS_PER_S);
    slurm_parse_power(config, partitions, "gpu", &power);
    assert_int_equal(power.suspend_ns, 120 * NS_PER_S);
    assert_int_equal(power.resume_most_ns, 90 * NS_PER_S);
    slurm_parse_power(config, partitions, "kept", &power);
    assert_false(power.saves);
    slurm_parse_power(off, partitions, "", &power);
    assert_false(power.saves);
    slurm_parse_power(off, partitions, "gpu", &power);
    assert_true(power.saves);
    slurm_parse_power("SuspendTime = -1\n", "", "", &power);
    assert_false(power.saves);
    slurm_parse_power("", "", "gpu", &power);
    assert_false(power.saves);
}

static void test_a_job_knows_how_long_its_nodes_took_to_boot(void **state)
{
    static const char booted[] = "JobId=7 JobName=x Restarts=1 EligibleTime=1000 StartTime=1040 LastSchedEval=1010 "
                                 "NodeList=n[1-2] BatchHost=n1 NumNodes=2 NumCPUs=4\n";
    static const char idle[] = "JobId=7 JobName=x Restarts=0 EligibleTime=1000 StartTime=1011 LastSchedEval=1010 "
                               "NodeList=n1 NumNodes=1\n";
    struct pool_share share = {0};
    uint64_t boot_s = 99;
    (void)state;
    assert_true(pool_job_read_details(booted, &share, &boot_s));
    assert_int_equal(boot_s, 30);
    assert_int_equal(share.node_count, 2);
    assert_int_equal(share.restarts, 1);
    assert_string_equal(share.nodes, "n[1-2]");
    assert_true(pool_job_read_details(idle, &share, &boot_s));
    assert_int_equal(boot_s, 0);
    assert_false(pool_job_read_details("slurm_load_jobs error: Invalid job id", &share, &boot_s));
}

static struct pool_verdict judge(const struct pool *pool, struct pool_observation observation,
                                 enum slurm_state job_state, uint64_t restarts)
{
    struct slurm_job job = {.id = "4711", .state = job_state, .reason = "Resources", .restarts = restarts};
    struct slurm_jobs jobs = {.items = &job, .count = job_state == SLURM_UNKNOWN ? 0 : 1};
    struct pool_verdict verdict;
    snprintf(job.name, sizeof job.name, "%s", pool->id);
    observation.jobs = &jobs;
    observation.asked = true;
    observation.now_wall_ns = observation.now_wall_ns ? observation.now_wall_ns : pool->created_wall_ns + 60 * NS_PER_S;
    pool_state_judge(pool, &observation, &verdict);
    return verdict;
}

static void test_the_state_of_a_pool_follows_its_jobs(void **state)
{
    struct pool hold = plain;
    struct pool_end end = {.reason = "its time is over"};
    struct pool_observation fresh = {0}, touched = {.usage = {.jobs = 3}}, ended = {.end = &end};
    struct pool_observation just_sent = {.now_wall_ns = plain.intent_wall_ns + NS_PER_S}, stopping = {.stopping = true};
    (void)state;
    hold.mode = POOL_HOLD;
    assert_int_equal(judge(&hold, fresh, SLURM_PENDING, 0).state, POOL_PENDING);
    assert_string_equal(judge(&hold, fresh, SLURM_PENDING, 0).note, "Resources");
    assert_int_equal(judge(&hold, fresh, SLURM_CONFIGURING, 0).state, POOL_BOOTING);
    assert_int_equal(judge(&hold, fresh, SLURM_RUNNING, 0).state, POOL_UP);
    assert_int_equal(judge(&plain, touched, SLURM_PENDING, 0).state, POOL_UP);
    assert_int_equal(judge(&plain, fresh, SLURM_PENDING, 0).state, POOL_PENDING);
    assert_int_equal(judge(&hold, stopping, SLURM_RUNNING, 0).state, POOL_ENDING);
    assert_int_equal(judge(&hold, fresh, SLURM_CANCELLED, 0).state, POOL_ENDED);
    assert_int_equal(judge(&hold, fresh, SLURM_UNKNOWN, 0).state, POOL_ENDED);
    assert_int_equal(judge(&hold, just_sent, SLURM_UNKNOWN, 0).state, POOL_SUBMITTED);
    struct pool_verdict over = judge(&hold, ended, SLURM_UNKNOWN, 0);
    assert_int_equal(over.state, POOL_ENDED);
    assert_string_equal(over.note, "its time is over");
}

static void test_nodes_that_do_not_come_up_are_given_up_with_a_proposal(void **state)
{
    struct pool_observation fresh = {0};
    (void)state;
    struct pool_verdict once = judge(&plain, fresh, SLURM_PENDING, 1);
    assert_false(once.give_up);
    assert_non_null(strstr(once.note, "1 time "));
    assert_non_null(strstr(once.note, "nodes=2"));
    struct pool_verdict last = judge(&plain, fresh, SLURM_CONFIGURING, POOL_MOST_FAILURES);
    assert_true(last.give_up);
    struct pool single = plain;
    single.nodes = 1;
    assert_null(strstr(judge(&single, fresh, SLURM_PENDING, 1).note, "fewer"));
}

static void test_a_led_pool_whose_nodes_did_not_come_up_has_ended(void **state)
{
    struct pool_observation fresh = {.now_wall_ns = plain.intent_wall_ns + NS_PER_S}, held = fresh;
    struct pool by_slurm = plain; /* repeats the job by itself */
    (void)state;
    by_slurm.sbcast[0] = '\0';
    held.usage.jobs = 1;
    struct pool_verdict failed = judge(&plain, fresh, SLURM_NODE_FAIL, 0);
    assert_int_equal(failed.state, POOL_ENDED);
    assert_non_null(strstr(failed.note, "did not come up: try fewer nodes (nodes=2)"));
    assert_int_equal(judge(&plain, fresh, SLURM_BOOT_FAIL, 0).state, POOL_ENDED);
    assert_int_equal(judge(&by_slurm, fresh, SLURM_BOOT_FAIL, 0).state, POOL_SUBMITTED);
    assert_null(strstr(judge(&plain, held, SLURM_NODE_FAIL, 0).note, "did not come up"));
}

static void test_the_script_of_a_pool_is_short_and_as_it_was(void **state)
{
    static const char golden[] = "#!/bin/sh\n"
                                 "#SBATCH --job-name=20261121-k3f9\n"
                                 "#SBATCH --comment=ckptbench-warm/20261121-k3f9\n"
                                 "#SBATCH --nodes=4\n"
                                 "#SBATCH --ntasks-per-node=1\n"
                                 "#SBATCH --time=5\n"
                                 "#SBATCH --signal=B:USR1@60\n"
                                 "#SBATCH --deadline=now+7800\n"
                                 "#SBATCH --requeue\n"
                                 "#SBATCH --partition=train\n"
                                 "#SBATCH --open-mode=append\n"
                                 "#SBATCH --output=\"/h/p/job.log\"\n"
                                 "# Made by ckptbench %s: a job of warm pool night. Its end and its budget are in "
                                 "pool.json beside it.\n"
                                 "exec '/opt/it'\\''s/agent' warm '/h/p'\n";
    static const char led_here[] = "exec salloc --kill-command=TERM --wait-all-nodes=1 \\\n"
                                   "    '--job-name=20261121-k3f9' \\\n"
                                   "    '--comment=ckptbench-warm/20261121-k3f9' \\\n"
                                   "    '--nodes=4' \\\n"
                                   "    '--ntasks-per-node=1' \\\n"
                                   "    '--time=5' \\\n"
                                   "    '--deadline=now+7800' \\\n"
                                   "    '--partition=train' \\\n"
                                   "    \"$@\" '/opt/it'\\''s/agent' warm '/h/p'\n";
    struct experiment *experiment;
    char wanted[sizeof golden + 64];
    struct buf out;
    (void)state;
    assert_int_equal(experiment_new(&experiment, NULL), 0);
    assert_int_equal(experiment_set(experiment, "slurm.partition", "train", "test", NULL), 0);
    struct pool_script script = {.pool = &plain,
                                 .agent = "/opt/it's/agent",
                                 .folder = "/h/p",
                                 .log = "/h/p/job.log",
                                 .experiment = experiment,
                                 .time_limit_ns = 300 * NS_PER_S,
                                 .deadline_s = 7800};
    buf_init(&out, 1u << 16);
    assert_int_equal(pool_script_write(&script, &out, NULL), 0);
    snprintf(wanted, sizeof wanted, golden, version_text());
    assert_string_equal(out.data, wanted);
    buf_clear(&out);
    script.allocation = true;
    assert_int_equal(pool_script_write(&script, &out, NULL), 0);
    assert_string_equal(strstr(out.data, "exec"), led_here);
    buf_release(&out);
    experiment_free(experiment);
}

/* ---- the spool ---- */

static void make_run(const char *run, char folder[256])
{
    char parent[128];
    snprintf(parent, sizeof parent, "%s/runs", base);
    mkdir(parent, 0755);
    snprintf(folder, 256, "%s/%s", parent, run);
    assert_int_equal(mkdir(folder, 0755), 0);
}

static void test_tickets_are_claimed_in_order_and_once(void **state)
{
    char pool[256], first[256], second[256], rejected[256];
    struct ticket ticket;
    (void)state;
    make_pool(&plain, pool);
    make_run("r1", first);
    make_run("r2", second);
    assert_int_equal(spool_claim(pool, &ticket, rejected, sizeof rejected, NULL), CB_ERR_NOT_FOUND);
    assert_int_equal(spool_put(pool, "r2", second, NULL), 0);
    assert_int_equal(spool_put(pool, "r1", first, NULL), 0);
    assert_int_equal(spool_put(pool, "r1", first, NULL), CB_ERR_EXISTS);
    assert_int_equal(spool_find(pool, "r1", &ticket, NULL), 0);
    assert_int_equal(ticket.state, TICKET_WAITS);
    assert_int_equal(ticket.before, 1);
    assert_int_equal(spool_claim(pool, &ticket, rejected, sizeof rejected, NULL), 0);
    assert_string_equal(ticket.run, "r2");
    assert_string_equal(ticket.run_folder, second);
    assert_int_equal(spool_return(pool, "r2", "late", NULL), CB_ERR_NOT_FOUND); /* somebody has it */
    snprintf(ticket.job, sizeof ticket.job, "4711");
    snprintf(ticket.step, sizeof ticket.step, "3");
    assert_int_equal(spool_finish(pool, &ticket, NULL), 0);
    assert_int_equal(spool_find(pool, "r2", &ticket, NULL), 0);
    assert_int_equal(ticket.state, TICKET_DONE);
    assert_string_equal(ticket.step, "3");
}

static void test_what_is_given_back_is_not_started_and_may_come_again(void **state)
{
    char pool[256], run[256], rejected[256];
    struct ticket ticket;
    (void)state;
    make_pool(&plain, pool);
    make_run("r3", run);
    assert_int_equal(spool_put(pool, "r3", run, NULL), 0);
    assert_int_equal(spool_return_all(pool, "the pool ended", NULL), 0);
    assert_int_equal(spool_find(pool, "r3", &ticket, NULL), 0);
    assert_int_equal(ticket.state, TICKET_RETURNED);
    assert_string_equal(ticket.note, "the pool ended");
    assert_int_equal(spool_claim(pool, &ticket, rejected, sizeof rejected, NULL), CB_ERR_NOT_FOUND);
    assert_int_equal(spool_put(pool, "r3", run, NULL), 0);
    assert_int_equal(spool_find(pool, "r3", &ticket, NULL), 0);
    assert_int_equal(ticket.state, TICKET_WAITS);
}

static void test_what_is_claimed_by_a_job_that_died_is_done(void **state)
{
    char pool[256], run[256], rejected[256];
    struct ticket ticket;
    (void)state;
    make_pool(&plain, pool);
    make_run("r4", run);
    assert_int_equal(spool_put(pool, "r4", run, NULL), 0);
    assert_int_equal(spool_claim(pool, &ticket, rejected, sizeof rejected, NULL), 0);
    assert_int_equal(spool_abandon_claimed(pool, "started again", NULL), 0);
    assert_int_equal(spool_find(pool, "r4", &ticket, NULL), 0);
    assert_int_equal(ticket.state, TICKET_DONE);
    assert_int_equal(ticket.exit_status, 1);
}

static void test_foreign_bytes_are_no_ticket(void **state)
{
    static const char name[] = "00000000000000000001.r";
    static const char good[] = "{\"version\":1,\"run\":\"r\",\"run_folder\":\"/h/runs/r\",\"job\":\"\",\"step\":\"\","
                               "\"note\":\"\",\"put_wall_ns\":1,\"started_wall_ns\":0,\"ended_wall_ns\":0,\"pid\":0,"
                               "\"exit_status\":0}";
    struct ticket ticket;
    (void)state;
    assert_int_equal(spool_parse(name, good, strlen(good), &ticket, NULL), 0);
    assert_string_equal(ticket.name, name);
    assert_int_equal(spool_parse("r", good, strlen(good), &ticket, NULL), CB_ERR_FORMAT);
    assert_int_equal(spool_parse("00000000000000000001.x", good, strlen(good), &ticket, NULL), CB_ERR_FORMAT);
    for (size_t len = 0; len + 1 < sizeof good - 1; len++)
        assert_int_equal(spool_parse(name, good, len, &ticket, NULL), CB_ERR_FORMAT);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_base, remove_base)
    const struct CMUnitTest tests[] = {
        TEST(test_names_that_need_no_quotes_are_names),
        TEST(test_a_pool_reads_back_as_it_was_written),
        TEST(test_foreign_bytes_are_no_pool),
        TEST(test_a_pool_costs_boots_jobs_and_what_it_keeps_up),
        TEST(test_boots_that_failed_cost_as_long_as_they_may_take),
        TEST(test_touches_end_with_time_budget_and_failures),
        TEST(test_a_held_allocation_ends_with_what_comes_first),
        TEST(test_the_first_to_end_a_pool_says_why),
        TEST(test_when_nodes_sleep_is_read_from_the_partition_first),
        TEST(test_a_job_knows_how_long_its_nodes_took_to_boot),
        TEST(test_the_state_of_a_pool_follows_its_jobs),
        TEST(test_nodes_that_do_not_come_up_are_given_up_with_a_proposal),
        TEST(test_a_led_pool_whose_nodes_did_not_come_up_has_ended),
        TEST(test_the_script_of_a_pool_is_short_and_as_it_was),
        TEST(test_tickets_are_claimed_in_order_and_once),
        TEST(test_what_is_given_back_is_not_started_and_may_come_again),
        TEST(test_what_is_claimed_by_a_job_that_died_is_done),
        TEST(test_foreign_bytes_are_no_ticket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
