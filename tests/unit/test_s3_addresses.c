/* All addresses of an endpoint are used. The name server is this test's own: a getaddrinfo that knows one name. */
#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "store/s3/s3_options.h"
#include "store/store.h"

#define ADDRESSES 3
#define DEPTH 6
#define OBJECTS 12
#define CONNECTIONS 16

static const char *const addresses[ADDRESSES] = {"127.0.0.2", "127.0.0.3", "127.0.0.4"};

/* Each address twice, as for two kinds of sockets: it counts once. */
int getaddrinfo(const char *restrict name, const char *restrict service, const struct addrinfo *restrict hints,
                struct addrinfo **restrict found)
{
    (void)service, (void)hints;
    if (!name || strcmp(name, "s3.test") != 0)
        return EAI_NONAME;
    struct addrinfo *first = NULL;
    for (int i = 2 * ADDRESSES; i-- > 0;) {
        struct addrinfo *info = calloc(1, sizeof *info + sizeof(struct sockaddr_in));
        struct sockaddr_in *address = (struct sockaddr_in *)(info + 1);
        address->sin_family = AF_INET;
        inet_pton(AF_INET, addresses[i % ADDRESSES], &address->sin_addr);
        *info = (struct addrinfo){.ai_family = AF_INET,
                                  .ai_socktype = SOCK_STREAM,
                                  .ai_addrlen = sizeof *address,
                                  .ai_addr = (struct sockaddr *)address,
                                  .ai_next = first};
        first = info;
    }
    *found = first;
    return 0;
}

void freeaddrinfo(struct addrinfo *info)
{
    while (info) {
        struct addrinfo *next = info->ai_next;
        free(info);
        info = next;
    }
}

/* A server that takes every request whose headers and body come at once. */
struct server {
    pthread_t thread;
    int listener;
    _Atomic uint32_t requests, connections;
    _Atomic bool stop;
};

static void answer(struct server *self, int fd)
{
    char request[65536];
    static const char text[] = "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 0\r\n\r\n";
    ssize_t len = recv(fd, request, sizeof request, 0);
    if (len <= 0)
        return;
    if (memmem(request, (size_t)len, "\r\n\r\n", 4)) { /* else the body of the one before */
        self->requests++;
        ssize_t sent = send(fd, text, sizeof text - 1, MSG_NOSIGNAL);
        assert_int_equal(sent, sizeof text - 1);
    }
}

static void *serve(void *context)
{
    struct server *self = context;
    struct pollfd fds[CONNECTIONS] = {{.fd = self->listener, .events = POLLIN}};
    nfds_t count = 1;
    while (!self->stop) {
        if (poll(fds, count, 20) <= 0)
            continue;
        for (nfds_t i = 1; i < count; i++) {
            if (fds[i].revents)
                answer(self, fds[i].fd);
        }
        if (fds[0].revents && count < CONNECTIONS) {
            fds[count++] = (struct pollfd){.fd = accept(self->listener, NULL, NULL), .events = POLLIN};
            self->connections++;
        }
    }
    for (nfds_t i = 0; i < count; i++)
        close(fds[i].fd);
    return NULL;
}

/* All listen on one port: the first takes a free one. */
static uint16_t listen_on(struct server *self, const char *text, uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t len = sizeof address;
    int on = 1;
    inet_pton(AF_INET, text, &address.sin_addr);
    self->listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(self->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    assert_int_equal(bind(self->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(self->listener, 16), 0);
    assert_int_equal(getsockname(self->listener, (struct sockaddr *)&address, &len), 0);
    assert_int_equal(pthread_create(&self->thread, NULL, serve, self), 0);
    return ntohs(address.sin_port);
}

static struct store *open_store(uint16_t port, uint32_t rank)
{
    struct s3_options s3 = s3_options_default;
    struct store *store = NULL;
    struct cb_err err;
    snprintf(s3.endpoint, sizeof s3.endpoint, "http://s3.test:%u", port);
    struct store_options options = {.depth = DEPTH, .rank = rank, .s3 = &s3};
    if (store_open("s3://bucket/p", &options, &store, &err))
        fail_msg("%s", err.message);
    return store;
}

static void finish_all(struct store *store)
{
    struct store_completion completions[DEPTH];
    size_t count = 0;
    while (store_in_flight(store) > 0) {
        assert_int_equal(store_poll(store, completions, DEPTH, clock_monotonic_ns() + 10 * NS_PER_S, &count, NULL), 0);
        assert_true(count > 0);
        for (size_t i = 0; i < count; i++)
            assert_int_equal(completions[i].code, 0);
    }
}

static void put_objects(struct store *store)
{
    struct store_object *objects[DEPTH];
    char name[32], byte = 'x';
    struct iovec segment = {.iov_base = &byte, .iov_len = 1};
    for (int round = 0; round < OBJECTS / DEPTH; round++) {
        for (uint64_t i = 0; i < DEPTH; i++) {
            snprintf(name, sizeof name, "object-%d-%d", round, (int)i);
            assert_int_equal(store_create(store, name, 1, &objects[i], NULL), 0);
            struct store_request request = {
                .kind = STORE_WRITE, .object = objects[i], .segments = &segment, .segment_count = 1, .user = i};
            assert_int_equal(store_submit(store, &request, 1, NULL), 0);
        }
        finish_all(store);
        for (uint64_t i = 0; i < DEPTH; i++)
            store_close(store, objects[i]);
    }
}

static void connections_are_spread_over_all_addresses_and_kept(void **unused)
{
    (void)unused;
    struct server servers[ADDRESSES] = {0};
    uint16_t port = listen_on(&servers[0], addresses[0], 0);
    for (int i = 1; i < ADDRESSES; i++)
        listen_on(&servers[i], addresses[i], port);
    struct store *store = open_store(port, 1);
    assert_non_null(strstr(store_describe(store), "3 addresses"));
    put_objects(store);
    store_free(store);
    for (int i = 0; i < ADDRESSES; i++) {
        servers[i].stop = true;
        pthread_join(servers[i].thread, NULL);
        assert_int_equal(servers[i].requests, OBJECTS / ADDRESSES);
        assert_in_range(servers[i].connections, 1, DEPTH / ADDRESSES);
    }
}

/* The second one refuses every connection. */
static void an_address_that_does_not_answer_is_left_for_the_next(void **unused)
{
    (void)unused;
    struct server servers[ADDRESSES] = {0};
    uint16_t port = listen_on(&servers[0], addresses[0], 0);
    listen_on(&servers[2], addresses[2], port);
    struct store *store = open_store(port, 0);
    put_objects(store);
    store_free(store);
    for (int i = 0; i < ADDRESSES; i += 2) {
        servers[i].stop = true;
        pthread_join(servers[i].thread, NULL);
        assert_true(servers[i].requests >= OBJECTS / ADDRESSES);
    }
    assert_int_equal(servers[0].requests + servers[2].requests, OBJECTS);
}

static int set_credentials(void **unused)
{
    (void)unused;
    static const char *const proxies[] = {"http_proxy", "all_proxy", "ALL_PROXY"};
    for (size_t i = 0; i < sizeof proxies / sizeof *proxies; i++)
        unsetenv(proxies[i]);
    setenv("AWS_ACCESS_KEY_ID", "key", 1);
    return setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_are_spread_over_all_addresses_and_kept),
        cmocka_unit_test(an_address_that_does_not_answer_is_left_for_the_next),
    };
    return cmocka_run_group_tests_name("s3_addresses", tests, set_credentials, NULL);
}
