/* The C interface of the value kernels: each call queues on a stream and returns a cudaError_t as a number. */
#ifndef CUDA_VALUE_KERNELS_H
#define CUDA_VALUE_KERNELS_H

#include <stdint.h>

#include "engine/device_values.h"

#ifdef __cplusplus
extern "C" {
#endif

int kernels_fill(const struct values_job *job, void *memory, void *stream);
/* Adds the number of wrong elements to result[0]; result[1] is the lowest of them, counted from the tensor's start.
 * In device memory. */
int kernels_check(const struct values_job *job, const void *memory, uint64_t *result, void *stream);
/* a = b + scalar * c */
int kernels_triad(double *a, const double *b, const double *c, double scalar, uint64_t count, void *stream);
/* Adds the number of wrong elements to result[0]. */
int kernels_triad_check(const double *a, const double *b, const double *c, double scalar, uint64_t count,
                        uint64_t *result, void *stream);
int kernels_empty(void *stream);

#ifdef __cplusplus
}
#endif

#endif
