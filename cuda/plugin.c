/* The plugin's table, and the properties of a device. */
#include <cublasLt.h>
#include <nccl.h>
#include <stdio.h>
#include <string.h>

#include "cuda/cuda.h"

#define TEXT(number) TEXT_OF(number)
#define TEXT_OF(number) #number

/* Without a driver the first CUDA call fails; this message says more than CUDA's. */
static int plugin_count(uint32_t *count, struct cb_err *err)
{
    int devices = 0, driver = 0;
    cudaError_t code = cudaGetDeviceCount(&devices);
    if (code == cudaErrorNoDevice)
        code = cudaSuccess;
    if (code == cudaErrorInsufficientDriver) {
        (void)cudaDriverGetVersion(&driver);
        return driver == 0
                   ? cb_fail(err, CB_ERR_UNSUPPORTED,
                             "no NVIDIA driver on this machine (libcuda.so.1): install one, or start the container "
                             "with its GPUs; `ckptbench doctor device=cuda` looks again")
                   : cb_fail(err, CB_ERR_UNSUPPORTED,
                             "the NVIDIA driver is for CUDA %d.%d, this plugin was built with %d.%d: update the driver",
                             driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    }
    int rc = cuda_check(code, err, "looking for GPUs");
    if (!rc)
        *count = (uint32_t)devices;
    return rc;
}

/* By the device's UUID, which does not depend on which devices this process may see. */
static int plugin_identify(uint32_t index, unsigned char id[DEVICE_ID_BYTES], struct cb_err *err)
{
    struct cudaDeviceProp properties;
    _Static_assert(sizeof properties.uuid == DEVICE_ID_BYTES, "the table has room for CUDA's number of a device");
    int rc = cuda_check(cudaGetDeviceProperties(&properties, (int)index), err, "asking which GPU it is");
    if (!rc)
        memcpy(id, &properties.uuid, DEVICE_ID_BYTES);
    return rc;
}

static void format_pci(const struct cudaDeviceProp *properties, char pci[DEVICE_PCI_BYTES])
{
    snprintf(pci, DEVICE_PCI_BYTES, "%04x:%02x:%02x.0", properties->pciDomainID, properties->pciBusID,
             properties->pciDeviceID);
}

static int plugin_locate(uint32_t index, char pci[DEVICE_PCI_BYTES], struct cb_err *err)
{
    struct cudaDeviceProp properties;
    int rc = cuda_check(cudaGetDeviceProperties(&properties, (int)index), err, "asking where the GPU is");
    if (!rc)
        format_pci(&properties, pci);
    return rc;
}

static void describe_versions(char *text, size_t room)
{
    int driver = 0, runtime = 0, nccl = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    (void)ncclGetVersion(&nccl);
    snprintf(text, room, "driver for CUDA %d.%d, CUDA %d.%d, NCCL %d, cuBLASLt %zu", driver / 1000, driver % 1000 / 10,
             runtime / 1000, runtime % 1000 / 10, nccl, cublasLtGetVersion());
}

static int plugin_describe(struct device *device, struct device_info *info, struct cb_err *err)
{
    const struct cuda_device *self = (const struct cuda_device *)device;
    struct cudaDeviceProp properties;
    size_t free_bytes = 0, total_bytes = 0;
    int rc = cuda_use(self, err);
    if (!rc)
        rc = cuda_check(cudaGetDeviceProperties(&properties, self->index), err, "asking what the GPU is");
    if (!rc)
        rc = cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), err, "asking how much memory the GPU has");
    if (rc)
        return rc;
    *info = (struct device_info){
        .index = (uint32_t)self->index,
        .capability_major = (uint32_t)properties.major,
        .capability_minor = (uint32_t)properties.minor,
        .multiprocessors = (uint32_t)properties.multiProcessorCount,
        .memory_bytes = total_bytes,
        .free_bytes = free_bytes,
    };
    snprintf(info->name, sizeof info->name, "%.127s", properties.name);
    format_pci(&properties, info->pci);
    describe_versions(info->versions, sizeof info->versions);
    return 0;
}

const struct device_plugin_ops ckptbench_device_plugin __attribute__((visibility("default"))) = {
    .version = DEVICE_PLUGIN_VERSION,
    .device_version = DEVICE_VERSION,
    .built = "CUDA " TEXT(CUDART_VERSION) ", NCCL " TEXT(NCCL_MAJOR) "." TEXT(NCCL_MINOR) "." TEXT(NCCL_PATCH),
    .count = plugin_count,
    .identify = plugin_identify,
    .locate = plugin_locate,
    .open = cuda_device_open,
    .describe = plugin_describe,
    .measure = cuda_measure,
    .open_gemm = cuda_gemm_open,
    .queue_gemm = cuda_gemm_queue,
    .check_gemm = cuda_gemm_check,
    .close_gemm = cuda_gemm_close,
    .start_activity = cuda_start_activity,
    .stop_activity = cuda_stop_activity,
    .comm = &cuda_comm_ops,
    .open_math = cuda_open_math,
};
