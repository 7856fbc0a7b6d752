/* The messages between head and node agents, as bytes and back.
 *
 * A message is its kind (one byte) and the members of its struct in their order: numbers are little-endian, texts and
 * bytes have their length (u32) in front. The first message of a node starts the same in every release, so that a
 * different release can be reported. Parsing checks everything: a message that is truncated, too long or inconsistent
 * is rejected. Parsed bytes are borrowed from the message. */
#ifndef AGENT_NODE_WIRE_H
#define AGENT_NODE_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"

#define WIRE_PROTOCOL 3
#define WIRE_TEXT_BYTES 256 /* names and versions, including their NUL */
#define WIRE_PLACE_BYTES 40

enum wire_kind {
    WIRE_HELLO = 1, /* node: its name and release */
    WIRE_REFUSED,   /* head: why the node may not join; node: why it cannot */
    WIRE_WELCOME,   /* head: node number, ranks, experiment */
    WIRE_PING,      /* node: its clock */
    WIRE_PONG,      /* head: the time of the ping, and its own clocks */
    WIRE_JOINED,    /* node: its pages exist; clock offsets, free space in the store */
    WIRE_BEAT,      /* head: heartbeat, with a stop request for the ranks */
    WIRE_PROCESS,   /* node: heartbeat, with the process of a rank */
    WIRE_SPAN,      /* node: changed bytes of a rank's page */
    WIRE_FILE,      /* node: fingerprint.json, host.json */
    WIRE_FINISH,    /* head: send all remaining data; no struct */
    WIRE_FINISHED,  /* node: everything is sent; no struct */
    WIRE_KIND_COUNT
};

struct wire_bytes {
    const void *at;
    size_t len;
};

struct wire_hello {
    uint32_t protocol;
    char version[WIRE_TEXT_BYTES], commit[WIRE_TEXT_BYTES];
    uint32_t page_version;
    uint64_t page_bytes; /* of a page without samples: differs if layout or build differ */
    char name[WIRE_TEXT_BYTES], host[WIRE_TEXT_BYTES];
};

struct wire_refused {
    char reason[1024];
};

struct wire_welcome {
    char run[WIRE_TEXT_BYTES], pages[WIRE_TEXT_BYTES]; /* base of the folders of pages */
    uint32_t attempt, node, nodes, ranks, sample_capacity;
    uint64_t started_ns;          /* monotonic, by the head's clock: when the attempt began */
    struct wire_bytes experiment; /* YAML */
};

struct wire_ping {
    uint64_t now_ns;
};

struct wire_pong {
    uint64_t echo_ns, monotonic_ns, wall_ns;
};

struct wire_joined {
    int64_t monotonic_offset_ns, wall_offset_ns; /* node clock minus head clock */
    uint64_t round_trip_ns;                      /* of the fastest ping */
    uint64_t store_free_bytes;                   /* UINT64_MAX: unknown */
};

struct wire_beat {
    uint32_t stop; /* enum stop_request */
    uint32_t kill; /* not 0: kill the remaining ranks */
};

/* A rank's process, as its node last saw it. */
struct wire_process {
    uint32_t rank, pid;
    char state;                   /* R, S, D, … as in /proc; 0 if it is gone */
    char place[WIRE_PLACE_BYTES]; /* kernel function it is blocked in; "" if unknown */
};

struct wire_span {
    uint32_t rank;
    uint64_t offset;
    struct wire_bytes bytes;
};

struct wire_file {
    char name[WIRE_TEXT_BYTES];
    struct wire_bytes content;
};

/* Empties `out` and writes the struct of that kind; buf_check(out) reports whether it fit. */
void wire_write(struct buf *out, enum wire_kind kind, const void *message);

/* Kind of a message; 0 if the message is empty. */
enum wire_kind wire_kind_of(const void *bytes, size_t len);

/* Fills the struct of that kind, partially after a failure. CB_ERR_FORMAT if the message is malformed. A hello of
 * another protocol fills in only `protocol` and `version`, and succeeds. */
int wire_read(const void *bytes, size_t len, enum wire_kind kind, void *message, struct cb_err *err) CB_MUST_CHECK;

#endif
