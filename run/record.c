/* Records: from status pages to a checksummed file, and from the file, checked, into ranks and samples.
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

#define WRITE_MAX_BYTES (UINT64_C(1) << 36)
#define RECORD_MAGIC "CBRECORD"
#define RECORD_MAGIC_BYTES 8
#define BLOCK_HEAD_BYTES 12 /* type, length */
#define BLOCK_CRC_BYTES 4
#define NAME_MAX_BYTES 64
#define SCHEMA_MAX_NAMES 1024
/* A sample's mask has a bit for each metric of the schema up to the last sample metric, rounded up to whole words. */
#define MASK_LEAST_WORDS 2 /* the mask in all records of releases with at most 128 metrics */
#define MASK_WORDS_FOR(metrics) ((metrics) > 64 * MASK_LEAST_WORDS ? ((metrics) + 63) / 64 : MASK_LEAST_WORDS)
#define MASK_WORDS MASK_WORDS_FOR(METRIC_SAMPLE_COUNT)
#define VARINT_MAX_BYTES 10
#define SAMPLE_HEAD_BYTES (3 * 4 + 8 * MASK_LEAST_WORDS) /* op, iteration, flags, mask; at least */

/* Blocks after BLOCK_END were added later: they are written only if there is something in them. */
enum block_type {
    BLOCK_SCHEMA = 1,
    BLOCK_RUN,
    BLOCK_RANK,
    BLOCK_RUN_VALUES,
    BLOCK_LATENCY,
    BLOCK_END,
    BLOCK_TTFB,
    BLOCK_SLOWEST,
    BLOCK_TIME /* of the rank whose block is before it */
};

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

static void release_rank(struct record_rank *rank)
{
    free(rank->failures);
    free(rank->facts);
    free(rank->samples);
    free(rank->times);
}

void record_release(struct record *self)
{
    for (uint32_t i = 0; i < self->rank_count; i++)
        release_rank(&self->ranks[i]);
    free(self->ranks);
    self->ranks = NULL;
    self->rank_count = 0;
}

/* Appends the rank and takes ownership of it; on failure releases it. */
static int add_rank(struct record *self, struct record_rank *rank, struct cb_err *err)
{
    int rc = 0;
    if (rank->rank >= self->world_size || (self->rank_count && self->ranks[self->rank_count - 1].rank >= rank->rank))
        rc = cb_fail(err, CB_ERR_FORMAT, "rank %u of %u is out of order", rank->rank, self->world_size);
    struct record_rank *ranks =
        rc ? NULL : reallocarray(self->ranks, (size_t)self->rank_count + 1, sizeof *self->ranks);
    if (!rc && !ranks)
        rc = alloc_fail(err, "for the record of rank %u", rank->rank);
    if (rc) {
        release_rank(rank);
        return rc;
    }
    self->ranks = ranks;
    self->ranks[self->rank_count++] = *rank;
    return 0;
}

/* NUL-terminated; NULL if out of memory. */
static char *copy_text(const char *bytes, uint32_t len)
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
    for (unsigned op = 0; op < OP_COUNT; op++) {
        if (!slow_requests_are_valid(&page->slowest[op]))
            return cb_fail(err, CB_ERR_CORRUPT, "the slowest requests on the status page of rank %u are malformed",
                           page->rank);
        for (unsigned kind = 0; kind < TIMED_KINDS; kind++)
            if (!time_buckets_are_valid(&page->over_time[op][kind]))
                return cb_fail(err, CB_ERR_CORRUPT, "the time buckets on the status page of rank %u are malformed",
                               page->rank);
    }
    return 0;
}

static void merge_slowest(struct slow_requests *self, const struct slow_requests *other, uint32_t rank)
{
    for (uint64_t i = 0; i < other->count; i++) {
        struct slow_request request = other->items[i];
        request.rank = rank;
        slow_requests_add(self, &request);
    }
}

static void merge_values(struct record *self, const struct status_page *page)
{
    for (unsigned i = 0; i < METRIC_COUNT; i++) {
        if (isnan(self->run_values[i])) /* reported by the lowest rank that has a value */
            self->run_values[i] = page->run_values[i];
    }
    for (unsigned op = 0; op < OP_COUNT; op++) {
        histogram_merge(&self->latency[op], &page->latency[op]);
        histogram_merge(&self->ttfb[op], &page->ttfb[op]);
        merge_slowest(&self->slowest[op], &page->slowest[op], page->rank);
    }
}

/* False if there is no memory. */
static bool add_time(struct record_rank *rank, const struct record_time *time)
{
    struct record_time *times = reallocarray(rank->times, (size_t)rank->time_count + 1, sizeof *times);
    if (!times)
        return false;
    rank->times = times;
    times[rank->time_count++] = *time;
    return true;
}

static bool copy_times(const struct status_page *page, struct record_rank *rank)
{
    for (unsigned op = 0; op < OP_COUNT; op++) {
        for (unsigned kind = 0; kind < TIMED_KINDS; kind++) {
            const struct time_buckets *buckets = &page->over_time[op][kind];
            if (buckets->count > 0 &&
                !add_time(rank, &(struct record_time){.op = op, .kind = kind, .buckets = *buckets}))
                return false;
        }
    }
    return true;
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
        .failures = copy_text(page->failures, atomic_load_explicit(&page->failure_length, memory_order_acquire)),
        .facts = copy_text(page->facts, atomic_load_explicit(&page->facts_length, memory_order_acquire)),
        .samples = malloc(samples ? samples * sizeof *rank.samples : 1),
        .sample_count = samples,
    };
    if (!rank.failures || !rank.facts || !rank.samples || !copy_times(page, &rank)) {
        release_rank(&rank);
        return alloc_fail(err, "for the record of rank %u", page->rank);
    }
    memcpy(rank.samples, page->samples, samples * sizeof *rank.samples);
    rc = add_rank(self, &rank, err);
    if (!rc)
        merge_values(self, page);
    return rc;
}

/* ---- names ---- */

static const char *name_of_metric(unsigned index)
{
    return metric_row((enum metric_id)index)->name;
}

static const char *name_of_operation(unsigned index)
{
    return operation_name((enum operation)index);
}

static const char *name_of_state(unsigned index)
{
    return rank_state_name((enum rank_state)index);
}

/* What a file names, in its order. */
enum { NAMES_OF_METRICS, NAMES_OF_OPERATIONS, NAMES_OF_STATES, NAME_KINDS };
static const struct {
    const char *what;
    unsigned count;
    const char *(*name)(unsigned index);
} name_kinds[NAME_KINDS] = {
    {"metric", METRIC_COUNT, name_of_metric},
    {"operation", OP_COUNT, name_of_operation},
    {"state", STATE_COUNT, name_of_state},
};

/* ---- writing: everything little-endian ---- */

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

/* Seven bits a byte, the lowest first; the last byte has no 0x80. */
static void put_varint(struct buf *out, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        buf_append_char(out, (char)(value | 0x80));
    buf_append_char(out, (char)value);
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
    for (size_t kind = 0; kind < NAME_KINDS; kind++) {
        put_u32(payload, name_kinds[kind].count);
        for (unsigned i = 0; i < name_kinds[kind].count; i++)
            put_text(payload, name_kinds[kind].name(i));
    }
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

static void put_slowest(struct buf *payload, unsigned op, const struct slow_requests *slowest)
{
    put_u32(payload, op);
    put_u32(payload, (uint32_t)slowest->count);
    for (uint64_t i = 0; i < slowest->count; i++) {
        const struct slow_request *request = &slowest->items[i];
        put_u64(payload, request->latency_ns);
        put_u64(payload, request->offset);
        put_u64(payload, request->bytes);
        put_u64(payload, request->started_wall_ns);
        put_u32(payload, request->kind);
        put_u32(payload, request->rank);
        put_u32(payload, request->iteration);
        put_text(payload, request->file);
    }
}

static void put_time(struct buf *payload, const struct record_time *time)
{
    const struct time_buckets *buckets = &time->buckets;
    put_u32(payload, time->op);
    put_text(payload, timed_kind_name(time->kind));
    put_u64(payload, buckets->width_ns);
    put_u64(payload, buckets->first);
    put_u32(payload, (uint32_t)buckets->count);
    for (uint64_t i = 0; i < buckets->count; i++) {
        put_varint(payload, buckets->buckets[i].bytes);
        put_varint(payload, buckets->buckets[i].requests);
        put_varint(payload, buckets->buckets[i].in_flight_ns);
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
        for (uint32_t k = 0; k < self->ranks[i].time_count; k++) {
            put_time(payload, &self->ranks[i].times[k]);
            put_block(out, BLOCK_TIME, payload);
        }
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
        if (self->slowest[op].count) {
            put_slowest(payload, op, &self->slowest[op]);
            put_block(out, BLOCK_SLOWEST, payload);
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
    int rc = buf_write_file(&out, path, 0666, err);
    buf_release(&payload);
    buf_release(&out);
    return rc;
}

/* ---- reading ---- */

struct cursor {
    const unsigned char *at, *end;
    bool short_of_bytes; /* a read went past the end */
};

static size_t bytes_left(const struct cursor *self)
{
    return (size_t)(self->end - self->at);
}

static const unsigned char *take(struct cursor *self, size_t len)
{
    if (self->short_of_bytes || len > bytes_left(self)) {
        self->short_of_bytes = true;
        return NULL;
    }
    const unsigned char *place = self->at;
    self->at += len;
    return place;
}

static uint32_t take_u32(struct cursor *self)
{
    const unsigned char *bytes = take(self, 4);
    uint32_t value = 0;
    for (int i = 3; bytes && i >= 0; i--)
        value = value << 8 | bytes[i];
    return value;
}

static uint64_t take_u64(struct cursor *self)
{
    uint64_t low = take_u32(self);
    return (uint64_t)take_u32(self) << 32 | low;
}

static uint64_t take_varint(struct cursor *self)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < VARINT_MAX_BYTES; i++) {
        const unsigned char *byte = take(self, 1);
        if (!byte)
            return 0;
        value |= (uint64_t)(*byte & 0x7f) << (7 * i);
        if (!(*byte & 0x80))
            return value;
    }
    self->short_of_bytes = true; /* no end: malformed */
    return 0;
}

static double take_double(struct cursor *self)
{
    uint64_t bits = take_u64(self);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* NULL if the input is too short or memory runs out. */
static char *take_text(struct cursor *self)
{
    uint32_t len = take_u32(self);
    const unsigned char *bytes = take(self, len);
    return bytes ? copy_text((const char *)bytes, len) : NULL;
}

/* Maps the positions in a file to this release's rows. */
struct names {
    unsigned indexes[SCHEMA_MAX_NAMES];
    uint32_t count;
};

struct parser {
    struct record *record;
    struct names names[NAME_KINDS];
    uint32_t mask_words; /* of one sample */
    uint64_t samples;
    bool has_schema, has_run, ended;
};

static int parse_names(struct cursor *cursor, size_t kind, struct names *names, struct cb_err *err)
{
    const char *what = name_kinds[kind].what;
    names->count = take_u32(cursor);
    if (names->count > SCHEMA_MAX_NAMES)
        return cb_fail(err, CB_ERR_FORMAT, "%u names of %ss are too many", names->count, what);
    for (uint32_t i = 0; i < names->count; i++) {
        char name[NAME_MAX_BYTES];
        uint32_t len = take_u32(cursor);
        const unsigned char *bytes = take(cursor, len);
        if (!bytes || len >= sizeof name)
            return cb_fail(err, CB_ERR_FORMAT, "the name of a %s is too long", what);
        memcpy(name, bytes, len);
        name[len] = '\0';
        unsigned index = 0;
        while (index < name_kinds[kind].count && strcmp(name_kinds[kind].name(index), name) != 0)
            index++;
        if (index == name_kinds[kind].count)
            return cb_fail(err, CB_ERR_FORMAT, "the %s %s is not known here: a newer release wrote it", what, name);
        names->indexes[i] = index;
    }
    return 0;
}

static int parse_schema(struct parser *self, struct cursor *cursor, struct cb_err *err)
{
    const struct names *metrics = &self->names[NAMES_OF_METRICS];
    int rc = 0;
    for (size_t kind = 0; kind < NAME_KINDS && !rc; kind++)
        rc = parse_names(cursor, kind, &self->names[kind], err);
    if (!rc && take_u32(cursor) != HISTOGRAM_BUCKETS)
        rc = cb_fail(err, CB_ERR_FORMAT, "histograms have another number of buckets");
    uint32_t last = 0;
    for (uint32_t i = 0; !rc && i < metrics->count; i++)
        if (metric_row((enum metric_id)metrics->indexes[i])->scope == METRIC_OF_SAMPLE)
            last = i + 1;
    self->mask_words = MASK_WORDS_FOR(last);
    self->has_schema = !rc;
    return rc;
}

static int parse_run(struct parser *self, struct cursor *cursor, struct cb_err *err)
{
    struct record *record = self->record;
    uint32_t len = take_u32(cursor);
    const unsigned char *run = take(cursor, len);
    if (!run || len >= sizeof record->run || memchr(run, 0, len))
        return cb_fail(err, CB_ERR_FORMAT, "the run's name is not one");
    memcpy(record->run, run, len);
    record->run[len] = '\0';
    record->attempt = take_u32(cursor);
    record->world_size = take_u32(cursor);
    self->has_run = true;
    return 0;
}

static int parse_sample(const struct parser *self, struct cursor *cursor, struct sample *sample, struct cb_err *err)
{
    const struct names *metrics = &self->names[NAMES_OF_METRICS], *operations = &self->names[NAMES_OF_OPERATIONS];
    uint32_t op = take_u32(cursor);
    if (op >= operations->count || operations->indexes[op] == OP_NONE)
        return cb_fail(err, CB_ERR_FORMAT, "a sample has no operation");
    sample->op = operations->indexes[op];
    sample->iteration = take_u32(cursor);
    sample->flags = take_u32(cursor);
    uint64_t mask[SCHEMA_MAX_NAMES / 64];
    for (unsigned word = 0; word < self->mask_words; word++)
        mask[word] = take_u64(cursor);
    for (unsigned i = 0; i < METRIC_SAMPLE_COUNT; i++)
        sample->values[i] = NAN;
    for (unsigned i = 0; i < 64 * self->mask_words; i++) {
        if (!(mask[i / 64] >> i % 64 & 1))
            continue;
        if (i >= metrics->count || metrics->indexes[i] >= METRIC_SAMPLE_COUNT)
            return cb_fail(err, CB_ERR_FORMAT, "a sample has a value that is not one of samples");
        sample->values[metrics->indexes[i]] = take_double(cursor);
    }
    return 0;
}

static int parse_samples(const struct parser *self, struct cursor *cursor, struct record_rank *rank, struct cb_err *err)
{
    rank->sample_count = take_u32(cursor);
    if (rank->sample_count > bytes_left(cursor) / SAMPLE_HEAD_BYTES)
        return cb_fail(err, CB_ERR_FORMAT, "rank %u has fewer samples than its %u", rank->rank, rank->sample_count);
    rank->samples = calloc(rank->sample_count ? rank->sample_count : 1, sizeof *rank->samples);
    if (!rank->samples)
        return alloc_fail(err, "for %u samples of rank %u", rank->sample_count, rank->rank);
    int rc = 0;
    for (uint32_t i = 0; i < rank->sample_count && !rc; i++)
        rc = parse_sample(self, cursor, &rank->samples[i], err);
    return rc;
}

static int parse_rank(struct parser *self, struct cursor *cursor, struct cb_err *err)
{
    const struct names *operations = &self->names[NAMES_OF_OPERATIONS], *states = &self->names[NAMES_OF_STATES];
    struct record_rank rank = {.rank = take_u32(cursor), .phase = take_u32(cursor)};
    uint32_t op = take_u32(cursor), state = take_u32(cursor);
    rank.last_iteration = take_u32(cursor);
    rank.failure_code = take_u32(cursor);
    rank.failures = take_text(cursor);
    rank.facts = take_text(cursor);
    int rc = 0;
    if (!rank.failures || !rank.facts)
        rc = cb_fail(err, CB_ERR_FORMAT, "the texts of rank %u are not all there", rank.rank);
    else if (rank.phase > PHASE_FAILED || op >= operations->count || state >= states->count)
        rc = cb_fail(err, CB_ERR_FORMAT, "where rank %u was is not known here", rank.rank);
    if (!rc) {
        rank.last_op = operations->indexes[op];
        rank.last_state = states->indexes[state];
        rc = parse_samples(self, cursor, &rank, err);
    }
    if (rc) {
        release_rank(&rank);
        return rc;
    }
    self->samples += rank.sample_count;
    return add_rank(self->record, &rank, err);
}

static int parse_run_values(struct parser *self, struct cursor *cursor, struct cb_err *err)
{
    const struct names *metrics = &self->names[NAMES_OF_METRICS];
    uint32_t count = take_u32(cursor);
    if (count > metrics->count)
        return cb_fail(err, CB_ERR_FORMAT, "%u values of the run are too many", count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = take_u32(cursor);
        if (index >= metrics->count)
            return cb_fail(err, CB_ERR_FORMAT, "a value of the run has no name");
        self->record->run_values[metrics->indexes[index]] = take_double(cursor);
    }
    return 0;
}

static int parse_histogram(struct parser *self, struct cursor *cursor, struct histogram of_operation[OP_COUNT],
                           struct cb_err *err)
{
    uint32_t op = take_u32(cursor);
    if (op >= self->names[NAMES_OF_OPERATIONS].count)
        return cb_fail(err, CB_ERR_FORMAT, "latencies of an operation that is not known here");
    struct histogram *histogram = &of_operation[self->names[NAMES_OF_OPERATIONS].indexes[op]];
    histogram_init(histogram);
    histogram->sum_ns = take_u64(cursor);
    histogram->min_ns = take_u64(cursor);
    histogram->max_ns = take_u64(cursor);
    uint32_t used = take_u32(cursor);
    if (used > HISTOGRAM_BUCKETS)
        return cb_fail(err, CB_ERR_FORMAT, "%u buckets of latencies are too many", used);
    for (uint32_t i = 0; i < used; i++) {
        uint32_t bucket = take_u32(cursor);
        if (bucket >= HISTOGRAM_BUCKETS)
            return cb_fail(err, CB_ERR_FORMAT, "a bucket of latencies is out of range");
        histogram->buckets[bucket] = take_u64(cursor);
        histogram->count += histogram->buckets[bucket];
    }
    return 0;
}

static int parse_slowest(struct parser *self, struct cursor *cursor, struct cb_err *err)
{
    uint32_t op = take_u32(cursor), count = take_u32(cursor);
    if (op >= self->names[NAMES_OF_OPERATIONS].count || count > SLOW_REQUESTS)
        return cb_fail(err, CB_ERR_FORMAT, "slowest requests of an operation that is not known here, or too many");
    struct slow_requests *slowest = &self->record->slowest[self->names[NAMES_OF_OPERATIONS].indexes[op]];
    for (uint32_t i = 0; i < count; i++) {
        struct slow_request request = {.latency_ns = take_u64(cursor)};
        request.offset = take_u64(cursor);
        request.bytes = take_u64(cursor);
        request.started_wall_ns = take_u64(cursor);
        request.kind = take_u32(cursor);
        request.rank = take_u32(cursor);
        request.iteration = take_u32(cursor);
        uint32_t len = take_u32(cursor);
        const unsigned char *file = take(cursor, len);
        if (!file || len >= sizeof request.file || request.kind >= REQUEST_KINDS)
            return cb_fail(err, CB_ERR_FORMAT, "one of the slowest requests is malformed");
        memcpy(request.file, file, len);
        slow_requests_add(slowest, &request);
    }
    return 0;
}

static int parse_time(struct parser *self, struct cursor *cursor, struct cb_err *err)
{
    struct record *record = self->record;
    struct record_time time = {.kind = TIMED_KINDS};
    uint32_t op = take_u32(cursor), len = take_u32(cursor);
    const unsigned char *name = take(cursor, len);
    for (uint32_t kind = 0; name && kind < TIMED_KINDS; kind++)
        if (strlen(timed_kind_name(kind)) == len && memcmp(timed_kind_name(kind), name, len) == 0)
            time.kind = kind;
    time.buckets.width_ns = take_u64(cursor);
    time.buckets.first = take_u64(cursor);
    time.buckets.count = take_u32(cursor);
    if (op >= self->names[NAMES_OF_OPERATIONS].count || time.kind == TIMED_KINDS || record->rank_count == 0 ||
        time.buckets.count == 0 || !time_buckets_are_valid(&time.buckets))
        return cb_fail(err, CB_ERR_FORMAT, "time buckets are malformed, or of an operation that is not known here");
    time.op = self->names[NAMES_OF_OPERATIONS].indexes[op];
    for (uint64_t i = 0; i < time.buckets.count; i++) {
        struct time_bucket *bucket = &time.buckets.buckets[i];
        bucket->bytes = take_varint(cursor);
        bucket->requests = take_varint(cursor);
        bucket->in_flight_ns = take_varint(cursor);
    }
    return add_time(&record->ranks[record->rank_count - 1], &time) ? 0 : alloc_fail(err, "for time buckets");
}

static int parse_end(struct parser *self, struct cursor *cursor, struct cb_err *err)
{
    uint32_t ranks = take_u32(cursor);
    uint64_t samples = take_u64(cursor);
    if (ranks != self->record->rank_count || samples != self->samples)
        return cb_fail(err, CB_ERR_FORMAT, "it holds %u ranks and %llu samples, but ends as if it held %u and %llu",
                       self->record->rank_count, (unsigned long long)self->samples, ranks, (unsigned long long)samples);
    self->ended = true;
    return 0;
}

static int parse_payload(struct parser *self, uint32_t type, struct cursor *cursor, struct cb_err *err)
{
    if (self->ended)
        return cb_fail(err, CB_ERR_FORMAT, "something follows the end");
    if (type == BLOCK_SCHEMA && !self->has_schema)
        return parse_schema(self, cursor, err);
    if (type == BLOCK_RUN && self->has_schema && !self->has_run)
        return parse_run(self, cursor, err);
    if (!self->has_schema || !self->has_run)
        return cb_fail(err, CB_ERR_FORMAT, "block type %u comes too early", type);
    switch (type) {
    case BLOCK_RANK:
        return parse_rank(self, cursor, err);
    case BLOCK_RUN_VALUES:
        return parse_run_values(self, cursor, err);
    case BLOCK_LATENCY:
        return parse_histogram(self, cursor, self->record->latency, err);
    case BLOCK_TTFB:
        return parse_histogram(self, cursor, self->record->ttfb, err);
    case BLOCK_SLOWEST:
        return parse_slowest(self, cursor, err);
    case BLOCK_TIME:
        return parse_time(self, cursor, err);
    case BLOCK_END:
        return parse_end(self, cursor, err);
    default:
        return cb_fail(err, CB_ERR_FORMAT, "block type %u is not known here", type);
    }
}

static int parse_block(struct parser *self, struct cursor *cursor, size_t at, size_t len, struct cb_err *err)
{
    const unsigned char *start = cursor->at;
    uint32_t type = take_u32(cursor);
    uint64_t payload_bytes = take_u64(cursor);
    if (cursor->short_of_bytes || bytes_left(cursor) < BLOCK_CRC_BYTES ||
        payload_bytes > bytes_left(cursor) - BLOCK_CRC_BYTES)
        return cb_fail(err, CB_ERR_CORRUPT, "truncated: it ends after %zu bytes, inside the block at byte %zu", len,
                       at);
    struct cursor payload = {.at = cursor->at, .end = cursor->at + payload_bytes};
    take(cursor, payload_bytes);
    uint32_t wanted = take_u32(cursor);
    if (crc32c(0, start, BLOCK_HEAD_BYTES + payload_bytes) != wanted)
        return cb_fail(err, CB_ERR_CORRUPT, "the block at byte %zu is not what was written: its checksum is wrong", at);
    int rc = parse_payload(self, type, &payload, err);
    if (!rc && (payload.short_of_bytes || bytes_left(&payload) > 0))
        rc = cb_fail(err, CB_ERR_FORMAT, "the block at byte %zu has not the length it should have", at);
    return rc;
}

static int parse_file(struct parser *self, const void *bytes, size_t len, struct cb_err *err)
{
    struct cursor cursor = {.at = bytes, .end = (const unsigned char *)bytes + len};
    const unsigned char *magic = take(&cursor, RECORD_MAGIC_BYTES);
    if (!magic || memcmp(magic, RECORD_MAGIC, RECORD_MAGIC_BYTES) != 0)
        return cb_fail(err, CB_ERR_FORMAT, "not a record of this program");
    uint32_t version = take_u32(&cursor);
    if (!cursor.short_of_bytes && version != RECORD_VERSION)
        return cb_fail(err, CB_ERR_FORMAT, "version %u, this program reads %d", version, RECORD_VERSION);
    int rc = 0;
    while (!rc && bytes_left(&cursor) > 0)
        rc = parse_block(self, &cursor, len - bytes_left(&cursor), len, err);
    if (!rc && !self->ended)
        rc = cb_fail(err, CB_ERR_CORRUPT, "truncated: it ends after %zu bytes without its last block", len);
    return rc;
}

int record_parse(const char *name, const void *bytes, size_t len, struct record *self, struct cb_err *err)
{
    struct record record;
    struct cb_err own;
    record_init(&record, "", 0, 0);
    struct parser *parser = calloc(1, sizeof *parser);
    if (!parser)
        return alloc_fail(err, "to read %s", name);
    parser->record = &record;
    int rc = parse_file(parser, bytes, len, &own);
    free(parser);
    if (rc) {
        record_release(&record);
        cb_context(&own, "%s", name);
        if (err)
            *err = own;
        return rc;
    }
    *self = record;
    return 0;
}

int record_read(const char *path, struct record *self, struct cb_err *err)
{
    struct stat facts;
    if (stat(path, &facts) < 0)
        return cb_fail_errno(err, errno, "opening %s", path);
    struct buf bytes;
    buf_init(&bytes, (size_t)facts.st_size);
    int rc = buf_read_file(&bytes, path, err);
    if (!rc)
        rc = record_parse(path, bytes.data, bytes.len, self, err);
    buf_release(&bytes);
    return rc;
}
