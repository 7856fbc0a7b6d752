/* The messages between head and node agents, as bytes and back.
 *
 * A message is its kind (one byte) and its members, little-endian; a text is its length (u32) and its bytes. The
 * first message of a node starts the same in every release, so that releases that differ can report it. Parsing
 * checks everything: a message that is truncated, too long or inconsistent is rejected. Parsed texts and bytes are
 * borrowed from the message. */
#ifndef AGENT_NODE_WIRE_H
#define AGENT_NODE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"

#define WIRE_PROTOCOL 1
#define WIRE_TEXT_BYTES 256 /* names and versions, including their NUL */
#define WIRE_PLACE_BYTES 40

enum wire_kind {
    WIRE_HELLO = 1, /* node: its name and release */
    WIRE_REFUSED,   /* head: why the node may not join */
    WIRE_WELCOME,   /* head: the node's tasks */
    WIRE_PING,      /* node: its clock */
    WIRE_PONG,      /* head: the same, and its own clocks */
    WIRE_JOINED,    /* node: its pages exist; its clocks and free memory */
    WIRE_BEAT,      /* head: heartbeat, with an instruction for the ranks */
    WIRE_SIGHT,     /* node: heartbeat, with the processes of its ranks */
    WIRE_SPAN,      /* node: changed bytes of a rank's page */
    WIRE_FILE,      /* node: fingerprint.json, host.json */
    WIRE_FINISH,    /* head: send all remaining data */
    WIRE_FINISHED,  /* node: everything is sent */
    WIRE_KIND_COUNT
};

struct wire_hello {
    uint32_t protocol;
    char version[WIRE_TEXT_BYTES], commit[WIRE_TEXT_BYTES];
    uint32_t page_version;
    uint64_t page_bytes; /* of a page without samples: differs if layout or build differ */
    char name[WIRE_TEXT_BYTES], host[WIRE_TEXT_BYTES];
};

struct wire_welcome {
    char run[WIRE_TEXT_BYTES], pages[WIRE_TEXT_BYTES]; /* base of the folders of pages */
    uint32_t attempt, node, nodes, ranks, sample_capacity;
    const char *experiment; /* YAML */
    size_t experiment_len;
};

struct wire_pong {
    uint64_t echo_ns, monotonic_ns, wall_ns;
};

struct wire_joined {
    int64_t monotonic_offset_ns, wall_offset_ns; /* node clock minus head clock */
    uint64_t round_trip_ns;                      /* of the ping that it answers */
    uint64_t store_free_bytes;                   /* UINT64_MAX: unknown */
};

struct wire_beat {
    uint32_t stop; /* enum stop_request */
    bool kill;     /* kill what is left of the ranks */
};

/* One rank's process, as its node sees it. */
struct wire_rank_report {
    uint32_t rank, pid;
    char state;                   /* start time from /proc; 0 if unknown */
    char place[WIRE_PLACE_BYTES]; /* what it is blocked in, "" if unknown */
};

struct wire_span {
    uint32_t rank;
    uint64_t offset;
    const void *bytes;
    size_t len;
};

struct wire_file {
    char name[WIRE_TEXT_BYTES];
    const char *bytes;
    size_t len;
};

/* Each call empties `out` first. buf_check(out) reports whether it fit. */
void wire_write_hello(struct buf *out, const struct wire_hello *hello);
void wire_write_refused(struct buf *out, const char *reason);
void wire_write_welcome(struct buf *out, const struct wire_welcome *welcome);
void wire_write_ping(struct buf *out, uint64_t now_ns);
void wire_write_pong(struct buf *out, const struct wire_pong *pong);
void wire_write_joined(struct buf *out, const struct wire_joined *joined);
void wire_write_beat(struct buf *out, const struct wire_beat *beat);
void wire_write_sights(struct buf *out, const struct wire_rank_report *rank_reports, uint32_t count);
void wire_write_span(struct buf *out, const struct wire_span *span);
void wire_write_file(struct buf *out, const struct wire_file *file);
void wire_write_bare(struct buf *out, enum wire_kind kind); /* FINISH, FINISHED */

/* Kind of a message; 0 if it is empty. */
enum wire_kind wire_kind_of(const void *message, size_t len);

/* CB_ERR_FORMAT if the message is malformed. A hello of another protocol fills in only `protocol` and `version`, and
 * succeeds. */
int wire_read_hello(const void *message, size_t len, struct wire_hello *hello, struct cb_err *err) CB_MUST_CHECK;
int wire_read_refused(const void *message, size_t len, char reason[1024], struct cb_err *err) CB_MUST_CHECK;
int wire_read_welcome(const void *message, size_t len, struct wire_welcome *welcome, struct cb_err *err) CB_MUST_CHECK;
int wire_read_ping(const void *message, size_t len, uint64_t *now_ns, struct cb_err *err) CB_MUST_CHECK;
int wire_read_pong(const void *message, size_t len, struct wire_pong *pong, struct cb_err *err) CB_MUST_CHECK;
int wire_read_joined(const void *message, size_t len, struct wire_joined *joined, struct cb_err *err) CB_MUST_CHECK;
int wire_read_beat(const void *message, size_t len, struct wire_beat *beat, struct cb_err *err) CB_MUST_CHECK;
/* Fills rank_reports[0 … *count - 1], at most `max`. */
int wire_read_sights(const void *message, size_t len, struct wire_rank_report *rank_reports, uint32_t max,
                     uint32_t *count, struct cb_err *err) CB_MUST_CHECK;
int wire_read_span(const void *message, size_t len, struct wire_span *span, struct cb_err *err) CB_MUST_CHECK;
int wire_read_file(const void *message, size_t len, struct wire_file *file, struct cb_err *err) CB_MUST_CHECK;

#endif
