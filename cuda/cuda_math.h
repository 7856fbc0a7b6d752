/* The arithmetic of training on the device's stream: shared by its kernels (cuda/train_kernels.cu, in C++) and
 * cuda/cuda_math.c. */
#ifndef CUDA_CUDA_MATH_H
#define CUDA_CUDA_MATH_H

#ifdef __cplusplus
extern "C" {
#endif

#include "engine/device_math.h"

/* Sums over rows take two steps; the first leaves partial sums in the scratch memory. */
#define CUDA_MATH_SCRATCH_BYTES (UINT64_C(8) << 20)

struct cuda_math {
    struct device_math base;
    struct cuda_device *device;
    struct cuda_products *products;
    void *stream, *scratch;
    int failed; /* code and message of the first failure */
    struct cb_err failure;
};

extern const struct device_math_ops cuda_math_ops; /* in cuda/train_kernels.cu; three are in cuda/cuda_math.c: */
void cuda_math_product(struct device_math *math, const struct device_product *product);
int cuda_math_check(struct device_math *math, struct cb_err *err);
void cuda_math_close(struct device_math *math);

/* Whether further operations may be queued. */
bool cuda_math_is_well(struct cuda_math *self);
/* Keeps the failure of launches; `code` is a cudaError_t. */
void cuda_math_keep(struct cuda_math *self, int code, const char *doing);

#ifdef __cplusplus
}
#endif

#endif
