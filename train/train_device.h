/* The device that a training computes on: opened for this rank, its properties and speed, closed. */
#ifndef TRAIN_TRAIN_DEVICE_H
#define TRAIN_TRAIN_DEVICE_H

#include "comm/comm.h"
#include "engine/device_math.h"
#include "engine/device_plugin.h"
#include "run/status_page.h"

struct train_device {
    struct device_plugin plugin;
    struct device *device;    /* NULL: threads on the host compute */
    struct device_math *math; /* of the device */
    struct device_info info;
};

/* Opens it and writes fact "device". Call train_device_close also after a failure. */
int train_device_open(struct train_device *self, struct comm *comm, struct status_page *page,
                      struct cb_err *err) CB_MUST_CHECK;
/* Call after everything on the device is freed. */
void train_device_close(struct train_device *self);

/* Whether that much of its memory was free when it was opened. */
int train_device_check_memory(const struct train_device *self, uint64_t bytes, struct cb_err *err) CB_MUST_CHECK;
/* Operations per second of its fp32 matrix products alone; 0 if unknown. */
double train_device_peak_flops(const struct train_device *self);

#endif
