#include "lib/program_gpu.h"

#include <inttypes.h>

int gpu_open_for(struct gpu *self, const struct ckptbench_state *state, struct cb_err *err)
{
    uint64_t number = self->number;
    uint32_t count = 0;
    for (size_t i = 0; i < state->region_count; i++) {
        uint64_t other = state->regions[i].device;
        if (other && number && other != number)
            return cb_fail(err, CB_ERR_UNSUPPORTED, "%s: it is on GPU %" PRIu64 ", and another tensor on GPU %" PRIu64,
                           state->tensors[state->regions[i].tensor].fqn, other - 1, number - 1);
        number = other ? other : number;
    }
    if (number == self->number)
        return 0;
    int rc = self->plugin.ops ? 0 : device_plugin_open(&self->plugin, err);
    if (!rc)
        rc = self->plugin.ops->count(&count, err);
    if (!rc && number > count)
        rc = cb_fail(err, CB_ERR_UNSUPPORTED, "there is no GPU %" PRIu64 ": this process sees %" PRIu32, number - 1,
                     count);
    if (!rc)
        rc = self->plugin.ops->open((uint32_t)number - 1, &self->device, err);
    if (!rc && (self->device->ops->version != DEVICE_VERSION || !self->device->ops->follow)) {
        device_close(self->device);
        self->device = NULL;
        rc = cb_fail(err, CB_ERR_UNSUPPORTED, "%s is of another version: build it anew", self->plugin.path);
    }
    if (!rc)
        self->number = number;
    return rc ? cb_context(err, "tensors on a GPU") : 0;
}

int gpu_follow(const struct gpu *self, const struct ckptbench_state *state, struct cb_err *err)
{
    const void *last = NULL;
    bool has_last = false;
    int rc = 0;
    for (size_t i = 0; i < state->region_count && !rc; i++) {
        const struct ckptbench_region *region = &state->regions[i];
        if (!region->device || (has_last && region->stream == last))
            continue;
        rc = self->device->ops->follow(self->device, region->stream, err);
        last = region->stream;
        has_last = true;
    }
    return rc;
}

int gpu_wait(const struct gpu *self, uint64_t deadline_ns, struct cb_err *err)
{
    uint64_t event = 0;
    int rc = self->device->ops->record(self->device, &event, err);
    return rc ? rc : self->device->ops->wait(self->device, event, deadline_ns, err);
}

void gpu_close(struct gpu *self)
{
    if (self->device)
        device_close(self->device);
    device_plugin_close(&self->plugin);
    *self = (struct gpu){0};
}
