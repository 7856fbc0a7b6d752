/* Helpers for computing on a device. */
#include "engine/device_math.h"

bool device_math_is_whole(const struct device_math_ops *ops)
{
    return ops && ops->version == DEVICE_MATH_VERSION && ops->product && ops->layer_norm && ops->layer_norm_again &&
           ops->layer_norm_backward && ops->gelu && ops->gelu_and_slope && ops->multiply && ops->add && ops->fill &&
           ops->add_column_sums && ops->row_sums && ops->sum_of_squares && ops->causal_softmax && ops->causal_weights &&
           ops->causal_backward && ops->cross_entropy && ops->embed && ops->embed_backward && ops->dropout &&
           ops->adamw && ops->sgd && ops->round_bf16 && ops->pack_bf16 && ops->unpack_bf16 && ops->check && ops->close;
}

int device_math_copy(struct device_math *self, enum device_direction direction, void *to, const void *from,
                     uint64_t bytes, struct cb_err *err)
{
    struct device_copy copy = {.to = to, .from = from, .row_bytes = bytes, .rows = 1};
    return self->device->ops->copy(self->device, direction, &copy, 1, err);
}

int device_math_finish(struct device_math *self, uint64_t deadline_ns, struct cb_err *err)
{
    uint64_t event = 0;
    int rc = self->ops->check(self, err);
    if (!rc)
        rc = self->device->ops->record(self->device, &event, err);
    return rc ? rc : self->device->ops->wait(self->device, event, deadline_ns, err);
}
