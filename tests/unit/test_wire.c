/* What agents say to each other, how ranks are spread over nodes, and pages that travel. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/attempt/seal.h"
#include "agent/attempt/slurm_end.h"
#include "agent/node/nodes.h"
#include "agent/node/page_copy.h"
#include "agent/node/pages.h"
#include "agent/node/wire.h"
#include "core/rank_placement.h"

/* Every prefix and every longer message is refused. */
#define EXPECT_EXACT(out, read)                                                                                        \
    do {                                                                                                               \
        for (size_t len = 0; len < (out).len; len++) {                                                                 \
            const char *message = (out).data;                                                                          \
            assert_int_equal(read, CB_ERR_FORMAT);                                                                     \
        }                                                                                                              \
        buf_append_char(&(out), 'x');                                                                                  \
        const char *message = (out).data;                                                                              \
        size_t len = (out).len;                                                                                        \
        assert_int_equal(read, CB_ERR_FORMAT);                                                                         \
    } while (0)

static void messages_read_back_and_nothing_else_does(void **state)
{
    (void)state;
    struct buf out;
    buf_init(&out, 65536);

    struct wire_hello hello = {.protocol = WIRE_PROTOCOL, .page_version = 7, .page_bytes = 99}, hello_back;
    strcpy(hello.version, "1.2");
    strcpy(hello.name, "n1");
    wire_write(&out, WIRE_HELLO, &hello);
    assert_int_equal(wire_read(out.data, out.len, WIRE_HELLO, &hello_back, NULL), 0);
    assert_int_equal(hello_back.protocol, WIRE_PROTOCOL);
    assert_int_equal(hello_back.page_version, 7);
    assert_int_equal(hello_back.page_bytes, 99);
    assert_string_equal(hello_back.version, "1.2");
    assert_string_equal(hello_back.name, "n1");
    EXPECT_EXACT(out, wire_read(message, len, WIRE_HELLO, &hello_back, NULL));

    struct wire_welcome welcome = {.attempt = 2,
                                   .node = 1,
                                   .nodes = 3,
                                   .ranks = 7,
                                   .sample_capacity = 5,
                                   .started_ns = UINT64_C(1) << 50,
                                   .experiment = {"version: 1\n", 11}},
                        welcome_back;
    wire_write(&out, WIRE_WELCOME, &welcome);
    assert_int_equal(wire_read(out.data, out.len, WIRE_WELCOME, &welcome_back, NULL), 0);
    assert_int_equal(welcome_back.ranks, 7);
    assert_true(welcome_back.started_ns == UINT64_C(1) << 50);
    assert_int_equal(welcome_back.experiment.len, 11);
    assert_memory_equal(welcome_back.experiment.at, "version: 1\n", 11);
    EXPECT_EXACT(out, wire_read(message, len, WIRE_WELCOME, &welcome_back, NULL));
    welcome.node = 3; /* of 3 */
    wire_write(&out, WIRE_WELCOME, &welcome);
    assert_int_equal(wire_read(out.data, out.len, WIRE_WELCOME, &welcome_back, NULL), CB_ERR_FORMAT);

    struct wire_joined joined = {.wall_offset_ns = -3600, .monotonic_offset_ns = 5, .store_free_bytes = UINT64_MAX},
                       joined_back;
    wire_write(&out, WIRE_JOINED, &joined);
    assert_int_equal(wire_read(out.data, out.len, WIRE_JOINED, &joined_back, NULL), 0);
    assert_memory_equal(&joined, &joined_back, sizeof joined);
    EXPECT_EXACT(out, wire_read(message, len, WIRE_JOINED, &joined_back, NULL));

    struct wire_process process = {.rank = 4, .pid = 77, .state = 'D', .place = "io_schedule"}, process_back;
    wire_write(&out, WIRE_PROCESS, &process);
    assert_int_equal(wire_read(out.data, out.len, WIRE_PROCESS, &process_back, NULL), 0);
    assert_memory_equal(&process, &process_back, sizeof process);
    EXPECT_EXACT(out, wire_read(message, len, WIRE_PROCESS, &process_back, NULL));

    struct wire_span span = {.rank = 9, .offset = 1 << 20, .bytes = {"abc", 3}}, span_back;
    wire_write(&out, WIRE_SPAN, &span);
    assert_int_equal(wire_read(out.data, out.len, WIRE_SPAN, &span_back, NULL), 0);
    assert_int_equal(span_back.offset, 1 << 20);
    EXPECT_EXACT(out, wire_read(message, len, WIRE_SPAN, &span_back, NULL));
    buf_release(&out);
}

/* The versions of another protocol can be named, whatever follows them. */
static void a_greeting_of_another_protocol_tells_its_version(void **state)
{
    (void)state;
    struct wire_hello hello = {.protocol = WIRE_PROTOCOL + 1}, back;
    struct buf out;
    buf_init(&out, 65536);
    strcpy(hello.version, "99.0");
    wire_write(&out, WIRE_HELLO, &hello);
    buf_append_text(&out, "what nobody knows yet");
    assert_int_equal(wire_read(out.data, out.len, WIRE_HELLO, &back, NULL), 0);
    assert_int_equal(back.protocol, WIRE_PROTOCOL + 1);
    assert_string_equal(back.version, "99.0");
    assert_string_equal(back.name, "");
    buf_release(&out);
}

static void a_name_has_no_line_feed_and_no_nul(void **state)
{
    (void)state;
    struct wire_hello hello = {.protocol = WIRE_PROTOCOL}, back;
    struct buf out;
    buf_init(&out, 65536);
    strcpy(hello.name, "n1\n");
    wire_write(&out, WIRE_HELLO, &hello);
    assert_int_equal(wire_read(out.data, out.len, WIRE_HELLO, &back, NULL), CB_ERR_FORMAT);
    buf_release(&out);
}

static void ranks_are_spread_in_order_and_evenly(void **state)
{
    (void)state;
    for (uint32_t ranks = 1; ranks < 40; ranks++) {
        for (uint32_t nodes = 1; nodes <= ranks; nodes++) {
            assert_int_equal(rank_placement_first_rank(ranks, nodes, 0), 0);
            assert_int_equal(rank_placement_first_rank(ranks, nodes, nodes), ranks);
            for (uint32_t node = 0; node < nodes; node++) {
                uint32_t first = rank_placement_first_rank(ranks, nodes, node),
                         end = rank_placement_first_rank(ranks, nodes, node + 1);
                assert_true(end - first == ranks / nodes || end - first == ranks / nodes + 1);
                for (uint32_t rank = first; rank < end; rank++)
                    assert_int_equal(rank_placement_node_of(ranks, nodes, rank), node);
            }
        }
    }
}

struct carried {
    struct status_page *copy;
    size_t bytes, parts;
};

static int carry(void *context, uint32_t rank, uint64_t offset, const void *bytes, size_t len, struct cb_err *err)
{
    struct carried *self = context;
    assert_int_equal(rank, self->copy->rank);
    self->bytes += len;
    self->parts++;
    return page_copy_apply(self->copy, offset, bytes, len, err);
}

static void a_page_arrives_with_the_heads_times_and_only_what_changed(void **state)
{
    (void)state;
    struct status_page *page, *copy;
    struct page_sender *sender;
    struct carried carried = {0};
    assert_int_equal(page_copy_new(3, 8, 20, &page, NULL), 0);
    assert_int_equal(page_copy_new(3, 8, 20, &copy, NULL), 0);
    assert_int_equal(page_sender_new(page, 1000, &sender, NULL), 0);
    carried.copy = copy;
    assert_int_equal(page_sender_send(sender, true, carry, &carried, NULL), 0);
    assert_int_equal(carried.parts, 0); /* a new page is known */

    atomic_store(&page->pid, 4711);
    status_page_enter(page, OP_SAVE, STATE_IO, 5000);
    assert_int_equal(page_sender_send(sender, false, carry, &carried, NULL), 0);
    assert_int_equal(atomic_load(&copy->pid), 4711);
    assert_int_equal(atomic_load(&copy->progress_ns), 4000);
    assert_int_equal(atomic_load(&copy->ready_ns), 0); /* never stays never */

    struct sample *sample = status_page_begin_sample(page);
    sample->op = OP_SAVE;
    sample->values[METRIC_OP_S] = 1.5;
    status_page_publish_sample(page);
    status_page_add_failure(page, CB_ERR_NO_SPACE, "full");
    histogram_record(&page->latency[OP_SAVE], 123456);
    page->run_values[METRIC_PLAN_ITEMS] = 42;
    assert_int_equal(page_sender_send(sender, false, carry, &carried, NULL), 0);
    assert_int_equal(atomic_load(&copy->sample_count), 1);
    assert_true(copy->samples[0].values[METRIC_OP_S] == 1.5);
    assert_int_equal(atomic_load(&copy->failure_code), -CB_ERR_NO_SPACE);
    assert_memory_equal(copy->failures, "full\n", 5);
    assert_int_equal(copy->latency[OP_SAVE].count, 1);
    assert_true(copy->run_values[METRIC_PLAN_ITEMS] == 42);
    assert_true(carried.bytes < 16384);

    carried.parts = 0;
    assert_int_equal(page_sender_send(sender, true, carry, &carried, NULL), 0);
    assert_int_equal(carried.parts, 0);
    page_sender_free(sender);
    status_page_close(page);
    status_page_close(copy);
}

static void what_is_the_agents_to_write_cannot_be_written(void **state)
{
    (void)state;
    struct status_page *copy;
    char bytes[64] = {0};
    uint64_t end = status_page_bytes(2);
    assert_int_equal(page_copy_new(0, 1, 2, &copy, NULL), 0);
    assert_int_equal(page_copy_apply(copy, 0, bytes, 8, NULL), CB_ERR_FORMAT);
    assert_int_equal(page_copy_apply(copy, offsetof(struct status_page, stop), bytes, 4, NULL), CB_ERR_FORMAT);
    assert_int_equal(page_copy_apply(copy, end, bytes, 1, NULL), CB_ERR_FORMAT);
    assert_int_equal(page_copy_apply(copy, end - 8, bytes, 9, NULL), CB_ERR_FORMAT);
    assert_int_equal(page_copy_apply(copy, UINT64_MAX - 4, bytes, 8, NULL), CB_ERR_FORMAT);
    assert_int_equal(page_copy_apply(copy, end - 8, bytes, 8, NULL), 0);
    status_page_close(copy);
}

static void pages_of_a_node_are_those_of_its_ranks(void **state)
{
    (void)state;
    struct pages pages = {.lock_fd = -1}, head = {.lock_fd = -1};
    char base[160], path[256];
    pages_choose_base("test-wire", 1, base);
    assert_int_equal(pages_create_node(&pages, base, 1, 3, 7, 4, NULL), 0);
    assert_int_equal(pages.first, 3);
    assert_int_equal(pages.count, 2);
    snprintf(path, sizeof path, "%s.1/rank-4.page", base);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_not_equal(pages_create_node(&head, base, 1, 3, 7, 4, NULL), 0); /* has one agent */
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(pages_create_head(&head, base, 0, 3, 7, 4, NULL), 0);
    assert_int_equal(head.count, 7);
    assert_int_equal(head.page[6]->rank, 6);
    pages_release(&head);
    assert_int_not_equal(pages_create_node(&head, "/tmp/elsewhere", 1, 3, 7, 4, NULL), 0);
    assert_int_not_equal(pages_create_node(&head, "/dev/shm/ckptbench-../x", 1, 3, 7, 4, NULL), 0);
    pages_release(&pages);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void hosts_are_split_as_ssh_wants_them(void **state)
{
    (void)state;
    static const struct {
        const char *word, *destination, *port;
    } cases[] = {{"a", "a", ""},
                 {"me@a", "me@a", ""},
                 {"me@a:2222", "me@a", "2222"},
                 {"a:99999999", "a:99999999", ""},
                 {"::1", "::1", ""},
                 {"[::1]:22", "[::1]", "22"},
                 {"a:", "a:", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char destination[NODE_NAME_BYTES], port[8];
        nodes_split_host(cases[i].word, destination, port);
        assert_string_equal(destination, cases[i].destination);
        assert_string_equal(port, cases[i].port);
    }
}

static void srun_says_which_rank_a_signal_ended(void **state)
{
    (void)state;
    uint32_t rank;
    int number;
    assert_true(seal_find_killed("0: hello\nsrun: error: n3: task 5: Killed\nsrun: error: n1: tasks 0-1: Exited with "
                                 "exit code 4\n",
                                 &rank, &number));
    assert_int_equal(rank, 5);
    assert_int_equal(number, 9);
    assert_true(seal_find_killed("srun: error: a: tasks 2-3: Segmentation fault (core dumped)\n", &rank, &number));
    assert_int_equal(rank, 2);
    assert_int_equal(number, 11);
    assert_false(seal_find_killed("srun: error: n1: tasks 0-1: Exited with exit code 4\n", &rank, &number));
    assert_false(seal_find_killed(
        "srun: error: n2: task 1: Exited with exit code 4\nsrun: error: n1: task 0: Terminated\n", &rank, &number));
    assert_true(seal_find_killed("srun: error: n2: task 1: Exited with exit code 4\nsrun: error: n1: task 0: Killed\n",
                                 &rank, &number));
    assert_false(seal_find_killed("srun: error: task", &rank, &number));
}

static void slurm_says_why_a_job_ended(void **state)
{
    (void)state;
    char name[NODE_NAME_BYTES], word[32];
    assert_true(slurm_end_read_state("JobId=5 JobName=x UserId=root(0) JobState=NODE_FAIL Reason=NodeDown\n", 1, word));
    assert_string_equal(word, "NODE_FAIL");
    assert_true(slurm_end_read_state("JobId=5 JobState=COMPLETING Reason=None PreemptTime=None\n", 1, word));
    assert_string_equal(word, "CANCELLED");
    assert_true(slurm_end_read_state("JobId=5 JobState=COMPLETING Reason=TimeLimit\n", 1, word));
    assert_string_equal(word, "TIMEOUT");
    assert_true(slurm_end_read_state("JobId=5 JobState=COMPLETING PreemptTime=2026-11-21T16:00:00\n", 1, word));
    assert_string_equal(word, "PREEMPTED");
    for (unsigned long own = 0; own < 3; own++) {
        assert_true(
            slurm_end_read_state("JobId=5 JobState=COMPLETING Requeue=1 Restarts=1 PreemptTime=None\n", own, word));
        assert_string_equal(word, own == 0 ? "REQUEUED" : "CANCELLED");
    }
    assert_false(slurm_end_read_state("slurm_load_jobs error: Invalid job id specified\n", 1, word));
    assert_true(slurm_end_find_down("n1 mixed\nn2 down*\n", name, word));
    assert_string_equal(name, "n2");
    assert_true(slurm_end_find_down("n3 idle*\n", name, word));
    assert_false(slurm_end_find_down("n1 mixed\nn2 allocated\n", name, word));
    assert_false(slurm_end_find_down("", name, word));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_read_back_and_nothing_else_does),
        cmocka_unit_test(a_greeting_of_another_protocol_tells_its_version),
        cmocka_unit_test(a_name_has_no_line_feed_and_no_nul),
        cmocka_unit_test(ranks_are_spread_in_order_and_evenly),
        cmocka_unit_test(a_page_arrives_with_the_heads_times_and_only_what_changed),
        cmocka_unit_test(what_is_the_agents_to_write_cannot_be_written),
        cmocka_unit_test(pages_of_a_node_are_those_of_its_ranks),
        cmocka_unit_test(hosts_are_split_as_ssh_wants_them),
        cmocka_unit_test(srun_says_which_rank_a_signal_ended),
        cmocka_unit_test(slurm_says_why_a_job_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
