/* Memory of data parallelism: sizes for each mode, allocation and release. */
#include <sys/mman.h>

#include "core/alloc.h"
#include "core/units.h"
#include "train/parallel_parts.h"

static int map_floats(struct parallel *self, uint64_t count, float **memory, struct cb_err *err)
{
    char text[32];
    uint64_t bytes = count * sizeof(float);
    if (count == 0)
        return 0;
    void *place = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED)
        return alloc_fail(err, "for %s of training state: use more ranks, or a smaller model",
                          units_format_bytes((double)bytes, text));
    (void)madvise(place, bytes, MADV_HUGEPAGE);
    *memory = place;
    self->bytes += bytes;
    return 0;
}

static void unmap_floats(float *memory, uint64_t count)
{
    if (memory)
        munmap(memory, count * sizeof(float));
}

bool parallel_uses_slots(const struct training *training)
{
    return training->shard_ranks > 1 || training->cpu_offload || training->bf16;
}

bool parallel_uses_gradient_slots(const struct training *training)
{
    return training->shard_ranks > 1 || training->cpu_offload;
}

bool parallel_uses_buckets(const struct training *training)
{
    return !parallel_uses_gradient_slots(training) && training->ranks > training->shard_ranks;
}

/* Parameters are used in bf16, so bf16 is what ranks send. */
bool parallel_sends_bf16(const struct training *training)
{
    return training->bf16 && training->shard_ranks > 1;
}

/* The largest share of a wrap, staged on the device. */
static uint64_t staged_values(const struct fsdp_units *wraps)
{
    uint64_t largest = 0;
    for (size_t i = 0; i < wraps->count; i++)
        largest = wraps->items[i].share > largest ? wraps->items[i].share : largest;
    return largest;
}

static uint64_t values_of(const struct training *training, const struct fsdp_units *wraps, unsigned moments)
{
    uint64_t values = wraps->share * (2 + moments + (parallel_uses_buckets(training) ? 1 : 0));
    if (parallel_uses_slots(training))
        values += PARALLEL_SLOTS * wraps->largest + wraps->root_padded;
    if (parallel_uses_gradient_slots(training))
        values += PARALLEL_SLOTS * wraps->largest + wraps->root_padded;
    if (training->cpu_offload)
        values += 2 * staged_values(wraps);
    if (parallel_sends_bf16(training))
        values += (training->shard_ranks + 1) * stream_packed(staged_values(wraps));
    return values;
}

uint64_t parallel_bytes(const struct training *training, const struct model *model, unsigned moments)
{
    uint64_t root = training->linear ? 0 : 1, values = 0;
    struct fsdp_units wraps;
    uint64_t *units = calloc(model->layers + 1, sizeof *units);
    for (size_t i = 0; units && i < model->count; i++) {
        const struct model_tensor *tensor = &model->tensors[i];
        struct region whole = region_whole(tensor->dims, tensor->shape);
        units[tensor->layer >= 0 ? root + (uint64_t)tensor->layer : 0] += region_elements(&whole);
    }
    if (units && fsdp_units_init(&wraps, training, units, model->layers + root, NULL, 0, NULL) == 0) {
        values = values_of(training, &wraps, moments);
        fsdp_units_release(&wraps);
    }
    free(units);
    return values * sizeof(float);
}

static int map_arrays(struct parallel *self, struct cb_err *err)
{
    const struct fsdp_units *wraps = &self->wraps;
    unsigned moments = optimizer_moments(self->setup.optimizer.kind);
    int rc = map_floats(self, wraps->share, &self->arrays[PARALLEL_WEIGHTS], err);
    if (!rc)
        rc = map_floats(self, wraps->share, &self->arrays[PARALLEL_GRADIENTS], err);
    if (!rc)
        rc = map_floats(self, moments > 0 ? wraps->share : 0, &self->arrays[PARALLEL_EXP_AVG], err);
    if (!rc)
        rc = map_floats(self, moments > 1 ? wraps->share : 0, &self->arrays[PARALLEL_EXP_AVG_SQ], err);
    if (!rc)
        rc = map_floats(self, self->buckets ? wraps->share : 0, &self->sums, err);
    return rc;
}

static int map_slots(struct parallel *self, bool wanted, struct slot *slots, struct slot *root, struct cb_err *err)
{
    int rc = map_floats(self, wanted ? self->wraps.root_padded : 0, &root->memory, err);
    for (int i = 0; i < PARALLEL_SLOTS && !rc; i++) {
        slots[i].wrap = SIZE_MAX;
        rc = map_floats(self, wanted ? self->wraps.largest : 0, &slots[i].memory, err);
    }
    return rc;
}

int parallel_map(struct parallel *self, struct cb_err *err)
{
    if (self->math)
        return parallel_device_map(self, err);
    uint64_t staged = self->training->cpu_offload ? staged_values(&self->wraps) : 0;
    uint64_t packed = parallel_sends_bf16(self->training) ? stream_packed(staged_values(&self->wraps)) : 0;
    int rc = map_arrays(self, err);
    if (!rc)
        rc = map_floats(self, packed, &self->packed_share, err);
    if (!rc)
        rc = map_floats(self, packed * self->training->shard_ranks, &self->packed, err);
    if (!rc)
        rc = map_slots(self, self->gathers, self->slots, &self->root, err);
    if (!rc)
        rc = map_slots(self, self->scatters, self->gradient_slots, &self->root_gradient, err);
    if (!rc)
        rc = map_floats(self, staged, &self->staged_up, err);
    return rc ? rc : map_floats(self, staged, &self->staged_down, err);
}

void parallel_unmap(struct parallel *self)
{
    if (self->math) {
        parallel_device_unmap(self);
        return;
    }
    for (int i = 0; i < PARALLEL_ARRAYS; i++)
        unmap_floats(self->arrays[i], self->wraps.share);
    unmap_floats(self->sums, self->wraps.share);
    for (int i = 0; i < PARALLEL_SLOTS; i++) {
        unmap_floats(self->slots[i].memory, self->wraps.largest);
        unmap_floats(self->gradient_slots[i].memory, self->wraps.largest);
    }
    unmap_floats(self->root.memory, self->wraps.root_padded);
    unmap_floats(self->root_gradient.memory, self->wraps.root_padded);
    unmap_floats(self->packed_share, stream_packed(staged_values(&self->wraps)));
    unmap_floats(self->packed, stream_packed(staged_values(&self->wraps)) * self->training->shard_ranks);
    unmap_floats(self->staged_up, staged_values(&self->wraps));
    unmap_floats(self->staged_down, staged_values(&self->wraps));
}
