/* The CUDA device: memory, copies on a stream of their own, events, values generated and compared on the device.
 *
 * Copies are queued and only the wait call waits for them; an error of a copy is reported by the poll or wait of a
 * later event, as CUDA keeps it until then. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/units.h"
#include "cuda/cuda.h"
#include "cuda/value_kernels.h"
#include "engine/huge_memory.h"

/* cudaMemcpy2DAsync rejects a larger pitch: such rows are copied one by one. */
#define MOST_PITCH_BYTES ((uint64_t)INT32_MAX)
#define SPIN_NS (50 * NS_PER_US)
#define SLEEP_NS (20 * NS_PER_US)
#define MARKS_FIRST 256

static struct cuda_device *cast(struct device *device)
{
    return (struct cuda_device *)device;
}

int cuda_check(cudaError_t code, struct cb_err *err, const char *doing)
{
    if (code == cudaSuccess)
        return 0;
    (void)cudaGetLastError(); /* otherwise the next launch would report it again */
    return cb_fail(err, code == cudaErrorMemoryAllocation ? CB_ERR_MEMORY : CB_ERR_SYSTEM, "%s: %s (%s)", doing,
                   cudaGetErrorString(code), cudaGetErrorName(code));
}

int cuda_use(const struct cuda_device *self, struct cb_err *err)
{
    return cuda_check(cudaSetDevice(self->index), err, "using the GPU");
}

int cuda_synchronize(const struct cuda_device *self, struct cb_err *err)
{
    return cuda_check(cudaStreamSynchronize(self->work.stream), err, "waiting for the GPU");
}

/* --- memory --- */

int cuda_allocate(const struct cuda_device *self, uint64_t bytes, void **memory, struct cb_err *err)
{
    char asked[32], had[32];
    size_t free_bytes = 0, total_bytes = 0;
    int rc = cuda_use(self, err);
    if (rc)
        return rc;
    cudaError_t code = cudaMalloc(memory, bytes > 0 ? bytes : 1);
    if (code == cudaSuccess)
        return 0;
    (void)cudaGetLastError();
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    return cb_fail(err, code == cudaErrorMemoryAllocation ? CB_ERR_MEMORY : CB_ERR_SYSTEM,
                   "%s of memory on GPU %d, which has %s free: %s; a smaller model, more ranks or layers=N need less",
                   units_format_bytes((double)bytes, asked), self->index, units_format_bytes((double)free_bytes, had),
                   cudaGetErrorString(code));
}

static int allocate_pinned(const struct cuda_device *self, uint64_t bytes, void **memory, struct cb_err *err)
{
    void *mapped = NULL;
    int rc = cuda_use(self, err);
    if (!rc)
        rc = huge_memory_map(bytes, &mapped, err);
    if (rc)
        return rc;
    rc = cuda_check(cudaHostRegister(mapped, bytes, cudaHostRegisterPortable), err, "pinning memory of this machine");
    if (rc)
        huge_memory_unmap(mapped, bytes);
    else
        *memory = mapped;
    return rc;
}

static int device_allocate(struct device *device, enum memory_kind kind, uint64_t bytes, void **memory,
                           struct cb_err *err)
{
    return kind == MEMORY_DEVICE ? cuda_allocate(cast(device), bytes, memory, err)
                                 : allocate_pinned(cast(device), bytes, memory, err);
}

/* Cannot report errors: a failed device reports at the next call that can. Waits for pending copies first, even if a
 * caller gave up waiting for them. */
static void device_release(struct device *device, enum memory_kind kind, void *memory, uint64_t bytes)
{
    if (!memory || cudaSetDevice(cast(device)->index) != cudaSuccess)
        return;
    if (kind == MEMORY_DEVICE) {
        (void)cudaFree(memory);
    } else {
        (void)cudaStreamSynchronize(cast(device)->work.stream);
        (void)cudaHostUnregister(memory);
        huge_memory_unmap(memory, bytes);
    }
}

/* --- copies --- */

const char *const cuda_copy_names[] = {"copying from the GPU", "copying to the GPU", "copying inside the GPU"};

cudaError_t cuda_queue_copy(cudaStream_t stream, enum device_direction direction, const struct device_copy *copy)
{
    enum cudaMemcpyKind kind = direction == DEVICE_TO_HOST   ? cudaMemcpyDeviceToHost
                               : direction == HOST_TO_DEVICE ? cudaMemcpyHostToDevice
                                                             : cudaMemcpyDeviceToDevice;
    if (copy->rows == 0 || copy->row_bytes == 0)
        return cudaSuccess;
    bool joined = copy->to_stride == copy->row_bytes && copy->from_stride == copy->row_bytes;
    if (copy->rows == 1 || joined)
        return cudaMemcpyAsync(copy->to, copy->from, copy->rows * copy->row_bytes, kind, stream);
    if (copy->to_stride <= MOST_PITCH_BYTES && copy->from_stride <= MOST_PITCH_BYTES)
        return cudaMemcpy2DAsync(copy->to, copy->to_stride, copy->from, copy->from_stride, copy->row_bytes, copy->rows,
                                 kind, stream);
    cudaError_t code = cudaSuccess;
    for (uint64_t row = 0; row < copy->rows && code == cudaSuccess; row++)
        code = cudaMemcpyAsync((char *)copy->to + row * copy->to_stride,
                               (const char *)copy->from + row * copy->from_stride, copy->row_bytes, kind, stream);
    return code;
}

static int device_copy(struct device *device, enum device_direction direction, const struct device_copy *copies,
                       size_t count, struct cb_err *err)
{
    struct cuda_device *self = cast(device);
    int rc = cuda_use(self, err);
    for (size_t i = 0; i < count && !rc; i++)
        rc = cuda_check(cuda_queue_copy(self->work.stream, direction, &copies[i]), err, cuda_copy_names[direction]);
    return rc;
}

/* --- events --- */

static int device_follow(struct device *device, void *stream, struct cb_err *err)
{
    struct cuda_device *self = cast(device);
    int rc = cuda_use(self, err);
    if (!rc)
        rc = cuda_check(cudaEventRecord(self->fence, stream), err, "marking the place in the program's stream");
    return rc ? rc : cuda_check(cudaStreamWaitEvent(self->work.stream, self->fence, 0), err, "ordering streams");
}

int cuda_lane_record(struct cuda_lane *self, uint64_t *event, struct cb_err *err)
{
    int rc = 0;
    if (self->recorded - self->done >= CUDA_EVENTS - 1) { /* reuses the slot of the oldest event */
        rc = cuda_check(cudaEventSynchronize(self->events[(self->done + 1) % CUDA_EVENTS]), err, "waiting for the GPU");
        self->done += rc ? 0 : 1;
    }
    if (!rc)
        rc = cuda_check(cudaEventRecord(self->events[(self->recorded + 1) % CUDA_EVENTS], self->stream), err,
                        "recording an event");
    if (!rc)
        *event = ++self->recorded;
    return rc;
}

int cuda_lane_poll(struct cuda_lane *self, uint64_t event, bool *done, struct cb_err *err)
{
    *done = event <= self->done;
    if (*done)
        return 0;
    cudaError_t code = cudaEventQuery(self->events[event % CUDA_EVENTS]);
    if (code == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* not an error, so a later launch must not report it */
        return 0;
    }
    int rc = cuda_check(code, err, "what was queued on the GPU");
    if (!rc) {
        self->done = event; /* one stream: earlier events are done, too */
        *done = true;
    }
    return rc;
}

void cuda_pause(uint64_t start_ns, uint64_t spin_ns)
{
    struct timespec pause = {.tv_nsec = SLEEP_NS};
    if (clock_monotonic_ns() - start_ns > spin_ns)
        nanosleep(&pause, NULL);
}

static int device_record(struct device *device, uint64_t *event, struct cb_err *err)
{
    int rc = cuda_use(cast(device), err);
    return rc ? rc : cuda_lane_record(&cast(device)->work, event, err);
}

static int device_poll(struct device *device, uint64_t event, bool *done, struct cb_err *err)
{
    int rc = cuda_use(cast(device), err);
    return rc ? rc : cuda_lane_poll(&cast(device)->work, event, done, err);
}

static int device_wait(struct device *device, uint64_t event, uint64_t deadline_ns, struct cb_err *err)
{
    uint64_t start_ns = clock_monotonic_ns();
    bool done = false;
    for (;;) {
        int rc = device_poll(device, event, &done, err);
        if (rc || done)
            return rc;
        if (clock_monotonic_ns() >= deadline_ns)
            return cb_fail(err, CB_ERR_TIMEOUT, "the deadline passed while the GPU was still at work");
        cuda_pause(start_ns, SPIN_NS);
    }
}

/* --- marks --- */

static int make_mark(struct cuda_marks *self, struct cb_err *err)
{
    if (self->made == self->room) {
        size_t room = self->room ? 2 * self->room : MARKS_FIRST;
        cudaEvent_t *events = realloc(self->events, room * sizeof *events);
        if (!events)
            return cb_fail(err, CB_ERR_MEMORY, "no memory for %zu times of the GPU: trace fewer steps", room);
        self->events = events;
        self->room = room;
    }
    int rc = cuda_check(cudaEventCreate(&self->events[self->made]), err, "making an event");
    self->made += rc ? 0 : 1;
    return rc;
}

int cuda_mark(struct cuda_device *self, cudaStream_t stream, uint64_t *mark, struct cb_err *err)
{
    struct cuda_marks *marks = &self->marks;
    int rc = marks->count == marks->made ? make_mark(marks, err) : 0;
    if (!rc)
        rc = cuda_check(cudaEventRecord(marks->events[marks->count], stream), err, "recording a time");
    if (!rc)
        *mark = marks->count++;
    return rc;
}

/* The event is over between two readings of the clock, so their middle is wrong by at most half of what is between them. */
static int device_begin_marks(struct device *device, struct cb_err *err)
{
    struct cuda_device *self = cast(device);
    uint64_t base;
    int rc = cuda_use(self, err);
    self->marks.count = 0;
    uint64_t before_ns = clock_monotonic_ns();
    if (!rc)
        rc = cuda_mark(self, self->work.stream, &base, err);
    if (!rc)
        rc = cuda_check(cudaEventSynchronize(self->marks.events[base]), err, "waiting for the first time of a step");
    self->marks.base_ns = before_ns + (clock_monotonic_ns() - before_ns) / 2;
    return rc;
}

static int device_mark(struct device *device, uint64_t *mark, struct cb_err *err)
{
    int rc = cuda_use(cast(device), err);
    return rc ? rc : cuda_mark(cast(device), cast(device)->work.stream, mark, err);
}

static int device_mark_ns(struct device *device, uint64_t mark, uint64_t *ns, struct cb_err *err)
{
    const struct cuda_marks *marks = &cast(device)->marks;
    float milliseconds = 0;
    if (mark >= marks->count)
        return cb_fail(err, CB_ERR_INTERNAL, "a time of the GPU that was not asked for");
    int rc = cuda_use(cast(device), err);
    if (rc)
        return rc;
    cudaError_t code = cudaEventElapsedTime(&milliseconds, marks->events[0], marks->events[mark]);
    if (code == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return cb_fail(err, CB_ERR_ABORTED, "the GPU has not come to where its time was asked");
    }
    rc = cuda_check(code, err, "asking for a time");
    if (!rc)
        *ns = marks->base_ns + (uint64_t)((double)milliseconds * NS_PER_MS);
    return rc;
}

/* --- values --- */

static int device_set(struct device *device, void *memory, unsigned char byte, uint64_t bytes, struct cb_err *err)
{
    struct cuda_device *self = cast(device);
    int rc = cuda_use(self, err);
    if (!rc)
        rc = cuda_check(cudaMemsetAsync(memory, byte, bytes, self->work.stream), err, "overwriting memory of the GPU");
    return rc ? rc : cuda_synchronize(self, err);
}

static int device_fill(struct device *device, const struct device_values *values, void *memory, struct cb_err *err)
{
    struct cuda_device *self = cast(device);
    struct values_job job;
    values_job_make(values, &job);
    int rc = cuda_use(self, err);
    if (!rc)
        rc = cuda_check((cudaError_t)kernels_fill(&job, memory, self->work.stream), err, "filling memory of the GPU");
    return rc ? rc : cuda_synchronize(self, err);
}

static int device_compare(struct device *device, const struct device_values *values, const void *memory,
                          struct device_difference *difference, struct cb_err *err)
{
    struct cuda_device *self = cast(device);
    struct values_job job;
    uint64_t result[2] = {0, UINT64_MAX};
    values_job_make(values, &job);
    int rc = cuda_use(self, err);
    if (!rc)
        rc = cuda_check(cudaMemcpyAsync(self->result, result, sizeof result, cudaMemcpyHostToDevice, self->work.stream),
                        err, "comparing memory of the GPU");
    if (!rc)
        rc = cuda_check((cudaError_t)kernels_check(&job, memory, self->result, self->work.stream), err,
                        "comparing memory of the GPU");
    if (!rc)
        rc = cuda_check(cudaMemcpyAsync(result, self->result, sizeof result, cudaMemcpyDeviceToHost, self->work.stream),
                        err, "comparing memory of the GPU");
    if (!rc)
        rc = cuda_synchronize(self, err);
    if (!rc)
        *difference = (struct device_difference){.wrong = result[0], .first = result[1]};
    return rc;
}

/* --- opening and closing --- */

static void end_lane(struct cuda_lane *self)
{
    for (size_t i = 0; i < CUDA_EVENTS && self->events[i]; i++)
        (void)cudaEventDestroy(self->events[i]);
    if (self->stream)
        (void)cudaStreamDestroy(self->stream);
}

/* Call after its communicators are freed, and when nothing is pending. */
static void device_end(struct device *device)
{
    struct cuda_device *self = cast(device);
    if (cudaSetDevice(self->index) == cudaSuccess) {
        end_lane(&self->work);
        end_lane(&self->talk);
        if (self->fence)
            (void)cudaEventDestroy(self->fence);
        for (size_t i = 0; i < self->marks.made; i++)
            (void)cudaEventDestroy(self->marks.events[i]);
        (void)cudaFree(self->result);
    }
    free(self->marks.events);
    free(self);
}

static const struct device_ops cuda_ops = {
    .version = DEVICE_VERSION,
    .name = "cuda",
    .allocate = device_allocate,
    .release = device_release,
    .copy = device_copy,
    .follow = device_follow,
    .record = device_record,
    .poll = device_poll,
    .wait = device_wait,
    .begin_marks = device_begin_marks,
    .mark = device_mark,
    .mark_ns = device_mark_ns,
    .set = device_set,
    .fill = device_fill,
    .check = device_compare,
    .open_files = cuda_open_files,
    .close = device_end,
};

static int prepare_lane(struct cuda_lane *self, struct cb_err *err)
{
    int rc = cuda_check(cudaStreamCreateWithFlags(&self->stream, cudaStreamNonBlocking), err, "making a stream");
    for (size_t i = 0; i < CUDA_EVENTS && !rc; i++)
        rc = cuda_check(cudaEventCreateWithFlags(&self->events[i], cudaEventDisableTiming), err, "making events");
    return rc;
}

static int prepare(struct cuda_device *self, struct cb_err *err)
{
    int rc = cuda_use(self, err);
    if (!rc)
        rc = prepare_lane(&self->work, err);
    if (!rc)
        rc = prepare_lane(&self->talk, err);
    if (!rc)
        rc = cuda_check(cudaEventCreateWithFlags(&self->fence, cudaEventDisableTiming), err, "making events");
    if (!rc)
        rc = cuda_check(cudaMalloc((void **)&self->result, 2 * sizeof *self->result), err, "memory of the GPU");
    return rc;
}

int cuda_device_open(uint32_t index, struct device **device, struct cb_err *err)
{
    struct cuda_device *self = calloc(1, sizeof *self);
    if (!self)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for the GPU's events");
    self->base.ops = &cuda_ops;
    self->index = (int)index;
    int rc = prepare(self, err);
    if (rc)
        device_end(&self->base);
    else
        *device = &self->base;
    return rc ? cb_context(err, "GPU %d", (int)index) : 0;
}

/* --- timing --- */

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

double cuda_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static int time_once(const struct cuda_device *self, int (*queue)(const void *context, struct cb_err *err),
                     const void *context, const cudaEvent_t events[2], double *seconds, struct cb_err *err)
{
    float milliseconds = 0;
    int rc = cuda_check(cudaEventRecord(events[0], self->work.stream), err, "timing");
    if (!rc)
        rc = queue(context, err);
    if (!rc)
        rc = cuda_check(cudaEventRecord(events[1], self->work.stream), err, "timing");
    if (!rc)
        rc = cuda_synchronize(self, err);
    if (!rc)
        rc = cuda_check(cudaEventElapsedTime(&milliseconds, events[0], events[1]), err, "timing");
    *seconds = (double)milliseconds / 1e3;
    return rc;
}

int cuda_time(const struct cuda_device *self, int (*queue)(const void *context, struct cb_err *err),
              const void *context, unsigned warmups, double *seconds, struct cb_err *err)
{
    double rounds[CUDA_ROUNDS], unused;
    cudaEvent_t events[2] = {NULL, NULL};
    int rc = 0;
    for (size_t i = 0; i < 2 && !rc; i++)
        rc = cuda_check(cudaEventCreate(&events[i]), err, "making an event");
    for (unsigned i = 0; i < warmups + CUDA_ROUNDS && !rc; i++)
        rc = time_once(self, queue, context, events, i < warmups ? &unused : &rounds[i - warmups], err);
    for (size_t i = 0; i < 2; i++)
        if (events[i])
            (void)cudaEventDestroy(events[i]);
    if (!rc)
        *seconds = cuda_median(rounds, CUDA_ROUNDS);
    return rc;
}
