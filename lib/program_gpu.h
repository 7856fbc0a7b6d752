/* The GPU whose memory a rank's tensors are in, through the CUDA plugin. */
#ifndef LIB_PROGRAM_GPU_H
#define LIB_PROGRAM_GPU_H

#include "engine/device_plugin.h"
#include "include/ckptbench.h"

struct gpu {
    struct device_plugin plugin;
    struct device *device; /* NULL before a state needs it */
    uint64_t number;       /* as in struct ckptbench_region */
};

/* Opens the GPU of the state's regions, if there are any and it is not open. CB_ERR_UNSUPPORTED if they are on several
 * GPUs, or the plugin or the GPU is missing. */
int gpu_open_for(struct gpu *self, const struct ckptbench_state *state, struct cb_err *err) CB_MUST_CHECK;
/* What is copied from here on sees what the program has queued so far on the streams of the state's regions. */
int gpu_follow(const struct gpu *self, const struct ckptbench_state *state, struct cb_err *err) CB_MUST_CHECK;
/* Waits for the copies so far. */
int gpu_wait(const struct gpu *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
void gpu_close(struct gpu *self);

#endif
