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
/* A sample's mask has a bit for each metric up to the last one of samples in the schema, in whole words. */
#define MASK_LEAST_WORDS 2 /* which all records had while there were at most 128 of them */
#define MASK_WORDS_FOR(metrics) ((metrics) > 64 * MASK_LEAST_WORDS ? ((metrics) + 63) / 64 : MASK_LEAST_WORDS)
#define MASK_WORDS MASK_WORDS_FOR(METRIC_SAMPLE_COUNT)
#define SAMPLE_HEAD_BYTES (3 * 4 + 8 * MASK_LEAST_WORDS) /* op, iteration, flags, mask; at least */

/* BLOCK_TTFB was added later: it is written only if there are first-byte latencies. */
enum block_type { BLOCK_SCHEMA = 1, BLOCK_RUN, BLOCK_RANK, BLOCK_RUN_VALUES, BLOCK_LATENCY, BLOCK_END, BLOCK_TTFB };

/* Appends the rank and takes ownership of it; on failure releases it. */
int record_add_rank(struct record *self, struct record_rank *rank, struct cb_err *err) CB_MUST_CHECK;
void record_release_rank(struct record_rank *rank);
/* NUL-terminated; NULL if out of memory. */
char *record_copy_text(const char *bytes, uint32_t len);

#endif
