/* Shared by the parts of a training: how their phases end. */
#include "train/trainer.h"

#include "comm/agree.h"
#include "core/clock.h"

uint64_t trainer_deadline(const struct trainer *self)
{
    return clock_monotonic_ns() + self->op_timeout_ns;
}

struct device *trainer_state_device(const struct trainer *self)
{
    return parallel_device_memory(self->parallel).base ? self->gpu : NULL;
}

int trainer_join(struct trainer *self, int code, struct cb_err *err)
{
    return agree(self->comm, code, trainer_deadline(self), err);
}
