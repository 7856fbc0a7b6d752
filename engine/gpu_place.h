/* The place of a GPU in its machine, from /sys: NUMA node, nearby cores, and the nearest network adapters. */
#ifndef ENGINE_GPU_PLACE_H
#define ENGINE_GPU_PLACE_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

struct gpu_place {
    int node;          /* -1 if unknown */
    char cores[1024];  /* "0-31,64-95" as in /sys; "" if unknown */
    char adapter[64];  /* "mlx5_0", "eth0"; "" if there is none */
    unsigned shared;   /* PCI bridges and switches above both GPU and adapter; 0: they share only the machine */
    bool is_same_node; /* whether the adapter is on the same NUMA node */
};

/* `pci` is "0000:3b:00.0" in upper or lower case, `sysfs` "/sys". CB_ERR_NOT_FOUND if there is no such device. */
int gpu_place_read(const char *sysfs, const char *pci, struct gpu_place *place, struct cb_err *err) CB_MUST_CHECK;
/* "NUMA node 1, nearest adapter mlx5_2 (4 bridges shared)". */
void gpu_place_describe(const struct gpu_place *place, char *text, size_t room);

#define GPU_MOST_ADAPTERS 32 /* NCCL uses no more */

/* InfiniBand and RoCE adapters of which a port is active, in the order of their names. */
struct gpu_adapters {
    struct {
        char name[32]; /* "mlx5_0" */
        uint32_t port; /* its first active one */
        bool near;
    } all[GPU_MOST_ADAPTERS];
    size_t count, near_count;
};

/* Lists the adapters; `near` are those that no other is nearer to the GPU than, or, with `pci` NULL, those that are near to
 * any GPU of the machine, whether this process may use it or not. Unknown GPUs have none near. */
void gpu_adapters_find(const char *sysfs, const char *pci, struct gpu_adapters *adapters);
/* A list of cores, "0-3,8,10-11", as /sys and taskset write it. */
int gpu_place_parse_cores(const char *text, cpu_set_t *cores, struct cb_err *err) CB_MUST_CHECK;

#endif
