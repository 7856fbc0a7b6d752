/* Matrix products by cuBLASLt to be measured, in the types that training uses: D = A^T B of square matrices,
 * column-major, the only layout supported for fp8. Some elements of the product are computed again on the host. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cublas.h"
#include "cuda/value_kernels.h"

#define PRODUCTS 4 /* per round, so that launches overlap with execution */
#define LOOKS 16   /* elements of the product that are computed again */

struct type {
    cublasComputeType_t compute;
    cudaDataType_t in, out;
    uint32_t form, in_bytes, mask, out_bytes;
    double tolerance; /* relative to the sum of the products' magnitudes */
};

static const struct type types[] = {
    [DEVICE_MEASURE_GEMM_FP32 - DEVICE_MEASURE_GEMM_FP32] = {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F, VALUES_F32, 4,
                                                             0, 4, 1e-5},
    [DEVICE_MEASURE_GEMM_TF32 -
        DEVICE_MEASURE_GEMM_FP32] = {CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F, VALUES_F32, 4, 0, 4, 2e-3},
    [DEVICE_MEASURE_GEMM_BF16 -
        DEVICE_MEASURE_GEMM_FP32] = {CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF, VALUES_BF16, 2, 0, 2, 1e-2},
    [DEVICE_MEASURE_GEMM_FP8 - DEVICE_MEASURE_GEMM_FP32] = {CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_16BF, VALUES_RAW,
                                                            1, 0xbfbfbfbf, 2, 1e-2},
};

struct device_gemm {
    struct cuda_device *device;
    const struct type *type;
    uint64_t n;
    void *a, *b, *d, *workspace;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t layout_in, layout_out;
    cublasLtMatmulAlgo_t algorithm;
};

static struct values_job matrix(const struct device_gemm *self, uint64_t key)
{
    uint64_t count = self->n * self->n;
    return (struct values_job){.form = self->type->form,
                               .element_bytes = self->type->in_bytes,
                               .mask = self->type->mask,
                               .dims = 1,
                               .key = key,
                               .count = count,
                               .size = {count},
                               .shape = {count}};
}

/* --- one element on the host --- */

static double decode_e4m3(uint32_t bits)
{
    int exponent = (int)(bits >> 3 & 15), fraction = (int)(bits & 7);
    double value = exponent ? ldexp(1.0 + fraction / 8.0, exponent - 7) : ldexp(fraction / 8.0, -6);
    return bits & 0x80 ? -value : value;
}

static double decode(uint32_t form, uint32_t word)
{
    uint32_t bits = form == VALUES_BF16 ? word << 16 : word;
    float value;
    if (form == VALUES_RAW)
        return decode_e4m3(word);
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

static double input(const struct values_job *job, uint64_t element)
{
    uint32_t words[4];
    values_element(job, element, words);
    return decode(job->form, words[0]);
}

static bool is_right(const struct device_gemm *self, uint64_t row, uint64_t column, double held)
{
    struct values_job a = matrix(self, 1), b = matrix(self, 2);
    double sum = 0, magnitude = 0;
    for (uint64_t k = 0; k < self->n; k++) {
        double product = input(&a, row * self->n + k) * input(&b, column * self->n + k);
        sum += product;
        magnitude += fabs(product);
    }
    return fabs(held - sum) <= self->type->tolerance * magnitude;
}

static int look(const struct device_gemm *self, struct cb_err *err)
{
    for (uint64_t i = 0; i < LOOKS; i++) {
        uint64_t row = i * 7919 % self->n, column = i * 104729 % self->n;
        uint32_t word = 0;
        const char *at = (const char *)self->d + (column * self->n + row) * self->type->out_bytes;
        int rc = cuda_check(cudaMemcpy(&word, at, self->type->out_bytes, cudaMemcpyDeviceToHost), err, "looking");
        if (rc)
            return rc;
        if (!is_right(self, row, column, decode(self->type->out == CUDA_R_16BF ? VALUES_BF16 : VALUES_F32, word)))
            return cb_fail(err, CB_ERR_CORRUPT, "a product of %llu x %llu matrices on GPU %d is wrong in row %llu",
                           (unsigned long long)self->n, (unsigned long long)self->n, self->device->index,
                           (unsigned long long)row);
    }
    return 0;
}

/* --- the product --- */

void cuda_gemm_close(struct device_gemm *self)
{
    if (self->layout_in)
        (void)cublasLtMatrixLayoutDestroy(self->layout_in);
    if (self->layout_out)
        (void)cublasLtMatrixLayoutDestroy(self->layout_out);
    if (self->operation)
        (void)cublasLtMatmulDescDestroy(self->operation);
    if (self->handle)
        (void)cublasLtDestroy(self->handle);
    (void)cudaFree(self->a);
    (void)cudaFree(self->b);
    (void)cudaFree(self->d);
    (void)cudaFree(self->workspace);
    free(self);
}

static int make_memory(struct device_gemm *self, struct cb_err *err)
{
    uint64_t count = self->n * self->n;
    struct values_job a = matrix(self, 1), b = matrix(self, 2);
    int rc = cuda_allocate(self->device, count * self->type->in_bytes, &self->a, err);
    if (!rc)
        rc = cuda_allocate(self->device, count * self->type->in_bytes, &self->b, err);
    if (!rc)
        rc = cuda_allocate(self->device, count * self->type->out_bytes, &self->d, err);
    if (!rc)
        rc = cuda_allocate(self->device, CUDA_WORKSPACE_BYTES, &self->workspace, err);
    if (!rc)
        rc = cuda_check((cudaError_t)kernels_fill(&a, self->a, self->device->work.stream), err, "filling a matrix");
    if (!rc)
        rc = cuda_check((cudaError_t)kernels_fill(&b, self->b, self->device->work.stream), err, "filling a matrix");
    return rc;
}

static int describe(struct device_gemm *self, struct cb_err *err)
{
    cublasOperation_t transpose = CUBLAS_OP_T;
    int rc = cuda_check_product(cublasLtCreate(&self->handle), err, "starting");
    if (!rc)
        rc = cuda_check_product(cublasLtMatmulDescCreate(&self->operation, self->type->compute, CUDA_R_32F), err,
                                "describing");
    if (!rc)
        rc = cuda_check_product(
            cublasLtMatmulDescSetAttribute(self->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose),
            err, "describing");
    if (!rc)
        rc = cuda_check_product(
            cublasLtMatrixLayoutCreate(&self->layout_in, self->type->in, self->n, self->n, (int64_t)self->n), err,
            "describing");
    if (!rc)
        rc = cuda_check_product(
            cublasLtMatrixLayoutCreate(&self->layout_out, self->type->out, self->n, self->n, (int64_t)self->n), err,
            "describing");
    return rc;
}

int cuda_gemm_queue(struct device_gemm *self, uint32_t count, struct cb_err *err)
{
    const float one = 1, zero = 0;
    int rc = cuda_use(self->device, err);
    for (uint32_t i = 0; i < count && !rc; i++)
        rc = cuda_check_product(cublasLtMatmul(self->handle, self->operation, &one, self->a, self->layout_in, self->b,
                                               self->layout_in, &zero, self->d, self->layout_out, self->d,
                                               self->layout_out, &self->algorithm, self->workspace,
                                               CUDA_WORKSPACE_BYTES, self->device->work.stream),
                                err, "multiplying");
    return rc;
}

int cuda_gemm_check(struct device_gemm *self, struct cb_err *err)
{
    int rc = cuda_use(self->device, err);
    if (!rc)
        rc = cuda_synchronize(self->device, err);
    return rc ? rc : look(self, err);
}

int cuda_gemm_open(struct device *device, enum device_measure type, uint64_t rows, struct device_gemm **gemm,
                   struct cb_err *err)
{
    bool found = false;
    struct device_gemm *self = calloc(1, sizeof *self);
    if (!self)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for a matrix product");
    self->device = (struct cuda_device *)device;
    self->type = &types[type - DEVICE_MEASURE_GEMM_FP32];
    self->n = rows / 16 * 16;
    int rc = make_memory(self, err);
    if (!rc)
        rc = describe(self, err);
    if (!rc)
        rc = cuda_choose_product(self->handle, self->operation, self->layout_in, self->layout_in, self->layout_out,
                                 NULL, &self->algorithm, &found, err);
    if (!rc && !found)
        rc = cb_fail(err, CB_ERR_UNSUPPORTED, "cuBLASLt has no product of this type on this GPU");
    if (rc)
        cuda_gemm_close(self);
    else
        *gemm = self;
    return rc;
}

/* --- measuring --- */

static int queue_round(const void *context, struct cb_err *err)
{
    struct device_gemm *const *self = context;
    return cuda_gemm_queue(*self, PRODUCTS, err);
}

int cuda_measure_gemm(struct cuda_device *device, enum device_measure what, uint64_t rows, double *flops,
                      struct cb_err *err)
{
    struct device_gemm *gemm = NULL;
    double seconds = 0;
    int rc = cuda_gemm_open(&device->base, what, rows, &gemm, err);
    if (rc)
        return rc;
    double n = (double)gemm->n;
    rc = cuda_time(device, queue_round, &gemm, 2, &seconds, err); /* two, so that the clocks rise */
    if (!rc)
        rc = cuda_gemm_check(gemm, err);
    cuda_gemm_close(gemm);
    if (!rc)
        *flops = 2 * n * n * n / (seconds / PRODUCTS);
    return rc;
}
