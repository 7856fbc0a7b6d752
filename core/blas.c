/* Loads the BLAS library behind matrix products, by its C interface (CBLAS). */
#include "core/blas.h"

#include <dlfcn.h>
#include <stddef.h>

/* From the CBLAS interface (netlib.org/blas/blast-forum/cblas.tgz). */
#define ROW_MAJOR 101
#define NO_TRANSPOSE 111
#define TRANSPOSE 112

static const char *const libraries[] = {"libopenblas.so.0", "libopenblas.so", "libblis.so.4", "libblas.so.3"};

/* ISO C does not allow a data pointer to become a function pointer; POSIX does. */
static bool find(void *library, const char *name, void (**function)(void))
{
    void *found = dlsym(library, name);
    *(void **)function = found;
    return found != NULL;
}

int blas_open(struct blas *self, struct cb_err *err)
{
    void (*set_threads)(int);
    *self = (struct blas){0};
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries && !self->library; i++) {
        self->library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
        self->name = libraries[i];
    }
    if (!self->library)
        return cb_fail(err, CB_ERR_NOT_FOUND,
                       "no BLAS library for matrix products here: install OpenBLAS (Debian: libopenblas0)");
    if (!find(self->library, "cblas_dgemm", (void (**)(void)) & self->dgemm) ||
        !find(self->library, "cblas_sgemm", (void (**)(void)) & self->sgemm)) {
        blas_close(self);
        return cb_fail(err, CB_ERR_NOT_FOUND, "%s has no CBLAS interface: install OpenBLAS (Debian: libopenblas0)",
                       self->name);
    }
    if (find(self->library, "openblas_set_num_threads", (void (**)(void)) & set_threads))
        set_threads(1);
    return 0;
}

void blas_close(struct blas *self)
{
    if (self->library)
        dlclose(self->library);
    self->library = NULL;
}

void blas_dgemm(const struct blas *self, bool transpose_a, bool transpose_b, int m, int n, int k, double alpha,
                const double *a, int lda, const double *b, int ldb, double beta, double *c, int ldc)
{
    self->dgemm(ROW_MAJOR, transpose_a ? TRANSPOSE : NO_TRANSPOSE, transpose_b ? TRANSPOSE : NO_TRANSPOSE, m, n, k,
                alpha, a, lda, b, ldb, beta, c, ldc);
}

void blas_sgemm(const struct blas *self, bool transpose_a, bool transpose_b, int m, int n, int k, float alpha,
                const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    self->sgemm(ROW_MAJOR, transpose_a ? TRANSPOSE : NO_TRANSPOSE, transpose_b ? TRANSPOSE : NO_TRANSPOSE, m, n, k,
                alpha, a, lda, b, ldb, beta, c, ldc);
}
