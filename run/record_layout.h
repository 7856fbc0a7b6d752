/* The file layout shared by run/record.c and run/record_read.c; docs/run-folder.md describes it. */
#ifndef RUN_RECORD_LAYOUT_H
#define RUN_RECORD_LAYOUT_H

#include <stdint.h>

#include "run/record.h"

#define RECORD_MAGIC "CBRECORD"
#define RECORD_MAGIC_BYTES 8
#define BLOCK_HEAD_BYTES 12 /* type, length */
#define BLOCK_CRC_BYTES 4
#define NAME_MAX_BYTES 64
#define SCHEMA_MAX_NAMES 1024
#define MASK_WORDS 2
#define SAMPLE_MAX_METRICS (64 * MASK_WORDS)       /* bits of a sample's mask */
#define SAMPLE_HEAD_BYTES (3 * 4 + 8 * MASK_WORDS) /* op, iteration, flags, mask */

_Static_assert(METRIC_SAMPLE_COUNT <= SAMPLE_MAX_METRICS, "a sample's mask has a bit for every metric");

/* BLOCK_TTFB was added later: it is written only if there are first-byte latencies. */
enum block_type { BLOCK_SCHEMA = 1, BLOCK_RUN, BLOCK_RANK, BLOCK_RUN_VALUES, BLOCK_LATENCY, BLOCK_END, BLOCK_TTFB };

/* Appends the rank and takes ownership of it; on failure releases it. */
int record_add_rank(struct record *self, struct record_rank *rank, struct cb_err *err) CB_MUST_CHECK;
void record_release_rank(struct record_rank *rank);
/* NUL-terminated; NULL if out of memory. */
char *record_copy_text(const char *bytes, uint32_t len);

#endif
