/* An I/O schedule: the requests that move bytes between files and memory.
 *
 * The caller adds the parts of each file in ascending order: headers and trailers, which it composes or parses, payload
 * that is contiguous in memory, payload that is not (mapped), and padding. io_schedule_add_payload splits contiguous
 * payload at the store's alignment: the body is `direct`, that is transferred without a copy, and the unaligned ends are
 * copied through staging. io_schedule_finish cuts the parts into requests of at most a block.
 *
 * The schedule is built before the data path, which only reads it. io_schedule_clear keeps the memory for reuse. */
#ifndef ENGINE_IO_IO_SCHEDULE_H
#define ENGINE_IO_IO_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "store/store.h"

enum part_kind { PART_HEADER, PART_PAYLOAD, PART_MAPPED, PART_TRAILER };

struct part {
    uint64_t offset; /* in the file */
    uint64_t bytes;
    uint64_t skip; /* bytes of the same header, payload or trailer before this part */
    void *memory;  /* PART_PAYLOAD: source or destination; else NULL */
    uint32_t item; /* the caller's number */
    uint8_t kind;  /* enum part_kind */
    bool direct;   /* transferred without a copy; else through staging */
    uint32_t crc;  /* of a payload part once read; set by the caller */
};

/* Bytes [offset, end) of a file. `end` is rounded up to the alignment; if it is beyond the end of the file, the transfer
 * clamps it. Byte x of the file is at staging + (x - offset) unless it belongs to a direct part. */
struct io_request {
    uint64_t offset, end;
    size_t first_part, part_count;
    uint32_t file;
};

struct io_limits {
    uint64_t block;     /* bytes of a request */
    uint64_t alignment; /* of offsets and lengths; 1 if any is allowed */
    uint64_t memory_alignment;
    uint32_t max_segments;
    uint64_t gap;      /* a request spans gaps of at most this many unneeded bytes */
    bool images;       /* no direct parts: each request is one segment, composed in memory */
    bool apart;        /* a direct part is in device memory, and has its requests to itself */
    bool whole_frames; /* keep headers and trailers in one request, to parse them in place */
    bool whole_blocks; /* requests are parts of an object: full blocks without gaps, except the last */
};

struct io_schedule {
    struct io_limits limits;
    struct part *pending; /* of the file being added */
    size_t pending_count, pending_capacity;
    struct part *parts;
    size_t part_count, part_capacity;
    struct io_request *requests;
    size_t request_count, request_capacity;
    uint32_t file_count;
    uint64_t staging_bytes; /* longest request that is composed in host memory */
    uint64_t bytes;         /* of all parts */
    uint64_t waste_left;    /* unneeded bytes that may still be transferred, see io_schedule_limit_waste */
    int code;               /* 0, or CB_ERR_MEMORY once an append failed */
};

void io_schedule_init(struct io_schedule *self, const struct io_limits *limits);
void io_schedule_release(struct io_schedule *self);
void io_schedule_clear(struct io_schedule *self);

/* Limits from a store's capabilities and a block size; the caller sets gap and whole_frames. */
struct io_limits io_limits_of(const struct store_capabilities *capabilities, uint64_t block);

/* Limits the unneeded bytes of all gaps together, until the next clear. Gaps shorter than the alignment are always
 * transferred and do not count. Without this call there is no limit. */
void io_schedule_limit_waste(struct io_schedule *self, uint64_t bytes);

/* Add parts of the current file, in ascending order without overlap. */
void io_schedule_add_frame(struct io_schedule *self, enum part_kind kind, uint32_t item, uint64_t offset,
                           uint64_t bytes);
void io_schedule_add_payload(struct io_schedule *self, uint32_t item, uint64_t offset, uint64_t bytes, uint64_t skip,
                             void *memory);
void io_schedule_add_mapped(struct io_schedule *self, uint32_t item, uint64_t offset, uint64_t bytes, uint64_t skip);
/* Cuts the current file into requests; its number is file_count before the call. */
void io_schedule_end_file(struct io_schedule *self);

/* Fails if an earlier call ran out of memory. With `interleave` > 1, requests of that many files alternate; those of
 * one file stay in ascending order. */
int io_schedule_finish(struct io_schedule *self, uint32_t interleave, struct cb_err *err) CB_MUST_CHECK;

/* Whether the request moves device memory (limits.apart): it has one part, which is direct. */
static inline bool io_schedule_is_apart(const struct io_schedule *self, const struct io_request *request)
{
    return self->limits.apart && self->parts[request->first_part].direct;
}

/* The segments of a request whose bytes end at `end` (<= request->end). At most limits.max_segments. */
uint32_t io_schedule_segments(const struct io_schedule *self, const struct io_request *request, uint64_t end,
                              char *staging, struct iovec *segments);

#endif
