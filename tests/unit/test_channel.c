/* Channels: what one end says the other hears, and who has no key hears nothing. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/channel.h"
#include "core/clock.h"

#define PATIENCE_NS (20 * NS_PER_S)

struct fixture {
    struct channel_key key;
    struct channel_context *server, *client;
    struct channel *ours, *theirs; /* accepted, connecting */
    int listening;
    uint16_t port;
};

static int set_up(void **state)
{
    struct fixture *self = calloc(1, sizeof *self);
    channel_key_new(&self->key);
    *state = self;
    return channel_context_new(&self->key, CHANNEL_SERVER, &self->server, NULL) ||
           channel_context_new(&self->key, CHANNEL_CLIENT, &self->client, NULL) ||
           channel_listen(0, &self->listening, &self->port, NULL);
}

static int tear_down(void **state)
{
    struct fixture *self = *state;
    channel_free(self->ours);
    channel_free(self->theirs);
    channel_context_free(self->server);
    channel_context_free(self->client);
    close(self->listening);
    free(self);
    return 0;
}

static void await_accept(struct fixture *self)
{
    uint64_t end_ns = clock_monotonic_ns() + PATIENCE_NS;
    while (!self->ours && clock_monotonic_ns() < end_ns) {
        assert_int_equal(channel_accept(self->server, self->listening, &self->ours, NULL), 0);
        clock_sleep_ns(NS_PER_MS / 10);
    }
    assert_non_null(self->ours);
}

static void join(struct fixture *self)
{
    struct cb_err err;
    assert_int_equal(channel_connect(self->client, "127.0.0.1", self->port, &self->theirs, &err), 0);
    await_accept(self);
    uint64_t end_ns = clock_monotonic_ns() + PATIENCE_NS;
    while (!channel_is_open(self->ours) || !channel_is_open(self->theirs)) {
        assert_true(clock_monotonic_ns() < end_ns);
        assert_int_equal(channel_work(self->theirs, &err), 0);
        assert_int_equal(channel_work(self->ours, &err), 0);
    }
}

static void hear(struct channel *from, struct channel *to, const void *bytes, size_t len)
{
    struct cb_err err;
    const void *heard;
    size_t heard_len;
    uint64_t end_ns = clock_monotonic_ns() + PATIENCE_NS;
    assert_int_equal(channel_send(from, bytes, len, &err), 0);
    do {
        assert_true(clock_monotonic_ns() < end_ns);
        assert_int_equal(channel_work(from, &err), 0);
        assert_int_equal(channel_work(to, &err), 0);
    } while (!channel_next(to, &heard, &heard_len));
    assert_int_equal(heard_len, len);
    assert_memory_equal(heard, bytes, len);
    assert_int_equal(channel_unsent(from), 0);
}

static void messages_arrive_whole_whatever_their_length(void **state)
{
    static const size_t lengths[] = {0, 1, 16384, 16385, 100000, CHANNEL_MAX_MESSAGE_BYTES};
    struct fixture *self = *state;
    char *bytes = malloc(CHANNEL_MAX_MESSAGE_BYTES);
    for (size_t i = 0; i < CHANNEL_MAX_MESSAGE_BYTES; i++)
        bytes[i] = (char)(i * 7 + i / 251);
    join(self);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        hear(self->ours, self->theirs, bytes, lengths[i]);
        hear(self->theirs, self->ours, bytes, lengths[i]);
    }
    assert_int_not_equal(channel_send(self->ours, bytes, CHANNEL_MAX_MESSAGE_BYTES + 1u, NULL), 0);
    free(bytes);
}

static void several_messages_keep_their_order(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    unsigned next = 0;
    join(self);
    for (unsigned i = 0; i < 1000; i++)
        assert_int_equal(channel_send(self->ours, &i, sizeof i, &err), 0);
    while (next < 1000) {
        const void *bytes;
        size_t len;
        assert_int_equal(channel_work(self->ours, &err), 0);
        assert_int_equal(channel_work(self->theirs, &err), 0);
        while (channel_next(self->theirs, &bytes, &len)) {
            assert_int_equal(len, sizeof next);
            assert_memory_equal(bytes, &next, sizeof next);
            next++;
        }
    }
}

static void who_does_not_read_is_not_waited_for(void **state)
{
    struct fixture *self = *state;
    static char bytes[1 << 20];
    int rc = 0;
    join(self);
    for (int i = 0; i < 64 && !rc; i++)
        rc = channel_send(self->ours, bytes, sizeof bytes, NULL);
    assert_int_equal(rc, CB_ERR_MEMORY);
    assert_true(channel_unsent(self->ours) <= CHANNEL_MAX_UNSENT_BYTES);
}

/* Works on both until one has failed. */
static int await_failure(struct fixture *self, struct cb_err *err)
{
    uint64_t end_ns = clock_monotonic_ns() + PATIENCE_NS;
    struct cb_err unused;
    for (int rc = 0;; clock_sleep_ns(NS_PER_MS / 10)) {
        assert_true(clock_monotonic_ns() < end_ns);
        if (self->theirs && channel_work(self->theirs, &unused) != 0 && !self->ours)
            return -1;
        if ((rc = channel_work(self->ours, err)) != 0)
            return rc;
    }
}

static void another_key_is_refused(void **state)
{
    struct fixture *self = *state;
    struct channel_key other;
    struct channel_context *stranger;
    struct cb_err err = {0};
    channel_key_new(&other);
    assert_int_equal(channel_context_new(&other, CHANNEL_CLIENT, &stranger, &err), 0);
    assert_int_equal(channel_connect(stranger, "127.0.0.1", self->port, &self->theirs, &err), 0);
    await_accept(self);
    assert_int_not_equal(await_failure(self, &err), 0);
    assert_false(channel_is_open(self->ours));
    assert_false(channel_is_open(self->theirs));
    channel_free(self->theirs);
    self->theirs = NULL;
    channel_context_free(stranger);
}

static void garbage_is_refused(void **state)
{
    static const char *const texts[] = {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\xff\xff\x01", "",
                                        "\0\0\0\0"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct fixture *self = *state;
        struct cb_err err = {0};
        const void *bytes;
        size_t len;
        assert_int_equal(channel_connect(self->client, "127.0.0.1", self->port, &self->theirs, &err), 0);
        await_accept(self);
        int fd = channel_fd(self->theirs); /* past TLS */
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        assert_int_equal(poll(&ready, 1, 10000), 1);
        char sent[64] = ""; /* with some bytes of zero behind it */
        strcpy(sent, texts[i]);
        assert_int_equal(send(fd, sent, strlen(sent) + 4, 0), strlen(sent) + 4);
        shutdown(fd, SHUT_RDWR);
        channel_free(self->theirs);
        self->theirs = NULL;
        assert_int_not_equal(await_failure(self, &err), 0);
        assert_true(*err.message);
        assert_false(channel_next(self->ours, &bytes, &len));
        assert_int_not_equal(channel_work(self->ours, &err), 0); /* and stays so */
        channel_free(self->ours);
        self->ours = NULL;
    }
}

static void what_came_before_the_end_can_be_taken(void **state)
{
    struct fixture *self = *state;
    struct cb_err err = {0};
    const void *bytes;
    size_t len;
    join(self);
    assert_int_equal(channel_send(self->theirs, "bye", 3, &err), 0);
    assert_int_equal(channel_work(self->theirs, &err), 0);
    channel_free(self->theirs);
    self->theirs = NULL;
    assert_int_equal(await_failure(self, &err), CB_ERR_ABORTED);
    assert_true(channel_next(self->ours, &bytes, &len));
    assert_memory_equal(bytes, "bye", 3);
}

static void nobody_there_fails(void **state)
{
    struct fixture *self = *state;
    struct cb_err err = {0};
    close(self->listening);
    int rc = channel_connect(self->client, "127.0.0.1", self->port, &self->theirs, &err);
    uint64_t end_ns = clock_monotonic_ns() + PATIENCE_NS;
    while (!rc && clock_monotonic_ns() < end_ns)
        rc = channel_work(self->theirs, &err);
    assert_int_not_equal(rc, 0);
    assert_int_not_equal(channel_connect(self->client, "no address", 1, &self->ours, &err), 0);
    self->listening = open("/dev/null", O_RDONLY);
}

static void a_port_in_use_says_so(void **state)
{
    struct fixture *self = *state;
    struct cb_err err = {0};
    int fd;
    uint16_t port;
    assert_int_equal(channel_listen(self->port, &fd, &port, &err), CB_ERR_EXISTS);
    assert_non_null(strstr(err.message, "rendezvous.port"));
}

static void keys_travel_through_files_of_mode_0600(void **state)
{
    struct fixture *self = *state;
    char folder[] = "/tmp/ckptbench-test-XXXXXX", path[64];
    struct channel_key read_back;
    struct cb_err err = {0};
    struct stat facts;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/key", folder);
    assert_int_equal(channel_key_write(&self->key, path, &err), 0);
    assert_int_equal(channel_key_write(&self->key, path, &err), CB_ERR_EXISTS);
    assert_int_equal(stat(path, &facts), 0);
    assert_int_equal(facts.st_mode & 07777, 0600);
    int fd = open(path, O_RDONLY);
    assert_int_equal(channel_key_read(fd, &read_back, &err), 0);
    assert_memory_equal(&read_back, &self->key, sizeof read_back);
    close(fd);
    assert_int_equal(truncate(path, 63), 0);
    fd = open(path, O_RDONLY);
    assert_int_equal(channel_key_read(fd, &read_back, &err), CB_ERR_FORMAT);
    close(fd);
    fd = open("/proc/version", O_RDONLY);
    assert_int_equal(channel_key_read(fd, &read_back, &err), CB_ERR_FORMAT);
    close(fd);
    unlink(path);
    rmdir(folder);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(messages_arrive_whole_whatever_their_length),
        TEST(several_messages_keep_their_order),
        TEST(who_does_not_read_is_not_waited_for),
        TEST(another_key_is_refused),
        TEST(garbage_is_refused),
        TEST(what_came_before_the_end_can_be_taken),
        TEST(nobody_there_fails),
        TEST(a_port_in_use_says_so),
        TEST(keys_travel_through_files_of_mode_0600),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
