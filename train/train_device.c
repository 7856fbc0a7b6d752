/* A training's device: opening the plugin, the device and its arithmetic. */
#include "train/train_device.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/units.h"

#define PEAK_ROWS 4096 /* size of the products that measure the peak */

int train_device_open(struct train_device *self, struct comm *comm, struct status_page *page, struct cb_err *err)
{
    char text[512];
    const struct device_info *info = &self->info;
    int rc = device_plugin_open(&self->plugin, err);
    if (!rc)
        rc = device_plugin_open_device(&self->plugin, comm_local_rank(comm), &self->device, &self->info, err);
    if (!rc)
        rc = device_plugin_open_math(&self->plugin, self->device, &self->math, err);
    if (rc)
        return cb_context(err, "device=cuda");
    snprintf(text, sizeof text, "%s, %s (number %" PRIu32 "); %s", info->name, info->pci, info->index, info->versions);
    status_page_add_fact(page, "device", text);
    return 0;
}

void train_device_close(struct train_device *self)
{
    if (self->math)
        self->math->ops->close(self->math);
    device_close(self->device);
    device_plugin_close(&self->plugin);
    *self = (struct train_device){0};
}

int train_device_check_memory(const struct train_device *self, uint64_t bytes, struct cb_err *err)
{
    char needed[32], had[32];
    if (bytes <= self->info.free_bytes)
        return 0;
    return cb_fail(err, CB_ERR_MEMORY, "training needs %s of memory on the GPU (%s), which has %s free",
                   units_format_bytes((double)bytes, needed), self->info.name,
                   units_format_bytes((double)self->info.free_bytes, had));
}

double train_device_peak_flops(const struct train_device *self)
{
    struct cb_err unheard;
    double flops = 0;
    int rc = self->plugin.ops->measure(self->device, DEVICE_MEASURE_GEMM_FP32, PEAK_ROWS, &flops, &unheard);
    return rc ? 0 : flops;
}
