/* The head's port, with nodes that are played here: those that join, and those that must not. */
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/node/node_join.h"
#include "agent/node/page_copy.h"
#include "agent/node/rendezvous.h"
#include "core/clock.h"
#include "core/json.h"
#include "core/version.h"

/* This program's own accept4: descriptors can run out. */
static bool has_no_descriptors;
static unsigned accepts;

int accept4(int fd, struct sockaddr *address, socklen_t *len, int flags)
{
    accepts++;
    if (!has_no_descriptors)
        return (int)syscall(SYS_accept4, fd, address, len, flags);
    errno = EMFILE;
    return -1;
}

#define NODES 3
#define RANKS 7
#define PATIENCE_NS (20 * NS_PER_S)

struct played {
    struct channel *channel;
    struct buf message;
};

struct fixture {
    char names[NODES][NODE_NAME_BYTES];
    struct nodes nodes;
    struct status_page *page[RANKS];
    struct rendezvous *head;
    struct channel_context *context;
    struct played node[8];
    char file[64]; /* the last file that came: "2:host.json" */
};

static void keep_file(void *context, uint32_t node, const struct wire_file *file)
{
    struct fixture *self = context;
    snprintf(self->file, sizeof self->file, "%u:%.40s", node, file->name);
}

static int set_up(void **state)
{
    struct fixture *self = calloc(1, sizeof *self);
    *state = self;
    for (int i = 0; i < NODES; i++)
        snprintf(self->names[i], NODE_NAME_BYTES, "n%d", i + 1);
    self->nodes = (struct nodes){.name = self->names, .count = NODES, .own = 0, .slurm = true};
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if (page_copy_new(rank, RANKS, 8, &self->page[rank], NULL))
            return -1;
    for (int i = 0; i < 8; i++)
        buf_init(&self->node[i].message, CHANNEL_MAX_MESSAGE_BYTES);
    const struct rendezvous_setup setup = {.run = "run",
                                           .attempt = 1,
                                           .nodes = &self->nodes,
                                           .ranks = RANKS,
                                           .sample_capacity = 8,
                                           .pages = "/dev/shm/ckptbench-run",
                                           .experiment = "version: 1\n",
                                           .page = self->page,
                                           .file = keep_file,
                                           .context = self};
    return rendezvous_new(&setup, &self->head, NULL) ||
           channel_context_new(rendezvous_key(self->head), CHANNEL_CLIENT, &self->context, NULL);
}

static int tear_down(void **state)
{
    struct fixture *self = *state;
    for (int i = 0; i < 8; i++) {
        channel_free(self->node[i].channel);
        buf_release(&self->node[i].message);
    }
    for (uint32_t rank = 0; rank < RANKS; rank++)
        status_page_close(self->page[rank]);
    rendezvous_free(self->head);
    channel_context_free(self->context);
    free(self);
    return 0;
}

/* Lets both sides do what they can. */
static void pump(struct fixture *self)
{
    for (int i = 0; i < 8; i++)
        if (self->node[i].channel)
            (void)!channel_work(self->node[i].channel, NULL); /* what a failure means is the test's to say */
    rendezvous_work(self->head, clock_monotonic_ns(), 1);
}

#define AWAIT(condition)                                                                                               \
    do {                                                                                                               \
        uint64_t end_ns = clock_monotonic_ns() + PATIENCE_NS;                                                          \
        while (!(condition)) {                                                                                         \
            assert_true(clock_monotonic_ns() < end_ns);                                                                \
            pump(self);                                                                                                \
        }                                                                                                              \
    } while (0)

static void connect_node(struct fixture *self, int index)
{
    assert_int_equal(
        channel_connect(self->context, "127.0.0.1", rendezvous_port(self->head), &self->node[index].channel, NULL), 0);
    AWAIT(channel_is_open(self->node[index].channel));
}

static void say(struct fixture *self, int index, enum wire_kind kind, const void *message)
{
    assert_int_equal(node_say(self->node[index].channel, &self->node[index].message, kind, message, NULL), 0);
}

/* The next message for a node, kept in its buffer. */
static enum wire_kind await_message(struct fixture *self, int index)
{
    struct played *node = &self->node[index];
    const void *bytes = NULL;
    size_t len = 0;
    AWAIT(channel_next(node->channel, &bytes, &len));
    buf_clear(&node->message);
    buf_append(&node->message, bytes, len);
    return wire_kind_of(node->message.data, node->message.len);
}

static struct wire_hello make_hello(const char *name)
{
    struct wire_hello hello = {
        .protocol = WIRE_PROTOCOL, .page_version = STATUS_PAGE_VERSION, .page_bytes = sizeof(struct status_page)};
    snprintf(hello.version, sizeof hello.version, "%s", version_text());
    snprintf(hello.commit, sizeof hello.commit, "%s", version_commit());
    snprintf(hello.name, sizeof hello.name, "%s", name);
    snprintf(hello.host, sizeof hello.host, "%s.cluster", name);
    return hello;
}

static void greet(struct fixture *self, int index, const struct wire_hello *hello)
{
    connect_node(self, index);
    say(self, index, WIRE_HELLO, hello);
}

static void join(struct fixture *self, int index, const char *name, int64_t clock_offset_ns)
{
    struct wire_hello hello = make_hello(name);
    struct wire_welcome welcome;
    struct played *node = &self->node[index];
    greet(self, index, &hello);
    assert_int_equal(await_message(self, index), WIRE_WELCOME);
    assert_int_equal(wire_read(node->message.data, node->message.len, WIRE_WELCOME, &welcome, NULL), 0);
    assert_string_equal(self->names[welcome.node], name);
    assert_int_equal(welcome.ranks, RANKS);
    const struct wire_ping ping = {.now_ns = 12345};
    say(self, index, WIRE_PING, &ping);
    assert_int_equal(await_message(self, index), WIRE_PONG);
    struct wire_pong pong;
    assert_int_equal(wire_read(node->message.data, node->message.len, WIRE_PONG, &pong, NULL), 0);
    assert_int_equal(pong.echo_ns, 12345);
    assert_true(pong.wall_ns > 0 && pong.monotonic_ns > 0);
    const struct wire_joined joined = {
        .wall_offset_ns = clock_offset_ns, .round_trip_ns = 1000, .store_free_bytes = 1 << 30};
    say(self, index, WIRE_JOINED, &joined);
    AWAIT(rendezvous_report(self->head, welcome.node)->state == NODE_JOINED);
}

static void nodes_join_and_their_clocks_are_measured_not_judged(void **state)
{
    struct fixture *self = *state;
    char missing[64], path[] = "/tmp/ckptbench-test-XXXXXX";
    struct json_value *root;
    double number;
    const char *text;
    rendezvous_name_missing(self->head, missing, sizeof missing);
    assert_string_equal(missing, "n2, n3");
    join(self, 0, "n3", 3600 * (int64_t)NS_PER_S);
    assert_false(rendezvous_is_complete(self->head));
    rendezvous_name_missing(self->head, missing, sizeof missing);
    assert_string_equal(missing, "n2");
    join(self, 1, "n2", -5);
    assert_true(rendezvous_is_complete(self->head));
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(rendezvous_write(self->head, path, 0.25, NULL), 0);
    assert_int_equal(json_parse_file(path, 1 << 20, &root, NULL), 0);
    const struct json_value *third = json_at(json_get(root, "nodes"), 2);
    assert_true(json_as_double(json_get(third, "clock_offset_s"), &number) && number == 3600);
    assert_true(json_as_text(json_get(third, "state"), &text) && strcmp(text, "joined") == 0);
    assert_true(json_as_text(json_get(third, "host"), &text) && strcmp(text, "n3.cluster") == 0);
    assert_true(json_as_double(json_get(third, "first_rank"), &number) && number == 5);
    json_value_free(root);
    unlink(path);
}

static void another_release_is_refused_by_name(void **state)
{
    struct fixture *self = *state;
    struct wire_hello hello = make_hello("n2");
    const char *reason;
    strcpy(hello.version, "9.9");
    greet(self, 0, &hello);
    AWAIT(rendezvous_was_refused(self->head, &reason));
    assert_non_null(strstr(reason, "node n2 has ckptbench-agent 9.9"));
    assert_int_equal(await_message(self, 0), WIRE_REFUSED);
}

static void another_build_and_another_protocol_are_refused(void **state)
{
    struct fixture *self = *state;
    struct wire_hello hello = make_hello("n2");
    const char *reason;
    hello.page_bytes += 8;
    greet(self, 0, &hello);
    AWAIT(rendezvous_was_refused(self->head, &reason));
    hello = make_hello("n2");
    hello.protocol++;
    greet(self, 1, &hello);
    assert_int_equal(await_message(self, 1), WIRE_REFUSED);
}

static void strangers_and_doubles_are_turned_away(void **state)
{
    struct fixture *self = *state;
    const char *const names[] = {"n9", "n1", "n2"}; /* unknown, the head's own, one that is there */
    join(self, 0, "n2", 0);
    for (int i = 0; i < 3; i++) {
        struct wire_hello hello = make_hello(names[i]);
        const char *reason;
        greet(self, i + 1, &hello);
        assert_int_equal(await_message(self, i + 1), WIRE_REFUSED);
        assert_false(rendezvous_was_refused(self->head, &reason)); /* no reason to end the run */
    }
    assert_int_equal(rendezvous_report(self->head, 1)->state, NODE_JOINED);
}

/* Bytes past TLS, TLS with another key, and a key holder who does not say hello: nothing happens to the run. */
static void garbage_and_wrong_keys_harm_nothing(void **state)
{
    struct fixture *self = *state;
    struct channel_key other;
    struct channel_context *stranger;
    uint32_t lost;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(
            channel_connect(self->context, "127.0.0.1", rendezvous_port(self->head), &self->node[i].channel, NULL), 0);
        pump(self);
        char bytes[256];
        memset(bytes, i * 85, sizeof bytes);
        (void)!send(channel_fd(self->node[i].channel), bytes, sizeof bytes, MSG_NOSIGNAL);
    }
    channel_key_new(&other);
    assert_int_equal(channel_context_new(&other, CHANNEL_CLIENT, &stranger, NULL), 0);
    assert_int_equal(channel_connect(stranger, "127.0.0.1", rendezvous_port(self->head), &self->node[3].channel, NULL),
                     0);
    connect_node(self, 4);
    static const char words[] = "I have the key, but no manners";
    assert_int_equal(channel_send(self->node[4].channel, words, strlen(words), NULL), 0);
    join(self, 5, "n2", 0);
    join(self, 6, "n3", 0);
    assert_true(rendezvous_is_complete(self->head));
    assert_false(rendezvous_find_lost(self->head, &lost));
    channel_free(self->node[3].channel);
    self->node[3].channel = NULL;
    channel_context_free(stranger);
}

/* A connection that never says anything. */
static int connect_mute(struct fixture *self)
{
    struct sockaddr_in head = {.sin_family = AF_INET,
                               .sin_port = htons(rendezvous_port(self->head)),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&head, sizeof head), 0);
    return fd;
}

static bool was_closed(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

static void who_has_no_key_makes_room_when_descriptors_run_out(void **state)
{
    struct fixture *self = *state;
    int mute[2] = {connect_mute(self), connect_mute(self)};
    uint64_t now_ns = clock_monotonic_ns();
    rendezvous_work(self->head, now_ns, 100);
    has_no_descriptors = true;
    assert_int_equal(
        channel_connect(self->context, "127.0.0.1", rendezvous_port(self->head), &self->node[0].channel, NULL), 0);
    rendezvous_work(self->head, now_ns + NS_PER_S / 2, 100); /* too early to take anybody's place */
    assert_false(was_closed(mute[0]) || was_closed(mute[1]));
    rendezvous_work(self->head, now_ns + 2 * NS_PER_S, 100);
    has_no_descriptors = false;
    assert_true(was_closed(mute[0]) && was_closed(mute[1]));
    join(self, 1, "n2", 0);
    close(mute[0]);
    close(mute[1]);
}

static void without_descriptors_it_does_not_poll_for_connections_all_the_time(void **state)
{
    struct fixture *self = *state;
    uint64_t now_ns = clock_monotonic_ns();
    int mute = connect_mute(self);
    has_no_descriptors = true;
    accepts = 0;
    for (unsigned i = 0; i < 100; i++)
        rendezvous_work(self->head, now_ns + i * NS_PER_MS / 2, 0);
    has_no_descriptors = false;
    assert_int_equal(accepts, 1);
    rendezvous_work(self->head, now_ns + NS_PER_S, 100);
    assert_true(accepts > 1);
    close(mute);
}

static void mute_connections_do_not_hold_all_slots(void **state)
{
    enum { SLOTS = 4096 };
    struct fixture *self = *state;
    struct rlimit limit;
    int *mute = calloc(SLOTS, sizeof *mute);
    uint64_t now_ns = clock_monotonic_ns();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    if (limit.rlim_max < 3 * SLOTS || setrlimit(RLIMIT_NOFILE, &limit) != 0)
        skip(); /* needs RLIMIT_NOFILE of 12,288 */
    for (unsigned i = 0; i < SLOTS; i++) {
        mute[i] = connect_mute(self);
        if (i % 64 == 63)
            rendezvous_work(self->head, now_ns, 0);
    }
    assert_int_equal(
        channel_connect(self->context, "127.0.0.1", rendezvous_port(self->head), &self->node[0].channel, NULL), 0);
    rendezvous_work(self->head, now_ns, 100);
    for (unsigned i = 0; i < 1000 && !channel_is_open(self->node[0].channel); i++) {
        (void)!channel_work(self->node[0].channel, NULL);
        rendezvous_work(self->head, now_ns + 2 * NS_PER_S, 1);
    }
    assert_true(channel_is_open(self->node[0].channel));
    for (unsigned i = 0; i < SLOTS; i++)
        close(mute[i]);
    free(mute);
}

static void pages_orders_and_files_travel(void **state)
{
    struct fixture *self = *state;
    struct played *node = &self->node[0];
    struct wire_beat beat = {0};
    uint32_t pid = 4711;
    join(self, 0, "n2", 0); /* ranks 3 and 4 */
    struct wire_span span = {.rank = 4, .offset = offsetof(struct status_page, pid), .bytes = {&pid, sizeof pid}};
    say(self, 0, WIRE_SPAN, &span);
    struct wire_process process = {.rank = 4, .pid = pid, .state = 'D', .place = "io_schedule"};
    say(self, 0, WIRE_PROCESS, &process);
    AWAIT(rendezvous_process(self->head, 4)->state == 'D');
    assert_int_equal(atomic_load(&self->page[4]->pid), 4711);
    assert_null(rendezvous_process(self->head, 0)); /* the head's own */
    struct wire_file file = {.name = "host.json", .content = {"{}", 2}};
    say(self, 0, WIRE_FILE, &file);
    AWAIT(*self->file);
    assert_string_equal(self->file, "1:host.json");
    rendezvous_order(self->head, STOP_NOW, true);
    while (!beat.kill) {
        assert_int_equal(await_message(self, 0), WIRE_BEAT);
        assert_int_equal(wire_read(node->message.data, node->message.len, WIRE_BEAT, &beat, NULL), 0);
    }
    assert_int_equal(beat.stop, STOP_NOW);
}

static void a_node_that_says_what_cannot_be_is_lost(void **state)
{
    struct fixture *self = *state;
    uint32_t pid = 1, lost;
    struct wire_span span = {.rank = 6, .offset = offsetof(struct status_page, pid), .bytes = {&pid, sizeof pid}};
    join(self, 0, "n2", 0);
    say(self, 0, WIRE_SPAN, &span); /* of n3's rank */
    AWAIT(rendezvous_find_lost(self->head, &lost));
    assert_int_equal(lost, 1);
    assert_non_null(strstr(rendezvous_report(self->head, 1)->trouble, "on another node"));
    assert_int_equal(atomic_load(&self->page[6]->pid), 0);
}

static void a_node_that_goes_or_falls_silent_is_lost(void **state)
{
    struct fixture *self = *state;
    uint32_t lost;
    uint64_t silent_ns;
    join(self, 0, "n2", 0);
    join(self, 1, "n3", 0);
    channel_free(self->node[1].channel);
    self->node[1].channel = NULL;
    AWAIT(rendezvous_find_lost(self->head, &lost));
    assert_int_equal(lost, 2);
    uint64_t later_ns = clock_monotonic_ns() + RENDEZVOUS_SILENCE_NS / 2;
    assert_true(rendezvous_find_silent(self->head, later_ns, &lost, &silent_ns));
    assert_int_equal(lost, 1);
    rendezvous_work(self->head, later_ns, 0);
    assert_int_equal(rendezvous_report(self->head, 1)->state, NODE_JOINED);
    rendezvous_work(self->head, later_ns + RENDEZVOUS_SILENCE_NS, 0);
    assert_int_equal(rendezvous_report(self->head, 1)->state, NODE_LOST);
    assert_non_null(strstr(rendezvous_report(self->head, 1)->trouble, "said nothing"));
    assert_true(rendezvous_is_complete(self->head)); /* they had joined */
}

static void finishing_waits_for_what_is_left_and_no_longer(void **state)
{
    struct fixture *self = *state;
    join(self, 0, "n2", 0);
    join(self, 1, "n3", 0);
    say(self, 0, WIRE_FINISHED, NULL);
    pump(self);
    rendezvous_finish(self->head, clock_monotonic_ns() + NS_PER_S / 2); /* n3 never answers */
    assert_int_equal(rendezvous_report(self->head, 1)->state, NODE_FINISHED);
    assert_int_equal(rendezvous_report(self->head, 2)->state, NODE_JOINED);
    while (await_message(self, 1) != WIRE_FINISH)
        ; /* heartbeats */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nodes_join_and_their_clocks_are_measured_not_judged),
        TEST(another_release_is_refused_by_name),
        TEST(another_build_and_another_protocol_are_refused),
        TEST(strangers_and_doubles_are_turned_away),
        TEST(garbage_and_wrong_keys_harm_nothing),
        TEST(who_has_no_key_makes_room_when_descriptors_run_out),
        TEST(without_descriptors_it_does_not_poll_for_connections_all_the_time),
        TEST(mute_connections_do_not_hold_all_slots),
        TEST(pages_orders_and_files_travel),
        TEST(a_node_that_says_what_cannot_be_is_lost),
        TEST(a_node_that_goes_or_falls_silent_is_lost),
        TEST(finishing_waits_for_what_is_left_and_no_longer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
