/* An I/O schedule: what bytes of which files go from or to where, cut into requests.
 *
 * The caller adds the parts of each file in ascending offset: headers and trailers (composed or
 * parsed by the caller), payload that is contiguous in memory, payload that is not (mapped), padding.
 * io_schedule_add_payload splits contiguous payload by the store's alignment: the body is `direct` (moved
 * straight between store and memory), its unaligned ends are copied through staging. io_schedule_finish
 * cuts the parts into requests of a block, each a list of parts that follow each other.
 * Built before the data path; the data path only reads it. Memory is kept over io_schedule_clear. */
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
    uint64_t skip; /* bytes of the same header, payload or trailer that come before this part */
    void *memory;  /* PART_PAYLOAD: where its bytes are or go; NULL for the others */
    uint32_t item; /* the caller's */
    uint8_t kind;  /* enum part_kind */
    bool direct;   /* memory is handed to the store; else the bytes pass through staging */
    uint32_t crc;  /* of a payload part once read; the caller's */
};

/* Bytes [offset, end) of a file; `end` is rounded up to the alignment and may lie beyond the file's
 * end, where the transfer clamps it. Byte x of the file is at staging + (x - offset) unless a direct
 * part covers it. */
struct io_request {
    uint64_t offset, end;
    size_t first_part, part_count;
    uint32_t file;
};

struct io_limits {
    uint64_t block;     /* bytes a request */
    uint64_t alignment; /* of offsets and lengths; 1 where free */
    uint64_t memory_alignment;
    uint32_t max_segments;
    uint64_t gap;      /* unwanted bytes that are moved rather than making another request */
    bool images;       /* no part is direct: a request is composed in memory of its own, and is one segment */
    bool whole_frames; /* never cut a header or trailer in two (to parse it in place) */
    bool whole_blocks; /* requests are parts of an object: blocks without holes, all full but the last */
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
    uint64_t staging_bytes; /* longest request */
    uint64_t bytes;         /* of all parts */
    uint64_t waste_left;    /* unwanted bytes that may still be moved, see io_schedule_limit_waste */
    int code;               /* 0, or CB_ERR_MEMORY once an append failed */
};

void io_schedule_init(struct io_schedule *self, const struct io_limits *limits);
void io_schedule_release(struct io_schedule *self);
void io_schedule_clear(struct io_schedule *self);

/* The limits that a store's capabilities and a block size give; gap and whole_frames are the caller's. */
struct io_limits io_limits_of(const struct store_capabilities *capabilities, uint64_t block);

/* Requests span gaps of limits.gap at most, and of so many bytes in all until the next clear; gaps shorter than the
 * alignment are moved anyway and do not count. Without this call there is no limit. */
void io_schedule_limit_waste(struct io_schedule *self, uint64_t bytes);

/* Parts of the file being added, ascending and not overlapping. */
void io_schedule_add_frame(struct io_schedule *self, enum part_kind kind, uint32_t item, uint64_t offset,
                           uint64_t bytes);
void io_schedule_add_payload(struct io_schedule *self, uint32_t item, uint64_t offset, uint64_t bytes, uint64_t skip,
                             void *memory);
void io_schedule_add_mapped(struct io_schedule *self, uint32_t item, uint64_t offset, uint64_t bytes, uint64_t skip);
/* Cuts the file being added into requests; its number is file_count before the call. */
void io_schedule_end_file(struct io_schedule *self);

/* Checks that all of it fitted into memory. With `interleave` > 1 that many files take turns; requests
 * of one file stay in ascending order. */
int io_schedule_finish(struct io_schedule *self, uint32_t interleave, struct cb_err *err) CB_MUST_CHECK;

/* The segments of a request whose bytes end at `end` (<= request->end). At most limits.max_segments. */
uint32_t io_schedule_segments(const struct io_schedule *self, const struct io_request *request, uint64_t end,
                              char *staging, struct iovec *segments);

#endif
