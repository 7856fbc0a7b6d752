/* Completion of a load: copies payload to the targets, and reports to the exchange what has arrived. */
#include "engine/load/load_stages.h"
#include "engine/state.h"

/* Copies part of a payload to the target of one read. Returns the number of bytes needed. */
static uint64_t place_read(struct native_load *self, const struct load_item *item, uint32_t read, uint64_t begin,
                           const char *bytes, uint64_t len)
{
    const struct mapping *mapping = &self->plan.mappings[read];
    char *memory = self->plan.memory[self->plan.wanted->reads[read].piece];
    bool on_device = state_is_on_device(self->operation->state, memory);
    uint64_t copied = 0;
    if (self->complete.copy_code)
        return 0;
    if (item->payload.contiguous && !on_device) {
        copied = mapping_scatter(mapping, begin, bytes, len, memory);
    } else if (item->payload.contiguous) {
        self->complete.copy_code = pinned_scatter(self->operation->state->device, mapping, begin, bytes, len, memory,
                                                  &copied, &self->complete.copy_err);
    } else {
        struct strided strided = native_load_strided(self, item, read);
        if (on_device)
            self->complete.copy_code = pinned_scatter_strided(self->operation->state->device, &strided, begin, bytes,
                                                              len, memory, &copied, &self->complete.copy_err);
        else
            copied = strided_scatter(&strided, begin, bytes, len, memory);
    }
    return copied;
}

void native_load_place(struct native_load *self, struct load_item *item, uint64_t begin, const char *bytes,
                       uint64_t len)
{
    for (uint32_t i = item->first_read; i < item->first_read + item->read_count; i++) {
        uint64_t copied = place_read(self, item, i, begin, bytes, len);
        self->operation->bytes_copied += copied;
        self->complete.arrived[i] += copied;
    }
}

void native_load_settle(struct native_load *self, const struct load_item *item, bool right)
{
    for (uint32_t i = item->first_read; self->complete.exchange && i < item->first_read + item->read_count; i++) {
        if (right && self->complete.arrived[i] > 0)
            exchange_landed(self->complete.exchange, self->plan.wanted->reads[i].piece, self->complete.arrived[i]);
        self->complete.arrived[i] = 0;
    }
}
