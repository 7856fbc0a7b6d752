/* Lines of watched processes become samples of ranks. */
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "own_folder.h"

#include "agent/attempt/watch_limit.h"
#include "agent/attempt/watch_lines.h"

static void write_lines(const char *name, const char *lines)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(lines, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* The attempt that the lines in the folder make; ended with `end`. */
static struct attempt read_lines(void)
{
    struct attempt attempt = {.run = "unit", .number = 1, .pages = {.lock_fd = -1}};
    struct watch_summary summary;
    struct cb_err err;
    if (watch_lines_read(&attempt, folder, &summary, &err))
        fail_msg("%s", err.message);
    watch_summary_release(&summary);
    return attempt;
}

static void end(struct attempt *attempt)
{
    pages_release(&attempt->pages);
    clear();
}

static const struct sample *sample_of(const struct attempt *attempt, uint32_t rank, uint32_t index)
{
    assert_true(index < atomic_load(&attempt->pages.page[rank]->sample_count));
    return &attempt->pages.page[rank]->samples[index];
}

static bool has_fact(const struct attempt *attempt, const char *text)
{
    const struct status_page *page = attempt->pages.page[0];
    char facts[STATUS_PAGE_TEXT_BYTES + 1];
    snprintf(facts, sizeof facts, "%.*s", (int)atomic_load(&page->facts_length), page->facts);
    return strstr(facts, text) != NULL;
}

#define PROCESS(rank, world) "{\"rank\": " rank ", \"world\": " world ", \"op\": \"process\", \"torch\": \"2.13\"}\n"
#define SAVE(rank, path, start, seconds)                                                                               \
    "{\"rank\": " rank ", \"world\": 2, \"op\": \"save\", \"path\": \"" path "\", \"start_ns\": " start                \
    ", \"failed\": false, \"op_s\": " seconds ", \"bytes_moved\": 10, \"bytes_needed\": 8, \"files\": 1}\n"

static void a_path_is_one_iteration_on_all_ranks_in_the_order_of_time(void **unused)
{
    (void)unused;
    write_lines("a", PROCESS("0", "2") SAVE("0", "/z", "100", "1.5") SAVE("0", "/b", "200", "2.5"));
    write_lines("b", PROCESS("1", "2") SAVE("1", "/z", "101", "1.25") SAVE("1", "/b", "199", "2.25"));
    struct attempt attempt = read_lines();
    assert_int_equal(attempt.ranks, 2);
    for (uint32_t rank = 0; rank < 2; rank++)
        for (uint32_t i = 0; i < 2; i++)
            assert_int_equal(sample_of(&attempt, rank, i)->iteration, i + 1);
    assert_true(sample_of(&attempt, 0, 0)->values[METRIC_OP_S] == 1.5);
    assert_true(sample_of(&attempt, 1, 1)->values[METRIC_OP_S] == 2.25);
    assert_true(isnan(sample_of(&attempt, 1, 1)->values[METRIC_PLAN_S]));
    assert_true(attempt.pages.page[0]->run_values[METRIC_CHECKPOINT_BYTES] == 16);
    assert_true(attempt.pages.page[0]->run_values[METRIC_CHECKPOINT_FILES] == 2);
    end(&attempt);
}

static void the_same_path_again_is_another_iteration(void **unused)
{
    (void)unused;
    write_lines("a", PROCESS("0", "2") SAVE("0", "/a", "1", "1") SAVE("0", "/a", "3", "3"));
    write_lines("b", PROCESS("1", "2") SAVE("1", "/a", "2", "2") SAVE("1", "/a", "4", "4"));
    struct attempt attempt = read_lines();
    assert_int_equal(atomic_load(&attempt.pages.page[0]->sample_count), 2);
    assert_true(sample_of(&attempt, 0, 1)->values[METRIC_OP_S] == 3);
    assert_true(sample_of(&attempt, 1, 1)->values[METRIC_OP_S] == 4);
    end(&attempt);
}

static void a_rank_without_a_part_has_a_sample_without_time(void **unused)
{
    (void)unused;
    write_lines("a", PROCESS("0", "2") SAVE("1", "/a", "1", "1"));
    struct attempt attempt = read_lines();
    const struct sample *absent = sample_of(&attempt, 0, 0);
    assert_true(absent->values[METRIC_OP_S] == 0 && absent->values[METRIC_WAIT_S] == 0);
    assert_true(isnan(absent->values[METRIC_OWN_S]));
    assert_true(sample_of(&attempt, 1, 0)->values[METRIC_OP_S] == 1);
    end(&attempt);
}

static void ranks_that_report_nothing_cost_nothing(void **unused)
{
    (void)unused;
    write_lines("a", PROCESS("0", "2") SAVE("0", "/a", "1", "1") SAVE("1", "/a", "2", "2"));
    write_lines("b", "{\"rank\": 1048575, \"world\": 1048576, \"op\": \"save\", \"path\": \"/a\", \"start_ns\": 3, "
                     "\"op_s\": 3}\n");
    struct attempt attempt = read_lines();
    assert_int_equal(attempt.ranks, 3);
    assert_int_equal(attempt.pages.count, 3);
    for (uint32_t rank = 0; rank < 3; rank++) /* of the same rank as before, and the foreign one is the last */
        assert_true(sample_of(&attempt, rank, 0)->values[METRIC_OP_S] == rank + 1);
    assert_true(has_fact(&attempt, "any of 1048576 ranks but 3, which are numbered from 0 here"));
    end(&attempt);
    write_lines("a", PROCESS("0", "32") PROCESS("1", "32"));
    write_lines("b", "{\"rank\": 20, \"world\": 32, \"op\": \"process\", \"torch\": \"2.13\"}\n");
    attempt = read_lines(); /* the ranks of some nodes: not many more than have reported */
    assert_int_equal(attempt.ranks, 32);
    assert_false(has_fact(&attempt, "numbered"));
    end(&attempt);
}

#define WHOLE_FILE                                                                                                     \
    "{\"rank\": 0, \"world\": 2, \"op\": \"load\", \"path\": \"/f\", \"start_ns\": 1, \"is_whole_file\": true, "       \
    "\"op_s\": 1, \"bytes_moved\": 5}\n"

static void files_in_one_piece_count_only_where_nothing_else_was_saved(void **unused)
{
    (void)unused;
    write_lines("a", PROCESS("0", "2") WHOLE_FILE);
    struct attempt attempt = read_lines();
    assert_int_equal(sample_of(&attempt, 0, 0)->op, OP_LOAD);
    end(&attempt);
    write_lines("a", PROCESS("0", "2") WHOLE_FILE SAVE("0", "/a", "1", "1"));
    attempt = read_lines();
    assert_int_equal(atomic_load(&attempt.pages.page[0]->sample_count), 1);
    assert_int_equal(sample_of(&attempt, 0, 0)->op, OP_SAVE);
    assert_true(has_fact(&attempt, "watch.left_out=1 file saved or loaded in one piece"));
    end(&attempt);
}

static void what_is_no_line_is_counted_and_harms_nothing(void **unused)
{
    (void)unused;
    write_lines(
        "a",
        PROCESS(
            "0",
            "1") "{\"rank\": 0, \"world\": 1, \"op\": \"sa\n\n[]\nnull\n{\"rank\": 5, \"world\": 2, \"op\": "
                 "\"save\"}\n{\"rank\": -1, \"world\": 2}\n{\"rank\": 0, \"world\": 4000000000, \"op\": \"save\"}\n"
                 "{\"rank\": 0, \"world\": 1, \"op\": 7}\n{\"rank\": 0, \"world\": 1, \"op\": \"save\", \"path\": 3}\n"
                 "{\"rank\": 0, \"world\": 1, \"op\": \"new kind\"}\n{\"rank\": 0, \"wor");
    struct attempt attempt = read_lines();
    assert_int_equal(attempt.ranks, 1);
    assert_int_equal(atomic_load(&attempt.pages.page[0]->sample_count), 1); /* one without a path, or any figure */
    assert_true(has_fact(&attempt, "watch.unseen.1=9 lines that a process did not finish"));
    end(&attempt);
}

static void messages_are_said_once_and_steps_are_the_mean_of_the_ranks(void **unused)
{
    (void)unused;
#define WARNING "{\"rank\": 0, \"world\": 2, \"op\": \"warning\", \"text\": \"one\\ntwo\"}\n"
#define STEP(rank, seconds) "{\"rank\": " rank ", \"world\": 2, \"op\": \"step_alone\", \"op_s\": " seconds "}\n"
    write_lines("a", PROCESS("0", "2") WARNING WARNING STEP("0", "1")
                         STEP("1", "3") "{\"rank\": 0, \"world\": 2, \"op\": \"broken\", \"text\": \"hook: why\"}\n");
    struct attempt attempt = read_lines();
    assert_true(has_fact(&attempt, "watch.warning.1=one"));
    assert_false(has_fact(&attempt, "watch.warning.2"));
    assert_true(has_fact(&attempt, "watch.unseen.1=what came after a hook had failed: hook: why"));
    assert_true(attempt.pages.page[0]->run_values[METRIC_STEP_ALONE_S] == 2);
    assert_true(isnan(attempt.pages.page[0]->run_values[METRIC_STEP_BEHIND_S]));
    end(&attempt);
}

static void a_hook_that_fails_before_all_others_is_named(void **unused)
{
    (void)unused;
    write_lines("a", "{\"rank\": 0, \"world\": 1, \"op\": \"broken\", \"text\": \"start: why\"}\n");
    struct attempt attempt = read_lines();
    assert_true(has_fact(&attempt, "watch.unseen.1=what came after a hook had failed: start: why"));
    assert_false(has_fact(&attempt, "no Python process"));
    end(&attempt);
}

static void failed_saves_have_the_reason_of_the_first(void **unused)
{
    (void)unused;
#define FAILED(start, why)                                                                                             \
    "{\"rank\": 0, \"world\": 1, \"op\": \"save\", \"path\": \"/a\", \"start_ns\": " start                             \
    ", \"op_s\": 1, \"failed\": true, \"why\": " why "}\n"
    write_lines("a", FAILED("7", "\"ValueError: two\"") FAILED("5", "\"OSError: one\\nmore\"") FAILED("3", "null"));
    struct attempt attempt = read_lines();
    assert_true(has_fact(&attempt, "watch.warning.1=3 of 3 saves failed: OSError: one"));
    end(&attempt);
}

static void without_lines_nothing_was_seen(void **unused)
{
    (void)unused;
    struct attempt attempt = read_lines();
    assert_int_equal(attempt.ranks, 1);
    assert_true(has_fact(&attempt, "no Python process that imported torch"));
    end(&attempt);
}

static void what_is_no_line_is_left_out_and_the_lines_after_it_count(void **unused)
{
    (void)unused;
    static const char lines[] = PROCESS("0", "1") SAVE("0", "/a", "100", "1.5") "\0\0\0\n" SAVE("0", "/b", "200", "-1");
    char path[256];
    snprintf(path, sizeof path, "%s/lines", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(lines, 1, sizeof lines - 1, file), sizeof lines - 1);
    assert_int_equal(fclose(file), 0);
    snprintf(path, sizeof path, "%s/pipe", folder); /* opening it would wait for a writer */
    assert_int_equal(mkfifo(path, 0600), 0);
    struct attempt attempt = read_lines();
    assert_int_equal(atomic_load(&attempt.pages.page[0]->sample_count), 2);
    assert_true(isnan(sample_of(&attempt, 0, 1)->values[METRIC_OP_S]));
    assert_true(has_fact(&attempt, "1 line that a process did not finish"));
    assert_true(has_fact(&attempt, "what is in 1 file that cannot be read: pipe (it is no regular file)"));
    end(&attempt);
}

static void of_two_processes_that_claim_a_rank_at_the_same_time_one_counts(void **unused)
{
    (void)unused;
    write_lines("h-1.jsonl", PROCESS("0", "2") SAVE("0", "/a", "1000000000", "3"));
    write_lines("h-2.jsonl", PROCESS("0", "2") SAVE("0", "/a", "2000000000", "9") SAVE("0", "/b", "20000000000", "9"));
    struct attempt attempt = read_lines();
    assert_int_equal(atomic_load(&attempt.pages.page[0]->sample_count), 1);
    assert_true(sample_of(&attempt, 0, 0)->values[METRIC_OP_S] == 3);
    assert_true(has_fact(&attempt, "several processes say at the same time that they are rank 0"));
    end(&attempt);
    /* one after the other, as after a restart, and a process of the rank's own */
    write_lines("h-1.jsonl", PROCESS("0", "2") SAVE("0", "/a", "1000000000", "3"));
    write_lines("h-2.jsonl", PROCESS("0", "2") SAVE("0", "/b", "5000000000", "9"));
    write_lines("h-3.jsonl", "{\"rank\": 0, \"world\": 2, \"child\": true, \"op\": \"save\", \"path\": \"/c\", "
                             "\"start_ns\": 6000000000, \"op_s\": 1}\n");
    attempt = read_lines();
    assert_int_equal(atomic_load(&attempt.pages.page[0]->sample_count), 3);
    assert_false(has_fact(&attempt, "several processes"));
    end(&attempt);
}

static struct watch_summary summary_of_lines(void)
{
    struct attempt attempt = {.run = "unit", .number = 1, .pages = {.lock_fd = -1}};
    struct watch_summary summary;
    struct cb_err err;
    if (watch_lines_read(&attempt, folder, &summary, &err))
        fail_msg("%s", err.message);
    pages_release(&attempt.pages);
    watch_summary_release(&summary);
    return summary;
}

static void tasks_tell_how_many_there_are_and_how_they_ended(void **unused)
{
    (void)unused;
    write_lines("h-1.task", "{\"op\": \"task\", \"tasks\": 3, \"command\": \"python\", \"start_ns\": 20}\n"
                            "{\"op\": \"task_end\", \"failure\": \"\", \"asked\": false, \"end_ns\": 30}\n");
    write_lines("i-2.task", "{\"op\": \"task\", \"tasks\": 3, \"command\": \"python\", \"start_ns\": 10}\n");
    struct watch_summary summary = summary_of_lines();
    assert_true(summary.tasks == 2 && summary.ended == 1 && summary.expected == 3 && summary.has_several_hosts);
    assert_true(summary.started_wall_ns == 10 && strcmp(summary.command, "python") == 0 && !*summary.failure);
    assert_true(summary.ended_wall_ns == 30 && !summary.was_late);
    write_lines("i-2.task", "{\"op\": \"task_end\", \"failure\": \"python ended with exit status 7 on i\", "
                            "\"asked\": true, \"late\": true}\n");
    summary = summary_of_lines();
    assert_true(summary.was_asked && summary.was_late);
    assert_string_equal(summary.failure, "python ended with exit status 7 on i");
    clear();
}

#define LIBRARY(rank, world, op)                                                                                       \
    "{\"rank\": " rank ", \"world\": " world ", \"op\": \"" op "\", \"start_ns\": 1, \"program\": \"libckptbench "     \
    "1\"}\n"

static void a_program_has_reported_when_each_of_its_ranks_has(void **unused)
{
    (void)unused;
    write_lines("h-1.jsonl", LIBRARY("0", "2", "process") LIBRARY("0", "2", "end"));
    write_lines("h-2.jsonl", LIBRARY("0", "2", "process") LIBRARY("0", "2", "end")); /* rank 0, started again */
    assert_false(summary_of_lines().all_reported);
    write_lines("h-3.jsonl", LIBRARY("1", "2", "process"));
    assert_false(summary_of_lines().all_reported);
    write_lines("h-2.jsonl", LIBRARY("0", "2", "process") LIBRARY("0", "2", "end") LIBRARY("0", "2", "end"));
    assert_false(summary_of_lines().all_reported); /* one end too many is not rank 1's */
    write_lines("h-3.jsonl", LIBRARY("1", "2", "process") LIBRARY("1", "2", "end"));
    assert_true(summary_of_lines().all_reported);
    clear();
}

static void a_file_that_cannot_be_read_is_named_and_the_others_count(void **unused)
{
    (void)unused;
    char path[256];
    write_lines("h-1.task", "{\"op\": \"task\", \"tasks\": 2, \"command\": \"python\", \"start_ns\": 20}\n"
                            "{\"op\": \"task_end\", \"failure\": \"\", \"asked\": false, \"end_ns\": 30}\n");
    write_lines("i-2.jsonl", PROCESS("0", "1") SAVE("0", "/a", "1", "1"));
    snprintf(path, sizeof path, "%s/i-2.task", folder); /* its disk gave it up: nobody can read it */
    assert_int_equal(mkdir(path, 0700), 0);
    struct watch_summary summary = summary_of_lines();
    assert_true(summary.tasks == 2 && summary.ended == 2 && summary.expected == 2);
    assert_non_null(strstr(summary.unreadable, "i-2.task"));
    struct attempt attempt = read_lines();
    assert_int_equal(atomic_load(&attempt.pages.page[0]->sample_count), 1);
    assert_true(has_fact(&attempt, "watch.unseen.1=what is in 1 file that cannot be read: i-2.task"));
    end(&attempt);
}

static void the_calls_of_saves_are_named_once(void **unused)
{
    (void)unused;
#define CALL(op, api)                                                                                                  \
    "{\"rank\": 0, \"world\": 1, \"op\": \"" op "\", \"api\": \"" api                                                  \
    "\", \"path\": \"/a\", \"start_ns\": 1, \"op_s\": 1}\n"
    write_lines("a", PROCESS("0", "1") CALL("save", "save") CALL("save", "async_save") CALL("save", "save")
                         CALL("load", "ckptbench.checkpoint.load") WHOLE_FILE);
    struct attempt attempt = read_lines();
    assert_true(has_fact(&attempt, "watch.save_calls=save, async_save\n"));
    assert_true(has_fact(&attempt, "watch.load_calls=ckptbench.checkpoint.load"));
    end(&attempt);
}

#define LIMIT(seconds)                                                                                                 \
    "{\"op\": \"limit\", \"nodes\": 2, \"files\": 3, \"bytes\": 100, \"write_s\": " seconds ", \"read_s\": []}\n"

static void what_nodes_measured_together_is_added_up_and_the_slowest_counts(void **unused)
{
    (void)unused;
    write_lines("h-1.task",
                "{\"op\": \"task\", \"tasks\": 2}\n{\"op\": \"limit_ready\", \"step\": 1}\n" LIMIT("[1, 2, 8]"));
    write_lines("i-1.task", "{\"op\": \"task\", \"tasks\": 2}\n" LIMIT("[4, 3]"));
    write_lines("i-2.jsonl", PROCESS("0", "1") SAVE("0", "/a", "1", "1"));
    struct attempt attempt = {.run = "unit", .number = 1, .pages = {.lock_fd = -1}};
    struct watch_summary summary;
    struct cb_err err;
    assert_int_equal(watch_lines_read(&attempt, folder, &summary, &err), 0);
    assert_true(summary.limit.nodes == 2 && summary.limit.files == 6);
    watch_limit_take(&attempt, &summary);
    double rate = attempt.pages.page[0]->run_values[METRIC_BASELINE_WRITE_BYTES_PER_S];
    assert_true(rate == (600.0 / 4 + 600.0 / 3) / 2); /* in the third round one node is missing */
    assert_true(isnan(attempt.pages.page[0]->run_values[METRIC_BASELINE_READ_BYTES_PER_S]));
    assert_true(has_fact(&attempt, "watch.limit=measured after the command by 2 nodes at the same time"));
    for (size_t i = 0; i < summary.share_count; i++)
        assert_true(summary.shares[i].writers == (*summary.shares[i].host == 'i' ? 1 : 0));
    watch_summary_release(&summary);
    end(&attempt);
}

static void a_limit_that_was_not_measured_has_a_reason(void **unused)
{
    (void)unused;
    static const struct {
        const char *lines, *why;
    } cases[] = {
        {"{\"op\": \"task\", \"tasks\": 0}\n", "how many tasks there are was not known (--tasks N)"},
        {"{\"op\": \"task\", \"tasks\": 2}\n{\"op\": \"task_end\", \"failure\": \"x\"}\n"
         "{\"op\": \"limit_failed\", \"why\": \"h: full\"}\n",
         "x"},
        {"{\"op\": \"task\", \"tasks\": 2}\n" LIMIT("[1]"), "the tasks of the nodes did not measure together"},
        {"{\"op\": \"task\", \"tasks\": 2}\n" LIMIT("[1]") "{\"op\": \"limit_failed\", \"why\": \"h: full\"}\n",
         "h: full"},
        {"{\"op\": \"limit\", \"nodes\": -1, \"write_s\": 3}\n{\"op\": \"limit\", \"nodes\": 1, \"files\": 1, "
         "\"bytes\": -4, \"write_s\": [\"x\", 1e400, []]}\n",
         "the tasks of the nodes did not"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct attempt attempt = {.run = "unit", .number = 1, .pages = {.lock_fd = -1}};
        struct watch_summary summary;
        struct cb_err err;
        char fact[160];
        write_lines("h-1.task", cases[i].lines);
        write_lines("i-2.jsonl", PROCESS("0", "1") SAVE("0", "/a", "1", "1"));
        assert_int_equal(watch_lines_read(&attempt, folder, &summary, &err), 0);
        watch_limit_take(&attempt, &summary);
        snprintf(fact, sizeof fact, "watch.limit=not measured: %s", cases[i].why);
        assert_true(has_fact(&attempt, fact));
        watch_summary_release(&summary);
        end(&attempt);
    }
}

static void saves_whose_bytes_were_not_seen_are_the_reason_for_no_limit(void **unused)
{
    (void)unused;
    static const char
        unseen[] = "{\"rank\": 0, \"world\": 1, \"op\": \"save\", \"path\": \"/a\", \"start_ns\": 1, \"op_s\": 1, "
                   "\"bytes_needed\": 8, \"bytes_moved\": null, \"failed\": false}\n",
        failed[] = "{\"rank\": 0, \"world\": 1, \"op\": \"save\", \"path\": \"/a\", \"start_ns\": 1, \"op_s\": 1, "
                   "\"failed\": true}\n";
    static const struct {
        const char *lines, *fact;
    } cases[] = {{unseen, "watch.limit=not measured: what the last save wrote was not seen"},
                 {failed, "watch.limit=not measured: nothing was saved"},
                 {"", NULL}};
    for (size_t i = 0; i < 2 * (sizeof cases / sizeof *cases); i++) {
        struct attempt attempt = {.run = "unit", .number = 1, .pages = {.lock_fd = -1}};
        struct watch_summary summary;
        struct cb_err err;
        char lines[1024];
        snprintf(lines, sizeof lines, "%s%s", PROCESS("0", "1"), cases[i / 2].lines);
        write_lines("i-2.jsonl", lines);
        assert_int_equal(watch_lines_read(&attempt, folder, &summary, &err), 0);
        if (i % 2)
            watch_limit_take(&attempt, &summary);
        else
            watch_limit_measure(&attempt, &summary, NULL);
        assert_true(has_fact(&attempt, cases[i / 2].fact ? cases[i / 2].fact : "watch.limit=") == !!cases[i / 2].fact);
        watch_summary_release(&summary);
        end(&attempt);
    }
}

static void no_limit_of_one_machine_stands_beside_what_others_saved(void **unused)
{
    (void)unused;
    static const struct {
        const char *file, *lines, *why;
    } cases[] = {{"elsewhere-1.jsonl", PROCESS("0", "2") SAVE("0", "/a", "1", "1"),
                  "the command ran on elsewhere, and this is "},
                 {"other-1.jsonl", PROCESS("1", "2"), "the command ran on several machines"},
                 {"elsewhere-1.jsonl", PROCESS("0", "4") SAVE("0", "/a", "1", "1"), "not every rank has reported"}};
    write_lines("elsewhere-2.jsonl", PROCESS("1", "2"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct attempt attempt = {.run = "unit", .number = 1, .pages = {.lock_fd = -1}};
        struct watch_summary summary;
        struct cb_err err;
        char fact[160];
        write_lines(cases[i].file, cases[i].lines);
        assert_int_equal(watch_lines_read(&attempt, folder, &summary, &err), 0);
        watch_limit_measure(&attempt, &summary, NULL);
        snprintf(fact, sizeof fact, "watch.limit=not measured: %s", cases[i].why);
        assert_true(has_fact(&attempt, fact));
        assert_true(isnan(attempt.pages.page[0]->run_values[METRIC_BASELINE_WRITE_BYTES_PER_S]));
        assert_true(has_fact(&attempt, "watch.unseen.1=all of 4 ranks: only 3 processes reported") == (i == 2));
        watch_summary_release(&summary);
        pages_release(&attempt.pages);
    }
    clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_path_is_one_iteration_on_all_ranks_in_the_order_of_time),
        cmocka_unit_test(the_same_path_again_is_another_iteration),
        cmocka_unit_test(a_rank_without_a_part_has_a_sample_without_time),
        cmocka_unit_test(ranks_that_report_nothing_cost_nothing),
        cmocka_unit_test(files_in_one_piece_count_only_where_nothing_else_was_saved),
        cmocka_unit_test(what_is_no_line_is_counted_and_harms_nothing),
        cmocka_unit_test(messages_are_said_once_and_steps_are_the_mean_of_the_ranks),
        cmocka_unit_test(a_hook_that_fails_before_all_others_is_named),
        cmocka_unit_test(failed_saves_have_the_reason_of_the_first),
        cmocka_unit_test(without_lines_nothing_was_seen),
        cmocka_unit_test(what_is_no_line_is_left_out_and_the_lines_after_it_count),
        cmocka_unit_test(of_two_processes_that_claim_a_rank_at_the_same_time_one_counts),
        cmocka_unit_test(tasks_tell_how_many_there_are_and_how_they_ended),
        cmocka_unit_test(a_program_has_reported_when_each_of_its_ranks_has),
        cmocka_unit_test(a_file_that_cannot_be_read_is_named_and_the_others_count),
        cmocka_unit_test(the_calls_of_saves_are_named_once),
        cmocka_unit_test(what_nodes_measured_together_is_added_up_and_the_slowest_counts),
        cmocka_unit_test(a_limit_that_was_not_measured_has_a_reason),
        cmocka_unit_test(saves_whose_bytes_were_not_seen_are_the_reason_for_no_limit),
        cmocka_unit_test(no_limit_of_one_machine_stands_beside_what_others_saved),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
