/* Shared by the measured products (cuda/gemm.c) and those of training (cuda/products.c): what both need of cuBLASLt. */
#ifndef CUDA_CUBLAS_H
#define CUDA_CUBLAS_H

#include <cublasLt.h>

#include "cuda/cuda.h"

#define CUDA_WORKSPACE_BYTES ((size_t)64 << 20)

/* Like cuda_check. */
int cuda_check_product(cublasStatus_t status, struct cb_err *err, const char *doing) CB_MUST_CHECK;
/* The algorithm that cuBLASLt proposes for out = a x b, with CUDA_WORKSPACE_BYTES; *found is false if it proposes none.
 * `alignments` are those of the addresses of a, b, the added matrix, and out; NULL if all are as returned by
 * cudaMalloc. */
int cuda_choose_product(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                        cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t out, const uint64_t *alignments,
                        cublasLtMatmulAlgo_t *algorithm, bool *found, struct cb_err *err) CB_MUST_CHECK;

#endif
