/* Kernels that generate and compare values, which are functions of (seed, tensor, element), on the device, and
 * kernels that the suite times. */
#include "cuda/value_kernels.h"

#include <cuda_runtime.h>

#define THREADS 256
#define MOST_BLOCKS 16384

/* Clears older errors, so that cudaGetLastError reports only this launch. */
static void forget_errors()
{
    (void)cudaGetLastError();
}

static unsigned blocks_for(uint64_t count)
{
    uint64_t blocks = (count + THREADS - 1) / THREADS;
    return (unsigned)(blocks < 1 ? 1 : blocks > MOST_BLOCKS ? MOST_BLOCKS : blocks);
}

/* The same bytes as generated on the host; `memory` is aligned to the element. */
__device__ static void store_element(void *memory, uint64_t index, uint32_t bytes, const uint32_t words[4])
{
    switch (bytes) {
    case 1:
        ((uint8_t *)memory)[index] = (uint8_t)words[0];
        break;
    case 2:
        ((uint16_t *)memory)[index] = (uint16_t)words[0];
        break;
    case 4:
        ((uint32_t *)memory)[index] = words[0];
        break;
    case 8:
        ((uint2 *)memory)[index] = make_uint2(words[0], words[1]);
        break;
    default:
        ((uint4 *)memory)[index] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

__device__ static bool is_element(const void *memory, uint64_t index, uint32_t bytes, const uint32_t words[4])
{
    switch (bytes) {
    case 1:
        return ((const uint8_t *)memory)[index] == (uint8_t)words[0];
    case 2:
        return ((const uint16_t *)memory)[index] == (uint16_t)words[0];
    case 4:
        return ((const uint32_t *)memory)[index] == words[0];
    case 8: {
        uint2 held = ((const uint2 *)memory)[index];
        return held.x == words[0] && held.y == words[1];
    }
    default: {
        uint4 held = ((const uint4 *)memory)[index];
        return held.x == words[0] && held.y == words[1] && held.z == words[2] && held.w == words[3];
    }
    }
}

__global__ static void fill(const values_job job, void *memory)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < job.count; i += step) {
        uint32_t words[4];
        values_element(&job, values_element_of(&job, i), words);
        store_element(memory, i, job.element_bytes, words);
    }
}

__global__ static void check(const values_job job, const void *memory, unsigned long long *result)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    unsigned long long wrong = 0, first = ~0ull;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < job.count; i += step) {
        uint32_t words[4];
        uint64_t element = values_element_of(&job, i);
        values_element(&job, element, words);
        if (is_element(memory, i, job.element_bytes, words))
            continue;
        wrong++;
        first = element < first ? element : first;
    }
    if (wrong) {
        atomicAdd(&result[0], wrong);
        atomicMin(&result[1], first);
    }
}

__global__ static void triad(double *__restrict__ a, const double *__restrict__ b, const double *__restrict__ c,
                             double scalar, uint64_t count)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        a[i] = b[i] + scalar * c[i];
}

__global__ static void triad_check(const double *a, const double *b, const double *c, double scalar, uint64_t count,
                                   unsigned long long *result)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        if (a[i] != b[i] + scalar * c[i])
            atomicAdd(&result[0], 1ull);
    }
}

__global__ static void empty() {}

extern "C" int kernels_fill(const values_job *job, void *memory, void *stream)
{
    forget_errors();
    if (job->count > 0)
        fill<<<blocks_for(job->count), THREADS, 0, (cudaStream_t)stream>>>(*job, memory);
    return (int)cudaGetLastError();
}

extern "C" int kernels_check(const values_job *job, const void *memory, uint64_t *result, void *stream)
{
    forget_errors();
    if (job->count > 0)
        check<<<blocks_for(job->count), THREADS, 0, (cudaStream_t)stream>>>(*job, memory, (unsigned long long *)result);
    return (int)cudaGetLastError();
}

extern "C" int kernels_triad(double *a, const double *b, const double *c, double scalar, uint64_t count, void *stream)
{
    forget_errors();
    triad<<<blocks_for(count), THREADS, 0, (cudaStream_t)stream>>>(a, b, c, scalar, count);
    return (int)cudaGetLastError();
}

extern "C" int kernels_triad_check(const double *a, const double *b, const double *c, double scalar, uint64_t count,
                                   uint64_t *result, void *stream)
{
    forget_errors();
    triad_check<<<blocks_for(count), THREADS, 0, (cudaStream_t)stream>>>(a, b, c, scalar, count,
                                                                         (unsigned long long *)result);
    return (int)cudaGetLastError();
}

extern "C" int kernels_empty(void *stream)
{
    forget_errors();
    empty<<<1, 1, 0, (cudaStream_t)stream>>>();
    return (int)cudaGetLastError();
}
