/* Loads the plugin that uses CUDA, NCCL and cuBLASLt: a shared object (cuda/), loaded only when a run asks for a device.
 * The programs do not link these libraries.
 *
 * run/cuda_plugin.h finds the plugin. Its versions must match this program's; they are compared before any function is
 * called. */
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

#define DEVICE_PLUGIN_VERSION 7
#define DEVICE_PCI_BYTES 32
#define DEVICE_ID_BYTES 16
#define DEVICE_PLUGIN_SYMBOL "ckptbench_device_plugin"

/* Properties of a device. */
struct device_info {
    char name[128];             /* "NVIDIA H100 80GB HBM3" */
    char pci[DEVICE_PCI_BYTES]; /* "0000:3b:00.0", as in /sys/bus/pci/devices */
    char versions[128];         /* of driver and libraries */
    uint32_t index;             /* among the devices visible to the process */
    uint32_t capability_major, capability_minor, multiprocessors;
    uint64_t memory_bytes, free_bytes;
};

/* What the suite measures on a device; each value is the median of several rounds. */
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
    DEVICE_MEASURE_LAUNCH, /* seconds from launching an empty kernel until the host sees that it has ended */
    DEVICE_MEASURE_COUNT
};

struct device_gemm;

/* A kernel, or a copy (memory that is set counts as one). */
enum device_activity_kind { DEVICE_KERNEL, DEVICE_COPY };
struct device_activity {
    enum device_activity_kind kind;
    const char *name; /* of the kernel, readable; "Memcpy HtoD" */
    uint32_t stream;
    uint64_t start_ns, end_ns; /* by the monotonic clock */
    uint64_t bytes;            /* of a copy */
};
typedef void device_activity_function(void *context, const struct device_activity *activity);

struct device_plugin_ops {
    uint32_t version;                                  /* DEVICE_PLUGIN_VERSION */
    uint32_t device_version;                           /* DEVICE_VERSION */
    const char *built;                                 /* "CUDA 13.0, NCCL 2.28.9, cuBLASLt 13.1" */
    int (*count)(uint32_t *count, struct cb_err *err); /* visible devices; 0 is not a failure */
    /* A unique id of the device, the same in every process. Allocates no device memory. */
    int (*identify)(uint32_t index, unsigned char id[DEVICE_ID_BYTES], struct cb_err *err);
    /* Its PCI address, as in device_info. Allocates no device memory. */
    int (*locate)(uint32_t index, char pci[DEVICE_PCI_BYTES], struct cb_err *err);
    int (*open)(uint32_t index, struct device **device, struct cb_err *err);
    int (*describe)(struct device *device, struct device_info *info, struct cb_err *err);
    /* `size`: bytes of a copy, rows of a matrix. CB_ERR_UNSUPPORTED with the reason if the device cannot do it,
     * CB_ERR_CORRUPT if the result is wrong. */
    int (*measure)(struct device *device, enum device_measure what, uint64_t size, double *value, struct cb_err *err);
    /* Products of two square matrices of `rows` rows (rounded down to a multiple of 16), as a DEVICE_MEASURE_GEMM_… has
     * them, for measuring them beside other work. CB_ERR_UNSUPPORTED with the reason if the device cannot do it,
     * CB_ERR_MEMORY. Close it before the device, when nothing is pending. */
    int (*open_gemm)(struct device *device, enum device_measure type, uint64_t rows, struct device_gemm **gemm,
                     struct cb_err *err);
    /* Queues `count` products in the order of the device's copies; a later event of the device says when they are done. */
    int (*queue_gemm)(struct device_gemm *self, uint32_t count, struct cb_err *err);
    /* Waits for the products, and computes some elements of the last again: CB_ERR_CORRUPT if one is wrong. */
    int (*check_gemm)(struct device_gemm *self, struct cb_err *err);
    void (*close_gemm)(struct device_gemm *self);
    /* Records every kernel, of all libraries, and every copy of this process's devices until stop_activity.
     * CB_ERR_UNSUPPORTED with the reason if it cannot: no library for it, no permission, another profiler. */
    int (*start_activity)(struct device *device, struct cb_err *err);
    /* Calls `take` for each, in no order, on this thread. Nothing may be pending on the devices: what has not ended, or did not
     * fit, is counted in *lost. Only after start_activity has succeeded. */
    int (*stop_activity)(struct device *device, device_activity_function *take, void *context, uint64_t *lost,
                         struct cb_err *err);
    const struct device_comm_ops *comm;
    /* The arithmetic of training (engine/device_math.h); at most one at a time for each device. */
    int (*open_math)(struct device *device, struct device_math **math, struct cb_err *err);
};

struct device_plugin {
    void *library; /* handle of dlopen */
    const struct device_plugin_ops *ops;
    char path[4096];
};

/* The error says what is missing and what to do about it. */
int device_plugin_open(struct device_plugin *self, struct cb_err *err) CB_MUST_CHECK;
/* Call after everything created through the plugin has been closed. The code stays loaded, since its libraries have
 * threads and thread destructors. */
void device_plugin_close(struct device_plugin *self);
/* Checks that the plugin's table has the right versions and no missing function. */
int device_plugin_check(const struct device_plugin_ops *ops, const char *path, struct cb_err *err) CB_MUST_CHECK;

/* Appends one line for each visible device, and what the plugin was built with. */
int device_plugin_list(struct buf *out, struct cb_err *err) CB_MUST_CHECK;

/* Opens the device of this rank: each rank of a machine gets its own, or they share if there are too few. Only devices in
 * CUDA_VISIBLE_DEVICES count, if it is set. */
int device_plugin_open_device(const struct device_plugin *self, uint32_t local_rank, struct device **device,
                              struct device_info *info, struct cb_err *err) CB_MUST_CHECK;

/* The id of the device that device_plugin_open_device would open. */
int device_plugin_identify(const struct device_plugin *self, uint32_t local_rank, unsigned char id[DEVICE_ID_BYTES],
                           struct cb_err *err) CB_MUST_CHECK;

/* Gives MPI and NCCL the adapters near the GPUs (engine/near_adapter.h), before MPI starts: the rank's number on its
 * machine is read from the launcher's variables. `text` describes what is set; it is "" without a GPU. */
void device_plugin_set_adapters(const char *sysfs, char *text, size_t room);

int device_plugin_open_math(const struct device_plugin *self, struct device *device, struct device_math **math,
                            struct cb_err *err) CB_MUST_CHECK;

/* Opens the plugin and the device of this rank, and records the device as fact "device". Close both also after a failure. */
int device_plugin_open_own(struct device_plugin *self, struct comm *comm, struct status_page *page,
                           struct device **device, struct device_info *info, struct cb_err *err) CB_MUST_CHECK;
void device_info_note(const struct device_info *info, struct status_page *page);

/* Binds the rank to the cores near its device (affinity_apply), and records its place as fact "device.place" and the
 * binding as fact "affinity". Without a device (`info` NULL), or if `sysfs` ("/sys") does not know the place, it is bound to
 * its share of the cores. Collective among the ranks of a machine. */
int device_place_apply(struct comm *comm, const char *sysfs, const struct device_info *info, bool pin,
                       struct status_page *page, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

#endif
