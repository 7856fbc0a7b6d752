/* Opens the arithmetic of training on a device, keeps its first failure, and queues its matrix products. */
#include "cuda/cuda_math.h"

#include <stdlib.h>

#include "cuda/cuda.h"

static struct cuda_math *cast(struct device_math *math)
{
    return (struct cuda_math *)math;
}

bool cuda_math_is_well(struct cuda_math *self)
{
    if (!self->failed)
        self->failed = cuda_use(self->device, &self->failure);
    return !self->failed;
}

void cuda_math_keep(struct cuda_math *self, int code, const char *doing)
{
    self->failed = cuda_check((cudaError_t)code, &self->failure, doing);
}

void cuda_math_product(struct device_math *math, const struct device_product *product)
{
    struct cuda_math *self = cast(math);
    if (product->rounded) {
        struct device_product_rounded rounded = device_product_rounded(product);
        math->ops->pack_bf16(math, product->in, rounded.in, rounded.in_count);
        math->ops->pack_bf16(math, product->weight, rounded.weight, rounded.weight_count);
    }
    if (cuda_math_is_well(self))
        self->failed = cuda_products_queue(self->products, product, &self->failure);
}

int cuda_math_check(struct device_math *math, struct cb_err *err)
{
    struct cuda_math *self = cast(math);
    if (self->failed && err)
        *err = self->failure;
    return self->failed;
}

/* Waits for pending work before it frees the memory that it uses. */
void cuda_math_close(struct device_math *math)
{
    struct cuda_math *self = cast(math);
    if (cudaSetDevice(self->device->index) == cudaSuccess) {
        (void)cudaStreamSynchronize(self->device->work.stream);
        cuda_products_free(self->products);
        (void)cudaFree(self->scratch);
    }
    free(self);
}

int cuda_open_math(struct device *device, struct device_math **math, struct cb_err *err)
{
    struct cuda_math *self = calloc(1, sizeof *self);
    if (!self)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for the GPU's arithmetic");
    self->base = (struct device_math){.ops = &cuda_math_ops, .device = device};
    self->device = (struct cuda_device *)device;
    self->stream = self->device->work.stream;
    int rc = cuda_allocate(self->device, CUDA_MATH_SCRATCH_BYTES, &self->scratch, err);
    if (!rc)
        rc = cuda_products_new(self->device, &self->products, err);
    if (rc)
        cuda_math_close(&self->base);
    else
        *math = &self->base;
    return rc;
}
