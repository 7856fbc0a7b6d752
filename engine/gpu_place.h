/* Where a GPU is in its machine: the NUMA node, the cores near it, and the network adapter that shares most of the
 * way to it. Reads /sys; sets nothing. */
#ifndef ENGINE_GPU_PLACE_H
#define ENGINE_GPU_PLACE_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"

struct gpu_place {
    int node;          /* -1: the machine does not say */
    char cores[1024];  /* "0-31,64-95" as /sys has it; "" where it does not */
    char adapter[64];  /* "mlx5_0", "eth0"; "" where there is none */
    unsigned shared;   /* bridges and switches that both hang on; 0: only the machine is shared */
    bool is_same_node; /* of the adapter */
};

/* `pci` is "0000:3b:00.0" in any case; `sysfs` "/sys". CB_ERR_NOT_FOUND where there is no such device. */
int gpu_place_read(const char *sysfs, const char *pci, struct gpu_place *place, struct cb_err *err) CB_MUST_CHECK;
/* "NUMA node 1, nearest adapter mlx5_2 (4 bridges shared)". */
void gpu_place_describe(const struct gpu_place *place, char *text, size_t room);
/* A list of cores, "0-3,8,10-11", as /sys and taskset write it. */
int gpu_place_parse_cores(const char *text, cpu_set_t *cores, struct cb_err *err) CB_MUST_CHECK;

#endif
