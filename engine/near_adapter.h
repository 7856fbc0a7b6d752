/* Gives MPI and NCCL the network adapters near the GPUs, by the environment variables that they read. */
#ifndef ENGINE_NEAR_ADAPTER_H
#define ENGINE_NEAR_ADAPTER_H

#include <stddef.h>
#include <stdint.h>

#define NEAR_ADAPTER_BYTES 1280

/* Sets UCX_NET_DEVICES to the adapter near this rank's GPU at `pci`, and NCCL_IB_HCA to all adapters near a GPU of this
 * machine: the ranks of a machine must agree on NCCL's, whose rings pass through several of them. If several adapters are
 * equally near, ranks take turns by `local_rank`. Sets neither if the environment or a configuration file of UCX or NCCL
 * does, or if that would leave nothing out. `text` describes what is set, and the reason for what is not. Call before MPI
 * starts, and before other threads run. `sysfs` is "/sys". */
void near_adapter_set(const char *sysfs, const char *pci, uint32_t local_rank, char *text, size_t room);

#endif
