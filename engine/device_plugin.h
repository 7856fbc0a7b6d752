/* The plugin that has everything of CUDA, NCCL and cuBLAS: a shared object (cuda/), loaded when a run
 * asks for a device. The programs neither link nor need it, nor the libraries behind it.
 *
 * run/cuda_plugin.h says where it is. What it was built for must be this program's: both versions are compared
 * before anything of it is called. */
#ifndef ENGINE_DEVICE_PLUGIN_H
#define ENGINE_DEVICE_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "core/buf.h"
#include "core/err.h"
#include "engine/device.h"
#include "engine/device_comm.h"
#include "engine/device_math.h"
#include "run/status_page.h"

#define DEVICE_PLUGIN_VERSION 4
#define DEVICE_ID_BYTES 16
#define DEVICE_PLUGIN_SYMBOL "ckptbench_device_plugin"

/* What a device is. */
struct device_info {
    char name[128];     /* "NVIDIA H100 80GB HBM3" */
    char pci[32];       /* "0000:3b:00.0", as in /sys/bus/pci/devices */
    char versions[128]; /* of driver and libraries */
    uint32_t index;     /* among those that the process may see */
    uint32_t capability_major, capability_minor, multiprocessors;
    uint64_t memory_bytes, free_bytes;
};

/* What the suite asks of a device; each is the median of some rounds. */
enum device_measure {
    DEVICE_MEASURE_COPY,      /* a = b in the device's memory: bytes read and written a second */
    DEVICE_MEASURE_TRIAD,     /* a = b + s c in fp64: bytes read and written a second */
    DEVICE_MEASURE_TO_DEVICE, /* from pinned memory: bytes a second */
    DEVICE_MEASURE_TO_HOST,   /* to pinned memory */
    DEVICE_MEASURE_TO_DEVICE_PAGEABLE,
    DEVICE_MEASURE_TO_HOST_PAGEABLE,
    DEVICE_MEASURE_GEMM_FP32, /* flop a second: 2 n^3 / t */
    DEVICE_MEASURE_GEMM_TF32,
    DEVICE_MEASURE_GEMM_BF16,
    DEVICE_MEASURE_GEMM_FP8,
    DEVICE_MEASURE_LAUNCH, /* seconds from the launch of an empty kernel until it is seen to have ended */
    DEVICE_MEASURE_COUNT
};

struct device_plugin_ops {
    uint32_t version;                                  /* DEVICE_PLUGIN_VERSION */
    uint32_t device_version;                           /* DEVICE_VERSION */
    const char *built;                                 /* "CUDA 13.0, NCCL 2.28.9, cuBLASLt 13.1" */
    int (*count)(uint32_t *count, struct cb_err *err); /* devices that the process may see; 0 is no failure */
    /* The same for whoever sees that device, and another for every other one; takes none of its memory. */
    int (*identify)(uint32_t index, unsigned char id[DEVICE_ID_BYTES], struct cb_err *err);
    int (*open)(uint32_t index, struct device **device, struct cb_err *err);
    int (*describe)(struct device *device, struct device_info *info, struct cb_err *err);
    /* `size`: bytes of a copy, rows of a matrix. CB_ERR_UNSUPPORTED where the device cannot, with the reason;
     * CB_ERR_CORRUPT where what came out is wrong. */
    int (*measure)(struct device *device, enum device_measure what, uint64_t size, double *value, struct cb_err *err);
    const struct device_comm_ops *comm;
    /* What training computes with (engine/device_math.h); one at a time of a device. */
    int (*open_math)(struct device *device, struct device_math **math, struct cb_err *err);
};

struct device_plugin {
    void *library; /* of the dynamic linker */
    const struct device_plugin_ops *ops;
    char path[4096];
};

/* Fails with what is missing and what to do about it. */
int device_plugin_open(struct device_plugin *self, struct cb_err *err) CB_MUST_CHECK;
/* Nothing made by it is left. Its code stays in the process: libraries behind it have threads, and what they do when
 * a thread ends. */
void device_plugin_close(struct device_plugin *self);
/* Whether a plugin's table may be used: its versions, and that nothing in it is missing. */
int device_plugin_check(const struct device_plugin_ops *ops, const char *path, struct cb_err *err) CB_MUST_CHECK;

/* One line a device that this process may use, and what the plugin was built with. */
int device_plugin_list(struct buf *out, struct cb_err *err) CB_MUST_CHECK;

/* The device of this rank among those of its machine: each its own while there are enough, else they take turns.
 * With CUDA_VISIBLE_DEVICES (or a launcher that sets it) it is among those. */
int device_plugin_open_device(const struct device_plugin *self, uint32_t local_rank, struct device **device,
                              struct device_info *info, struct cb_err *err) CB_MUST_CHECK;

/* Which one that would be. */
int device_plugin_identify(const struct device_plugin *self, uint32_t local_rank, unsigned char id[DEVICE_ID_BYTES],
                           struct cb_err *err) CB_MUST_CHECK;

int device_plugin_open_math(const struct device_plugin *self, struct device *device, struct device_math **math,
                            struct cb_err *err) CB_MUST_CHECK;

/* Runs the rank on the cores near its device (affinity_apply_near), and notes on the page where that is: fact
 * "device.place". Where `sysfs` ("/sys") does not say it is affinity_apply. Collective among the ranks of a machine. */
int device_place_apply(struct comm *comm, const char *sysfs, const struct device_info *info, bool pin,
                       struct status_page *page, uint64_t deadline_ns, char *text, size_t text_bytes,
                       struct cb_err *err) CB_MUST_CHECK;

#endif
