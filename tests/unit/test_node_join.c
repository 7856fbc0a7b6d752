/* A node's way to the head, where not every address that it was given leads there. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/node/node_join.h"
#include "core/clock.h"

#define HEAD "127.0.0.2"
#define SILENT "127.0.0.3"
#define NOBODY "127.0.0.4"
#define STRANGER "127.0.0.5"
#define MOST 8

static int listen_on(const char *address, uint16_t *port)
{
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(*port)};
    socklen_t len = sizeof place;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    inet_pton(AF_INET, address, &place.sin_addr);
    assert_int_equal(bind(fd, (struct sockaddr *)&place, sizeof place), 0);
    assert_int_equal(listen(fd, MOST), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&place, &len), 0);
    *port = ntohs(place.sin_port);
    return fd;
}

/* Somebody who holds a key and shakes hands with whoever comes. */
struct other_end {
    int listening;
    struct channel_key key;
    atomic_bool stop;
    pthread_t thread;
};

static void *shake_hands(void *context)
{
    struct other_end *self = context;
    struct channel_context *tls = NULL;
    struct channel *channels[MOST];
    size_t count = 0;
    if (channel_context_new(&self->key, CHANNEL_SERVER, &tls, NULL))
        return NULL;
    while (!atomic_load(&self->stop)) {
        struct pollfd ready = {.fd = self->listening, .events = POLLIN};
        (void)poll(&ready, 1, 2);
        while (count < MOST && channel_accept(tls, self->listening, &channels[count], NULL) == 0 && channels[count])
            count++;
        for (size_t i = 0; i < count; i++)
            (void)!channel_work(channels[i], NULL);
    }
    for (size_t i = 0; i < count; i++)
        channel_free(channels[i]);
    channel_context_free(tls);
    return NULL;
}

static void begin(struct other_end *self, const char *address, uint16_t *port, const struct channel_key *key)
{
    *self = (struct other_end){.listening = listen_on(address, port), .key = *key};
    assert_int_equal(pthread_create(&self->thread, NULL, shake_hands, self), 0);
}

static void end(struct other_end *self)
{
    atomic_store(&self->stop, true);
    pthread_join(self->thread, NULL);
    close(self->listening);
}

/* Whether one of the addresses leads to the head, who is there, as are one that says nothing and one of another run. */
static int connect_to(const char *addresses, uint64_t timeout_ns)
{
    struct channel_key key, other;
    struct other_end head, stranger;
    struct channel_context *context = NULL;
    struct channel *channel = NULL;
    struct node_options options = {.name = "n1", .addresses = addresses};
    channel_key_new(&key);
    channel_key_new(&other);
    begin(&head, HEAD, &options.port, &key);
    begin(&stranger, STRANGER, &options.port, &other);
    int silent = listen_on(SILENT, &options.port);
    assert_int_equal(channel_context_new(&key, CHANNEL_CLIENT, &context, NULL), 0);
    int rc = node_connect(&options, context, clock_monotonic_ns() + timeout_ns, &channel, NULL);
    if (rc == 0)
        assert_true(channel_is_open(channel));
    channel_free(channel);
    channel_context_free(context);
    close(silent);
    end(&stranger);
    end(&head);
    return rc;
}

static void test_the_head_is_found_at_its_only_address(void **state)
{
    (void)state;
    assert_int_equal(connect_to(HEAD, 60 * NS_PER_S), 0);
}

static void test_an_address_where_nobody_answers_is_passed_over(void **state)
{
    (void)state;
    assert_int_equal(connect_to(NOBODY "," HEAD, 60 * NS_PER_S), 0);
    assert_int_equal(connect_to(SILENT "," NOBODY "," HEAD, 60 * NS_PER_S), 0);
}

static void test_an_address_of_somebody_else_is_passed_over(void **state)
{
    (void)state;
    assert_int_equal(connect_to(STRANGER "," HEAD, 60 * NS_PER_S), 0);
    assert_int_equal(connect_to("nonsense," STRANGER "," SILENT "," HEAD "," HEAD, 60 * NS_PER_S), 0);
}

static void test_where_the_head_is_not_there_is_an_end_to_trying(void **state)
{
    (void)state;
    assert_int_equal(connect_to(NOBODY "," SILENT "," STRANGER, NS_PER_S), CB_ERR_TIMEOUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_head_is_found_at_its_only_address),
        cmocka_unit_test(test_an_address_where_nobody_answers_is_passed_over),
        cmocka_unit_test(test_an_address_of_somebody_else_is_passed_over),
        cmocka_unit_test(test_where_the_head_is_not_there_is_an_end_to_trying),
    };
    return cmocka_run_group_tests_name("node_join", tests, NULL, NULL);
}
