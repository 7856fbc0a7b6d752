/* Memory of data parallelism: one allocation on the host or on a device, and transfers of values to and from the
 * device. */
#include <string.h>
#include <sys/mman.h>

#include "core/alloc.h"
#include "core/units.h"
#include "engine/kernels.h"
#include "train/parallel_parts.h"
#include "train/train_model_internal.h"

#define PAGE_BYTES 4096
#define PART_BYTES (UINT64_C(16) << 20) /* of initial values, before they are sent */

void parallel_set_mode(struct parallel *self, const struct training *training, bool on_device)
{
    self->training = training;
    self->on_device = on_device;
    self->shards.ranks = training->shard_ranks;
    self->replicas.ranks = training->ranks / training->shard_ranks;
    self->scatters = training->shard_ranks > 1 || training->cpu_offload;
    self->gathers = self->scatters || training->bf16;
    self->buckets = !self->scatters && self->replicas.ranks > 1;
    /* Sent in the type in which they are used, from rank to rank and to a device. */
    self->sends_bf16 = training->bf16 && (training->shard_ranks > 1 || (on_device && training->cpu_offload));
}

/* --- bf16 copies for a device --- */

/* Each wrap begins at a float of its own. */
float *parallel_packed_here(const struct parallel *self, size_t wrap)
{
    return self->packed_here + self->wraps.items[wrap].begin / 2 + wrap;
}

static void pack_part(void *context, uint32_t thread)
{
    const struct parallel *self = context;
    for (size_t i = 0; i < self->wraps.count; i++) {
        const struct fsdp_unit *wrap = &self->wraps.items[i];
        uint64_t first, end;
        thread_pool_share(train_model_team(self->setup.model), thread, wrap->share, 16, &first, &end);
        kernel_pack_bf16(self->arrays[PARALLEL_WEIGHTS] + wrap->begin + first,
                         (uint16_t *)(void *)parallel_packed_here(self, i) + first, end - first);
    }
}

void parallel_pack_here(struct parallel *self)
{
    thread_pool_run(train_model_team(self->setup.model), pack_part, self);
}

/* --- one piece of memory --- */

static float *take(struct arena *arena, bool wanted, uint64_t floats)
{
    return wanted && floats > 0 ? arena_take(arena, floats, sizeof(float)) : NULL;
}

static void take_slots(struct arena *arena, bool wanted, const struct fsdp_units *wraps, struct slot *slots,
                       struct slot *root)
{
    root->memory = take(arena, wanted, wraps->root_padded);
    for (int i = 0; i < PARALLEL_SLOTS; i++)
        slots[i] = (struct slot){.wrap = SIZE_MAX, .memory = take(arena, wanted, wraps->largest)};
}

/* The beginning of a device's memory, which is left out so that arrays begin at pages: cuFile moves whole pages. */
static uint64_t skipped_bytes(const void *memory)
{
    return (PAGE_BYTES - (uintptr_t)memory % PAGE_BYTES) % PAGE_BYTES;
}

/* Lays out all arrays and buffers, from self->wraps and the mode; `pinned` is used if a device computes. */
static void take_all(struct parallel *self, unsigned moments, struct arena *arena, struct arena *pinned)
{
    const struct fsdp_units *wraps = &self->wraps;
    bool offload = self->training->cpu_offload;
    uint64_t largest_share = 0;
    for (size_t i = 0; i < wraps->count; i++)
        largest_share = wraps->items[i].share > largest_share ? wraps->items[i].share : largest_share;
    struct arena *arrays = self->on_device && offload ? pinned : arena;
    uint64_t share = wraps->share, page = PAGE_BYTES / sizeof(float);
    if (self->on_device && !offload)
        share = (share + page - 1) / page * page;
    self->arrays[PARALLEL_WEIGHTS] = take(arrays, true, share);
    self->arrays[PARALLEL_GRADIENTS] = take(arrays, true, share);
    self->arrays[PARALLEL_EXP_AVG] = take(arrays, moments > 0, share);
    self->arrays[PARALLEL_EXP_AVG_SQ] = take(arrays, moments > 1, share);
    if (self->on_device) {
        self->counters = arena_take(arena, PARALLEL_COUNTERS, sizeof(int64_t));
        self->device_sum = arena_take(arena, 1, sizeof *self->device_sum);
        self->host_sum = arena_take(pinned, 1, sizeof *self->host_sum);
    }
    self->packed_here = take(pinned, arrays == pinned && self->sends_bf16, wraps->share / 2 + wraps->count + 1);
    self->sums = take(arena, self->buckets, wraps->share);
    self->packed_share = take(arena, self->sends_bf16, stream_packed(largest_share));
    self->packed = take(arena, self->sends_bf16, stream_packed(largest_share) * self->training->shard_ranks);
    take_slots(arena, self->gathers, wraps, self->slots, &self->root);
    take_slots(arena, self->scatters, wraps, self->gradient_slots, &self->root_gradient);
    self->staged_up = take(arena, offload, largest_share);
    self->staged_down = take(arena, offload, largest_share);
}

uint64_t parallel_bytes(const struct training *training, const struct model *model, unsigned moments, bool on_device,
                        uint64_t *pinned)
{
    struct arena arena = {.used_bytes = on_device ? PAGE_BYTES : 0}, pinned_arena = {0};
    uint64_t root = training->linear ? 0 : 1;
    struct parallel counted = {0};
    uint64_t *units = calloc(model->layers + 1, sizeof *units);
    parallel_set_mode(&counted, training, on_device);
    for (size_t i = 0; units && i < model->count; i++) {
        const struct model_tensor *tensor = &model->tensors[i];
        struct region whole = region_whole(tensor->dims, tensor->shape);
        units[tensor->layer >= 0 ? root + (uint64_t)tensor->layer : 0] += region_elements(&whole);
    }
    if (units && fsdp_units_init(&counted.wraps, training, units, model->layers + root, NULL, 0, NULL) == 0) {
        take_all(&counted, moments, &arena, &pinned_arena);
        fsdp_units_release(&counted.wraps);
    }
    free(units);
    *pinned = pinned_arena.used_bytes;
    return arena.used_bytes;
}

static int map_here(struct parallel *self, struct cb_err *err)
{
    char text[32];
    void *place = mmap(NULL, self->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED)
        return alloc_fail(err, "for %s of training state: use more ranks, or a smaller model",
                          units_format_bytes((double)self->bytes, text));
    (void)madvise(place, self->bytes, MADV_HUGEPAGE);
    self->memory = place;
    return 0;
}

static int map_there(struct parallel *self, struct cb_err *err)
{
    struct device *device = self->math->device;
    char text[32];
    int rc = device->ops->allocate(device, MEMORY_DEVICE, self->bytes, &self->memory, err);
    if (rc)
        return cb_context(err, "%s of parameters, gradients and optimizer",
                          units_format_bytes((double)self->bytes, text));
    rc = device->ops->set(device, self->memory, 0, self->bytes, err);
    if (!rc)
        rc = device->ops->allocate(device, MEMORY_PINNED, self->pinned_bytes, &self->pinned, err);
    if (rc)
        return cb_context(err, "%s of pinned memory", units_format_bytes((double)self->pinned_bytes, text));
    memset(self->pinned, 0, self->pinned_bytes);
    return 0;
}

int parallel_map(struct parallel *self, struct cb_err *err)
{
    struct arena arena = {.used_bytes = self->math ? PAGE_BYTES : 0}, pinned = {0};
    unsigned moments = optimizer_moments(self->setup.optimizer.kind);
    take_all(self, moments, &arena, &pinned);
    self->bytes = arena.used_bytes;
    self->pinned_bytes = pinned.used_bytes;
    int rc = self->math ? map_there(self, err) : map_here(self, err);
    if (rc)
        return rc;
    arena = (struct arena){.base = self->memory, .used_bytes = self->math ? skipped_bytes(self->memory) : 0};
    pinned = (struct arena){.base = self->pinned};
    take_all(self, moments, &arena, &pinned);
    return 0;
}

void parallel_unmap(struct parallel *self)
{
    struct device *device = self->math ? self->math->device : NULL;
    if (device && self->pinned)
        device->ops->release(device, MEMORY_PINNED, self->pinned, self->pinned_bytes);
    if (device && self->memory)
        device->ops->release(device, MEMORY_DEVICE, self->memory, self->bytes);
    else if (self->memory)
        munmap(self->memory, self->bytes);
}

const float *parallel_summed_gradients(const struct parallel *self)
{
    return self->buckets ? self->sums : self->arrays[PARALLEL_GRADIENTS];
}

/* --- values on a device --- */

int parallel_device_init(struct parallel *self, size_t unit, uint64_t first, uint64_t count, float *weights,
                         uint64_t deadline_ns, struct cb_err *err)
{
    struct device *device = self->math->device;
    uint64_t most = PART_BYTES / sizeof(float), room = count < most ? count : most;
    void *part = NULL;
    int rc = device->ops->allocate(device, MEMORY_PINNED, room * sizeof(float), &part, err);
    for (uint64_t done = 0; done < count && !rc; done += room) {
        uint64_t now = count - done < room ? count - done : room;
        train_model_init(self->setup.model, unit, first + done, now, self->setup.seed, part);
        rc = device_math_copy(self->math, HOST_TO_DEVICE, weights + done, part, now * sizeof(float), err);
        if (!rc)
            rc = device_math_finish(self->math, deadline_ns, err);
    }
    if (part)
        device->ops->release(device, MEMORY_PINNED, part, room * sizeof(float));
    return rc;
}

int parallel_device_sum_of_squares(struct parallel *self, double *sum, uint64_t deadline_ns, struct cb_err *err)
{
    struct device_math *math = self->math;
    math->ops->sum_of_squares(math, parallel_summed_gradients(self), self->wraps.share, self->device_sum);
    int rc = device_math_copy(math, DEVICE_TO_HOST, self->host_sum, self->device_sum, sizeof *self->host_sum, err);
    if (!rc)
        rc = device_math_finish(math, deadline_ns, err);
    if (!rc)
        *sum = *self->host_sum;
    return rc;
}
