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
/* What a thread takes at a time. The threads take turns instead of having an equal share each: one that gets no core for
 * a while holds up the copy by at most the chunk that it has. */
#define CHUNK_BYTES (UINT64_C(1024) * 1024)
#define MAX_THREADS 64

struct host;

struct helper {
    struct host *host;
    pthread_t thread;
    sem_t start; /* posted when there may be chunks to take */
};

struct host {
    struct device base;
    uint32_t helper_count; /* threads besides the caller's */
    struct helper helpers[MAX_THREADS];
    uint64_t recorded;
    pthread_mutex_t lock;
    pthread_cond_t all_copied;
    /* under the lock: the current batch */
    bool leave;
    const struct device_copy *copies;
    size_t count;
    size_t next;    /* the copy that the next chunk begins in, */
    uint64_t at;    /* and where in its rows, put one after the other */
    uint32_t taken; /* chunks that are being copied */
};

/* --- one row --- */

#if defined(__x86_64__)
/* Rows are streamed eight pages side by side, which keeps more of the memory's channels busy than one page after the
 * other: two threads with 1 GiB each took 0.098 s instead of 0.125 s (two cores of an Intel Xeon). */
#define PAGE_BYTES UINT64_C(4096)
#define PAGES_AT_ONCE 8

__attribute__((target("avx2"), always_inline)) static inline void stream_128(char *to, const char *from)
{
    __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)from);
    __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + 32));
    __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(from + 64));
    __m256i d = _mm256_loadu_si256((const __m256i *)(const void *)(from + 96));
    _mm256_stream_si256((__m256i *)(void *)to, a);
    _mm256_stream_si256((__m256i *)(void *)(to + 32), b);
    _mm256_stream_si256((__m256i *)(void *)(to + 64), c);
    _mm256_stream_si256((__m256i *)(void *)(to + 96), d);
}

/* memcpy uses streaming stores only for copies longer than a request. */
__attribute__((target("avx2"))) static void stream(char *to, const char *from, uint64_t bytes)
{
    uint64_t head = (32 - (uintptr_t)to % 32) % 32;
    memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= PAGES_AT_ONCE * PAGE_BYTES; bytes -= PAGES_AT_ONCE * PAGE_BYTES) {
        for (uint64_t i = 0; i < PAGE_BYTES; i += 128)
            for (uint64_t page = 0; page < PAGES_AT_ONCE; page++)
                stream_128(to + page * PAGE_BYTES + i, from + page * PAGE_BYTES + i);
        to += PAGES_AT_ONCE * PAGE_BYTES, from += PAGES_AT_ONCE * PAGE_BYTES;
    }
    for (; bytes >= 128; bytes -= 128, to += 128, from += 128)
        stream_128(to, from);
    _mm_sfence();
    memcpy(to, from, bytes);
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

/* --- chunks of a batch --- */

/* A part of a batch: from byte `at` of its copy `first`. */
struct chunk {
    size_t first;
    uint64_t at, bytes;
};

static uint64_t bytes_of(const struct device_copy *copy)
{
    return copy->row_bytes * copy->rows;
}

/* Takes the next chunk; false if all are taken. The caller holds the lock. */
static bool take_chunk(struct host *self, struct chunk *chunk)
{
    *chunk = (struct chunk){.first = self->next, .at = self->at};
    while (self->next < self->count && chunk->bytes < CHUNK_BYTES) {
        uint64_t left = bytes_of(&self->copies[self->next]) - self->at, room = CHUNK_BYTES - chunk->bytes;
        chunk->bytes += left < room ? left : room;
        self->at += left < room ? left : room;
        if (left <= room) {
            self->next++;
            self->at = 0;
        }
    }
    return chunk->bytes > 0;
}

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

static void copy_chunk(const struct device_copy *copies, const struct chunk *chunk)
{
    uint64_t at = chunk->at, left = chunk->bytes;
    for (const struct device_copy *copy = &copies[chunk->first]; left > 0; copy++, at = 0) {
        uint64_t bytes = bytes_of(copy) - at < left ? bytes_of(copy) - at : left;
        copy_within(copy, at, at + bytes);
        left -= bytes;
    }
}

/* Copies chunks until none is left, with the lock held. */
static void copy_chunks(struct host *self)
{
    struct chunk chunk;
    while (take_chunk(self, &chunk)) {
        const struct device_copy *copies = self->copies;
        self->taken++;
        pthread_mutex_unlock(&self->lock);
        copy_chunk(copies, &chunk);
        pthread_mutex_lock(&self->lock);
        if (--self->taken == 0)
            pthread_cond_signal(&self->all_copied);
    }
}

static void *help(void *context)
{
    struct helper *helper = context;
    struct host *host = helper->host;
    for (bool leave = false; !leave;) {
        while (sem_wait(&helper->start) != 0)
            ;
        pthread_mutex_lock(&host->lock);
        copy_chunks(host); /* of a later batch, if this thread got no core in time */
        leave = host->leave;
        pthread_mutex_unlock(&host->lock);
    }
    return NULL;
}

static int host_copy(struct device *device, enum device_direction direction, const struct device_copy *copies,
                     size_t count, struct cb_err *err)
{
    (void)direction, (void)err;
    struct host *self = (struct host *)device;
    uint64_t bytes = 0;
    for (size_t i = 0; i < count && bytes <= self->helper_count * CHUNK_BYTES; i++)
        bytes += bytes_of(&copies[i]);
    pthread_mutex_lock(&self->lock);
    self->copies = copies;
    self->count = count;
    self->next = 0;
    self->at = 0;
    for (uint32_t i = 0; i < self->helper_count && bytes > (i + 1) * CHUNK_BYTES; i++)
        sem_post(&self->helpers[i].start);
    copy_chunks(self);
    while (self->taken > 0)
        pthread_cond_wait(&self->all_copied, &self->lock);
    pthread_mutex_unlock(&self->lock);
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
    pthread_mutex_lock(&self->lock);
    self->leave = true;
    pthread_mutex_unlock(&self->lock);
    for (uint32_t i = 0; i < self->helper_count; i++) {
        sem_post(&self->helpers[i].start);
        pthread_join(self->helpers[i].thread, NULL);
        sem_destroy(&self->helpers[i].start);
    }
    pthread_cond_destroy(&self->all_copied);
    pthread_mutex_destroy(&self->lock);
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
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->all_copied, NULL);
    for (uint32_t i = 1; i < threads && i < MAX_THREADS; i++) {
        struct helper *helper = &self->helpers[i - 1];
        helper->host = self;
        sem_init(&helper->start, 0, 0);
        int failed = pthread_create(&helper->thread, NULL, help, helper);
        if (failed) {
            char what[64];
            snprintf(what, sizeof what, "copying thread %u of %u", i, threads - 1);
            sem_destroy(&helper->start);
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
