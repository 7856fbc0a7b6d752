/* Records: what happened in one attempt, compact, checksummed and versioned.
 *
 * The agent seals them from the status pages; the history ingests them. The file is a header and blocks of {type,
 * length, payload, CRC-32C}, little-endian; the end block holds the counts, so a truncated file is detected. Reading
 * is bounded by the file's size. */
#ifndef RUN_RECORD_H
#define RUN_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "core/histogram.h"
#include "run/metrics.h"
#include "run/status_page.h"

#define RECORD_VERSION 2

/* What a rank's requests of one kind did over time. */
struct record_time {
    uint32_t op, kind;           /* enum operation; enum request_kind or TIMED_BACKOFF */
    struct time_buckets buckets; /* since the attempt began; not empty */
};

struct record_rank {
    uint32_t rank;
    uint32_t phase;                               /* enum rank_phase at the end */
    uint32_t last_op, last_state, last_iteration; /* the last state: shows in which phase a killed rank died */
    uint32_t failure_code;                        /* -enum cb_code; 0 without a failure */
    char *failures;                               /* lines; "" without a failure */
    char *facts;                                  /* key=value lines */
    struct sample *samples;
    uint32_t sample_count;
    struct record_time *times; /* time_count of them, by operation and kind */
    uint32_t time_count;
};

struct record {
    char run[64];
    uint32_t attempt;
    uint32_t world_size;
    struct record_rank *ranks; /* rank_count of them, ascending; ranks without a page are left out */
    uint32_t rank_count;
    double run_values[METRIC_COUNT];    /* NAN: absent */
    struct histogram latency[OP_COUNT]; /* merged over ranks */
    struct histogram ttfb[OP_COUNT];
    struct slow_requests slowest[OP_COUNT];
};

void record_init(struct record *self, const char *run, uint32_t attempt, uint32_t world_size);
void record_release(struct record *self);

/* Copies one page into the record. Reads published samples only. */
int record_add_page(struct record *self, const struct status_page *page, struct cb_err *err) CB_MUST_CHECK;

int record_write(const struct record *self, const char *path,
                 struct cb_err *err) CB_MUST_CHECK; /* by rename, fsynced */
int record_read(const char *path, struct record *self, struct cb_err *err) CB_MUST_CHECK;
int record_parse(const char *name, const void *bytes, size_t len, struct record *self,
                 struct cb_err *err) CB_MUST_CHECK;

#endif
