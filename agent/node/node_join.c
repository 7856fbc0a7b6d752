/* Connecting a node to the head: the first messages. */
#include "agent/node/node_join.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/version.h"
#include "run/status_page.h"

#define MAX_ADDRESSES 16
#define TRY_NS (5 * NS_PER_S) /* for one round of addresses */
#define RETRY_NS (100 * NS_PER_MS)
#define TURN_NS (250 * NS_PER_MS) /* after this time in a handshake, the next address is tried in parallel */
#define LOOK_MS 20
#define ROUND_TRIPS 8

/* One address of the head. A connection is cheap, but a handshake costs CPU on both ends, so a second one starts
 * only after TURN_NS. */
struct way {
    struct channel *channel; /* NULL once it has failed */
    bool connected, shakes;
};

/* Starts to connect to every address; returns the number of attempts. */
static size_t begin_round(const struct node_options *options, struct channel_context *context,
                          struct way ways[MAX_ADDRESSES], struct cb_err *err)
{
    size_t count = 0;
    for (const char *at = options->addresses; *at && count < MAX_ADDRESSES;) {
        char address[64];
        size_t len = strcspn(at, ",");
        snprintf(address, sizeof address, "%.*s", (int)(len < sizeof address ? len : sizeof address - 1), at);
        if (channel_connect(context, address, options->port, &ways[count].channel, err) == 0)
            count++;
        at += len + (at[len] == ',');
    }
    return count;
}

/* Continues the handshake; true if the peer has proved that it holds the key. */
static bool work(struct way *way, struct cb_err *err)
{
    if (channel_work(way->channel, err) != 0) {
        channel_free(way->channel);
        way->channel = NULL;
        return false;
    }
    return channel_is_open(way->channel);
}

/* The next connected address, if no handshake is running or the latest began TURN_NS ago. */
static struct way *take_turn(struct way *ways, size_t count, uint64_t *turn_ns)
{
    struct way *next = NULL;
    bool shakes = false;
    for (size_t i = 0; i < count; i++) {
        if (!next && ways[i].channel && ways[i].connected && !ways[i].shakes)
            next = &ways[i];
        shakes = shakes || (ways[i].channel && ways[i].shakes);
    }
    uint64_t now_ns = clock_monotonic_ns();
    if (!next || (shakes && now_ns - *turn_ns < TURN_NS))
        return NULL;
    *turn_ns = now_ns;
    next->shakes = true;
    return next;
}

static size_t fill_polls(const struct way *ways, size_t count, struct pollfd polls[MAX_ADDRESSES])
{
    size_t left = 0;
    for (size_t i = 0; i < count; i++) {
        const struct way *way = &ways[i];
        bool waits = way->channel && (way->shakes || !way->connected);
        polls[i] = (struct pollfd){.fd = waits ? channel_fd(way->channel) : -1,
                                   .events = way->shakes && waits ? channel_events(way->channel) : POLLOUT};
        left += way->channel != NULL;
    }
    return left;
}

/* The first to complete its handshake wins; *winner stays NULL if all fail. Frees the others. */
static void end_round(struct way ways[MAX_ADDRESSES], size_t count, uint64_t deadline_ns, struct channel **winner,
                      struct cb_err *err)
{
    struct pollfd polls[MAX_ADDRESSES];
    uint64_t turn_ns = 0;
    struct way *opened = NULL;
    while (!opened && fill_polls(ways, count, polls) > 0 && clock_monotonic_ns() < deadline_ns) {
        (void)poll(polls, count, LOOK_MS);
        for (size_t i = 0; i < count && !opened; i++) {
            ways[i].connected = ways[i].connected || polls[i].revents;
            if (polls[i].revents && ways[i].shakes && work(&ways[i], err))
                opened = &ways[i];
        }
        for (struct way *next; !opened && (next = take_turn(ways, count, &turn_ns));)
            opened = work(next, err) ? next : NULL;
    }
    if (opened) {
        *winner = opened->channel;
        opened->channel = NULL;
    }
    for (size_t i = 0; i < count; i++)
        channel_free(ways[i].channel);
}

int node_connect(const struct node_options *options, struct channel_context *context, uint64_t deadline_ns,
                 struct channel **channel, struct cb_err *err)
{
    struct cb_err last = {0};
    struct channel *winner = NULL;
    for (;;) {
        struct way ways[MAX_ADDRESSES] = {0};
        uint64_t round_ns = clock_monotonic_ns() + TRY_NS;
        size_t count = begin_round(options, context, ways, &last);
        end_round(ways, count, round_ns < deadline_ns ? round_ns : deadline_ns, &winner, &last);
        if (winner) {
            *channel = winner;
            return 0;
        }
        if (clock_monotonic_ns() + RETRY_NS >= deadline_ns)
            return cb_fail(err, CB_ERR_TIMEOUT, "the head does not answer at %s, port %u%s%s", options->addresses,
                           options->port, *last.message ? ": " : "", last.message);
        clock_sleep_ns(RETRY_NS);
    }
}

int node_say(struct channel *channel, struct buf *bytes, enum wire_kind kind, const void *message, struct cb_err *err)
{
    wire_write(bytes, kind, message);
    int rc = buf_check(bytes, "a message", err);
    return rc ? rc : channel_send(channel, bytes->data, bytes->len, err);
}

/* The next message, copied. CB_ERR_TIMEOUT at the deadline. */
static int await_message(struct channel *channel, uint64_t deadline_ns, struct buf *message, struct cb_err *err)
{
    for (;;) {
        const void *bytes;
        size_t len;
        struct pollfd ready = {.fd = channel_fd(channel)};
        int rc = channel_work(channel, err);
        if (channel_next(channel, &bytes, &len)) {
            buf_clear(message);
            buf_append(message, bytes, len);
            return buf_check(message, "a message", err);
        }
        if (rc)
            return rc;
        if (clock_monotonic_ns() >= deadline_ns)
            return cb_fail(err, CB_ERR_TIMEOUT, "the head did not answer in time");
        ready.events = channel_events(channel);
        (void)poll(&ready, 1, LOOK_MS);
    }
}

int node_greet(struct channel *channel, const char *name, uint64_t deadline_ns, struct buf *message,
               struct wire_welcome *welcome, struct cb_err *err)
{
    struct wire_refused refused;
    struct wire_hello hello = {
        .protocol = WIRE_PROTOCOL, .page_version = STATUS_PAGE_VERSION, .page_bytes = sizeof(struct status_page)};
    snprintf(hello.version, sizeof hello.version, "%s", version_text());
    snprintf(hello.commit, sizeof hello.commit, "%s", version_commit());
    snprintf(hello.name, sizeof hello.name, "%s", name);
    if (gethostname(hello.host, sizeof hello.host - 1))
        hello.host[0] = '\0';
    int rc = node_say(channel, message, WIRE_HELLO, &hello, err);
    if (!rc)
        rc = await_message(channel, deadline_ns, message, err);
    if (rc)
        return rc;
    if (wire_kind_of(message->data, message->len) != WIRE_REFUSED)
        return wire_read(message->data, message->len, WIRE_WELCOME, welcome, err);
    rc = wire_read(message->data, message->len, WIRE_REFUSED, &refused, err);
    return rc ? rc : cb_fail(err, CB_ERR_UNSUPPORTED, "the head refused: %.900s", refused.reason);
}

int node_compare_clocks(struct channel *channel, uint64_t deadline_ns, struct wire_joined *joined, struct cb_err *err)
{
    struct buf message;
    int rc = 0;
    uint64_t quickest_ns = UINT64_MAX;
    buf_init(&message, CHANNEL_MAX_MESSAGE_BYTES);
    for (int i = 0; i < ROUND_TRIPS && !rc; i++) {
        struct wire_pong pong;
        const struct wire_ping ping = {.now_ns = clock_monotonic_ns()};
        rc = node_say(channel, &message, WIRE_PING, &ping, err);
        if (!rc)
            rc = await_message(channel, deadline_ns, &message, err);
        uint64_t now_ns = clock_monotonic_ns(), wall_ns = clock_wall_ns();
        if (!rc)
            rc = wire_read(message.data, message.len, WIRE_PONG, &pong, err);
        if (rc || now_ns - ping.now_ns >= quickest_ns)
            continue;
        quickest_ns = now_ns - ping.now_ns;
        joined->round_trip_ns = quickest_ns;
        joined->monotonic_offset_ns = (int64_t)(now_ns - quickest_ns / 2) - (int64_t)pong.monotonic_ns;
        joined->wall_offset_ns = (int64_t)(wall_ns - quickest_ns / 2) - (int64_t)pong.wall_ns;
    }
    buf_release(&message);
    return rc;
}
