/* The kernels, as C calls them: each queues on a stream and returns a cudaError_t as a number. */
#ifndef CUDA_VALUE_KERNELS_H
#define CUDA_VALUE_KERNELS_H

#include <stdint.h>

#include "engine/device_values.h"

#ifdef __cplusplus
extern "C" {
#endif

int kernels_fill(const struct values_job *job, void *memory, void *stream);
/* result[0]: wrong elements, added to; result[1]: the lowest of them, of the tensor. In the device's memory. */
int kernels_check(const struct values_job *job, const void *memory, uint64_t *result, void *stream);
/* a = b + scalar * c */
int kernels_triad(double *a, const double *b, const double *c, double scalar, uint64_t count, void *stream);
/* Adds to result[0] the elements that are not so. */
int kernels_triad_check(const double *a, const double *b, const double *c, double scalar, uint64_t count,
                        uint64_t *result, void *stream);
int kernels_empty(void *stream);

#ifdef __cplusplus
}
#endif

#endif
