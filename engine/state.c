/* The memory of a rank's state. */
#include "engine/state.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/memory.h"
#include "core/units.h"

#define PAGE_BYTES 4096
#define POISON 0xA5

static uint64_t piece_bytes(const struct state *self, size_t index)
{
    const struct piece *piece = &self->pieces[index];
    const struct state_tensor *tensor = layout_tensor(self->layout, piece->tensor);
    return tensor->kind == KIND_BYTES ? 0 : region_elements(&piece->region) * dtype_bytes(tensor->dtype);
}

static uint64_t round_to_pages(uint64_t bytes)
{
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

int state_init(struct state *self, const struct layout *layout, uint32_t holder, struct cb_err *err)
{
    struct state made = {.layout = layout, .holder = holder, .shared_fd = -1};
    int rc =
        holder < layout_world_size(layout) ? layout_pieces(layout, holder, &made.pieces, &made.piece_count, err) : 0;
    if (rc)
        return rc;
    made.memory = calloc(made.piece_count + 1, sizeof *made.memory);
    if (!made.memory) {
        free(made.pieces);
        return alloc_fail(err, "for the list of %zu pieces", made.piece_count);
    }
    for (size_t i = 0; i < made.piece_count; i++) {
        made.bytes += piece_bytes(&made, i);
        made.base_bytes += round_to_pages(piece_bytes(&made, i));
    }
    *self = made;
    return 0;
}

static int map_memory(uint64_t bytes, bool shared, void **base, int *fd, struct cb_err *err)
{
    char text[32];
    int file = -1;
    if (shared) {
        file = memfd_create("ckptbench-state", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, (off_t)bytes)) {
            int failed = errno;
            if (file >= 0)
                close(file);
            return cb_fail_errno(err, failed, "a memory file of %s for the state",
                                 units_format_bytes((double)bytes, text));
        }
    }
    int flags = shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *place = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
    if (place == MAP_FAILED) {
        int failed = errno;
        if (file >= 0)
            close(file);
        return cb_fail_errno(err, failed, "%s of memory for the state", units_format_bytes((double)bytes, text));
    }
    /* Huge pages cause fewer page faults now, and fewer pages to pin for each request later. Only a hint. */
    (void)madvise(place, bytes, MADV_HUGEPAGE);
    *base = place;
    *fd = file;
    return 0;
}

static void place_pieces(struct state *self)
{
    char *next = self->base;
    for (size_t i = 0; i < self->piece_count; i++) {
        self->memory[i] = next;
        next += round_to_pages(piece_bytes(self, i));
    }
}

int state_allocate(struct state *self, enum state_memory memory, uint64_t least_bytes, struct cb_err *err)
{
    uint64_t bytes = self->base_bytes > least_bytes ? self->base_bytes : least_bytes;
    if (memory == STATE_MEMORY_NONE || bytes == 0)
        return 0;
    int rc = map_memory(bytes, memory == STATE_MEMORY_SHARED, &self->base, &self->shared_fd, err);
    if (rc)
        return rc;
    self->mapped_bytes = bytes;
    place_pieces(self);
    return 0;
}

int state_allocate_on(struct state *self, struct device *device, uint64_t least_bytes, struct cb_err *err)
{
    uint64_t bytes = self->base_bytes > least_bytes ? self->base_bytes : least_bytes;
    if (bytes == 0)
        return 0;
    if (!device->ops->fill)
        return cb_fail(err, CB_ERR_UNSUPPORTED, "the %s device has no memory of its own", device->ops->name);
    void *memory = NULL;
    int rc = device->ops->allocate(device, MEMORY_DEVICE, bytes + PAGE_BYTES, &memory, err); /* may not be aligned */
    if (rc)
        return cb_context(err, "the state");
    self->skipped = (uint32_t)(round_to_pages((uintptr_t)memory) - (uintptr_t)memory);
    self->base = (char *)memory + self->skipped;
    self->mapped_bytes = bytes;
    self->device = device;
    place_pieces(self);
    return 0;
}

void state_borrow(struct state *self, const struct state *owner)
{
    assert(owner->mapped_bytes >= self->base_bytes);
    self->base = owner->base;
    self->mapped_bytes = owner->mapped_bytes;
    self->shared_fd = owner->shared_fd;
    self->device = owner->device;
    self->borrowed = true;
    place_pieces(self);
}

void state_release(struct state *self)
{
    if (self->base && !self->borrowed && self->device)
        self->device->ops->release(self->device, MEMORY_DEVICE, (char *)self->base - self->skipped,
                                   self->mapped_bytes + PAGE_BYTES);
    else if (self->base && !self->borrowed)
        munmap(self->base, self->mapped_bytes);
    if (self->memory && self->shared_fd >= 0 && !self->borrowed)
        close(self->shared_fd);
    free(self->memory);
    free(self->pieces);
    memset(self, 0, sizeof *self);
    self->shared_fd = -1;
}

bool state_same_pieces(const struct state *a, const struct state *b)
{
    if (a->piece_count != b->piece_count)
        return false;
    for (size_t i = 0; i < a->piece_count; i++) {
        if (a->pieces[i].tensor != b->pieces[i].tensor || !region_equal(&a->pieces[i].region, &b->pieces[i].region))
            return false;
    }
    return true;
}

struct payload_source state_payload_source(const struct state_tensor *tensor, const struct payload_settings *payload)
{
    return (struct payload_source){
        .kind = payload->kind, .dtype = tensor->dtype, .key = payload_key(payload->seed, tensor->fqn)};
}

struct device_values state_values(const struct state_tensor *tensor, const struct region *region,
                                  const struct payload_settings *payload)
{
    struct device_values values = {.source = state_payload_source(tensor, payload), .region = *region};
    memcpy(values.shape, tensor->shape, tensor->dims * sizeof *values.shape);
    return values;
}

bool state_is_on_device(const struct state *self, const void *address)
{
    uintptr_t at = (uintptr_t)address, base = (uintptr_t)self->base;
    return self->device && at >= base && at < base + self->mapped_bytes;
}

int state_set_values(struct state *self, const struct payload_settings *payload, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < self->piece_count && self->base && !rc; i++) {
        const struct state_tensor *tensor = layout_tensor(self->layout, self->pieces[i].tensor);
        struct device_values values = state_values(tensor, &self->pieces[i].region, payload);
        if (tensor->kind == KIND_BYTES || region_elements(&values.region) == 0)
            continue;
        if (self->device)
            rc = self->device->ops->fill(self->device, &values, self->memory[i], err);
        else
            payload_fill_region(&values.source, values.shape, &values.region, self->memory[i]);
    }
    return rc ? cb_context(err, "filling the state") : 0;
}

int state_set_poison(struct state *self, struct cb_err *err)
{
    if (!self->device) {
        if (self->base)
            memset(self->base, POISON, self->base_bytes);
        return 0;
    }
    int rc = self->base_bytes > 0 ? self->device->ops->set(self->device, self->base, POISON, self->base_bytes, err) : 0;
    return rc ? cb_context(err, "overwriting the state") : 0;
}

int state_check_memory(struct comm *comm, uint64_t bytes, uint64_t deadline_ns, struct cb_err *err)
{
    struct agreement agreement;
    uint64_t available = 0;
    int rc = comm_agree_local(comm, 0, bytes, deadline_ns, &agreement, err);
    if (!rc)
        rc = memory_available(&available, err);
    if (rc || agreement.sum <= available)
        return rc;
    char need[32], each[32], have[32];
    return cb_fail(err, CB_ERR_MEMORY,
                   "the state of %u rank%s on this machine needs %s of memory (up to %s a rank), but only %s is free: "
                   "use fewer ranks on it, a smaller model, or layers=N",
                   comm_local_size(comm), units_plural(comm_local_size(comm)),
                   units_format_bytes((double)agreement.sum, need), units_format_bytes((double)agreement.max, each),
                   units_format_bytes((double)available, have));
}
