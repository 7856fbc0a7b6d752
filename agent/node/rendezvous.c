/* Brings the nodes of a run together and receives their reports: the port, the connections, and each node's state. */
#include "agent/node/rendezvous.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/node/page_copy.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/json.h"
#include "core/rank_placement.h"
#include "core/version.h"

#define STRANGER_LIMIT 4096         /* limit of connections that have not sent a hello */
#define STRANGER_NS (20 * NS_PER_S) /* deadline for the hello */
#define KEY_NS NS_PER_S             /* time to prove the key, if other connections wait for the slot */
#define DEAF_NS (100 * NS_PER_MS)   /* pause of accepting when no slot is free */
#define ACCEPTS_A_ROUND 256
#define BEAT_NS (500 * NS_PER_MS)
#define FINISH_WAIT_MS 5
#define JSON_MAX_BYTES (64 << 20)

struct node {
    struct node_report report;
    struct channel *channel;
    struct wire_process *processes; /* one per rank; NULL for the head's own node */
    uint64_t beat_ns;               /* when the last heartbeat was sent */
};

struct stranger {
    struct channel *channel;
    uint64_t since_ns;
};

struct rendezvous {
    struct rendezvous_setup setup;
    struct channel_key key;
    struct channel_context *context;
    int listening;
    uint16_t port;
    struct node *nodes;
    struct stranger *strangers; /* STRANGER_LIMIT slots, stranger_count used */
    uint32_t stranger_count;
    uint64_t deaf_until_ns; /* accept no connection before: no slot was free */
    struct pollfd *polls;   /* room for the port and all connections */
    struct buf message;
    struct wire_beat orders;
    char refusal[1024]; /* "" if no node was refused */
};

static uint32_t node_count(const struct rendezvous *self)
{
    return self->setup.nodes->count;
}

static bool is_own(const struct rendezvous *self, uint32_t node)
{
    return self->setup.nodes->own == (int64_t)node;
}

static const char *name_of(const struct rendezvous *self, uint32_t node)
{
    return self->setup.nodes->name[node];
}

static int set_up_nodes(struct rendezvous *self, struct cb_err *err)
{
    uint32_t nodes = node_count(self);
    self->nodes = calloc((size_t)nodes + 1, sizeof *self->nodes);
    self->strangers = calloc(STRANGER_LIMIT, sizeof *self->strangers);
    self->polls = calloc((size_t)nodes + STRANGER_LIMIT + 1, sizeof *self->polls);
    if (!self->nodes || !self->strangers || !self->polls)
        return alloc_fail(err, "for %u nodes", nodes);
    for (uint32_t i = 0; i < nodes; i++) {
        struct node_report *report = &self->nodes[i].report;
        report->first_rank = rank_placement_first_rank(self->setup.ranks, nodes, i);
        report->rank_count = rank_placement_first_rank(self->setup.ranks, nodes, i + 1) - report->first_rank;
        report->joined.store_free_bytes = UINT64_MAX;
        if (is_own(self, i))
            continue;
        self->nodes[i].processes = calloc((size_t)report->rank_count + 1, sizeof *self->nodes[i].processes);
        if (!self->nodes[i].processes)
            return alloc_fail(err, "for %u nodes", nodes);
    }
    return 0;
}

int rendezvous_new(const struct rendezvous_setup *setup, struct rendezvous **rendezvous, struct cb_err *err)
{
    struct rendezvous *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for a rendezvous");
    self->setup = *setup;
    self->listening = -1;
    buf_init(&self->message, CHANNEL_MAX_MESSAGE_BYTES);
    channel_key_new(&self->key);
    int rc = set_up_nodes(self, err);
    if (!rc)
        rc = channel_context_new(&self->key, CHANNEL_SERVER, &self->context, err);
    if (!rc)
        rc = channel_listen(setup->port, &self->listening, &self->port, err);
    if (rc)
        rendezvous_free(self);
    else
        *rendezvous = self;
    return rc;
}

void rendezvous_free(struct rendezvous *self)
{
    if (!self)
        return;
    for (uint32_t i = 0; self->nodes && i < node_count(self); i++) {
        channel_free(self->nodes[i].channel);
        free(self->nodes[i].processes);
    }
    for (uint32_t i = 0; i < self->stranger_count; i++)
        channel_free(self->strangers[i].channel);
    if (self->listening >= 0)
        close(self->listening);
    channel_context_free(self->context);
    buf_release(&self->message);
    free(self->polls);
    free(self->strangers);
    free(self->nodes);
    explicit_bzero(&self->key, sizeof self->key);
    free(self);
}

uint16_t rendezvous_port(const struct rendezvous *self)
{
    return self->port;
}

const struct channel_key *rendezvous_key(const struct rendezvous *self)
{
    return &self->key;
}

static void lose(struct rendezvous *self, uint32_t index, const char *why)
{
    struct node *node = &self->nodes[index];
    if (node->report.state == NODE_LOST)
        return;
    node->report.state = NODE_LOST;
    snprintf(node->report.trouble, sizeof node->report.trouble, "%.500s", why);
    channel_free(node->channel);
    node->channel = NULL;
    for (uint32_t i = 0; i < node->report.rank_count; i++)
        node->processes[i] = (struct wire_process){0};
}

/* Queues a message in the node's channel. */
static void tell(struct rendezvous *self, uint32_t index, enum wire_kind kind, const void *message)
{
    struct cb_err err;
    wire_write(&self->message, kind, message);
    int rc = buf_check(&self->message, "a message", &err);
    if (!rc && self->nodes[index].channel)
        rc = channel_send(self->nodes[index].channel, self->message.data, self->message.len, &err);
    if (rc)
        lose(self, index, err.message);
}

/* Whether a node must be refused; the reason goes to self->refusal. */
static bool refuse_release(struct rendezvous *self, const struct wire_hello *hello)
{
    if (hello->protocol != WIRE_PROTOCOL) {
        snprintf(self->refusal, sizeof self->refusal,
                 "an agent of ckptbench %.64s joined from another node, and this is %.64s: install one release on all "
                 "nodes",
                 hello->version, version_text());
        return true;
    }
    if (strcmp(hello->version, version_text()) == 0 && strcmp(hello->commit, version_commit()) == 0 &&
        hello->page_version == STATUS_PAGE_VERSION && hello->page_bytes == sizeof(struct status_page))
        return false;
    snprintf(
        self->refusal, sizeof self->refusal,
        "node %.64s has ckptbench-agent %.64s (%.64s), and this is %.64s (%.64s): install one release on all nodes",
        hello->name, hello->version, hello->commit, version_text(), version_commit());
    return true;
}

static bool find_node(const struct rendezvous *self, const char *name, uint32_t *index)
{
    for (uint32_t i = 0; i < node_count(self); i++) {
        if (strcmp(name_of(self, i), name) == 0) {
            *index = i;
            return true;
        }
    }
    return false;
}

/* Sends the refusal and closes; the socket buffer holds so short a message. */
static void turn_away(struct rendezvous *self, struct channel *channel, const char *reason)
{
    struct wire_refused refused;
    snprintf(refused.reason, sizeof refused.reason, "%s", reason);
    wire_write(&self->message, WIRE_REFUSED, &refused);
    if (channel_send(channel, self->message.data, self->message.len, NULL) == 0)
        (void)!channel_work(channel, NULL); /* a peer that is gone cannot receive the reason */
    channel_free(channel);
}

/* Accepts a stranger that has the key and has sent a hello. Takes ownership of the channel. */
static void let_in(struct rendezvous *self, struct channel *channel, const struct wire_hello *hello, uint64_t now_ns)
{
    uint32_t index;
    if (refuse_release(self, hello)) {
        turn_away(self, channel, self->refusal);
        return;
    }
    if (!find_node(self, hello->name, &index) || is_own(self, index)) {
        turn_away(self, channel, "this run has no such node for you to be");
        return;
    }
    struct node *node = &self->nodes[index];
    if (node->report.state != NODE_AWAITED) {
        turn_away(self, channel, "this node has joined already");
        return;
    }
    node->channel = channel;
    node->report.state = NODE_GREETED;
    node->report.heard_ns = now_ns;
    snprintf(node->report.host, sizeof node->report.host, "%s", hello->host);
    const struct rendezvous_setup *setup = &self->setup;
    struct wire_welcome welcome = {.attempt = setup->attempt,
                                   .node = index,
                                   .nodes = node_count(self),
                                   .ranks = setup->ranks,
                                   .sample_capacity = setup->sample_capacity,
                                   .started_ns = setup->started_ns,
                                   .experiment = {setup->experiment, strlen(setup->experiment)}};
    snprintf(welcome.run, sizeof welcome.run, "%s", setup->run);
    snprintf(welcome.pages, sizeof welcome.pages, "%s", setup->pages);
    tell(self, index, WIRE_WELCOME, &welcome);
}

static void drop_stranger(struct rendezvous *self, uint32_t index)
{
    self->strangers[index] = self->strangers[--self->stranger_count];
}

/* True if the stranger was removed from the list. */
static bool hear_stranger(struct rendezvous *self, uint32_t index, uint64_t now_ns)
{
    struct channel *channel = self->strangers[index].channel;
    struct wire_hello hello;
    const void *bytes;
    size_t len;
    int rc = channel_work(channel, NULL);
    bool said = channel_next(channel, &bytes, &len);
    if (said && wire_read(bytes, len, WIRE_HELLO, &hello, NULL) == 0) {
        drop_stranger(self, index);
        let_in(self, channel, &hello, now_ns);
        return true;
    }
    if (!rc && !said && now_ns - self->strangers[index].since_ns < STRANGER_NS)
        return false;
    drop_stranger(self, index);
    channel_free(channel);
    return true;
}

/* Closes the connection that has waited longest without proving that it has the key; false if all are newer than
 * KEY_NS. */
static bool make_room(struct rendezvous *self, uint64_t now_ns)
{
    uint64_t oldest_ns = now_ns - KEY_NS;
    uint32_t oldest = self->stranger_count;
    for (uint32_t i = 0; i < self->stranger_count; i++) {
        const struct stranger *stranger = &self->strangers[i];
        if (stranger->since_ns > oldest_ns || channel_is_open(stranger->channel))
            continue;
        oldest = i;
        oldest_ns = stranger->since_ns;
    }
    if (oldest == self->stranger_count)
        return false;
    channel_free(self->strangers[oldest].channel);
    drop_stranger(self, oldest);
    return true;
}

static void accept_strangers(struct rendezvous *self, uint64_t now_ns)
{
    for (uint32_t i = 0; i < ACCEPTS_A_ROUND; i++) {
        struct channel *channel = NULL;
        int rc = self->stranger_count < STRANGER_LIMIT ? channel_accept(self->context, self->listening, &channel, NULL)
                                                       : CB_ERR_LIMIT;
        if (!rc && !channel)
            return; /* no connection waits */
        if (!rc) {
            self->strangers[self->stranger_count++] = (struct stranger){.channel = channel, .since_ns = now_ns};
        } else if (!make_room(self, now_ns)) {
            self->deaf_until_ns = now_ns + DEAF_NS; /* no slot or no descriptor is free: poll would not wait */
            return;
        }
    }
}

static int take_file(struct rendezvous *self, uint32_t index, const struct wire_file *file, struct cb_err *err)
{
    if (strcmp(file->name, "fingerprint.json") != 0 && strcmp(file->name, "host.json") != 0)
        return cb_fail(err, CB_ERR_FORMAT, "a file %s, which no node has", file->name);
    if (self->setup.file)
        self->setup.file(self->setup.context, index, file);
    return 0;
}

static int take_message(struct rendezvous *self, uint32_t index, const void *bytes, size_t len, struct cb_err *err)
{
    struct node *node = &self->nodes[index];
    uint32_t first = node->report.first_rank, count = node->report.rank_count;
    enum wire_kind kind = wire_kind_of(bytes, len);
    union {
        struct wire_ping ping;
        struct wire_joined joined;
        struct wire_refused refused;
        struct wire_process process;
        struct wire_span span;
        struct wire_file file;
    } message;
    if (kind == WIRE_PING || kind == WIRE_JOINED || kind == WIRE_REFUSED || kind == WIRE_PROCESS || kind == WIRE_SPAN ||
        kind == WIRE_FILE) {
        int rc = wire_read(bytes, len, kind, &message, err);
        if (rc)
            return rc;
    }
    switch (kind) {
    case WIRE_PING:
        tell(self, index, WIRE_PONG,
             &(struct wire_pong){
                 .echo_ns = message.ping.now_ns, .monotonic_ns = clock_monotonic_ns(), .wall_ns = clock_wall_ns()});
        return 0;
    case WIRE_JOINED:
        if (node->report.state == NODE_JOINED)
            return cb_fail(err, CB_ERR_FORMAT, "it joined twice");
        node->report.joined = message.joined;
        node->report.state = NODE_JOINED;
        node->report.joined_wall_ns = clock_wall_ns();
        return 0;
    case WIRE_REFUSED:
        return cb_fail(err, CB_ERR_SYSTEM, "%.400s", message.refused.reason);
    case WIRE_PROCESS:
        if (message.process.rank - first >= count)
            return cb_fail(err, CB_ERR_FORMAT, "a report of rank %u, which is on another node", message.process.rank);
        node->processes[message.process.rank - first] = message.process;
        return 0;
    case WIRE_SPAN:
        if (message.span.rank - first >= count)
            return cb_fail(err, CB_ERR_FORMAT, "a page of rank %u, which is on another node", message.span.rank);
        return page_copy_apply(self->setup.page[message.span.rank], message.span.offset, message.span.bytes.at,
                               message.span.bytes.len, err);
    case WIRE_FILE:
        return take_file(self, index, &message.file, err);
    case WIRE_FINISHED:
        node->report.state = NODE_FINISHED;
        return 0;
    default:
        return cb_fail(err, CB_ERR_FORMAT, "a message that no node sends");
    }
}

static void hear_node(struct rendezvous *self, uint32_t index, uint64_t now_ns)
{
    struct node *node = &self->nodes[index];
    struct cb_err err = {0}, closed = {0};
    const void *bytes;
    size_t len;
    int rc = channel_work(node->channel, &closed), code = 0;
    while (!code && node->channel && channel_next(node->channel, &bytes, &len)) {
        node->report.heard_ns = now_ns;
        code = take_message(self, index, bytes, len, &err);
    }
    if (code)
        lose(self, index, err.message);
    else if (rc && node->channel && node->report.state == NODE_FINISHED) {
        channel_free(node->channel);
        node->channel = NULL;
    } else if (rc)
        lose(self, index, closed.message);
}

static nfds_t fill_polls(struct rendezvous *self, uint64_t now_ns)
{
    nfds_t count = 0;
    self->polls[count++] = (struct pollfd){.fd = now_ns < self->deaf_until_ns ? -1 : self->listening, .events = POLLIN};
    for (uint32_t i = 0; i < self->stranger_count; i++) {
        const struct channel *channel = self->strangers[i].channel;
        self->polls[count++] = (struct pollfd){.fd = channel_fd(channel), .events = channel_events(channel)};
    }
    for (uint32_t i = 0; i < node_count(self); i++) {
        const struct channel *channel = self->nodes[i].channel;
        self->polls[count++] =
            (struct pollfd){.fd = channel ? channel_fd(channel) : -1, .events = channel ? channel_events(channel) : 0};
    }
    return count;
}

void rendezvous_work(struct rendezvous *self, uint64_t now_ns, unsigned wait_ms)
{
    uint32_t strangers = self->stranger_count;
    nfds_t count = fill_polls(self, now_ns);
    if (poll(self->polls, count, (int)wait_ms) > 0) {
        /* From the back: a removed stranger is replaced by the last one. */
        for (uint32_t i = strangers; i-- > 0;)
            if (self->polls[1 + i].revents)
                (void)hear_stranger(self, i, now_ns);
        for (uint32_t i = 0; i < node_count(self); i++)
            if (self->polls[1 + strangers + i].revents && self->nodes[i].channel)
                hear_node(self, i, now_ns);
        if (self->polls[0].revents)
            accept_strangers(self, now_ns);
    }
    for (uint32_t i = self->stranger_count; i-- > 0;)
        if (now_ns - self->strangers[i].since_ns >= STRANGER_NS)
            (void)hear_stranger(self, i, now_ns);
    for (uint32_t i = 0; i < node_count(self); i++) {
        const struct node_report *report = &self->nodes[i].report;
        if (report->state == NODE_JOINED && now_ns >= report->heard_ns + RENDEZVOUS_SILENCE_NS) {
            char why[64];
            snprintf(why, sizeof why, "it has said nothing for %.0f s",
                     (double)(now_ns - report->heard_ns) / (double)NS_PER_S);
            lose(self, i, why);
        }
        if (report->state == NODE_JOINED && now_ns - self->nodes[i].beat_ns >= BEAT_NS) {
            self->nodes[i].beat_ns = now_ns;
            tell(self, i, WIRE_BEAT, &self->orders);
        }
        if (self->nodes[i].channel && channel_unsent(self->nodes[i].channel) > 0)
            hear_node(self, i, now_ns); /* also sends */
    }
}

static bool has_joined(const struct rendezvous *self, uint32_t node)
{
    return is_own(self, node) || self->nodes[node].report.joined_wall_ns > 0;
}

bool rendezvous_is_complete(const struct rendezvous *self)
{
    for (uint32_t i = 0; i < node_count(self); i++)
        if (!has_joined(self, i))
            return false;
    return true;
}

void rendezvous_name_missing(const struct rendezvous *self, char *text, size_t text_bytes)
{
    size_t used = 0;
    uint32_t more = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < node_count(self); i++) {
        if (has_joined(self, i))
            continue;
        size_t len = strlen(name_of(self, i));
        if (more || used + len + sizeof ", and 4294967295 more" > text_bytes)
            more++;
        else
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", used ? ", " : "", name_of(self, i));
    }
    if (more)
        snprintf(text + used, text_bytes - used, " and %u more", more);
}

bool rendezvous_was_refused(const struct rendezvous *self, const char **reason)
{
    *reason = self->refusal;
    return self->refusal[0] != '\0';
}

bool rendezvous_find_lost(const struct rendezvous *self, uint32_t *node)
{
    for (uint32_t i = 0; i < node_count(self); i++) {
        if (self->nodes[i].report.state == NODE_LOST) {
            *node = i;
            return true;
        }
    }
    return false;
}

bool rendezvous_find_silent(const struct rendezvous *self, uint64_t now_ns, uint32_t *node, uint64_t *silent_ns)
{
    bool found = false;
    for (uint32_t i = 0; i < node_count(self); i++) {
        const struct node_report *report = &self->nodes[i].report;
        uint64_t silent = now_ns > report->heard_ns ? now_ns - report->heard_ns : 0;
        if (report->state != NODE_JOINED || (found && silent <= *silent_ns))
            continue;
        found = true;
        *node = i;
        *silent_ns = silent;
    }
    return found;
}

const struct node_report *rendezvous_report(const struct rendezvous *self, uint32_t node)
{
    return &self->nodes[node].report;
}

void rendezvous_order(struct rendezvous *self, enum stop_request stop, bool kill)
{
    if (self->orders.stop == (uint32_t)stop && self->orders.kill == kill)
        return;
    self->orders = (struct wire_beat){.stop = stop, .kill = kill};
    for (uint32_t i = 0; i < node_count(self); i++)
        if (self->nodes[i].channel)
            self->nodes[i].beat_ns = 0; /* sent by the next rendezvous_work */
}

const struct wire_process *rendezvous_process(const struct rendezvous *self, uint32_t rank)
{
    uint32_t index = rank_placement_node_of(self->setup.ranks, node_count(self), rank);
    const struct node *node = &self->nodes[index];
    return node->processes ? &node->processes[rank - node->report.first_rank] : NULL;
}

void rendezvous_finish(struct rendezvous *self, uint64_t deadline_ns)
{
    uint64_t now_ns = clock_monotonic_ns();
    for (uint32_t i = 0; i < node_count(self); i++)
        if (self->nodes[i].channel)
            tell(self, i, WIRE_FINISH, NULL);
    for (bool waits = true; waits && now_ns < deadline_ns; now_ns = clock_monotonic_ns()) {
        rendezvous_work(self, now_ns, FINISH_WAIT_MS);
        waits = false;
        for (uint32_t i = 0; i < node_count(self); i++)
            waits = waits || (self->nodes[i].channel && self->nodes[i].report.state != NODE_FINISHED);
    }
}

static void write_node(const struct rendezvous *self, uint32_t index, struct json_writer *json)
{
    static const char *const states[] = {"missing", "missing", "joined", "joined", "lost"};
    const struct node_report *report = &self->nodes[index].report;
    bool own = is_own(self, index), joined = !own && report->joined_wall_ns;
    char joined_at[32];
    json_write_begin_object(json);
    json_member_text(json, "node", name_of(self, index));
    json_member_text(json, "host", *report->host ? report->host : NULL);
    json_member_text(json, "state", own ? "head" : states[report->state]);
    json_member_u64(json, "first_rank", report->first_rank);
    json_member_u64(json, "ranks", report->rank_count);
    if (joined)
        clock_format_utc(report->joined_wall_ns, joined_at);
    json_member_text(json, "joined", joined ? joined_at : NULL);
    json_member_double(json, "clock_offset_s",
                       own      ? 0
                       : joined ? (double)report->joined.wall_offset_ns / (double)NS_PER_S
                                : NAN);
    json_member_double(json, "round_trip_s", joined ? (double)report->joined.round_trip_ns / (double)NS_PER_S : NAN);
    if (joined && report->joined.store_free_bytes != UINT64_MAX)
        json_member_u64(json, "store_free_bytes", report->joined.store_free_bytes);
    else
        json_member_text(json, "store_free_bytes", NULL);
    json_member_text(json, "trouble", *report->trouble ? report->trouble : NULL);
    json_write_end_object(json);
}

int rendezvous_write(const struct rendezvous *self, const char *path, double rendezvous_s, struct cb_err *err)
{
    struct buf text;
    struct json_writer json;
    buf_init(&text, JSON_MAX_BYTES);
    json_writer_init(&json, &text, 2);
    json_write_begin_object(&json);
    json_member_u64(&json, "version", 1);
    json_member_double(&json, "rendezvous_s", rendezvous_s);
    json_write_key(&json, "nodes");
    json_write_begin_array(&json);
    for (uint32_t i = 0; i < node_count(self); i++)
        write_node(self, i, &json);
    json_write_end_array(&json);
    json_write_end_object(&json);
    buf_append_char(&text, '\n');
    int rc = buf_write_file(&text, path, 0666, err);
    buf_release(&text);
    return rc;
}
