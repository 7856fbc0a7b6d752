#include "lib/description.h"

#include <string.h>

#include "ckpt/dtype.h"
#include "core/alloc.h"

#define NAME_MOST 4096
#define PATH_MOST 16384
#define DEVICES_MOST 1024
#define SPLITS_MOST 4096
#define ELEMENTS_MOST (UINT64_C(1) << 58)
#define DTYPE_REFUSED (INT64_C(1) << 62) /* from the Python package: the name says why its rank describes no state */

/* --- checking --- */

static int check_name(const char *fqn, const char *path, struct cb_err *err)
{
    if (!fqn || !*fqn || strlen(fqn) > NAME_MOST)
        return cb_fail(err, CB_ERR_USAGE, "a name is missing, empty or longer than %d bytes", NAME_MOST);
    if (path && strlen(path) > PATH_MOST)
        return cb_fail(err, CB_ERR_USAGE, "%s: its path is longer than %d bytes", fqn, PATH_MOST);
    return 0;
}

static int check_tensor(const struct ckptbench_tensor *tensor, struct cb_err *err)
{
    uint64_t elements = 1;
    int rc = check_name(tensor->fqn, tensor->path, err);
    if (rc)
        return rc;
    if (tensor->dtype == DTYPE_REFUSED)
        return cb_fail(err, CB_ERR_USAGE, "%s", tensor->fqn);
    if (tensor->dtype < 0 || tensor->dtype >= DTYPE_COUNT)
        return cb_fail(err, CB_ERR_USAGE, "%s: there is no type %lld", tensor->fqn, (long long)tensor->dtype);
    if (tensor->dims > CKPTBENCH_MOST_DIMS)
        return cb_fail(err, CB_ERR_UNSUPPORTED, "%s: it has %llu dimensions, and at most %d are supported", tensor->fqn,
                       (unsigned long long)tensor->dims, CKPTBENCH_MOST_DIMS);
    for (uint64_t i = 0; i < tensor->dims; i++) {
        uint64_t size = tensor->shape[i];
        if (size > 0 && elements > ELEMENTS_MOST / size)
            return cb_fail(err, CB_ERR_USAGE, "%s: its shape has too many elements", tensor->fqn);
        elements *= size > 0 ? size : 1;
    }
    return 0;
}

static int check_split(const struct ckptbench_split *split, size_t number, uint32_t rank_count, struct cb_err *err)
{
    if (split->pieces == 0 || split->pieces > UINT32_MAX || !split->index)
        return cb_fail(err, CB_ERR_USAGE, "split %zu has no pieces, too many, or no numbers of ranks", number);
    for (uint32_t i = 0; i < rank_count; i++) {
        if (split->index[i] >= split->pieces)
            return cb_fail(err, CB_ERR_USAGE, "split %zu gives rank %u piece %llu, and there are %llu", number, i,
                           (unsigned long long)split->index[i], (unsigned long long)split->pieces);
    }
    return 0;
}

/* Piece `index` of a dimension that is divided as torch.chunk does it. */
static void take_piece(uint64_t whole, uint64_t pieces, uint64_t index, uint64_t *offset, uint64_t *size)
{
    uint64_t step = whole / pieces + (whole % pieces != 0), first = index * step;
    *offset = first < whole ? first : whole;
    *size = whole - *offset < step ? whole - *offset : step;
}

static int check_region(const struct ckptbench_state *state, uint32_t rank, const struct ckptbench_region *region,
                        struct cb_err *err)
{
    if (region->tensor >= state->tensor_count)
        return cb_fail(err, CB_ERR_USAGE, "a region belongs to tensor %llu, and there are %zu",
                       (unsigned long long)region->tensor, state->tensor_count);
    const struct ckptbench_tensor *tensor = &state->tensors[region->tensor];
    for (uint64_t i = 0; i < tensor->dims; i++) {
        if (region->size[i] > tensor->shape[i] || region->offset[i] > tensor->shape[i] - region->size[i])
            return cb_fail(err, CB_ERR_USAGE, "%s: a region reaches beyond its shape in dimension %llu", tensor->fqn,
                           (unsigned long long)i);
        if (region->split[i] > state->split_count)
            return cb_fail(err, CB_ERR_USAGE, "%s: a region has split %llu, and there are %zu", tensor->fqn,
                           (unsigned long long)region->split[i] - 1, state->split_count);
        if (region->split[i] == 0)
            continue;
        const struct ckptbench_split *split = &state->splits[region->split[i] - 1];
        uint64_t offset, size;
        take_piece(tensor->shape[i], split->pieces, split->index[rank], &offset, &size);
        if (offset != region->offset[i] || size != region->size[i])
            return cb_fail(err, CB_ERR_USAGE, "%s: in dimension %llu a region is not this rank's piece of the split",
                           tensor->fqn, (unsigned long long)i);
    }
    struct region box = description_box(state, region);
    if (!region->address && region_elements(&box) > 0)
        return cb_fail(err, CB_ERR_USAGE, "%s: a region has no address", tensor->fqn);
    if (region->device > DEVICES_MOST)
        return cb_fail(err, CB_ERR_USAGE, "%s: a region's device is %llu", tensor->fqn,
                       (unsigned long long)region->device);
    if (!region->device && region->stream)
        return cb_fail(err, CB_ERR_USAGE, "%s: a region in host memory has a stream", tensor->fqn);
    return 0;
}

int description_check(const struct ckptbench_state *state, uint32_t rank, uint32_t rank_count, bool saves,
                      struct cb_err *err)
{
    int rc = state->struct_bytes == sizeof *state
                 ? 0
                 : cb_fail(err, CB_ERR_USAGE, "the state's struct_bytes is not its size in this version");
    if (!rc && (state->tensor_count > UINT32_MAX || state->region_count > UINT32_MAX ||
                state->value_count > UINT32_MAX - state->tensor_count || state->split_count > SPLITS_MOST))
        rc = cb_fail(err, CB_ERR_USAGE, "the state has too many tensors, regions, values or splits");
    for (size_t i = 0; i < state->split_count && !rc; i++)
        rc = check_split(&state->splits[i], i, rank_count, err);
    for (size_t i = 0; i < state->tensor_count && !rc; i++)
        rc = check_tensor(&state->tensors[i], err);
    for (size_t i = 0; i < state->region_count && !rc; i++)
        rc = check_region(state, rank, &state->regions[i], err);
    for (size_t i = 0; i < state->value_count && !rc; i++) {
        const struct ckptbench_value *value = &state->values[i];
        rc = check_name(value->fqn, value->path, err);
        if (!rc && saves && (!value->bytes || value->length == 0))
            rc = cb_fail(err, CB_ERR_USAGE, "%s: the value has no bytes", value->fqn);
    }
    return rc;
}

struct region description_box(const struct ckptbench_state *state, const struct ckptbench_region *region)
{
    struct region box = {.dims = (uint32_t)state->tensors[region->tensor].dims};
    memcpy(box.offset, region->offset, box.dims * sizeof *box.offset);
    memcpy(box.size, region->size, box.dims * sizeof *box.size);
    return box;
}

/* --- writing --- */

static void put(struct buf *table, uint64_t number)
{
    buf_append(table, &number, sizeof number);
}

static char *write_number(char *at, uint64_t number)
{
    memcpy(at, &number, sizeof number);
    return at + sizeof number;
}

static char *write_text(char *at, const char *text, size_t len)
{
    at = write_number(at, len);
    memcpy(at, text, len + 1);
    return at + len + 1;
}

/* Two texts, and numbers behind them. */
static void put_entry(struct buf *table, const char *fqn, const char *path, const uint64_t *numbers, size_t count)
{
    path = path ? path : "";
    size_t fqn_len = strlen(fqn), path_len = strlen(path);
    char *at = buf_extend(table, 2 * sizeof(uint64_t) + fqn_len + 1 + path_len + 1 + count * sizeof *numbers);
    if (!at)
        return;
    at = write_text(write_text(at, fqn, fqn_len), path, path_len);
    memcpy(at, numbers, count * sizeof *numbers);
}

/* How a region lies in a dimension: WHOLE; APART and its offset and size; SPLIT and the split's number; or FACTOR + i and its
 * size. */
enum { WHOLE, APART, SPLIT, FACTOR };

static uint64_t find_factor(struct description_factors *self, uint64_t factor)
{
    uint64_t i = 0;
    while (i < self->count && self->factor[i] != factor)
        i++;
    if (i == self->count && i < DESCRIPTION_FACTORS)
        self->factor[self->count++] = factor;
    return i;
}

/* Writes one to three numbers; returns how many. */
static size_t write_dimension(uint64_t *numbers, struct description_factors *factors,
                              const struct ckptbench_region *region, uint64_t dim, uint64_t whole)
{
    uint64_t offset = region->offset[dim], size = region->size[dim];
    size_t count = 0;
    if (region->split[dim] > 0) { /* also where one rank has it whole, so that the table is the same on all */
        numbers[count++] = SPLIT;
        numbers[count++] = region->split[dim] - 1;
        return count;
    }
    if (offset == 0 && size == whole) {
        numbers[count++] = WHOLE;
        return count;
    }
    bool divides = size > 0 && offset % size == 0;
    uint64_t factor = divides ? find_factor(factors, offset / size) : DESCRIPTION_FACTORS;
    numbers[count++] = factor < DESCRIPTION_FACTORS ? FACTOR + factor : APART;
    if (factor == DESCRIPTION_FACTORS)
        numbers[count++] = offset;
    numbers[count++] = size;
    return count;
}

int description_write(const struct ckptbench_state *state, uint32_t rank_count, struct buf *table,
                      struct description_factors *factors, struct cb_err *err)
{
    uint64_t numbers[1 + 3 * CKPTBENCH_DIMS];
    factors->count = 0;
    put(table, state->tensor_count);
    put(table, state->region_count);
    put(table, state->value_count);
    put(table, state->split_count);
    for (size_t i = 0; i < state->split_count; i++) {
        put(table, state->splits[i].pieces);
        buf_append(table, state->splits[i].index, rank_count * sizeof *state->splits[i].index);
    }
    for (size_t i = 0; i < state->tensor_count; i++) {
        const struct ckptbench_tensor *tensor = &state->tensors[i];
        numbers[0] = (uint64_t)tensor->dtype;
        numbers[1] = tensor->dims;
        memcpy(numbers + 2, tensor->shape, tensor->dims * sizeof *tensor->shape);
        put_entry(table, tensor->fqn, tensor->path, numbers, 2 + tensor->dims);
    }
    for (size_t i = 0; i < state->value_count; i++) {
        const struct ckptbench_value *value = &state->values[i];
        put_entry(table, value->fqn, value->path, &value->length, 1);
    }
    for (size_t i = 0; i < state->region_count; i++) {
        const struct ckptbench_region *region = &state->regions[i];
        const struct ckptbench_tensor *tensor = &state->tensors[region->tensor];
        size_t count = 0;
        numbers[count++] = region->tensor;
        for (uint64_t dim = 0; dim < tensor->dims; dim++)
            count += write_dimension(numbers + count, factors, region, dim, tensor->shape[dim]);
        buf_append(table, numbers, count * sizeof *numbers);
    }
    return buf_check(table, "the table of a rank's state", err);
}

/* --- reading --- */

struct reader {
    const char *at, *end;
    bool is_short;
};

static void take(struct reader *self, void *bytes, size_t len)
{
    self->is_short = self->is_short || (size_t)(self->end - self->at) < len;
    if (self->is_short)
        memset(bytes, 0, len);
    else
        memcpy(bytes, self->at, len);
    self->at += self->is_short ? 0 : len;
}

static uint64_t take_number(struct reader *self)
{
    uint64_t number;
    take(self, &number, sizeof number);
    return number;
}

static const char *take_text(struct reader *self)
{
    uint64_t len = take_number(self);
    const char *text = self->at;
    self->is_short = self->is_short || (uint64_t)(self->end - self->at) <= len || text[len] != '\0';
    if (self->is_short)
        return "";
    self->at += len + 1;
    return text;
}

/* Its pieces, and a number for each rank. */
static uint64_t bytes_of_split(uint32_t rank_count)
{
    return (1 + (uint64_t)rank_count) * sizeof(uint64_t);
}

static void read_tensor(struct reader *reader, struct described *entry)
{
    entry->fqn = take_text(reader);
    entry->path = take_text(reader);
    entry->dtype = take_number(reader);
    entry->dims = take_number(reader);
    reader->is_short = reader->is_short || entry->dims > CKPTBENCH_MOST_DIMS || entry->dtype >= DTYPE_COUNT;
    take(reader, entry->shape, reader->is_short ? 0 : entry->dims * sizeof *entry->shape);
}

int description_read(const struct buf *table, const char *hashes, size_t hash_count, uint32_t rank, uint32_t holders,
                     uint32_t rank_count, struct described_table *described, struct cb_err *err)
{
    struct reader reader = {.at = table->data, .end = table->data + table->len};
    uint64_t tensors = take_number(&reader), regions = take_number(&reader), values = take_number(&reader),
             splits = take_number(&reader);
    struct described_table made = {.tensor_count = tensors,
                                   .entry_count = tensors + values,
                                   .region_count = regions,
                                   .split_count = splits,
                                   .rank_count = rank_count,
                                   .splits = reader.at,
                                   .end = reader.end};
    uint64_t left = (uint64_t)(reader.end - reader.at), split_bytes = bytes_of_split(rank_count);
    if (reader.is_short || tensors > table->len || regions > table->len || values != hash_count ||
        splits > left / split_bytes)
        return cb_fail(err, CB_ERR_FORMAT, "the table of rank %u is malformed", rank);
    reader.at += splits * split_bytes;
    made.entries = calloc(made.entry_count + 1, sizeof *made.entries);
    if (!made.entries)
        return alloc_fail(err, "for the table of rank %u", rank);
    for (uint64_t i = 0; i < tensors; i++)
        read_tensor(&reader, &made.entries[i]);
    for (uint64_t i = 0; i < values; i++) {
        struct described *entry = &made.entries[tensors + i];
        entry->is_value = true;
        entry->fqn = take_text(&reader);
        entry->path = take_text(&reader);
        entry->length = take_number(&reader);
        memcpy(&entry->hash, hashes + i * sizeof entry->hash, sizeof entry->hash);
    }
    for (size_t i = 0; i < made.entry_count; i++) {
        made.entries[i].rank = rank;
        made.entries[i].holders = holders;
    }
    made.regions = reader.at;
    if (reader.is_short) {
        description_release(&made);
        return cb_fail(err, CB_ERR_FORMAT, "the table of rank %u is malformed", rank);
    }
    *described = made;
    return 0;
}

void description_release(struct described_table *described)
{
    free(described->entries);
    *described = (struct described_table){0};
}

static void take_split(struct reader *reader, const struct described_table *table, uint32_t rank, uint64_t whole,
                       uint64_t *offset, uint64_t *size)
{
    uint64_t number = take_number(reader), pieces = 0, index = 0;
    if (number < table->split_count && rank < table->rank_count) {
        const char *split = table->splits + number * bytes_of_split(table->rank_count);
        memcpy(&pieces, split, sizeof pieces);
        memcpy(&index, split + (1 + (size_t)rank) * sizeof index, sizeof index);
    }
    reader->is_short = reader->is_short || index >= pieces || pieces > UINT32_MAX;
    if (!reader->is_short)
        take_piece(whole, pieces, index, offset, size);
}

static void take_dimension(struct reader *reader, const struct described_table *table, uint32_t rank,
                           const struct description_factors *factors, uint64_t whole, uint64_t *offset, uint64_t *size)
{
    uint64_t how = take_number(reader);
    if (how == SPLIT) {
        take_split(reader, table, rank, whole, offset, size);
        return;
    }
    *offset = how == APART ? take_number(reader) : 0;
    *size = how == WHOLE ? whole : take_number(reader);
    if (how >= FACTOR && how - FACTOR < factors->count)
        *offset = factors->factor[how - FACTOR] * *size;
    reader->is_short = reader->is_short || (how >= FACTOR && how - FACTOR >= factors->count);
}

int description_parts(const struct described_table *table, const struct description_factors *factors, uint32_t rank,
                      struct described_part *parts, size_t *count, struct cb_err *err)
{
    struct reader reader = {.at = table->regions, .end = table->end};
    size_t used = 0;
    for (size_t i = 0; i < table->region_count && !reader.is_short; i++) {
        struct described_part *part = &parts[used];
        *part = (struct described_part){.entry = take_number(&reader)};
        reader.is_short = reader.is_short || part->entry >= table->tensor_count;
        if (reader.is_short)
            break;
        const struct described *entry = &table->entries[part->entry];
        part->box.dims = (uint32_t)entry->dims;
        for (uint32_t dim = 0; dim < part->box.dims; dim++)
            take_dimension(&reader, table, rank, factors, entry->shape[dim], &part->box.offset[dim],
                           &part->box.size[dim]);
        used += !reader.is_short && region_elements(&part->box) > 0;
    }
    if (reader.is_short || reader.at != reader.end)
        return cb_fail(err, CB_ERR_FORMAT, "the regions in the table of rank %u are malformed", rank);
    *count = used;
    return 0;
}
