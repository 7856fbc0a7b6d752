/* Inside the plugin: what its files share. Only cuda/ knows CUDA; the worker knows its table
 * (engine/device_plugin.h). */
#ifndef CUDA_CUDA_H
#define CUDA_CUDA_H

#include <cuda_runtime_api.h>

#include "engine/device_plugin.h"

#define CUDA_EVENTS 1024 /* of a stream, that may be under way */

/* A stream and the events recorded on it: number n is events[n % CUDA_EVENTS]. */
struct cuda_lane {
    cudaStream_t stream;
    cudaEvent_t events[CUDA_EVENTS];
    uint64_t recorded, done;
};

struct cuda_device {
    struct device base;
    int index;
    struct cuda_lane work; /* copies, and what is done to values */
    struct cuda_lane talk; /* what communicators queue */
    cudaEvent_t fence;     /* of `work`, that `talk` waits for */
    uint64_t *result;      /* two words in the device's memory */
};

/* Device `index` with its stream and events. */
int cuda_device_open(uint32_t index, struct device **device, struct cb_err *err) CB_MUST_CHECK;

/* 0 where a call went well; else the sentence, and CUDA forgets it unless the device is lost. `doing` says what was tried. */
int cuda_check(cudaError_t code, struct cb_err *err, const char *doing) CB_MUST_CHECK;
/* This thread's calls are for the device from now on. */
int cuda_use(const struct cuda_device *self, struct cb_err *err) CB_MUST_CHECK;
/* Until all that was queued on the stream is done. */
int cuda_synchronize(const struct cuda_device *self, struct cb_err *err) CB_MUST_CHECK;
/* One copy, or rows, on a stream. */
cudaError_t cuda_queue_copy(cudaStream_t stream, enum device_direction direction, const struct device_copy *copy);
/* Events of a stream; the device must be in use. */
int cuda_lane_record(struct cuda_lane *self, uint64_t *event, struct cb_err *err) CB_MUST_CHECK;
int cuda_lane_poll(struct cuda_lane *self, uint64_t event, bool *done, struct cb_err *err) CB_MUST_CHECK;
/* Before asking again for what has been waited for since `start_ns`: at once for `spin_ns`, then after a nap. */
void cuda_pause(uint64_t start_ns, uint64_t spin_ns);
/* Memory of the device, for a moment; the sentence names what was asked and what is free. */
int cuda_allocate(const struct cuda_device *self, uint64_t bytes, void **memory, struct cb_err *err) CB_MUST_CHECK;

/* cuda_measure.c, gemm.c, nccl_comm.c */
int cuda_measure(struct device *device, enum device_measure what, uint64_t size, double *value,
                 struct cb_err *err) CB_MUST_CHECK;
int cuda_measure_gemm(struct cuda_device *device, enum device_measure what, uint64_t rows, double *flops,
                      struct cb_err *err) CB_MUST_CHECK;
extern const struct device_comm_ops cuda_comm_ops;
/* The same as cuda_check, of a cublasStatus_t. */
int cuda_check_product(int code, struct cb_err *err, const char *doing) CB_MUST_CHECK;

/* cuda_math.c */
int cuda_open_math(struct device *device, struct device_math **math, struct cb_err *err) CB_MUST_CHECK;

/* products.c: products of training, each shape described to cuBLASLt once. */
struct cuda_products;
int cuda_products_new(struct cuda_device *device, struct cuda_products **products, struct cb_err *err) CB_MUST_CHECK;
void cuda_products_free(struct cuda_products *self);
int cuda_products_queue(struct cuda_products *self, const struct device_product *product,
                        struct cb_err *err) CB_MUST_CHECK;

/* Seconds between two events of a stream, both done. */
int cuda_elapsed(cudaEvent_t begin, cudaEvent_t end, double *seconds, struct cb_err *err) CB_MUST_CHECK;
/* The median of `count` values, which are put in order. */
double cuda_median(double *values, size_t count);

#endif
