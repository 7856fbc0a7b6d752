/* Writes records: from status pages to a checksummed file; run/record_read.c reads it.
 *
 * A file names its metrics, operations and states and refers to them by position, so rows that a later release adds
 * anywhere in the catalogue leave old files readable. docs/run-folder.md has the layout. */
#include "run/record.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/hash.h"
#include "run/record_layout.h"

#define WRITE_MAX_BYTES (UINT64_C(1) << 36)

void record_init(struct record *self, const char *run, uint32_t attempt, uint32_t world_size)
{
    memset(self, 0, sizeof *self);
    snprintf(self->run, sizeof self->run, "%s", run);
    self->attempt = attempt;
    self->world_size = world_size;
    for (unsigned i = 0; i < METRIC_COUNT; i++)
        self->run_values[i] = NAN;
    for (unsigned op = 0; op < OP_COUNT; op++) {
        histogram_init(&self->latency[op]);
        histogram_init(&self->ttfb[op]);
    }
}

void record_release_rank(struct record_rank *rank)
{
    free(rank->failures);
    free(rank->facts);
    free(rank->samples);
}

void record_release(struct record *self)
{
    for (uint32_t i = 0; i < self->rank_count; i++)
        record_release_rank(&self->ranks[i]);
    free(self->ranks);
    self->ranks = NULL;
    self->rank_count = 0;
}

int record_add_rank(struct record *self, struct record_rank *rank, struct cb_err *err)
{
    int rc = 0;
    if (rank->rank >= self->world_size || (self->rank_count && self->ranks[self->rank_count - 1].rank >= rank->rank))
        rc = cb_fail(err, CB_ERR_FORMAT, "rank %u of %u is out of order", rank->rank, self->world_size);
    struct record_rank *ranks =
        rc ? NULL : reallocarray(self->ranks, (size_t)self->rank_count + 1, sizeof *self->ranks);
    if (!rc && !ranks)
        rc = alloc_fail(err, "for the record of rank %u", rank->rank);
    if (rc) {
        record_release_rank(rank);
        return rc;
    }
    self->ranks = ranks;
    self->ranks[self->rank_count++] = *rank;
    return 0;
}

char *record_copy_text(const char *bytes, uint32_t len)
{
    char *text = malloc((size_t)len + 1);
    if (text) {
        memcpy(text, bytes, len);
        text[len] = '\0';
        for (uint32_t i = 0; i < len; i++) { /* a text has no NUL inside */
            if (!text[i])
                text[i] = ' ';
        }
    }
    return text;
}

/* A rank that corrupted its page must not crash the agent, so every value is checked. */
static int check_page(const struct status_page *page, uint32_t samples, struct cb_err *err)
{
    if (page->magic != STATUS_PAGE_MAGIC || page->version != STATUS_PAGE_VERSION ||
        status_page_bytes(page->sample_capacity) != page->size_bytes || samples > page->sample_capacity ||
        atomic_load(&page->op) >= OP_COUNT || atomic_load(&page->state) >= STATE_COUNT ||
        atomic_load(&page->phase) > PHASE_FAILED || atomic_load(&page->failure_length) > STATUS_PAGE_TEXT_BYTES ||
        atomic_load(&page->facts_length) > STATUS_PAGE_TEXT_BYTES)
        return cb_fail(err, CB_ERR_CORRUPT, "the status page of rank %u was overwritten with something else",
                       page->rank);
    for (uint32_t i = 0; i < samples; i++) {
        if (page->samples[i].op == OP_NONE || page->samples[i].op >= OP_COUNT)
            return cb_fail(err, CB_ERR_CORRUPT, "sample %u on the status page of rank %u has no operation", i,
                           page->rank);
    }
    return 0;
}

static void merge_values(struct record *self, const struct status_page *page)
{
    for (unsigned i = 0; i < METRIC_COUNT; i++) {
        if (isnan(self->run_values[i])) /* the lowest rank with a value reports it */
            self->run_values[i] = page->run_values[i];
    }
    for (unsigned op = 0; op < OP_COUNT; op++) {
        histogram_merge(&self->latency[op], &page->latency[op]);
        histogram_merge(&self->ttfb[op], &page->ttfb[op]);
    }
}

int record_add_page(struct record *self, const struct status_page *page, struct cb_err *err)
{
    uint32_t samples = atomic_load_explicit(&page->sample_count, memory_order_acquire);
    int rc = check_page(page, samples, err);
    if (rc)
        return rc;
    struct record_rank rank = {
        .rank = page->rank,
        .phase = atomic_load(&page->phase),
        .last_op = atomic_load(&page->op),
        .last_state = atomic_load(&page->state),
        .last_iteration = atomic_load(&page->iteration),
        .failure_code = atomic_load(&page->failure_code),
        .failures = record_copy_text(page->failures, atomic_load_explicit(&page->failure_length, memory_order_acquire)),
        .facts = record_copy_text(page->facts, atomic_load_explicit(&page->facts_length, memory_order_acquire)),
        .samples = malloc(samples ? samples * sizeof *rank.samples : 1),
        .sample_count = samples,
    };
    if (!rank.failures || !rank.facts || !rank.samples) {
        record_release_rank(&rank);
        return alloc_fail(err, "for the record of rank %u", page->rank);
    }
    memcpy(rank.samples, page->samples, samples * sizeof *rank.samples);
    rc = record_add_rank(self, &rank, err);
    if (!rc)
        merge_values(self, page);
    return rc;
}

/* Writing: everything little-endian. */

static void put_u32(struct buf *out, uint32_t value)
{
    unsigned char bytes[4];
    for (int i = 0; i < 4; i++)
        bytes[i] = (unsigned char)(value >> (8 * i));
    buf_append(out, bytes, sizeof bytes);
}

static void put_u64(struct buf *out, uint64_t value)
{
    put_u32(out, (uint32_t)value);
    put_u32(out, (uint32_t)(value >> 32));
}

static void put_double(struct buf *out, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_u64(out, bits);
}

static void put_text(struct buf *out, const char *text)
{
    put_u32(out, (uint32_t)strlen(text));
    buf_append_text(out, text);
}

/* Appends `payload` as a block and empties it. */
static void put_block(struct buf *out, enum block_type type, struct buf *payload)
{
    if (payload->code)
        out->code = payload->code;
    size_t start = out->len;
    put_u32(out, type);
    put_u64(out, payload->len);
    buf_append(out, payload->data, payload->len);
    if (!out->code)
        put_u32(out, crc32c(0, out->data + start, out->len - start));
    buf_clear(payload);
}

static void put_schema(struct buf *payload)
{
    put_u32(payload, METRIC_COUNT);
    for (unsigned i = 0; i < METRIC_COUNT; i++)
        put_text(payload, metric_row((enum metric_id)i)->name);
    put_u32(payload, OP_COUNT);
    for (unsigned i = 0; i < OP_COUNT; i++)
        put_text(payload, operation_name((enum operation)i));
    put_u32(payload, STATE_COUNT);
    for (unsigned i = 0; i < STATE_COUNT; i++)
        put_text(payload, rank_state_name((enum rank_state)i));
    put_u32(payload, HISTOGRAM_BUCKETS);
}

static void put_sample(struct buf *payload, const struct sample *sample)
{
    uint64_t mask[MASK_WORDS] = {0};
    for (unsigned i = 0; i < METRIC_SAMPLE_COUNT; i++) {
        if (!isnan(sample->values[i]))
            mask[i / 64] |= UINT64_C(1) << i % 64;
    }
    put_u32(payload, sample->op);
    put_u32(payload, sample->iteration);
    put_u32(payload, sample->flags);
    for (unsigned word = 0; word < MASK_WORDS; word++)
        put_u64(payload, mask[word]);
    for (unsigned i = 0; i < METRIC_SAMPLE_COUNT; i++) {
        if (mask[i / 64] >> i % 64 & 1)
            put_double(payload, sample->values[i]);
    }
}

static void put_rank(struct buf *payload, const struct record_rank *rank)
{
    put_u32(payload, rank->rank);
    put_u32(payload, rank->phase);
    put_u32(payload, rank->last_op);
    put_u32(payload, rank->last_state);
    put_u32(payload, rank->last_iteration);
    put_u32(payload, rank->failure_code);
    put_text(payload, rank->failures);
    put_text(payload, rank->facts);
    put_u32(payload, rank->sample_count);
    for (uint32_t i = 0; i < rank->sample_count; i++)
        put_sample(payload, &rank->samples[i]);
}

static void put_run_values(struct buf *payload, const double values[METRIC_COUNT])
{
    uint32_t count = 0;
    for (unsigned i = 0; i < METRIC_COUNT; i++)
        count += isnan(values[i]) ? 0 : 1;
    put_u32(payload, count);
    for (unsigned i = 0; i < METRIC_COUNT; i++) {
        if (isnan(values[i]))
            continue;
        put_u32(payload, i);
        put_double(payload, values[i]);
    }
}

static void put_histogram(struct buf *payload, unsigned op, const struct histogram *histogram)
{
    uint32_t used = 0;
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
        used += histogram->buckets[i] > 0;
    put_u32(payload, op);
    put_u64(payload, histogram->sum_ns);
    put_u64(payload, histogram->min_ns);
    put_u64(payload, histogram->max_ns);
    put_u32(payload, used);
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
        if (!histogram->buckets[i])
            continue;
        put_u32(payload, i);
        put_u64(payload, histogram->buckets[i]);
    }
}

static void put_record(const struct record *self, struct buf *out, struct buf *payload)
{
    uint64_t samples = 0;
    buf_append(out, RECORD_MAGIC, RECORD_MAGIC_BYTES);
    put_u32(out, RECORD_VERSION);
    put_schema(payload);
    put_block(out, BLOCK_SCHEMA, payload);
    put_text(payload, self->run);
    put_u32(payload, self->attempt);
    put_u32(payload, self->world_size);
    put_block(out, BLOCK_RUN, payload);
    for (uint32_t i = 0; i < self->rank_count; i++) {
        put_rank(payload, &self->ranks[i]);
        put_block(out, BLOCK_RANK, payload);
        samples += self->ranks[i].sample_count;
    }
    put_run_values(payload, self->run_values);
    put_block(out, BLOCK_RUN_VALUES, payload);
    for (unsigned op = 0; op < OP_COUNT; op++) {
        if (self->latency[op].count) {
            put_histogram(payload, op, &self->latency[op]);
            put_block(out, BLOCK_LATENCY, payload);
        }
        if (self->ttfb[op].count) {
            put_histogram(payload, op, &self->ttfb[op]);
            put_block(out, BLOCK_TTFB, payload);
        }
    }
    put_u32(payload, self->rank_count);
    put_u64(payload, samples);
    put_block(out, BLOCK_END, payload);
}

int record_write(const struct record *self, const char *path, struct cb_err *err)
{
    struct buf out, payload;
    buf_init(&out, WRITE_MAX_BYTES);
    buf_init(&payload, WRITE_MAX_BYTES);
    put_record(self, &out, &payload);
    int rc = buf_write_file(&out, path, 0644, err);
    buf_release(&payload);
    buf_release(&out);
    return rc;
}
