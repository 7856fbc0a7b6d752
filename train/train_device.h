/* The device that a training computes on: opened for this rank, asked what it is and how fast, closed. */
#ifndef TRAIN_TRAIN_DEVICE_H
#define TRAIN_TRAIN_DEVICE_H

#include "comm/comm.h"
#include "engine/device_math.h"
#include "engine/device_plugin.h"
#include "run/status_page.h"

struct train_device {
    struct device_plugin plugin;
    struct device *device;    /* NULL: this machine's threads compute */
    struct device_math *math; /* of the device; as that */
    struct device_info info;
};

/* Fact "device". After a failure, too, train_device_close gives back what there is. */
int train_device_open(struct train_device *self, struct comm *comm, struct status_page *page,
                      struct cb_err *err) CB_MUST_CHECK;
/* After everything that lies on it. */
void train_device_close(struct train_device *self);

/* Whether so much of its memory was free when it was opened. */
int train_device_check_memory(const struct train_device *self, uint64_t bytes, struct cb_err *err) CB_MUST_CHECK;
/* Operations a second of its fp32 matrix products alone; 0 where that is not known. */
double train_device_peak_flops(const struct train_device *self);

#endif
