/* The connections between ranks over TCP. */
#include "comm/tcp_world.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/sigpipe.h"

#define TCP_VERSION 1
#define PART_BYTES (UINT64_C(1) << 20)     /* of a message that goes in one frame */
#define QUEUED_MOST_BYTES (4 * PART_BYTES) /* limit of queued frames per rank */
#define STRANGER_NS (10 * NS_PER_S)        /* time limit for the hello of a connection */
#define RETRY_NS (50 * NS_PER_MS)
#define GOODBYE_NS NS_PER_S
#define REFUSED_NS (5 * NS_PER_S) /* for which rank 0, which did listen, refuses connections */

enum frame_kind { FRAME_HELLO, FRAME_TABLE, FRAME_PART, FRAME_GONE, FRAME_GOODBYE, FRAME_NOT_MET };

struct frame {
    uint32_t kind, version;
    uint32_t rank; /* hello: the sender; gone: the rank that is gone */
    uint32_t tag;
    uint64_t context, length, offset; /* of a message: communicator, length, offset of this part */
};

struct hello {
    uint32_t size;
    uint16_t port; /* where it listens */
    char host[HOST_BYTES];
};

/* --- frames --- */

static int queue_frame(struct channel *channel, const struct frame *frame, const void *bytes, size_t len,
                       struct cb_err *err)
{
    char *whole = malloc(sizeof *frame + len);
    if (!whole)
        return alloc_fail(err, "for a message to another rank");
    memcpy(whole, frame, sizeof *frame);
    if (len)
        memcpy(whole + sizeof *frame, bytes, len);
    int rc = channel_send(channel, whole, sizeof *frame + len, err);
    free(whole);
    return rc;
}

static int connect_to(struct tcp_world *self, uint32_t rank, struct cb_err *err)
{
    struct tcp_peer *peer = &self->peers[rank];
    struct frame frame = {.kind = FRAME_HELLO, .version = TCP_VERSION, .rank = self->base.rank};
    struct hello hello = {.size = self->base.size, .port = self->port};
    memcpy(hello.host, self->host, sizeof hello.host);
    int rc = channel_connect(self->client, peer->place.address, peer->place.port, &peer->out, err);
    return rc ? rc : queue_frame(peer->out, &frame, &hello, sizeof hello, err);
}

/* --- a rank that is gone --- */

static void note_gone(struct tcp_world *self, uint32_t rank)
{
    struct frame frame = {.kind = FRAME_GONE, .rank = rank};
    if (self->peers[rank].gone || self->peers[rank].left)
        return;
    self->peers[rank].gone = true;
    self->base.first_gone = self->base.first_gone < self->base.size ? self->base.first_gone : rank;
    for (uint32_t i = 0; i < self->base.size; i++)
        if (i != rank && self->peers[i].out && !queue_frame(self->peers[i].out, &frame, NULL, 0, NULL))
            (void)!channel_work(self->peers[i].out, NULL); /* at once, since this rank may be about to leave */
}

/* --- receiving --- */

static bool is_for(const struct message_transfer *receive, uint32_t peer, uint64_t context, uint32_t tag)
{
    return receive->peer == peer && receive->context == context && receive->tag == tag;
}

static void take_out(struct tcp_world *self, struct message_transfer **link)
{
    struct message_transfer *receive = *link;
    *link = receive->next;
    if (self->last_receive == &receive->next)
        self->last_receive = link;
    receive->next = NULL;
}

/* At the first part of a message: finds the matching receive, or allocates memory for the message. */
static int begin_message(struct tcp_world *self, uint32_t rank, const struct frame *frame, struct cb_err *err)
{
    struct tcp_peer *peer = &self->peers[rank];
    struct message_transfer **link = &self->receives;
    while (*link && !is_for(*link, rank, frame->context, frame->tag))
        link = &(*link)->next;
    if (*link) {
        peer->arriving = *link;
        if (peer->arriving->length != frame->length)
            return cb_fail(err, CB_ERR_CORRUPT, "rank %u sent %llu bytes where this rank expects %llu", rank,
                           (unsigned long long)frame->length, (unsigned long long)peer->arriving->length);
        take_out(self, link);
        return 0;
    }
    struct tcp_early *early = calloc(1, sizeof *early);
    char *bytes = malloc(frame->length + 1);
    if (!early || !bytes) {
        free(early);
        free(bytes);
        return alloc_fail(err, "for a message of %llu bytes", (unsigned long long)frame->length);
    }
    *early = (struct tcp_early){
        .peer = rank, .context = frame->context, .tag = frame->tag, .length = frame->length, .bytes = bytes};
    *self->last_early = early;
    self->last_early = &early->next;
    peer->arriving_early = early;
    return 0;
}

static int take_part(struct tcp_world *self, uint32_t rank, const struct frame *frame, const char *bytes, uint64_t len,
                     struct cb_err *err)
{
    struct tcp_peer *peer = &self->peers[rank];
    int rc = frame->offset == 0 ? begin_message(self, rank, frame, err) : 0;
    if (rc)
        return rc;
    struct message_transfer *transfer = peer->arriving;
    struct tcp_early *early = peer->arriving_early;
    uint64_t *moved = transfer ? &transfer->moved : early ? &early->moved : NULL;
    if (!moved || *moved != frame->offset || len > frame->length - frame->offset)
        return cb_fail(err, CB_ERR_CORRUPT, "rank %u sent parts of a message that do not belong together", rank);
    memcpy((transfer ? transfer->bytes : early->bytes) + *moved, bytes, len);
    *moved += len;
    if (*moved == frame->length) {
        if (transfer)
            transfer->done = true;
        peer->arriving = NULL;
        peer->arriving_early = NULL;
    }
    return 0;
}

/* Gives a receive the message that arrived before it; true if there is one. If the message is incomplete, its rest will go
 * to the receive. */
static bool take_early(struct tcp_world *self, struct message_transfer *receive)
{
    struct tcp_early **link = &self->earlies;
    while (*link &&
           ((*link)->peer != receive->peer || (*link)->context != receive->context || (*link)->tag != receive->tag))
        link = &(*link)->next;
    struct tcp_early *early = *link;
    receive->has_other_length = early && early->length != receive->length;
    if (!early || receive->has_other_length)
        return early != NULL;
    *link = early->next;
    if (self->last_early == &early->next)
        self->last_early = link;
    memcpy(receive->bytes, early->bytes, early->moved);
    receive->moved = early->moved;
    receive->done = early->moved == early->length;
    struct tcp_peer *peer = &self->peers[receive->peer];
    if (peer->arriving_early == early) {
        peer->arriving_early = NULL;
        peer->arriving = receive;
    }
    free(early->bytes);
    free(early);
    return true;
}

/* --- meeting --- */

/* The lowest rank on the same machine as `rank`. */
static uint32_t machine_of(const struct tcp_world *self, uint32_t rank)
{
    uint32_t lowest = 0;
    while (strcmp(self->hosts[lowest], self->hosts[rank]) != 0)
        lowest++;
    return lowest;
}

/* On rank 0, when all ranks have connected: sends each the addresses of the others. */
static int send_table(struct tcp_world *self, struct cb_err *err)
{
    struct frame frame = {.kind = FRAME_TABLE, .version = TCP_VERSION};
    struct tcp_place *table = calloc(self->base.size, sizeof *table);
    int rc = table ? 0 : alloc_fail(err, "for the places of %u ranks", self->base.size);
    for (uint32_t i = 0; i < self->base.size && !rc; i++) {
        self->peers[i].place.machine = machine_of(self, i);
        table[i] = self->peers[i].place;
    }
    for (uint32_t i = 1; i < self->base.size && !rc; i++) {
        rc = connect_to(self, i, err);
        if (!rc)
            rc = queue_frame(self->peers[i].out, &frame, table, self->base.size * sizeof *table, err);
    }
    free(table);
    self->has_table = !rc;
    return rc;
}

static int take_table(struct tcp_world *self, const char *bytes, size_t len, struct cb_err *err)
{
    const struct tcp_place rank_0 = self->peers[0].place;
    if (self->has_table || len != self->base.size * sizeof(struct tcp_place))
        return cb_fail(err, CB_ERR_CORRUPT, "rank 0 sent places of another number of ranks");
    for (uint32_t i = 0; i < self->base.size; i++) {
        struct tcp_place *place = &self->peers[i].place;
        memcpy(place, bytes + i * sizeof *place, sizeof *place);
        place->address[ADDRESS_BYTES - 1] = '\0';
        if (i == 0 || strncmp(place->address, "127.", 4) == 0 || strcmp(place->address, "::1") == 0)
            memcpy(place->address, rank_0.address, ADDRESS_BYTES); /* ranks on rank 0's machine connected by loopback */
        if (place->machine >= self->base.size)
            return cb_fail(err, CB_ERR_CORRUPT, "rank 0 sent a place that does not exist");
    }
    self->peers[0].place.port = rank_0.port;
    self->has_table = true;
    return 0;
}

/* The peer's address as text. */
static void read_address(int fd, char text[ADDRESS_BYTES])
{
    struct sockaddr_storage from;
    socklen_t len = sizeof from;
    char name[NI_MAXHOST] = "";
    if (getpeername(fd, (struct sockaddr *)&from, &len) == 0)
        (void)getnameinfo((const struct sockaddr *)&from, len, name, sizeof name, NULL, 0, NI_NUMERICHOST);
    const char *plain = strncmp(name, "::ffff:", 7) == 0 ? name + 7 : name;
    snprintf(text, ADDRESS_BYTES, "%.*s", ADDRESS_BYTES - 1, plain);
}

/* Whether the hello is from one of the ranks; if so, the connection belongs to it. */
static bool take_hello(struct tcp_world *self, struct channel *channel, const char *bytes, size_t len)
{
    struct frame frame;
    struct hello hello;
    if (len != sizeof frame + sizeof hello)
        return false;
    memcpy(&frame, bytes, sizeof frame);
    memcpy(&hello, bytes + sizeof frame, sizeof hello);
    hello.host[HOST_BYTES - 1] = '\0';
    if (frame.kind != FRAME_HELLO || frame.version != TCP_VERSION || frame.rank >= self->base.size ||
        frame.rank == self->base.rank || hello.size != self->base.size || self->peers[frame.rank].in)
        return false;
    struct tcp_peer *peer = &self->peers[frame.rank];
    peer->in = channel;
    if (self->base.rank == 0) {
        read_address(channel_fd(channel), peer->place.address);
        peer->place.port = hello.port;
        memcpy(self->hosts[frame.rank], hello.host, HOST_BYTES);
        self->came++;
    }
    return true;
}

static void let_in(struct tcp_world *self)
{
    uint64_t now_ns = clock_monotonic_ns();
    struct channel *channel = NULL;
    while (self->stranger_count < STRANGERS_MOST &&
           channel_accept(self->server, self->listener.fd, &channel, NULL) == 0 && channel)
        self->strangers[self->stranger_count++] = (struct tcp_stranger){channel, now_ns};
    for (size_t i = 0; i < self->stranger_count;) {
        struct tcp_stranger *stranger = &self->strangers[i];
        const void *bytes;
        size_t len;
        bool ours = false, over = channel_work(stranger->channel, NULL) || now_ns > stranger->since_ns + STRANGER_NS;
        if (channel_next(stranger->channel, &bytes, &len)) { /* even if the rank has disconnected already */
            ours = take_hello(self, stranger->channel, bytes, len);
            over = !ours;
        }
        if (over)
            channel_free(stranger->channel);
        if (over || ours)
            *stranger = self->strangers[--self->stranger_count];
        else
            i++;
    }
}

/* --- progress --- */

static int take_frame(struct tcp_world *self, uint32_t rank, const char *bytes, size_t len, struct cb_err *err)
{
    struct frame frame;
    if (len < sizeof frame)
        return cb_fail(err, CB_ERR_CORRUPT, "rank %u sent a frame of %zu bytes", rank, len);
    memcpy(&frame, bytes, sizeof frame);
    switch (frame.kind) {
    case FRAME_TABLE:
        return rank == 0 ? take_table(self, bytes + sizeof frame, len - sizeof frame, err) : 0;
    case FRAME_PART:
        if (frame.length > COMM_MESSAGE_MAX_BYTES * self->base.size || frame.offset > frame.length)
            return cb_fail(err, CB_ERR_CORRUPT, "rank %u sent a message of an impossible length", rank);
        return take_part(self, rank, &frame, bytes + sizeof frame, len - sizeof frame, err);
    case FRAME_GONE:
        if (frame.rank >= self->base.size || frame.rank == self->base.rank)
            return 0;
        if (rank == 0) /* comes after what rank 0 had to say before, so what has ended well is known */
            self->peers[frame.rank].left = false;
        note_gone(self, frame.rank);
        return 0;
    case FRAME_GOODBYE:
        self->peers[rank].left = true;
        return 0;
    case FRAME_NOT_MET:
        return cb_fail(err, CB_ERR_ABORTED, "%.*s", (int)(len - sizeof frame), bytes + sizeof frame);
    default:
        return cb_fail(err, CB_ERR_CORRUPT, "rank %u sent a frame of kind %u", rank, frame.kind);
    }
}

static int take_frames(struct tcp_world *self, uint32_t rank, struct channel *channel, struct cb_err *err)
{
    const void *bytes;
    size_t len;
    int rc = 0;
    while (!rc && channel_next(channel, &bytes, &len))
        rc = take_frame(self, rank, bytes, len, err);
    return rc;
}

static int hear(struct tcp_world *self, uint32_t rank, struct cb_err *err)
{
    struct channel *channel = self->peers[rank].in;
    if (!channel)
        return 0;
    bool ended = channel_work(channel, NULL);
    int rc = take_frames(self, rank, channel, err);
    if (ended)
        note_gone(self, rank);
    return rc;
}

/* Queues as much as the connection accepts. */
static int queue_sends(struct tcp_peer *peer, struct cb_err *err)
{
    while (peer->sends && channel_unsent(peer->out) < QUEUED_MOST_BYTES) {
        struct message_transfer *send = peer->sends;
        uint64_t left = send->length - send->moved, part = left < PART_BYTES ? left : PART_BYTES;
        struct frame frame = {.kind = FRAME_PART,
                              .tag = send->tag,
                              .context = send->context,
                              .length = send->length,
                              .offset = send->moved};
        int rc = queue_frame(peer->out, &frame, send->bytes + send->moved, part, err);
        if (rc)
            return rc;
        send->moved += part;
        if (send->moved < send->length)
            continue;
        peer->sends = send->next;
        if (!peer->sends)
            peer->last_send = &peer->sends;
        send->next = peer->queued;
        peer->queued = send;
    }
    return 0;
}

static int speak(struct tcp_world *self, uint32_t rank, struct cb_err *err)
{
    struct tcp_peer *peer = &self->peers[rank];
    int rc = 0;
    if (!peer->out && peer->sends)
        rc = connect_to(self, rank, err);
    if (rc || !peer->out)
        return rc;
    rc = queue_sends(peer, err);
    bool ended = channel_work(peer->out, NULL);
    if (!rc)
        rc = take_frames(self, rank, peer->out, err);
    if (ended && !peer->in) /* if not, it still has unread frames */
        note_gone(self, rank);
    if (!ended && channel_is_open(peer->out) && channel_unsent(peer->out) == 0) {
        for (; peer->queued; peer->queued = peer->queued->next)
            peer->queued->done = true;
    }
    return rc;
}

static int progress(struct message_world *world, struct cb_err *err)
{
    struct tcp_world *self = (struct tcp_world *)world;
    struct sigpipe_guard guard;
    int rc = 0;
    sigpipe_block(&guard);
    let_in(self);
    for (uint32_t i = 0; i < self->base.size && !rc; i++) {
        if (i == self->base.rank || self->peers[i].gone)
            continue;
        rc = speak(self, i, err);
        if (!rc)
            rc = hear(self, i, err);
    }
    sigpipe_restore(&guard);
    return rc;
}

/* Delivers a rank's message to itself. */
static int send_to_self(struct tcp_world *self, struct message_transfer *send, struct cb_err *err)
{
    struct frame frame = {.kind = FRAME_PART, .tag = send->tag, .context = send->context, .length = send->length};
    int rc = take_part(self, self->base.rank, &frame, send->bytes, send->length, err);
    send->done = !rc;
    return rc;
}

static int start_transfer(struct message_world *world, struct message_transfer *transfer, struct cb_err *err)
{
    struct tcp_world *self = (struct tcp_world *)world;
    if (!transfer->receives && transfer->peer == self->base.rank)
        return send_to_self(self, transfer, err);
    if (!transfer->receives) {
        struct tcp_peer *peer = &self->peers[transfer->peer];
        *peer->last_send = transfer;
        peer->last_send = &transfer->next;
    } else if (!take_early(self, transfer)) {
        *self->last_receive = transfer;
        self->last_receive = &transfer->next;
    }
    return 0;
}

static bool has_lost(const struct message_world *world, uint32_t rank, bool receives)
{
    const struct tcp_peer *peer = &((const struct tcp_world *)world)->peers[rank];
    return peer->gone || (receives && peer->left && peer->in);
}

/* A rank that has left in good order, too: the others may wait for an answer to what it takes part in. */
static void tell_lost(struct message_world *world, uint32_t rank)
{
    struct tcp_world *self = (struct tcp_world *)world;
    struct sigpipe_guard guard;
    sigpipe_block(&guard);
    self->peers[rank].left = false;
    note_gone(self, rank);
    sigpipe_restore(&guard);
}

static uint32_t known_machine(const struct message_world *world, uint32_t rank)
{
    return ((const struct tcp_world *)world)->peers[rank].place.machine;
}

static void free_world(struct message_world *world)
{
    struct tcp_world *self = (struct tcp_world *)world;
    struct sigpipe_guard guard;
    sigpipe_block(&guard); /* closing sends a goodbye, too */
    for (size_t i = 0; i < self->stranger_count; i++)
        channel_free(self->strangers[i].channel);
    for (uint32_t i = 0; self->peers && i < self->base.size; i++) {
        channel_free(self->peers[i].out);
        channel_free(self->peers[i].in);
    }
    sigpipe_restore(&guard);
    while (self->earlies) {
        struct tcp_early *early = self->earlies;
        self->earlies = early->next;
        free(early->bytes);
        free(early);
    }
    fork_socket_close(&self->listener);
    channel_context_free(self->server);
    channel_context_free(self->client);
    pthread_mutex_destroy(&self->base.lock);
    free(self->hosts);
    free(self->peers);
    free(self);
}

/* Sends a frame with text on all connections. Takes at most a second. */
static void tell_all(struct tcp_world *self, enum frame_kind kind, const char *text)
{
    struct frame frame = {.kind = kind, .rank = self->base.rank};
    uint64_t deadline_ns = clock_monotonic_ns() + GOODBYE_NS;
    struct sigpipe_guard guard;
    bool waits = true;
    sigpipe_block(&guard);
    for (uint32_t i = 0; i < self->base.size; i++)
        for (int end = 0; end < 2; end++) {
            struct channel *channel = end ? self->peers[i].in : self->peers[i].out;
            if (channel)
                (void)!queue_frame(channel, &frame, text, strlen(text), NULL);
        }
    while (waits && clock_monotonic_ns() < deadline_ns) {
        waits = false;
        for (uint32_t i = 0; i < self->base.size; i++)
            for (int end = 0; end < 2; end++) {
                struct channel *channel = end ? self->peers[i].in : self->peers[i].out;
                if (channel && !channel_work(channel, NULL) && channel_unsent(channel) > 0)
                    waits = true;
            }
        if (waits)
            clock_sleep_ns(NS_PER_MS);
    }
    sigpipe_restore(&guard);
}

static void say_goodbye(struct message_world *world)
{
    tell_all((struct tcp_world *)world, FRAME_GOODBYE, "");
}

static const struct message_world_ops tcp_ops = {.name = "TCP",
                                                 .start = start_transfer,
                                                 .progress = progress,
                                                 .has_lost = has_lost,
                                                 .tell_lost = tell_lost,
                                                 .machine_of = known_machine,
                                                 .say_goodbye = say_goodbye,
                                                 .free = free_world};

/* --- the start --- */

/* An id of the machine that is the same in all its containers. */
static void read_host(char host[HOST_BYTES])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, host, HOST_BYTES - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (got <= 0 && gethostname(host, HOST_BYTES - 1))
        host[0] = '\0';
}

static int resolve(const char *name, char address[ADDRESS_BYTES], struct cb_err *err)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char text[NI_MAXHOST] = "";
    int code = getaddrinfo(name, NULL, &hints, &found);
    if (!code)
        code = getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST);
    if (found)
        freeaddrinfo(found);
    if (code || strlen(text) >= ADDRESS_BYTES)
        return cb_fail(err, CB_ERR_NOT_FOUND, "looking up %s, where rank 0 is: %s", name,
                       code ? gai_strerror(code) : "its address is too long");
    memcpy(address, text, strlen(text) + 1);
    return 0;
}

/* Takes over the socket that is there already, or opens one. */
static int listen_here(struct tcp_world *self, const struct comm_tcp_place *place, struct cb_err *err)
{
    int fd = place->listening_fd > 0 ? place->listening_fd : -1;
    fork_socket_hold();
    int rc = fd < 0 ? channel_listen(place->rank == 0 ? place->port : 0, &fd, &self->port, err) : 0;
    fork_socket_add(&self->listener, fd);
    fork_socket_release();
    return rc;
}

static int make_world(const struct comm_tcp_place *place, struct tcp_world **world, struct cb_err *err)
{
    struct tcp_world *self = calloc(1, sizeof *self);
    if (!self) {
        if (place->listening_fd > 0)
            close(place->listening_fd);
        return alloc_fail(err, "for the communicator");
    }
    pthread_mutex_init(&self->base.lock, NULL);
    self->base.rank = place->rank;
    self->base.size = self->base.first_gone = place->size;
    self->base.ops = &tcp_ops;
    self->last_receive = &self->receives;
    self->last_early = &self->earlies;
    self->peers = calloc(place->size, sizeof *self->peers);
    self->hosts = calloc(place->size, sizeof *self->hosts);
    read_host(self->host);
    int rc = listen_here(self, place, err);
    if (!rc && (!self->peers || !self->hosts))
        rc = alloc_fail(err, "for %u ranks", place->size);
    for (uint32_t i = 0; i < place->size && !rc; i++)
        self->peers[i].last_send = &self->peers[i].sends;
    if (!rc)
        rc = channel_context_new(&place->key, CHANNEL_SERVER, &self->server, err);
    if (!rc)
        rc = channel_context_new(&place->key, CHANNEL_CLIENT, &self->client, err);
    if (!rc && place->rank != 0)
        rc = resolve(place->address, self->peers[0].place.address, err);
    if (rc) {
        free_world(&self->base);
        return rc;
    }
    self->peers[0].place.port = place->port;
    memcpy(self->hosts[place->rank], self->host, HOST_BYTES);
    *world = self;
    return 0;
}

static int fail_missing(const struct tcp_world *self, int code, struct cb_err *err)
{
    uint32_t missing = 1;
    while (missing < self->base.size && self->peers[missing].in)
        missing++;
    return missing == self->base.size ? cb_fail(err, code, "not all ranks could be told where the others are")
                                      : cb_fail(err, code, "%u of %u ranks have not come; the first is rank %u",
                                                self->base.size - 1 - self->came, self->base.size, missing);
}

/* On rank 0: whether all ranks that have come are still there. One that has reached its own deadline is not, so those who
 * have not come are named, too. */
static int check_came(struct tcp_world *self, struct cb_err *err)
{
    uint32_t gone = 1;
    while (gone < self->base.size && !(self->peers[gone].in && channel_work(self->peers[gone].in, NULL)))
        gone++;
    if (gone == self->base.size)
        return 0;
    int rc = fail_missing(self, CB_ERR_ABORTED, err);
    (void)cb_context(err, "rank %u is gone: the connection to it ended while the ranks met", gone);
    return rc;
}

/* On rank 0: accepts all ranks and sends them the addresses. */
static int await_ranks(struct tcp_world *self, uint64_t deadline_ns, struct cb_err *err)
{
    int rc = 0;
    bool all_told = false;
    while (!rc && !all_told) {
        let_in(self);
        if (!self->has_table && self->came == self->base.size - 1)
            rc = send_table(self, err);
        else if (!self->has_table)
            rc = check_came(self, err);
        all_told = self->has_table;
        for (uint32_t i = 1; i < self->base.size && self->has_table && !rc; i++) {
            rc = channel_work(self->peers[i].out, err);
            all_told = all_told && channel_is_open(self->peers[i].out) && channel_unsent(self->peers[i].out) == 0;
            if (rc)
                rc = cb_context(err, "telling rank %u where the others are", i);
        }
        if (!rc && !all_told && clock_monotonic_ns() > deadline_ns)
            rc = fail_missing(self, CB_ERR_TIMEOUT, err);
        if (!rc && !all_told)
            clock_sleep_ns(NS_PER_MS);
    }
    if (rc && err)
        tell_all(self, FRAME_NOT_MET, err->message);
    return rc;
}

/* Takes the connection to rank 0 one step further, or begins it. If that fails, `why` says why, and the next call begins
 * anew. */
static int knock(struct tcp_world *self, struct cb_err *why, struct cb_err *err)
{
    struct tcp_peer *first = &self->peers[0];
    if (!first->out && connect_to(self, 0, why))
        return 0;
    bool ended = channel_work(first->out, why) != 0;
    int rc = take_frames(self, 0, first->out, err);
    if (ended) {
        channel_free(first->out);
        first->out = NULL;
    }
    return rc;
}

/* On the other ranks: connects to rank 0, which may not be listening yet, and waits for the addresses. */
static int come(struct tcp_world *self, bool is_listening, uint64_t deadline_ns, struct cb_err *err)
{
    struct tcp_peer *first = &self->peers[0];
    uint64_t refused_ns = 0; /* since when */
    int rc = 0;
    while (!rc && !self->has_table) {
        struct cb_err why = {0};
        let_in(self);
        rc = knock(self, &why, err);
        bool ended = first->in && channel_work(first->in, NULL);
        if (!rc && first->in)
            rc = take_frames(self, 0, first->in, err);
        if (rc || self->has_table)
            break;
        uint64_t now_ns = clock_monotonic_ns();
        if (why.sys_errno != ECONNREFUSED)
            refused_ns = first->out && channel_is_open(first->out) ? 0 : refused_ns;
        else if (!refused_ns)
            refused_ns = now_ns;
        if (ended || (is_listening && refused_ns && now_ns > refused_ns + REFUSED_NS))
            return cb_fail(err, CB_ERR_ABORTED, "rank 0 is gone: %s port %u %s", first->place.address,
                           first->place.port, ended ? "ended the connection" : "refuses connections");
        if (now_ns > deadline_ns)
            return cb_fail(err, CB_ERR_TIMEOUT,
                           "rank 0 at %s port %u did not let this rank in%s%s: is it there, with the same key?",
                           first->place.address, first->place.port, *why.message ? ": " : "", why.message);
        clock_sleep_ns(first->out ? NS_PER_MS : RETRY_NS);
    }
    return rc;
}

int comm_tcp_new(const struct comm_tcp_place *place, uint64_t deadline_ns, struct comm **comm, struct cb_err *err)
{
    struct tcp_world *self = NULL;
    struct sigpipe_guard guard;
    int rc = make_world(place, &self, err);
    if (rc)
        return rc;
    sigpipe_block(&guard);
    rc = place->rank == 0 ? await_ranks(self, deadline_ns, err) : come(self, place->is_listening, deadline_ns, err);
    sigpipe_restore(&guard);
    if (!rc)
        return comm_messages_new(&self->base, comm, err);
    free_world(&self->base);
    return rc;
}
