/* Measures a device: memory bandwidth, transfers to and from this machine, launches. Each figure is the median of
 * some rounds after a warm-up round, and the moved data is verified. */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "cuda/cuda.h"
#include "cuda/value_kernels.h"
#include "engine/huge_memory.h"

#define LAUNCHES 1000
#define SCALAR 3.0
#define LOOKS 4096 /* elements of a copy that are compared on the host */

/* Doubles (ckpt/payload.h) with the key `key`. */
static struct values_job doubles(uint64_t count, uint64_t key)
{
    return (struct values_job){.form = VALUES_F64,
                               .element_bytes = sizeof(double),
                               .dims = 1,
                               .key = key,
                               .count = count,
                               .size = {count},
                               .shape = {count}};
}

/* --- on the device --- */

struct arrays {
    struct cuda_device *device;
    double *a, *b, *c;
    uint64_t count;
    bool is_triad; /* if not, a plain copy */
};

static int make_arrays(struct arrays *self, struct cb_err *err)
{
    uint64_t bytes = self->count * sizeof(double);
    struct values_job b = doubles(self->count, 1), c = doubles(self->count, 2);
    int rc = cuda_allocate(self->device, bytes, (void **)&self->a, err);
    if (!rc)
        rc = cuda_allocate(self->device, bytes, (void **)&self->b, err);
    if (!rc)
        rc = cuda_allocate(self->device, bytes, (void **)&self->c, err);
    if (!rc)
        rc = cuda_check((cudaError_t)kernels_fill(&b, self->b, self->device->work.stream), err, "filling");
    if (!rc)
        rc = cuda_check((cudaError_t)kernels_fill(&c, self->c, self->device->work.stream), err, "filling");
    return rc ? rc : cuda_synchronize(self->device, err);
}

static int queue_inside(const void *context, struct cb_err *err)
{
    const struct arrays *self = context;
    cudaStream_t stream = self->device->work.stream;
    if (self->is_triad)
        return cuda_check((cudaError_t)kernels_triad(self->a, self->b, self->c, SCALAR, self->count, stream), err,
                          "triad");
    return cuda_check(cudaMemcpyAsync(self->a, self->b, self->count * sizeof(double), cudaMemcpyDeviceToDevice, stream),
                      err, "copying inside the GPU");
}

/* Number of wrong elements in `a`. */
static int count_wrong(const struct arrays *self, uint64_t *wrong, struct cb_err *err)
{
    cudaStream_t stream = self->device->work.stream;
    struct values_job b = doubles(self->count, 1);
    uint64_t result[2] = {0, UINT64_MAX};
    int rc = cuda_check(cudaMemcpyAsync(self->device->result, result, sizeof result, cudaMemcpyHostToDevice, stream),
                        err, "comparing");
    if (!rc)
        rc = cuda_check(self->is_triad ? (cudaError_t)kernels_triad_check(self->a, self->b, self->c, SCALAR,
                                                                          self->count, self->device->result, stream)
                                       : (cudaError_t)kernels_check(&b, self->a, self->device->result, stream),
                        err, "comparing");
    if (!rc)
        rc = cuda_check(cudaMemcpyAsync(result, self->device->result, sizeof result, cudaMemcpyDeviceToHost, stream),
                        err, "comparing");
    if (!rc)
        rc = cuda_synchronize(self->device, err);
    *wrong = result[0];
    return rc;
}

static int measure_inside(struct cuda_device *device, bool is_triad, uint64_t bytes, double *value, struct cb_err *err)
{
    struct arrays arrays = {.device = device, .count = bytes / sizeof(double), .is_triad = is_triad};
    double seconds = 0;
    uint64_t wrong = 0;
    int rc = make_arrays(&arrays, err);
    if (!rc)
        rc = cuda_time(device, queue_inside, &arrays, 1, &seconds, err);
    if (!rc)
        rc = count_wrong(&arrays, &wrong, err);
    (void)cudaFree(arrays.a);
    (void)cudaFree(arrays.b);
    (void)cudaFree(arrays.c);
    if (rc)
        return rc;
    if (wrong)
        return cb_fail(err, CB_ERR_CORRUPT, "%llu of %llu elements in the GPU's memory are wrong",
                       (unsigned long long)wrong, (unsigned long long)arrays.count);
    *value = (double)((is_triad ? 3 : 2) * arrays.count * sizeof(double)) / seconds;
    return 0;
}

/* --- to and from the device --- */

struct crossing {
    struct cuda_device *device;
    bool to_host, pinned;
    void *host, *own;
    uint64_t bytes;
};

static bool host_is_right(const struct crossing *self)
{
    uint64_t count = self->bytes / sizeof(double);
    struct values_job job = doubles(count, 3);
    for (uint64_t i = 0; i < LOOKS; i++) {
        uint32_t words[4];
        uint64_t at = i * (count - 1) / (LOOKS - 1);
        values_element(&job, at, words);
        if (memcmp((const char *)self->host + at * sizeof(double), words, sizeof(double)) != 0)
            return false;
    }
    return true;
}

static int cross_once(const struct crossing *self, double *seconds, struct cb_err *err)
{
    cudaStream_t stream = self->device->work.stream;
    uint64_t start_ns = clock_monotonic_ns();
    int rc =
        cuda_check(self->to_host ? cudaMemcpyAsync(self->host, self->own, self->bytes, cudaMemcpyDeviceToHost, stream)
                                 : cudaMemcpyAsync(self->own, self->host, self->bytes, cudaMemcpyHostToDevice, stream),
                   err, "copying");
    if (!rc)
        rc = cuda_synchronize(self->device, err);
    *seconds = (double)(clock_monotonic_ns() - start_ns) / 1e9;
    return rc;
}

/* Prepares the data on the source side, so that the copy can be verified. */
static int fill_source(const struct crossing *self, struct cb_err *err)
{
    struct values_job job = doubles(self->bytes / sizeof(double), 3);
    double unused;
    struct crossing back = *self;
    int rc = cuda_check((cudaError_t)kernels_fill(&job, self->own, self->device->work.stream), err, "filling");
    back.to_host = true;
    if (!rc && !self->to_host)
        rc = cross_once(&back, &unused, err);
    if (!rc && !self->to_host) /* the copy back must really overwrite this */
        rc = cuda_check(cudaMemsetAsync(self->own, 0xEE, self->bytes, self->device->work.stream), err, "overwriting");
    return rc ? rc : cuda_synchronize(self->device, err);
}

static int look(const struct crossing *self, struct cb_err *err)
{
    struct crossing back = *self;
    double unused;
    int rc = 0;
    back.to_host = true;
    if (!self->to_host) {
        memset(self->host, 0, self->bytes);
        rc = cross_once(&back, &unused, err);
    }
    if (!rc && !host_is_right(self))
        rc = cb_fail(err, CB_ERR_CORRUPT, "what was copied %s the GPU is not what was there",
                     self->to_host ? "from" : "to");
    return rc;
}

static int measure_crossing(struct crossing *self, double *value, struct cb_err *err)
{
    double seconds[CUDA_ROUNDS], unused;
    self->bytes = self->bytes / sizeof(double) * sizeof(double);
    int rc = huge_memory_map(self->bytes, &self->host, err);
    if (rc)
        return rc;
    bool registered = false;
    if (self->pinned) {
        rc = cuda_check(cudaHostRegister(self->host, self->bytes, cudaHostRegisterDefault), err, "pinning memory");
        registered = rc == 0;
    }
    if (!rc)
        rc = cuda_allocate(self->device, self->bytes, &self->own, err);
    if (!rc)
        rc = fill_source(self, err);
    if (!rc)
        rc = cross_once(self, &unused, err);
    for (size_t i = 0; i < CUDA_ROUNDS && !rc; i++)
        rc = cross_once(self, &seconds[i], err);
    if (!rc)
        rc = look(self, err);
    if (registered)
        (void)cudaHostUnregister(self->host);
    (void)cudaFree(self->own);
    huge_memory_unmap(self->host, self->bytes);
    if (!rc)
        *value = (double)self->bytes / cuda_median(seconds, CUDA_ROUNDS);
    return rc;
}

/* --- launches --- */

static int measure_launch(struct cuda_device *device, double *value, struct cb_err *err)
{
    double *seconds = calloc(LAUNCHES, sizeof *seconds);
    int rc = seconds ? 0 : cb_fail(err, CB_ERR_MEMORY, "no memory for %d times", LAUNCHES);
    for (int i = -LAUNCHES / 10; i < LAUNCHES && !rc; i++) {
        uint64_t start_ns = clock_monotonic_ns();
        rc = cuda_check((cudaError_t)kernels_empty(device->work.stream), err, "launching a kernel");
        if (!rc)
            rc = cuda_synchronize(device, err);
        if (i >= 0)
            seconds[i] = (double)(clock_monotonic_ns() - start_ns) / 1e9;
    }
    if (!rc)
        *value = cuda_median(seconds, LAUNCHES);
    free(seconds);
    return rc;
}

int cuda_measure(struct device *device, enum device_measure what, uint64_t size, double *value, struct cb_err *err)
{
    struct cuda_device *self = (struct cuda_device *)device;
    struct crossing crossing = {.device = self, .bytes = size};
    int rc = cuda_use(self, err);
    if (rc)
        return rc;
    switch (what) {
    case DEVICE_MEASURE_COPY:
    case DEVICE_MEASURE_TRIAD:
        return measure_inside(self, what == DEVICE_MEASURE_TRIAD, size, value, err);
    case DEVICE_MEASURE_TO_DEVICE:
    case DEVICE_MEASURE_TO_HOST:
    case DEVICE_MEASURE_TO_DEVICE_PAGEABLE:
    case DEVICE_MEASURE_TO_HOST_PAGEABLE:
        crossing.to_host = what == DEVICE_MEASURE_TO_HOST || what == DEVICE_MEASURE_TO_HOST_PAGEABLE;
        crossing.pinned = what == DEVICE_MEASURE_TO_DEVICE || what == DEVICE_MEASURE_TO_HOST;
        return measure_crossing(&crossing, value, err);
    case DEVICE_MEASURE_LAUNCH:
        return measure_launch(self, value, err);
    default:
        return cuda_measure_gemm(self, what, size, value, err);
    }
}
