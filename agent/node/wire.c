/* Encodes and decodes the messages between agents, driven by one table of their members. */
#include "agent/node/wire.h"

#include <stdbool.h>
#include <string.h>

struct member {
    enum { NUMBER, TEXT, BYTES } kind; /* of 1, 4 or 8 bytes; char[bytes]; struct wire_bytes */
    size_t offset, bytes;
};

#define MEMBER(message, kind, name)                                                                                    \
    {                                                                                                                  \
        kind, offsetof(struct message, name), sizeof(((struct message *)0)->name)                                      \
    }

static const struct member hello[] = {
    MEMBER(wire_hello, NUMBER, protocol),     MEMBER(wire_hello, TEXT, version),      MEMBER(wire_hello, TEXT, commit),
    MEMBER(wire_hello, NUMBER, page_version), MEMBER(wire_hello, NUMBER, page_bytes), MEMBER(wire_hello, TEXT, name),
    MEMBER(wire_hello, TEXT, host),
};
#define SAME_IN_EVERY_RELEASE 2 /* members of a hello */

static const struct member refused[] = {MEMBER(wire_refused, TEXT, reason)};

static const struct member welcome[] = {
    MEMBER(wire_welcome, TEXT, run),
    MEMBER(wire_welcome, TEXT, pages),
    MEMBER(wire_welcome, NUMBER, attempt),
    MEMBER(wire_welcome, NUMBER, node),
    MEMBER(wire_welcome, NUMBER, nodes),
    MEMBER(wire_welcome, NUMBER, ranks),
    MEMBER(wire_welcome, NUMBER, sample_capacity),
    MEMBER(wire_welcome, NUMBER, started_ns),
    MEMBER(wire_welcome, BYTES, experiment),
};

static const struct member ping[] = {MEMBER(wire_ping, NUMBER, now_ns)};

static const struct member pong[] = {
    MEMBER(wire_pong, NUMBER, echo_ns),
    MEMBER(wire_pong, NUMBER, monotonic_ns),
    MEMBER(wire_pong, NUMBER, wall_ns),
};

static const struct member joined[] = {
    MEMBER(wire_joined, NUMBER, monotonic_offset_ns),
    MEMBER(wire_joined, NUMBER, wall_offset_ns),
    MEMBER(wire_joined, NUMBER, round_trip_ns),
    MEMBER(wire_joined, NUMBER, store_free_bytes),
};

static const struct member beat[] = {MEMBER(wire_beat, NUMBER, stop), MEMBER(wire_beat, NUMBER, kill)};

static const struct member process[] = {
    MEMBER(wire_process, NUMBER, rank),
    MEMBER(wire_process, NUMBER, pid),
    MEMBER(wire_process, NUMBER, state),
    MEMBER(wire_process, TEXT, place),
};

static const struct member span[] = {
    MEMBER(wire_span, NUMBER, rank),
    MEMBER(wire_span, NUMBER, offset),
    MEMBER(wire_span, BYTES, bytes),
};

static const struct member file[] = {MEMBER(wire_file, TEXT, name), MEMBER(wire_file, BYTES, content)};

#define MESSAGE(name, members)                                                                                         \
    {                                                                                                                  \
        name, members, sizeof(members) / sizeof *(members)                                                             \
    }

static const struct {
    const char *name;
    const struct member *members;
    size_t count;
} messages[WIRE_KIND_COUNT] = {
    [WIRE_HELLO] = MESSAGE("greeting", hello),     [WIRE_REFUSED] = MESSAGE("refusal", refused),
    [WIRE_WELCOME] = MESSAGE("welcome", welcome),  [WIRE_PING] = MESSAGE("ping", ping),
    [WIRE_PONG] = MESSAGE("pong", pong),           [WIRE_JOINED] = MESSAGE("report of a node that joins", joined),
    [WIRE_BEAT] = MESSAGE("heartbeat", beat),      [WIRE_PROCESS] = MESSAGE("report of ranks", process),
    [WIRE_SPAN] = MESSAGE("part of a page", span), [WIRE_FILE] = MESSAGE("file", file),
};

static void put_number(struct buf *out, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        buf_append_char(out, (char)(value >> (8 * i)));
}

static void put_bytes(struct buf *out, const void *bytes, size_t len)
{
    put_number(out, len, sizeof(uint32_t));
    buf_append(out, bytes, len);
}

static uint64_t number_at(const void *at, size_t bytes)
{
    return bytes == 1 ? *(const uint8_t *)at : bytes == 4 ? *(const uint32_t *)at : *(const uint64_t *)at;
}

void wire_write(struct buf *out, enum wire_kind kind, const void *message)
{
    buf_clear(out);
    buf_append_char(out, (char)kind);
    for (size_t i = 0; i < messages[kind].count; i++) {
        const struct member *member = &messages[kind].members[i];
        const void *at = (const char *)message + member->offset;
        const struct wire_bytes *bytes = at;
        if (member->kind == NUMBER)
            put_number(out, number_at(at, member->bytes), member->bytes);
        else if (member->kind == TEXT)
            put_bytes(out, at, strlen(at));
        else
            put_bytes(out, bytes->at, bytes->len);
    }
}

enum wire_kind wire_kind_of(const void *bytes, size_t len)
{
    const unsigned char *kind = bytes;
    return len > 0 && *kind < WIRE_KIND_COUNT ? (enum wire_kind) * kind : 0;
}

/* Unparsed bytes of a message. */
struct reader {
    const unsigned char *at, *end;
};

static bool take(struct reader *self, size_t len, const unsigned char **bytes)
{
    if ((size_t)(self->end - self->at) < len)
        return false;
    *bytes = self->at;
    self->at += len;
    return true;
}

static bool get_number(struct reader *self, size_t bytes, uint64_t *value)
{
    const unsigned char *at;
    if (!take(self, bytes, &at))
        return false;
    *value = 0;
    for (size_t i = 0; i < bytes; i++)
        *value |= (uint64_t)at[i] << (8 * i);
    return true;
}

/* Rejects a NUL or line feed in a text: names go into messages and paths. */
static bool get_member(struct reader *self, const struct member *member, void *place)
{
    uint64_t number;
    const unsigned char *bytes;
    if (!get_number(self, member->kind == NUMBER ? member->bytes : sizeof(uint32_t), &number))
        return false;
    if (member->kind == NUMBER) {
        if (member->bytes == 1)
            *(uint8_t *)place = (uint8_t)number;
        else if (member->bytes == 4)
            *(uint32_t *)place = (uint32_t)number;
        else
            *(uint64_t *)place = number;
        return true;
    }
    if (!take(self, number, &bytes))
        return false;
    if (member->kind == BYTES) {
        *(struct wire_bytes *)place = (struct wire_bytes){.at = bytes, .len = number};
        return true;
    }
    if (number >= member->bytes || memchr(bytes, '\0', number) || memchr(bytes, '\n', number))
        return false;
    memcpy(place, bytes, number);
    memset((char *)place + number, 0, member->bytes - number);
    return true;
}

int wire_read(const void *bytes, size_t len, enum wire_kind kind, void *message, struct cb_err *err)
{
    const unsigned char *start = bytes;
    bool good = wire_kind_of(bytes, len) == kind;
    struct reader reader = {.at = good && len ? start + 1 : start, .end = start + len};
    if (kind == WIRE_HELLO) /* of another protocol, only the first members are filled */
        memset(message, 0, sizeof(struct wire_hello));
    for (size_t i = 0; good && i < messages[kind].count; i++) {
        const struct member *member = &messages[kind].members[i];
        if (kind == WIRE_HELLO && i == SAME_IN_EVERY_RELEASE &&
            ((const struct wire_hello *)message)->protocol != WIRE_PROTOCOL)
            return 0;
        good = get_member(&reader, member, (char *)message + member->offset);
    }
    if (!good || reader.at != reader.end)
        return cb_fail(err, CB_ERR_FORMAT, "a message that is no %s", messages[kind].name);
    const struct wire_welcome *given = message;
    if (kind == WIRE_WELCOME && (given->nodes == 0 || given->node >= given->nodes || given->ranks < given->nodes))
        return cb_fail(err, CB_ERR_FORMAT, "a welcome to node %u of %u with %u ranks", given->node, given->nodes,
                       given->ranks);
    return 0;
}
