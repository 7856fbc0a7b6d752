/* Stored regions and held memory. */
#include "engine/mapping.h"

#include <string.h>

void mapping_init(struct mapping *self, const struct region *stored, const struct region *held,
                  const struct region *common, size_t element_bytes)
{
    uint64_t runs;
    self->stored = *stored;
    self->held = *held;
    self->common = *common;
    self->element_bytes = element_bytes;
    region_runs(stored, common, &runs, &self->stored_run_elements);
    region_runs(held, common, &runs, &self->held_run_elements);
    /* Both are products of the last dimensions of the same region, so the smaller divides the larger. */
    uint64_t run_elements =
        self->stored_run_elements < self->held_run_elements ? self->stored_run_elements : self->held_run_elements;
    self->run_bytes = run_elements * element_bytes;
    self->run_count = run_elements == 0 ? 0 : region_elements(common) / run_elements;
}

static uint64_t position_in(const struct region *outer, const struct region *common, uint64_t run_elements,
                            uint64_t element)
{
    uint64_t outer_element, inner_element;
    region_run(outer, common, element / run_elements, &outer_element, &inner_element);
    return outer_element + element % run_elements;
}

void mapping_run(const struct mapping *self, uint64_t index, uint64_t *payload_byte, uint64_t *memory_byte)
{
    uint64_t element = index * (self->run_bytes / self->element_bytes);
    *payload_byte = position_in(&self->stored, &self->common, self->stored_run_elements, element) * self->element_bytes;
    *memory_byte = position_in(&self->held, &self->common, self->held_run_elements, element) * self->element_bytes;
}

void mapping_span(const struct mapping *self, uint64_t *begin, uint64_t *end)
{
    uint64_t unused;
    *begin = *end = 0;
    if (self->run_count == 0)
        return;
    mapping_run(self, 0, begin, &unused);
    mapping_run(self, self->run_count - 1, end, &unused);
    *end += self->run_bytes;
}

/* The first run that ends after payload byte `begin`. */
uint64_t mapping_first_run(const struct mapping *self, uint64_t begin)
{
    uint64_t low = 0, high = self->run_count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2, payload_byte, unused;
        mapping_run(self, middle, &payload_byte, &unused);
        if (payload_byte + self->run_bytes <= begin)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A needed range: offset in the bytes, offset in memory, length. */
struct stretch {
    uint64_t bytes_at, memory_at, len;
};

static bool next_stretch(const struct mapping *self, uint64_t *run, uint64_t begin, uint64_t len,
                         struct stretch *stretch)
{
    uint64_t payload_byte, memory_byte;
    if (*run >= self->run_count)
        return false;
    mapping_run(self, (*run)++, &payload_byte, &memory_byte);
    if (payload_byte >= begin + len)
        return false;
    uint64_t from = payload_byte > begin ? payload_byte : begin;
    uint64_t to = payload_byte + self->run_bytes < begin + len ? payload_byte + self->run_bytes : begin + len;
    *stretch = (struct stretch){from - begin, memory_byte + (from - payload_byte), to - from};
    return true;
}

bool mapping_next_rows(const struct mapping *self, uint64_t *run, uint64_t begin, uint64_t len,
                       struct mapping_rows *rows)
{
    struct stretch first, next;
    if (!next_stretch(self, run, begin, len, &first))
        return false;
    *rows = (struct mapping_rows){
        .bytes_at = first.bytes_at, .memory_at = first.memory_at, .row_bytes = first.len, .rows = 1};
    while (first.len == self->run_bytes) {
        uint64_t after = *run;
        if (!next_stretch(self, &after, begin, len, &next) || next.len != first.len)
            return true;
        uint64_t bytes_stride = (next.bytes_at - rows->bytes_at) / rows->rows;
        uint64_t memory_stride = (next.memory_at - rows->memory_at) / rows->rows;
        if (rows->rows == 1) {
            rows->bytes_stride = bytes_stride;
            rows->memory_stride = memory_stride;
        }
        if (next.bytes_at != rows->bytes_at + rows->rows * rows->bytes_stride ||
            next.memory_at != rows->memory_at + rows->rows * rows->memory_stride)
            return true;
        rows->rows++;
        *run = after;
    }
    return true;
}

uint64_t mapping_gather(const struct mapping *self, uint64_t begin, void *bytes, uint64_t len, const void *memory)
{
    struct stretch stretch;
    uint64_t copied = 0;
    for (uint64_t run = mapping_first_run(self, begin); next_stretch(self, &run, begin, len, &stretch);) {
        memcpy((char *)bytes + stretch.bytes_at, (const char *)memory + stretch.memory_at, stretch.len);
        copied += stretch.len;
    }
    return copied;
}

uint64_t mapping_scatter(const struct mapping *self, uint64_t begin, const void *bytes, uint64_t len, void *memory)
{
    struct stretch stretch;
    uint64_t copied = 0;
    for (uint64_t run = mapping_first_run(self, begin); next_stretch(self, &run, begin, len, &stretch);) {
        memcpy((char *)memory + stretch.memory_at, (const char *)bytes + stretch.bytes_at, stretch.len);
        copied += stretch.len;
    }
    return copied;
}
