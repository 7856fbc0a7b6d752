/* The `host` device: host memory, copied immediately on this rank's cores.
 *
 * Large rows are copied with streaming stores, past the caches: the copy is read next by a disk controller, or much later,
 * and an ordinary store would first read the memory that it overwrites. */
#include "core/alloc.h"
#include "engine/device.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

#include "core/rlimits.h"
#include "engine/huge_memory.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Smaller copies are likely to be read again from the cache. */
#define STREAM_BYTES (UINT64_C(256) * 1024)
/* Passing a smaller slice to another thread costs more than copying it. */
#define SLICE_BYTES (UINT64_C(1024) * 1024)
#define MAX_THREADS 64

struct host;

struct helper {
    struct host *host;
    pthread_t thread;
    uint32_t number; /* of its slice; the caller's is 0 */
};

struct host {
    struct device base;
    uint32_t threads; /* that work on a batch, the caller included */
    uint32_t helper_count;
    struct helper helpers[MAX_THREADS];
    sem_t start[MAX_THREADS], done;
    bool leave;
    uint64_t recorded;
    /* of the current batch */
    const struct device_copy *copies;
    size_t count;
    uint64_t bytes;
    uint32_t slices;
};

/* --- one row --- */

#if defined(__x86_64__)
/* memcpy uses streaming stores only for copies longer than a request. */
__attribute__((target("avx2"))) static void stream(char *to, const char *from, uint64_t bytes)
{
    uint64_t head = (32 - (uintptr_t)to % 32) % 32;
    memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    uint64_t body = bytes / 128 * 128;
    for (uint64_t i = 0; i < body; i += 128) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(from + i));
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + i + 32));
        __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(from + i + 64));
        __m256i d = _mm256_loadu_si256((const __m256i *)(const void *)(from + i + 96));
        _mm256_stream_si256((__m256i *)(void *)(to + i), a);
        _mm256_stream_si256((__m256i *)(void *)(to + i + 32), b);
        _mm256_stream_si256((__m256i *)(void *)(to + i + 64), c);
        _mm256_stream_si256((__m256i *)(void *)(to + i + 96), d);
    }
    _mm_sfence();
    memcpy(to + body, from + body, bytes - body);
}

static bool can_stream(void)
{
    return __builtin_cpu_supports("avx2");
}
#else
static void stream(char *to, const char *from, uint64_t bytes)
{
    memcpy(to, from, bytes);
}

static bool can_stream(void)
{
    return false;
}
#endif

static void copy_bytes(void *to, const void *from, uint64_t bytes)
{
    if (bytes >= STREAM_BYTES && can_stream())
        stream(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

/* --- slices of a batch --- */

/* Copies bytes [begin, end) of the concatenated rows. */
static void copy_within(const struct device_copy *copy, uint64_t begin, uint64_t end)
{
    while (begin < end) {
        uint64_t row = begin / copy->row_bytes, at = begin % copy->row_bytes;
        uint64_t bytes = copy->row_bytes - at < end - begin ? copy->row_bytes - at : end - begin;
        copy_bytes((char *)copy->to + row * copy->to_stride + at,
                   (const char *)copy->from + row * copy->from_stride + at, bytes);
        begin += bytes;
    }
}

static void copy_slice(const struct host *self, uint32_t number)
{
    uint64_t begin = self->bytes / self->slices * number;
    uint64_t end = number + 1 == self->slices ? self->bytes : self->bytes / self->slices * (number + 1);
    uint64_t position = 0;
    for (size_t i = 0; i < self->count && position < end; i++) {
        const struct device_copy *copy = &self->copies[i];
        uint64_t bytes = copy->row_bytes * copy->rows;
        if (position + bytes > begin) {
            uint64_t from = begin > position ? begin - position : 0;
            copy_within(copy, from, end - position < bytes ? end - position : bytes);
        }
        position += bytes;
    }
}

static void *help(void *context)
{
    struct helper *helper = context;
    struct host *host = helper->host;
    for (;;) {
        while (sem_wait(&host->start[helper->number]) != 0)
            ;
        if (host->leave)
            return NULL;
        copy_slice(host, helper->number);
        sem_post(&host->done);
    }
}

static int host_copy(struct device *device, enum device_direction direction, const struct device_copy *copies,
                     size_t count, struct cb_err *err)
{
    (void)direction, (void)err;
    struct host *self = (struct host *)device;
    self->copies = copies;
    self->count = count;
    self->bytes = 0;
    for (size_t i = 0; i < count; i++)
        self->bytes += copies[i].row_bytes * copies[i].rows;
    uint64_t slices = self->bytes / SLICE_BYTES + 1;
    self->slices = slices < self->helper_count + 1 ? (uint32_t)slices : self->helper_count + 1;
    for (uint32_t i = 1; i < self->slices; i++)
        sem_post(&self->start[i]);
    copy_slice(self, 0);
    for (uint32_t i = 1; i < self->slices; i++) {
        while (sem_wait(&self->done) != 0)
            ;
    }
    return 0;
}

/* --- events: everything is done when copy returns --- */

static int host_record(struct device *device, uint64_t *event, struct cb_err *err)
{
    (void)err;
    *event = ++((struct host *)device)->recorded;
    return 0;
}

static int host_poll(struct device *device, uint64_t event, bool *done, struct cb_err *err)
{
    (void)device, (void)event, (void)err;
    *done = true;
    return 0;
}

static int host_wait(struct device *device, uint64_t event, uint64_t deadline_ns, struct cb_err *err)
{
    (void)device, (void)event, (void)deadline_ns, (void)err;
    return 0;
}

/* --- memory --- */

static int host_allocate(struct device *device, enum memory_kind kind, uint64_t bytes, void **memory,
                         struct cb_err *err)
{
    (void)device;
    if (kind == MEMORY_DEVICE)
        return cb_fail(err, CB_ERR_UNSUPPORTED, "the host device has no memory of its own");
    return huge_memory_map(bytes, memory, err);
}

static void host_release(struct device *device, enum memory_kind kind, void *memory, uint64_t bytes)
{
    (void)device, (void)kind;
    huge_memory_unmap(memory, bytes);
}

static void host_close(struct device *device)
{
    struct host *self = (struct host *)device;
    self->leave = true;
    for (uint32_t i = 0; i < self->helper_count; i++) {
        sem_post(&self->start[i + 1]);
        pthread_join(self->helpers[i].thread, NULL);
    }
    for (uint32_t i = 0; i < self->threads; i++)
        sem_destroy(&self->start[i]);
    sem_destroy(&self->done);
    free(self);
}

static const struct device_ops host_ops = {
    .version = DEVICE_VERSION,
    .name = "host",
    .allocate = host_allocate,
    .release = host_release,
    .copy = host_copy,
    .record = host_record,
    .poll = host_poll,
    .wait = host_wait,
    .close = host_close,
};

int device_host_open(uint32_t threads, struct device **device, struct cb_err *err)
{
    struct host *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for the copying threads");
    self->base.ops = &host_ops;
    self->threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
    sem_init(&self->done, 0, 0);
    for (uint32_t i = 0; i < self->threads; i++)
        sem_init(&self->start[i], 0, 0);
    for (uint32_t i = 1; i < self->threads; i++) {
        struct helper *helper = &self->helpers[i - 1];
        *helper = (struct helper){.host = self, .number = i};
        int failed = pthread_create(&helper->thread, NULL, help, helper);
        if (failed) {
            char what[64];
            snprintf(what, sizeof what, "copying thread %u of %u", i, self->threads - 1);
            host_close(&self->base);
            return rlimits_fail_thread(failed, what, err);
        }
        self->helper_count++;
    }
    *device = &self->base;
    return 0;
}

void device_close(struct device *self)
{
    if (self)
        self->ops->close(self);
}

uint32_t device_host_cores(void)
{
    cpu_set_t allowed;
    int count = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
    return count > 0 ? (uint32_t)count : 1;
}
