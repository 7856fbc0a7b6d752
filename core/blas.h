/* Matrix products by a BLAS library that is loaded at first use.
 *
 * Not linked: OpenBLAS starts one thread per core when it is loaded, which checkpoint ranks must not pay for.
 * Matrices are row-major, dimensions below 2^31. */
#ifndef CORE_BLAS_H
#define CORE_BLAS_H

#include <stdbool.h>

#include "core/err.h"

struct blas {
    void *library;
    void (*dgemm)(int, int, int, int, int, int, double, const double *, int, const double *, int, double, double *,
                  int);
    void (*sgemm)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
    const char *name; /* "libopenblas.so.0" */
};

/* CB_ERR_NOT_FOUND, with the package to install, if there is no library. Computes in the calling thread. */
int blas_open(struct blas *self, struct cb_err *err) CB_MUST_CHECK;
void blas_close(struct blas *self);

/* C = alpha A' B' + beta C, where A' (m x k) and B' (k x n) are A and B or their transposes; the leading dimensions
 * are those of the matrices as stored. */
void blas_dgemm(const struct blas *self, bool transpose_a, bool transpose_b, int m, int n, int k, double alpha,
                const double *a, int lda, const double *b, int ldb, double beta, double *c, int ldc);
void blas_sgemm(const struct blas *self, bool transpose_a, bool transpose_b, int m, int n, int k, float alpha,
                const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);

#endif
