/* Matrix products of training by cuBLASLt, whose matrices are column-major: a row-major out = in x weight is its
 * column-major out' = weight' x in', so `weight` is cuBLASLt's A and `in` its B. What a shape requires (descriptions,
 * the algorithm that cuBLASLt proposes) is created at its first use and cached. fp32 throughout, as is PyTorch's
 * default; or both operands in bf16, with sums, base, bias and result in fp32. */
#include <stdlib.h>
#include <string.h>

#include "cuda/cublas.h"

#define MOST_PLANS 256
#define MOST_ALIGNMENT 256

/* Everything that may determine the algorithm. */
struct shape {
    uint64_t rows, inner, columns, in_stride, weight_stride, out_stride;
    uint64_t heads, in_head, weight_head, out_head;
    uint64_t in_alignment, weight_alignment, base_alignment, out_alignment;
    uint64_t in_transposed, weight_transposed, has_bias, bf16;
};

struct plan {
    struct shape shape;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t in, weight, out;
    cublasLtMatmulAlgo_t algorithm;
};

struct cuda_products {
    struct cuda_device *device;
    cublasLtHandle_t handle;
    void *workspace;
    struct plan plans[MOST_PLANS];
    size_t count, next; /* slot of the next plan */
};

int cuda_check_product(cublasStatus_t status, struct cb_err *err, const char *doing)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    return cb_fail(err, status == CUBLAS_STATUS_NOT_SUPPORTED ? CB_ERR_UNSUPPORTED : CB_ERR_SYSTEM, "cuBLASLt, %s: %s",
                   doing, cublasLtGetStatusString(status));
}

/* --- shapes --- */

/* The largest power of two that divides an address and the offsets from it. */
static uint64_t alignment_of(const void *address, uint64_t step, uint64_t another)
{
    uint64_t bits = (uint64_t)(uintptr_t)address | step * sizeof(float) | another * sizeof(float) | MOST_ALIGNMENT;
    return bits & (~bits + 1);
}

/* The operands as they are multiplied. */
struct operands {
    const void *in, *weight;
};

static struct operands operands_of(const struct device_product *product)
{
    if (!product->rounded)
        return (struct operands){product->in, product->weight};
    struct device_product_rounded rounded = device_product_rounded(product);
    return (struct operands){rounded.in, rounded.weight};
}

static struct shape shape_of(const struct device_product *product)
{
    const float *base = product->base ? product->base : product->out;
    struct operands operands = operands_of(product);
    return (struct shape){
        .rows = product->rows,
        .inner = product->inner,
        .columns = product->columns,
        .in_stride = product->in_stride,
        .weight_stride = product->weight_stride,
        .out_stride = product->out_stride,
        .heads = product->heads > 1 ? product->heads : 1,
        .in_head = product->in_head,
        .weight_head = product->weight_head,
        .out_head = product->out_head,
        .in_alignment = alignment_of(operands.in, product->in_head, product->in_sample),
        .weight_alignment = alignment_of(operands.weight, product->weight_head, product->weight_sample),
        .base_alignment = alignment_of(base, product->out_head, product->out_sample),
        .out_alignment = alignment_of(product->out, product->out_head, product->out_sample),
        .in_transposed = product->in_transposed,
        .weight_transposed = product->weight_transposed,
        .has_bias = product->bias != NULL,
        .bf16 = product->rounded != NULL,
    };
}

/* --- plans --- */

static void release_plan(struct plan *self)
{
    if (self->operation)
        (void)cublasLtMatmulDescDestroy(self->operation);
    if (self->in)
        (void)cublasLtMatrixLayoutDestroy(self->in);
    if (self->weight)
        (void)cublasLtMatrixLayoutDestroy(self->weight);
    if (self->out)
        (void)cublasLtMatrixLayoutDestroy(self->out);
    *self = (struct plan){0};
}

/* A row-major matrix of `rows` and `columns`, `heads` times. */
static int describe_matrix(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows, uint64_t columns,
                           uint64_t stride, uint64_t heads, uint64_t step, struct cb_err *err)
{
    int32_t count = (int32_t)heads;
    int64_t offset = (int64_t)step;
    int rc =
        cuda_check_product(cublasLtMatrixLayoutCreate(layout, type, columns, rows, (int64_t)stride), err, "describing");
    if (rc || heads == 1)
        return rc;
    rc = cuda_check_product(
        cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count), err,
        "describing");
    return rc ? rc
              : cuda_check_product(cublasLtMatrixLayoutSetAttribute(
                                       *layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset, sizeof offset),
                                   err, "describing");
}

static int set_operation(struct plan *self, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes,
                         struct cb_err *err)
{
    return cuda_check_product(cublasLtMatmulDescSetAttribute(self->operation, attribute, value, bytes), err,
                              "describing");
}

static int describe(struct plan *self, const float *bias, struct cb_err *err)
{
    const struct shape *shape = &self->shape;
    cudaDataType_t type = shape->bf16 ? CUDA_R_16BF : CUDA_R_32F;
    cublasOperation_t transpose = CUBLAS_OP_T;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    uint64_t in_rows = shape->in_transposed ? shape->inner : shape->rows;
    uint64_t weight_rows = shape->weight_transposed ? shape->columns : shape->inner;
    int rc = cuda_check_product(cublasLtMatmulDescCreate(&self->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), err,
                                "describing");
    if (!rc && shape->weight_transposed)
        rc = set_operation(self, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose, err);
    if (!rc && shape->in_transposed)
        rc = set_operation(self, CUBLASLT_MATMUL_DESC_TRANSB, &transpose, sizeof transpose, err);
    if (!rc && shape->has_bias)
        rc = set_operation(self, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue, err);
    if (!rc && shape->has_bias)
        rc = set_operation(self, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias, err);
    if (!rc)
        rc = describe_matrix(&self->in, type, in_rows, shape->in_transposed ? shape->rows : shape->inner,
                             shape->in_stride, shape->heads, shape->in_head, err);
    if (!rc)
        rc = describe_matrix(&self->weight, type, weight_rows, shape->weight_transposed ? shape->inner : shape->columns,
                             shape->weight_stride, shape->heads, shape->weight_head, err);
    if (!rc)
        rc = describe_matrix(&self->out, CUDA_R_32F, shape->rows, shape->columns, shape->out_stride, shape->heads,
                             shape->out_head, err);
    return rc;
}

static int set_alignment(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                         uint64_t value, struct cb_err *err)
{
    uint32_t alignment = (uint32_t)value;
    return cuda_check_product(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &alignment, sizeof alignment),
                              err, "choosing an algorithm");
}

int cuda_choose_product(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                        cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t out, const uint64_t *alignments,
                        cublasLtMatmulAlgo_t *algorithm, bool *found, struct cb_err *err)
{
    static const cublasLtMatmulPreferenceAttributes_t attributes[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t result;
    size_t workspace = CUDA_WORKSPACE_BYTES;
    int count = 0;
    int rc = cuda_check_product(cublasLtMatmulPreferenceCreate(&preference), err, "choosing an algorithm");
    if (!rc)
        rc = cuda_check_product(cublasLtMatmulPreferenceSetAttribute(
                                    preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace),
                                err, "choosing an algorithm");
    for (size_t i = 0; i < 4 && alignments && !rc; i++)
        rc = set_alignment(preference, attributes[i], alignments[i], err);
    if (!rc)
        rc = cuda_check_product(
            cublasLtMatmulAlgoGetHeuristic(handle, operation, a, b, out, out, preference, 1, &result, &count), err,
            "choosing an algorithm");
    if (preference)
        (void)cublasLtMatmulPreferenceDestroy(preference);
    *found = !rc && count > 0 && result.state == CUBLAS_STATUS_SUCCESS;
    if (*found)
        *algorithm = result.algo;
    return rc;
}

static int choose(const struct cuda_products *self, struct plan *plan, struct cb_err *err)
{
    const struct shape *shape = &plan->shape;
    const uint64_t alignments[] = {shape->weight_alignment, shape->in_alignment, shape->base_alignment,
                                   shape->out_alignment};
    bool found = false;
    int rc = cuda_choose_product(self->handle, plan->operation, plan->weight, plan->in, plan->out, alignments,
                                 &plan->algorithm, &found, err);
    if (rc || found)
        return rc;
    return cb_fail(err, CB_ERR_UNSUPPORTED, "cuBLASLt has no product of %llu x %llu x %llu on this GPU",
                   (unsigned long long)shape->rows, (unsigned long long)shape->inner,
                   (unsigned long long)shape->columns);
}

static int plan_for(struct cuda_products *self, const struct device_product *product, struct plan **plan,
                    struct cb_err *err)
{
    struct shape shape = shape_of(product);
    for (size_t i = 0; i < self->count; i++) {
        *plan = &self->plans[i];
        if (memcmp(&self->plans[i].shape, &shape, sizeof shape) == 0)
            return 0;
    }
    struct plan *fresh = &self->plans[self->next];
    release_plan(fresh); /* evicts the oldest if all slots are used */
    fresh->shape = shape;
    int rc = describe(fresh, product->bias, err);
    if (!rc)
        rc = choose(self, fresh, err);
    if (rc) {
        release_plan(fresh);
        return rc;
    }
    self->count = self->count > self->next ? self->count : self->next + 1;
    self->next = (self->next + 1) % MOST_PLANS;
    *plan = fresh;
    return 0;
}

/* --- products --- */

int cuda_products_new(struct cuda_device *device, struct cuda_products **products, struct cb_err *err)
{
    struct cuda_products *self = calloc(1, sizeof *self);
    if (!self)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for the products of training");
    self->device = device;
    int rc = cuda_allocate(device, CUDA_WORKSPACE_BYTES, &self->workspace, err);
    if (!rc)
        rc = cuda_check_product(cublasLtCreate(&self->handle), err, "starting");
    if (rc)
        cuda_products_free(self);
    else
        *products = self;
    return rc;
}

void cuda_products_free(struct cuda_products *self)
{
    if (!self)
        return;
    for (size_t i = 0; i < MOST_PLANS; i++)
        release_plan(&self->plans[i]);
    if (self->handle)
        (void)cublasLtDestroy(self->handle);
    (void)cudaFree(self->workspace);
    free(self);
}

int cuda_products_queue(struct cuda_products *self, const struct device_product *product, struct cb_err *err)
{
    const float zero = 0, one = 1;
    uint64_t samples = product->samples > 1 ? product->samples : 1;
    struct operands operands = operands_of(product);
    uint64_t bytes = product->rounded ? sizeof(uint16_t) : sizeof(float);
    struct plan *plan = NULL;
    int rc = plan_for(self, product, &plan, err);
    if (!rc && product->bias)
        rc = set_operation(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &product->bias, sizeof product->bias, err);
    for (uint64_t s = 0; s < samples && !rc; s++) {
        float *out = product->out + s * product->out_sample;
        rc = cuda_check_product(
            cublasLtMatmul(self->handle, plan->operation, &product->scale,
                           (const char *)operands.weight + s * product->weight_sample * bytes, plan->weight,
                           (const char *)operands.in + s * product->in_sample * bytes, plan->in,
                           product->base ? &one : &zero, product->base ? product->base : out, plan->out, out, plan->out,
                           &plan->algorithm, self->workspace, CUDA_WORKSPACE_BYTES, self->device->work.stream),
            err, "multiplying");
    }
    return rc;
}
