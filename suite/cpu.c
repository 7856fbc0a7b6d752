/* Cores: matrix products, dependent integer operations, compression of real weights, sorting. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#ifdef HAVE_ZLIB
#include <zlib.h>
#endif

#include "ckpt/payload.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "suite/suite.h"

#define INTEGER_OPERATIONS UINT64_C(100000000)
#define OPERATIONS_A_STEP 3 /* multiply, shift, add */
#define COMPRESS_BYTES (UINT64_C(8) << 20)
#define COMPRESS_LEVEL 6
#define SORT_COUNT (UINT64_C(1) << 22)
#define DIGIT_BITS 11
#define DIGITS (1u << DIGIT_BITS)
#define ALIGNMENT 64

static double seconds_since(uint64_t start_ns)
{
    return (double)(clock_monotonic_ns() - start_ns) / 1e9;
}

struct gemm {
    int n;
    double *a, *b, *c, *x; /* x: a vector, with room for its three products */
};

static void gemm_free(struct gemm *self)
{
    free(self->a);
    free(self->b);
    free(self->c);
    free(self->x);
}

static double small_number(uint64_t index)
{
    return (double)(index * UINT64_C(2654435761) % 1000) / 1000.0 - 0.5;
}

static int gemm_init(struct gemm *self, int n, struct cb_err *err)
{
    size_t cells = (size_t)n * (size_t)n, bytes = cells * sizeof(double);
    *self = (struct gemm){.n = n,
                          .a = aligned_alloc(ALIGNMENT, bytes),
                          .b = aligned_alloc(ALIGNMENT, bytes),
                          .c = aligned_alloc(ALIGNMENT, bytes),
                          .x = calloc(4 * (size_t)n, sizeof(double))};
    if (!self->a || !self->b || !self->c || !self->x) {
        gemm_free(self);
        return alloc_fail(err, "for three matrices of %d x %d", n, n);
    }
    for (size_t i = 0; i < cells; i++) {
        self->a[i] = small_number(i);
        self->b[i] = small_number(i + 17);
        self->c[i] = 0;
    }
    return 0;
}

static void multiply_vector(const double *matrix, const double *x, double *y, int n)
{
    for (int i = 0; i < n; i++) {
        y[i] = 0;
        for (int k = 0; k < n; k++)
            y[i] += matrix[(size_t)i * (size_t)n + (size_t)k] * x[k];
    }
}

/* Compares C x with A (B x): a wrong cell shows for any x without zeros (Freivalds, 1977). */
static bool gemm_is_right(struct gemm *self)
{
    int n = self->n;
    double *x = self->x, *bx = x + n, *abx = bx + n, *cx = abx + n;
    for (int i = 0; i < n; i++)
        x[i] = 1.0 + small_number((uint64_t)i + 3);
    multiply_vector(self->b, x, bx, n);
    multiply_vector(self->a, bx, abx, n);
    multiply_vector(self->c, x, cx, n);
    for (int i = 0; i < n; i++)
        if (!(fabs(cx[i] - abx[i]) <= 1e-9 * n * (1 + fabs(abx[i]))))
            return false;
    return true;
}

/* Operations per second of one product; the first, untimed product touches the memory and initialises the library. */
static int time_gemm(struct suite *self, int n, double *flops, struct cb_err *err)
{
    struct gemm gemm;
    int rc = gemm_init(&gemm, n, err);
    if (rc)
        return rc;
    int small = n < 512 ? n : 512;
    blas_dgemm(&self->blas, false, false, small, small, small, 1, gemm.a, n, gemm.b, n, 0, gemm.c, n);
    uint64_t start_ns = clock_monotonic_ns();
    blas_dgemm(&self->blas, false, false, n, n, n, 1, gemm.a, n, gemm.b, n, 0, gemm.c, n);
    *flops = 2.0 * n * n * n / seconds_since(start_ns);
    if (!gemm_is_right(&gemm))
        rc = cb_fail(err, CB_ERR_CORRUPT, "a product of matrices of %d x %d is wrong on rank %u", n, n,
                     comm_rank(self->comm));
    gemm_free(&gemm);
    return rc;
}

static int measure_gemm(struct suite *self, struct sample *sample, struct cb_err *err)
{
    int n = (int)experiment_u64(self->experiment, OPT_SUITE_GEMM_SIZE), rc = 0;
    double mine = 0;
    if (!self->has_blas)
        return 0;
    if (self->nodes.local_rank == 0)
        rc = time_gemm(self, n, &sample->values[METRIC_CPU_GEMM_FLOPS], err);
    rc = suite_join(self, rc, err);
    if (!rc)
        rc = suite_join(self, time_gemm(self, n < SUITE_NODE_GEMM_SIZE ? n : SUITE_NODE_GEMM_SIZE, &mine, err), err);
    return rc ? rc : suite_sum_of_node(self, mine, &sample->values[METRIC_CPU_GEMM_NODE_FLOPS], err);
}

/* Each step depends on the one before, so that neither compiler nor vector unit can run several at once. */
static uint64_t churn(uint64_t steps)
{
    uint64_t value = 88172645463325252u;
    for (uint64_t i = 0; i < steps; i++)
        value = value * UINT64_C(6364136223846793005) + (value >> 33);
    return value;
}

static int measure_integers(struct suite *self, struct sample *sample, struct cb_err *err)
{
    volatile uint64_t kept;
    uint64_t start_ns = clock_monotonic_ns();
    kept = churn(INTEGER_OPERATIONS / OPERATIONS_A_STEP);
    (void)kept;
    double mine = (double)INTEGER_OPERATIONS / seconds_since(start_ns);
    return suite_sum_of_node(self, mine, &sample->values[METRIC_CPU_INTEGER_OPS_PER_S], err);
}

#ifdef HAVE_ZLIB
static int time_compression(const struct suite *self, enum dtype dtype, double *bytes_per_s, double *ratio,
                            struct cb_err *err)
{
    struct payload_source source = {.kind = PAYLOAD_WEIGHTS,
                                    .dtype = dtype,
                                    .key = payload_key(experiment_u64(self->experiment, OPT_SEED), "suite")};
    unsigned char *in = malloc(COMPRESS_BYTES), *out = malloc(compressBound(COMPRESS_BYTES));
    unsigned char *back = malloc(COMPRESS_BYTES);
    uLongf packed = compressBound(COMPRESS_BYTES), unpacked = COMPRESS_BYTES;
    int rc = in && out && back ? 0 : alloc_fail(err, "to compress");
    if (!rc) {
        payload_fill(&source, 0, in, COMPRESS_BYTES / dtype_bytes(dtype));
        uint64_t start_ns = clock_monotonic_ns();
        bool done = compress2(out, &packed, in, COMPRESS_BYTES, COMPRESS_LEVEL) == Z_OK;
        *bytes_per_s = (double)COMPRESS_BYTES / seconds_since(start_ns);
        *ratio = (double)COMPRESS_BYTES / (double)packed;
        if (!done || uncompress(back, &unpacked, out, packed) != Z_OK || memcmp(in, back, COMPRESS_BYTES) != 0)
            rc = cb_fail(err, CB_ERR_CORRUPT, "what was compressed is not what comes out again");
    }
    free(in);
    free(out);
    free(back);
    return rc;
}
#endif

static int measure_compression(struct suite *self, struct sample *sample, bool last, struct cb_err *err)
{
    int rc = 0;
#ifdef HAVE_ZLIB
    static const struct {
        enum dtype dtype;
        enum metric_id rate, ratio;
    } tests[] = {{DTYPE_BF16, METRIC_CPU_COMPRESS_BYTES_PER_S, METRIC_CPU_COMPRESS_RATIO},
                 {DTYPE_F32, METRIC_CPU_COMPRESS_FP32_BYTES_PER_S, METRIC_CPU_COMPRESS_FP32_RATIO}};
    (void)last;
    for (size_t i = 0; i < sizeof tests / sizeof *tests && !rc; i++) {
        double mine = 0;
        rc = suite_join(self, time_compression(self, tests[i].dtype, &mine, &sample->values[tests[i].ratio], err), err);
        if (!rc)
            rc = suite_sum_of_node(self, mine, &sample->values[tests[i].rate], err);
    }
#else
    (void)sample;
    (void)err;
    if (last)
        suite_skip(self, "cpu.compress", "this build has no zlib");
#endif
    return rc;
}

/* Radix sort, least significant digit first; the number of passes is even, so the sorted keys end up in `keys`. */
static void radix_sort(uint64_t *keys, uint64_t *other, size_t count)
{
    for (unsigned shift = 0; shift < 6 * DIGIT_BITS; shift += DIGIT_BITS) {
        size_t places[DIGITS] = {0}, sum = 0;
        for (size_t i = 0; i < count; i++)
            places[keys[i] >> shift & (DIGITS - 1)]++;
        for (unsigned digit = 0; digit < DIGITS; digit++) {
            size_t here = places[digit];
            places[digit] = sum;
            sum += here;
        }
        for (size_t i = 0; i < count; i++)
            other[places[keys[i] >> shift & (DIGITS - 1)]++] = keys[i];
        uint64_t *swap = keys;
        keys = other;
        other = swap;
    }
}

static int measure_sort(struct suite *self, struct sample *sample, struct cb_err *err)
{
    uint64_t *keys = malloc(SORT_COUNT * sizeof *keys), *other = calloc(SORT_COUNT, sizeof *other);
    uint64_t state = comm_rank(self->comm) + 1, start_ns = 0;
    double mine = 0;
    int rc = keys && other ? 0 : alloc_fail(err, "to sort %llu keys", (unsigned long long)SORT_COUNT);
    for (size_t i = 0; i < SORT_COUNT && !rc; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        keys[i] = state;
    }
    if (!rc) {
        start_ns = clock_monotonic_ns();
        radix_sort(keys, other, SORT_COUNT);
        mine = (double)SORT_COUNT / seconds_since(start_ns);
    }
    for (size_t i = 1; i < SORT_COUNT && !rc; i++)
        if (keys[i - 1] > keys[i])
            rc = cb_fail(err, CB_ERR_CORRUPT, "sorted keys are not in order at %zu", i);
    free(keys);
    free(other);
    rc = suite_join(self, rc, err);
    return rc ? rc : suite_sum_of_node(self, mine, &sample->values[METRIC_CPU_SORT_ELEMENTS_PER_S], err);
}

int suite_cpu(struct suite *self, struct sample *sample, bool last, struct cb_err *err)
{
    int rc = measure_gemm(self, sample, err);
    if (!rc)
        rc = measure_integers(self, sample, err);
    if (!rc)
        rc = measure_compression(self, sample, last, err);
    return rc ? rc : measure_sort(self, sample, err);
}
