/* Shared by the files of the plugin. The worker sees only its table (engine/device_plugin.h). */
#ifndef CUDA_CUDA_H
#define CUDA_CUDA_H

#include <cuda_runtime_api.h>

#include "engine/device_plugin.h"

#define CUDA_EVENTS 1024 /* limit of a stream's events that are pending */

/* A stream and the events recorded on it: event n is events[n % CUDA_EVENTS]. */
struct cuda_lane {
    cudaStream_t stream;
    cudaEvent_t events[CUDA_EVENTS];
    uint64_t recorded, done;
};

/* Events with times. The first was over when the monotonic clock showed `base_ns`; a mark is the index of another. */
struct cuda_marks {
    cudaEvent_t *events; /* kept until the device is closed, and recorded again after begin_marks */
    size_t made, room;
    uint64_t count, base_ns;
};

struct cuda_device {
    struct device base;
    int index;
    struct cuda_lane work; /* copies, and kernels on values */
    struct cuda_lane talk; /* operations of communicators */
    cudaEvent_t fence;     /* recorded on one stream, awaited at once by another */
    uint64_t *result;      /* two words in device memory */
    struct cuda_marks marks;
};

/* Device `index` with its stream and events. */
int cuda_device_open(uint32_t index, struct device **device, struct cb_err *err) CB_MUST_CHECK;

/* 0 if a call succeeded; else sets the error and clears CUDA's, unless the device is lost. `doing` describes the
 * operation for the message. */
int cuda_check(cudaError_t code, struct cb_err *err, const char *doing) CB_MUST_CHECK;
/* Makes the device current for this thread's calls. */
int cuda_use(const struct cuda_device *self, struct cb_err *err) CB_MUST_CHECK;
/* Waits until everything queued on the stream is done. */
int cuda_synchronize(const struct cuda_device *self, struct cb_err *err) CB_MUST_CHECK;
/* One copy, or a copy of rows, on a stream. */
cudaError_t cuda_queue_copy(cudaStream_t stream, enum device_direction direction, const struct device_copy *copy);
extern const char *const cuda_copy_names[]; /* by direction, for messages */
/* Events of a stream; the device must be current. */
int cuda_lane_record(struct cuda_lane *self, uint64_t *event, struct cb_err *err) CB_MUST_CHECK;
int cuda_lane_poll(struct cuda_lane *self, uint64_t event, bool *done, struct cb_err *err) CB_MUST_CHECK;
/* Marks a moment of a stream (engine/device.h); the device must be current. */
int cuda_mark(struct cuda_device *self, cudaStream_t stream, uint64_t *mark, struct cb_err *err) CB_MUST_CHECK;
/* Pauses before the next poll of something awaited since `start_ns`: not at all for `spin_ns`, then with a short
 * sleep. */
void cuda_pause(uint64_t start_ns, uint64_t spin_ns);
/* Temporary device memory; a failure names the requested and the free bytes. */
int cuda_allocate(const struct cuda_device *self, uint64_t bytes, void **memory, struct cb_err *err) CB_MUST_CHECK;

/* cuda/cuda_measure.c, cuda/gemm.c, cuda/activity.c, cuda/nccl_comm.c */
int cuda_measure(struct device *device, enum device_measure what, uint64_t size, double *value,
                 struct cb_err *err) CB_MUST_CHECK;
int cuda_measure_gemm(struct cuda_device *device, enum device_measure what, uint64_t rows, double *flops,
                      struct cb_err *err) CB_MUST_CHECK;
int cuda_gemm_open(struct device *device, enum device_measure type, uint64_t rows, struct device_gemm **gemm,
                   struct cb_err *err) CB_MUST_CHECK;
int cuda_gemm_queue(struct device_gemm *self, uint32_t count, struct cb_err *err) CB_MUST_CHECK;
int cuda_gemm_check(struct device_gemm *self, struct cb_err *err) CB_MUST_CHECK;
void cuda_gemm_close(struct device_gemm *self);
int cuda_start_activity(struct device *device, struct cb_err *err) CB_MUST_CHECK;
int cuda_stop_activity(struct device *device, device_activity_function *take, void *context, uint64_t *lost,
                       struct cb_err *err) CB_MUST_CHECK;
extern const struct device_comm_ops cuda_comm_ops;

/* cuda/cuda_math.c */
int cuda_open_math(struct device *device, struct device_math **math, struct cb_err *err) CB_MUST_CHECK;

/* cuda/cufile.c */
int cuda_open_files(struct device *device, struct device_files **files, struct cb_err *err) CB_MUST_CHECK;

/* cuda/products.c: matrix products of training, each shape described to cuBLASLt once. */
struct cuda_products;
int cuda_products_new(struct cuda_device *device, struct cuda_products **products, struct cb_err *err) CB_MUST_CHECK;
void cuda_products_free(struct cuda_products *self);
/* If the product is in bf16, its operands have been rounded. */
int cuda_products_queue(struct cuda_products *self, const struct device_product *product,
                        struct cb_err *err) CB_MUST_CHECK;

/* Seconds that the work queued by `queue` takes, by events of the device's stream: the median of CUDA_ROUNDS rounds
 * after `warmups`. */
#define CUDA_ROUNDS 9
int cuda_time(const struct cuda_device *self, int (*queue)(const void *context, struct cb_err *err),
              const void *context, unsigned warmups, double *seconds, struct cb_err *err) CB_MUST_CHECK;
/* The median of `count` values; sorts them. */
double cuda_median(double *values, size_t count);

#endif
