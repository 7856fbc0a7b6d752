/* The copies of a request's payload from the state to the memory in which the request is composed. */
#include <assert.h>

#include "core/alloc.h"
#include "engine/save/native_save.h"

static int add_copy(struct copy_list *list, const struct device_copy *copy, struct cb_err *err)
{
    struct device_copy *last = list->count > list->first ? &list->copies[list->count - 1] : NULL;
    if (last && last->rows == 1 && copy->rows == 1 && (uintptr_t)last->to + last->row_bytes == (uintptr_t)copy->to &&
        (uintptr_t)last->from + last->row_bytes == (uintptr_t)copy->from) {
        last->row_bytes += copy->row_bytes; /* requests of one tensor follow each other on both sides */
        return 0;
    }
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 256;
        struct device_copy *larger = reallocarray(list->copies, capacity, sizeof *larger);
        if (!larger)
            return alloc_fail(err, "for %zu copies", capacity);
        list->copies = larger;
        list->capacity = capacity;
    }
    assert(list->copies);
    list->copies[list->count++] = *copy;
    return 0;
}

/* Adds payload bytes [at, at + bytes) of an item that is not contiguous in memory: the rest of a row, groups of rows with a
 * constant stride, the start of a row. */
static int add_mapped(struct copy_list *list, const struct source *source, uint64_t at, uint64_t bytes, uint64_t to,
                      struct cb_err *err)
{
    const struct mapping *mapping = source->mapping;
    uint64_t end = at + bytes;
    int rc = 0;
    while (at < end && !rc) {
        uint64_t run = at / mapping->run_bytes, skip = at % mapping->run_bytes, payload, memory, next;
        uint64_t left = mapping->run_bytes - skip < end - at ? mapping->run_bytes - skip : end - at;
        mapping_run(mapping, run, &payload, &memory);
        assert(payload == run * mapping->run_bytes);
        struct device_copy copy = {
            .to = (void *)(uintptr_t)to, .from = source->memory + memory + skip, .row_bytes = left, .rows = 1};
        if (left == mapping->run_bytes && run + 1 < mapping->run_count) {
            uint64_t stride, before = memory;
            mapping_run(mapping, run + 1, &payload, &next);
            stride = next - memory;
            for (; (copy.rows + 1) * left <= end - at && next - before == stride; copy.rows++) {
                before = next;
                if (run + copy.rows + 1 < mapping->run_count)
                    mapping_run(mapping, run + copy.rows + 1, &payload, &next);
                else
                    next = UINT64_MAX;
            }
            copy.to_stride = left;
            copy.from_stride = stride;
        }
        rc = add_copy(list, &copy, err);
        at += copy.rows * left;
        to += copy.rows * left;
    }
    return rc;
}

int native_copies_add(struct native_save *self, size_t number, uint64_t at, struct copy_list *list, struct cb_err *err)
{
    const struct io_request *request = &self->schedule.requests[number];
    int rc = 0;
    for (size_t i = 0; i < request->part_count && !rc; i++) {
        const struct part *part = &self->schedule.parts[request->first_part + i];
        const struct source *source = &self->sources[part->item];
        uint64_t to = at + (part->offset - request->offset);
        if (part->kind == PART_HEADER || part->kind == PART_TRAILER || !source->memory || part->direct)
            continue;
        self->copied_bytes += part->bytes;
        struct device_copy copy = {
            .to = (void *)(uintptr_t)to, .from = part->memory, .row_bytes = part->bytes, .rows = 1};
        rc = source->mapping ? add_mapped(list, source, part->skip, part->bytes, to, err) : add_copy(list, &copy, err);
    }
    return rc;
}
