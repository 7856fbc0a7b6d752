/* Reads records from a file, checked, into ranks and samples. */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/hash.h"
#include "run/record.h"
#include "run/record_layout.h"

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
    return bytes ? record_copy_text((const char *)bytes, len) : NULL;
}

/* Maps the positions in a file to this release's rows. */
struct schema {
    unsigned metrics[SCHEMA_MAX_NAMES], operations[SCHEMA_MAX_NAMES], states[SCHEMA_MAX_NAMES];
    uint32_t metric_count, operation_count, state_count;
    uint32_t mask_words; /* of a sample */
};

struct parser {
    struct record *record;
    struct schema schema;
    uint64_t samples;
    bool has_schema, has_run, ended;
};

static bool find_metric(const char *name, unsigned *index)
{
    enum metric_id id;
    bool found = metric_find(name, &id);
    if (found)
        *index = id;
    return found;
}

static bool find_operation(const char *name, unsigned *index)
{
    enum operation op;
    bool found = operation_find(name, &op);
    if (found)
        *index = op;
    return found;
}

static bool find_state(const char *name, unsigned *index)
{
    enum rank_state state;
    bool found = rank_state_find(name, &state);
    if (found)
        *index = state;
    return found;
}

static int parse_names(struct cursor *cursor, const char *what, bool (*find)(const char *, unsigned *),
                       unsigned indexes[SCHEMA_MAX_NAMES], uint32_t *count, struct cb_err *err)
{
    uint32_t names = take_u32(cursor);
    if (names > SCHEMA_MAX_NAMES)
        return cb_fail(err, CB_ERR_FORMAT, "%u names of %ss are too many", names, what);
    for (uint32_t i = 0; i < names; i++) {
        char name[NAME_MAX_BYTES];
        uint32_t len = take_u32(cursor);
        const unsigned char *bytes = take(cursor, len);
        if (!bytes || len >= sizeof name)
            return cb_fail(err, CB_ERR_FORMAT, "the name of a %s is too long", what);
        memcpy(name, bytes, len);
        name[len] = '\0';
        if (!find(name, &indexes[i]))
            return cb_fail(err, CB_ERR_FORMAT, "the %s %s is not known here: a newer release wrote it", what, name);
    }
    *count = names;
    return 0;
}

static int parse_schema(struct parser *self, struct cursor *cursor, struct cb_err *err)
{
    struct schema *schema = &self->schema;
    int rc = parse_names(cursor, "metric", find_metric, schema->metrics, &schema->metric_count, err);
    if (!rc)
        rc = parse_names(cursor, "operation", find_operation, schema->operations, &schema->operation_count, err);
    if (!rc)
        rc = parse_names(cursor, "state", find_state, schema->states, &schema->state_count, err);
    if (!rc && take_u32(cursor) != HISTOGRAM_BUCKETS)
        rc = cb_fail(err, CB_ERR_FORMAT, "histograms have another number of buckets");
    uint32_t last = 0;
    for (uint32_t i = 0; !rc && i < schema->metric_count; i++)
        if (metric_row((enum metric_id)schema->metrics[i])->scope == METRIC_OF_SAMPLE)
            last = i + 1;
    schema->mask_words = MASK_WORDS_FOR(last);
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

static int parse_sample(const struct schema *schema, struct cursor *cursor, struct sample *sample, struct cb_err *err)
{
    uint32_t op = take_u32(cursor);
    if (op >= schema->operation_count || schema->operations[op] == OP_NONE)
        return cb_fail(err, CB_ERR_FORMAT, "a sample has no operation");
    sample->op = schema->operations[op];
    sample->iteration = take_u32(cursor);
    sample->flags = take_u32(cursor);
    uint64_t mask[SCHEMA_MAX_NAMES / 64];
    for (unsigned word = 0; word < schema->mask_words; word++)
        mask[word] = take_u64(cursor);
    for (unsigned i = 0; i < METRIC_SAMPLE_COUNT; i++)
        sample->values[i] = NAN;
    for (unsigned i = 0; i < 64 * schema->mask_words; i++) {
        if (!(mask[i / 64] >> i % 64 & 1))
            continue;
        if (i >= schema->metric_count || schema->metrics[i] >= METRIC_SAMPLE_COUNT)
            return cb_fail(err, CB_ERR_FORMAT, "a sample has a value that is not one of samples");
        sample->values[schema->metrics[i]] = take_double(cursor);
    }
    return 0;
}

static int parse_samples(const struct schema *schema, struct cursor *cursor, struct record_rank *rank,
                         struct cb_err *err)
{
    rank->sample_count = take_u32(cursor);
    if (rank->sample_count > bytes_left(cursor) / SAMPLE_HEAD_BYTES)
        return cb_fail(err, CB_ERR_FORMAT, "rank %u has fewer samples than its %u", rank->rank, rank->sample_count);
    rank->samples = calloc(rank->sample_count ? rank->sample_count : 1, sizeof *rank->samples);
    if (!rank->samples)
        return alloc_fail(err, "for %u samples of rank %u", rank->sample_count, rank->rank);
    int rc = 0;
    for (uint32_t i = 0; i < rank->sample_count && !rc; i++)
        rc = parse_sample(schema, cursor, &rank->samples[i], err);
    return rc;
}

static int parse_rank(struct parser *self, struct cursor *cursor, struct cb_err *err)
{
    const struct schema *schema = &self->schema;
    struct record_rank rank = {.rank = take_u32(cursor), .phase = take_u32(cursor)};
    uint32_t op = take_u32(cursor), state = take_u32(cursor);
    rank.last_iteration = take_u32(cursor);
    rank.failure_code = take_u32(cursor);
    rank.failures = take_text(cursor);
    rank.facts = take_text(cursor);
    int rc = 0;
    if (!rank.failures || !rank.facts)
        rc = cb_fail(err, CB_ERR_FORMAT, "the texts of rank %u are not all there", rank.rank);
    else if (rank.phase > PHASE_FAILED || op >= schema->operation_count || state >= schema->state_count)
        rc = cb_fail(err, CB_ERR_FORMAT, "where rank %u was is not known here", rank.rank);
    if (!rc) {
        rank.last_op = schema->operations[op];
        rank.last_state = schema->states[state];
        rc = parse_samples(schema, cursor, &rank, err);
    }
    if (rc) {
        record_release_rank(&rank);
        return rc;
    }
    self->samples += rank.sample_count;
    return record_add_rank(self->record, &rank, err);
}

static int parse_run_values(struct parser *self, struct cursor *cursor, struct cb_err *err)
{
    uint32_t count = take_u32(cursor);
    if (count > self->schema.metric_count)
        return cb_fail(err, CB_ERR_FORMAT, "%u values of the run are too many", count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = take_u32(cursor);
        if (index >= self->schema.metric_count)
            return cb_fail(err, CB_ERR_FORMAT, "a value of the run has no name");
        self->record->run_values[self->schema.metrics[index]] = take_double(cursor);
    }
    return 0;
}

static int parse_histogram(struct parser *self, struct cursor *cursor, struct histogram of_operation[OP_COUNT],
                           struct cb_err *err)
{
    uint32_t op = take_u32(cursor);
    if (op >= self->schema.operation_count)
        return cb_fail(err, CB_ERR_FORMAT, "latencies of an operation that is not known here");
    struct histogram *histogram = &of_operation[self->schema.operations[op]];
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
