/* Encodes and decodes the messages between agents. */
#include "agent/node/wire.h"

#include <stdio.h>
#include <string.h>

#define REASON_BYTES 1024

static void begin(struct buf *out, enum wire_kind kind)
{
    buf_clear(out);
    buf_append_char(out, (char)kind);
}

static void put_number(struct buf *out, uint64_t value, unsigned bytes)
{
    unsigned char text[8];
    for (unsigned i = 0; i < bytes; i++)
        text[i] = (unsigned char)(value >> (8 * i));
    buf_append(out, text, bytes);
}

static void put_u32(struct buf *out, uint32_t value)
{
    put_number(out, value, 4);
}

static void put_u64(struct buf *out, uint64_t value)
{
    put_number(out, value, 8);
}

static void put_bytes(struct buf *out, const void *bytes, size_t len)
{
    put_u32(out, (uint32_t)len);
    buf_append(out, bytes, len);
}

static void put_text(struct buf *out, const char *text)
{
    put_bytes(out, text, strlen(text));
}

void wire_write_hello(struct buf *out, const struct wire_hello *hello)
{
    begin(out, WIRE_HELLO);
    put_u32(out, hello->protocol);
    put_text(out, hello->version);
    put_text(out, hello->commit);
    put_u32(out, hello->page_version);
    put_u64(out, hello->page_bytes);
    put_text(out, hello->name);
    put_text(out, hello->host);
}

void wire_write_refused(struct buf *out, const char *reason)
{
    begin(out, WIRE_REFUSED);
    put_text(out, reason);
}

void wire_write_welcome(struct buf *out, const struct wire_welcome *welcome)
{
    begin(out, WIRE_WELCOME);
    put_text(out, welcome->run);
    put_text(out, welcome->pages);
    put_u32(out, welcome->attempt);
    put_u32(out, welcome->node);
    put_u32(out, welcome->nodes);
    put_u32(out, welcome->ranks);
    put_u32(out, welcome->sample_capacity);
    put_bytes(out, welcome->experiment, welcome->experiment_len);
}

void wire_write_ping(struct buf *out, uint64_t now_ns)
{
    begin(out, WIRE_PING);
    put_u64(out, now_ns);
}

void wire_write_pong(struct buf *out, const struct wire_pong *pong)
{
    begin(out, WIRE_PONG);
    put_u64(out, pong->echo_ns);
    put_u64(out, pong->monotonic_ns);
    put_u64(out, pong->wall_ns);
}

void wire_write_joined(struct buf *out, const struct wire_joined *joined)
{
    begin(out, WIRE_JOINED);
    put_u64(out, (uint64_t)joined->monotonic_offset_ns);
    put_u64(out, (uint64_t)joined->wall_offset_ns);
    put_u64(out, joined->round_trip_ns);
    put_u64(out, joined->store_free_bytes);
}

void wire_write_beat(struct buf *out, const struct wire_beat *beat)
{
    begin(out, WIRE_BEAT);
    put_u32(out, beat->stop);
    put_u32(out, beat->kill);
}

void wire_write_sights(struct buf *out, const struct wire_rank_report *rank_reports, uint32_t count)
{
    begin(out, WIRE_SIGHT);
    put_u32(out, count);
    for (uint32_t i = 0; i < count; i++) {
        put_u32(out, rank_reports[i].rank);
        put_u32(out, rank_reports[i].pid);
        buf_append_char(out, rank_reports[i].state);
        put_text(out, rank_reports[i].place);
    }
}

void wire_write_span(struct buf *out, const struct wire_span *span)
{
    begin(out, WIRE_SPAN);
    put_u32(out, span->rank);
    put_u64(out, span->offset);
    put_bytes(out, span->bytes, span->len);
}

void wire_write_file(struct buf *out, const struct wire_file *file)
{
    begin(out, WIRE_FILE);
    put_text(out, file->name);
    put_bytes(out, file->bytes, file->len);
}

void wire_write_bare(struct buf *out, enum wire_kind kind)
{
    begin(out, kind);
}

/* Reading: the rest of a message. After the first malformed member all reads return empty values. */

struct reader {
    const unsigned char *at, *end;
    bool bad;
};

enum wire_kind wire_kind_of(const void *message, size_t len)
{
    const unsigned char *bytes = message;
    return len > 0 && *bytes < WIRE_KIND_COUNT ? (enum wire_kind) * bytes : 0;
}

static struct reader open_message(const void *message, size_t len, enum wire_kind kind)
{
    const unsigned char *bytes = message;
    bool right = wire_kind_of(message, len) == kind;
    return (struct reader){.at = right ? bytes + 1 : bytes, .end = bytes + len, .bad = !right};
}

static const unsigned char *take(struct reader *self, size_t len)
{
    const unsigned char *at = self->at;
    if (self->bad || (size_t)(self->end - at) < len) {
        self->bad = true;
        return NULL;
    }
    self->at += len;
    return at;
}

static uint64_t get_number(struct reader *self, unsigned bytes)
{
    const unsigned char *at = take(self, bytes);
    uint64_t value = 0;
    for (unsigned i = 0; at && i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static uint32_t get_u32(struct reader *self)
{
    return (uint32_t)get_number(self, 4);
}

static uint64_t get_u64(struct reader *self)
{
    return get_number(self, 8);
}

static const void *get_bytes(struct reader *self, size_t *len)
{
    uint32_t given = get_u32(self);
    const void *bytes = take(self, given);
    *len = bytes ? given : 0;
    return bytes;
}

/* Rejects a NUL or line feed: names go into messages and paths. */
static void get_text(struct reader *self, char *text, size_t text_bytes)
{
    size_t len;
    const char *bytes = get_bytes(self, &len);
    text[0] = '\0';
    if (!bytes || len >= text_bytes || memchr(bytes, '\0', len) || memchr(bytes, '\n', len)) {
        self->bad = true;
        return;
    }
    memcpy(text, bytes, len);
    text[len] = '\0';
}

static int end_message(const struct reader *self, const char *what, struct cb_err *err)
{
    if (!self->bad && self->at == self->end)
        return 0;
    return cb_fail(err, CB_ERR_FORMAT, "a message that is no %s", what);
}

int wire_read_hello(const void *message, size_t len, struct wire_hello *hello, struct cb_err *err)
{
    struct wire_hello read = {0};
    struct reader reader = open_message(message, len, WIRE_HELLO);
    read.protocol = get_u32(&reader);
    get_text(&reader, read.version, sizeof read.version);
    if (!reader.bad && read.protocol != WIRE_PROTOCOL) {
        *hello = read;
        return 0;
    }
    get_text(&reader, read.commit, sizeof read.commit);
    read.page_version = get_u32(&reader);
    read.page_bytes = get_u64(&reader);
    get_text(&reader, read.name, sizeof read.name);
    get_text(&reader, read.host, sizeof read.host);
    int rc = end_message(&reader, "greeting", err);
    if (!rc)
        *hello = read;
    return rc;
}

int wire_read_refused(const void *message, size_t len, char reason[1024], struct cb_err *err)
{
    char text[REASON_BYTES];
    struct reader reader = open_message(message, len, WIRE_REFUSED);
    get_text(&reader, text, sizeof text);
    int rc = end_message(&reader, "refusal", err);
    if (!rc)
        memcpy(reason, text, sizeof text);
    return rc;
}

int wire_read_welcome(const void *message, size_t len, struct wire_welcome *welcome, struct cb_err *err)
{
    struct wire_welcome read = {0};
    struct reader reader = open_message(message, len, WIRE_WELCOME);
    get_text(&reader, read.run, sizeof read.run);
    get_text(&reader, read.pages, sizeof read.pages);
    read.attempt = get_u32(&reader);
    read.node = get_u32(&reader);
    read.nodes = get_u32(&reader);
    read.ranks = get_u32(&reader);
    read.sample_capacity = get_u32(&reader);
    read.experiment = get_bytes(&reader, &read.experiment_len);
    int rc = end_message(&reader, "welcome", err);
    if (!rc && (read.nodes == 0 || read.node >= read.nodes || read.ranks < read.nodes))
        rc = cb_fail(err, CB_ERR_FORMAT, "a welcome to node %u of %u with %u ranks", read.node, read.nodes, read.ranks);
    if (!rc)
        *welcome = read;
    return rc;
}

int wire_read_ping(const void *message, size_t len, uint64_t *now_ns, struct cb_err *err)
{
    struct reader reader = open_message(message, len, WIRE_PING);
    uint64_t read = get_u64(&reader);
    int rc = end_message(&reader, "ping", err);
    if (!rc)
        *now_ns = read;
    return rc;
}

int wire_read_pong(const void *message, size_t len, struct wire_pong *pong, struct cb_err *err)
{
    struct wire_pong read = {0};
    struct reader reader = open_message(message, len, WIRE_PONG);
    read.echo_ns = get_u64(&reader);
    read.monotonic_ns = get_u64(&reader);
    read.wall_ns = get_u64(&reader);
    int rc = end_message(&reader, "pong", err);
    if (!rc)
        *pong = read;
    return rc;
}

int wire_read_joined(const void *message, size_t len, struct wire_joined *joined, struct cb_err *err)
{
    struct wire_joined read = {0};
    struct reader reader = open_message(message, len, WIRE_JOINED);
    read.monotonic_offset_ns = (int64_t)get_u64(&reader);
    read.wall_offset_ns = (int64_t)get_u64(&reader);
    read.round_trip_ns = get_u64(&reader);
    read.store_free_bytes = get_u64(&reader);
    int rc = end_message(&reader, "report of a node that joins", err);
    if (!rc)
        *joined = read;
    return rc;
}

int wire_read_beat(const void *message, size_t len, struct wire_beat *beat, struct cb_err *err)
{
    struct reader reader = open_message(message, len, WIRE_BEAT);
    uint32_t stop = get_u32(&reader), kill = get_u32(&reader);
    int rc = end_message(&reader, "heartbeat", err);
    if (!rc)
        *beat = (struct wire_beat){.stop = stop, .kill = kill != 0};
    return rc;
}

int wire_read_sights(const void *message, size_t len, struct wire_rank_report *rank_reports, uint32_t max,
                     uint32_t *count, struct cb_err *err)
{
    struct reader reader = open_message(message, len, WIRE_SIGHT);
    uint32_t given = get_u32(&reader);
    if (given > max)
        return cb_fail(err, CB_ERR_FORMAT, "a node reports %u ranks and has %u", given, max);
    for (uint32_t i = 0; i < given && !reader.bad; i++) {
        const unsigned char *state;
        rank_reports[i].rank = get_u32(&reader);
        rank_reports[i].pid = get_u32(&reader);
        state = take(&reader, 1);
        rank_reports[i].state = state ? (char)*state : '\0';
        get_text(&reader, rank_reports[i].place, sizeof rank_reports[i].place);
    }
    int rc = end_message(&reader, "report of ranks", err);
    if (!rc)
        *count = given;
    return rc;
}

int wire_read_span(const void *message, size_t len, struct wire_span *span, struct cb_err *err)
{
    struct wire_span read = {0};
    struct reader reader = open_message(message, len, WIRE_SPAN);
    read.rank = get_u32(&reader);
    read.offset = get_u64(&reader);
    read.bytes = get_bytes(&reader, &read.len);
    int rc = end_message(&reader, "part of a page", err);
    if (!rc)
        *span = read;
    return rc;
}

int wire_read_file(const void *message, size_t len, struct wire_file *file, struct cb_err *err)
{
    struct wire_file read = {0};
    struct reader reader = open_message(message, len, WIRE_FILE);
    get_text(&reader, read.name, sizeof read.name);
    read.bytes = get_bytes(&reader, &read.len);
    int rc = end_message(&reader, "file", err);
    if (!rc)
        *file = read;
    return rc;
}
