/* Kernels and copies of this process's GPUs, by CUPTI's Activity API. Its library is loaded when a trace begins: nothing else
 * needs it, and a process that no trace asks about does without. */
#if __has_include(<cupti.h>)
#include <cupti.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "cuda/cuda.h"

#define BUFFER_BYTES ((size_t)4 << 20)
#define BUFFERS_MOST 256 /* beyond that CUPTI counts what it loses */

/* The functions used, with the types of CUPTI's own header. */
#define FUNCTIONS(each)                                                                                                \
    each(cuptiSubscribe) each(cuptiUnsubscribe) each(cuptiActivityRegisterCallbacks) each(cuptiActivityEnable)         \
        each(cuptiActivityDisable) each(cuptiActivityFlushAll) each(cuptiActivityGetNextRecord)                        \
            each(cuptiActivityGetNumDroppedRecords) each(cuptiGetTimestamp) each(cuptiGetResultString)
#define POINTER(name) __typeof__(name) *name##_;
struct cupti {
    FUNCTIONS(POINTER)
    bool is_loaded;
};

/* A buffer of records; they follow. */
struct buffer {
    struct buffer *next;
    uint64_t valid_bytes;
};

/* CUPTI's callbacks have no argument of ours, and CUPTI itself is one for the process. */
static struct {
    pthread_mutex_t lock; /* of the list, since CUPTI's own thread completes buffers */
    struct buffer *completed;
    size_t made;
    struct cupti cupti;
    CUpti_SubscriberHandle subscriber;
    uint64_t cupti_ns, monotonic_ns; /* the same moment by both clocks */
} recording = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                           CUPTI_ACTIVITY_KIND_MEMSET};
#define KINDS (sizeof kinds / sizeof *kinds)

/* Of the C++ ABI, which has no header for C. */
char *__cxa_demangle(const char *mangled, char *text, size_t *bytes, int *status);

/* --- loading --- */

static int load(struct cupti *self, struct cb_err *err)
{
    char name[32];
    if (self->is_loaded)
        return 0;
    snprintf(name, sizeof name, "libcupti.so.%d", CUDART_VERSION / 1000);
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return cb_fail(err, CB_ERR_UNSUPPORTED,
                       "%s cannot be loaded (%s): it is part of CUDA, and of nvidia-cuda-cupti", name, dlerror());
    bool all = true;
#define FIND(name)                                                                                                     \
    *(void **)&self->name##_ = dlsym(library, #name);                                                                  \
    all = all && self->name##_;
    FUNCTIONS(FIND)
    self->is_loaded = all;
    if (!all) {
        dlclose(library);
        return cb_fail(err, CB_ERR_UNSUPPORTED, "%s lacks functions of CUDA %d's", name, CUDART_VERSION / 1000);
    }
    return 0;
}

static int check(CUptiResult code, struct cb_err *err, const char *doing)
{
    const char *text = NULL, *hint = "";
    if (code == CUPTI_SUCCESS)
        return 0;
    if (code == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
        hint = "; another profiler observes this process";
    if (code == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)
        hint = "; this machine's driver lets only administrators profile";
    (void)recording.cupti.cuptiGetResultString_(code, &text);
    return cb_fail(err, CB_ERR_UNSUPPORTED, "CUPTI, %s: %s%s", doing, text ? text : "unknown error", hint);
}

/* --- callbacks --- */

static void CUPTIAPI give_buffer(uint8_t **bytes, size_t *size, size_t *most_records)
{
    pthread_mutex_lock(&recording.lock);
    bool may = recording.made < BUFFERS_MOST;
    recording.made += may ? 1 : 0;
    pthread_mutex_unlock(&recording.lock);
    struct buffer *buffer = may ? malloc(sizeof *buffer + BUFFER_BYTES) : NULL;
    *bytes = buffer ? (uint8_t *)(buffer + 1) : NULL;
    *size = buffer ? BUFFER_BYTES : 0;
    *most_records = 0; /* as many as fit */
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *bytes, size_t size, size_t valid_bytes)
{
    (void)context, (void)stream, (void)size;
    struct buffer *buffer = (struct buffer *)(void *)bytes - 1;
    buffer->valid_bytes = valid_bytes;
    pthread_mutex_lock(&recording.lock);
    buffer->next = recording.completed;
    recording.completed = buffer;
    pthread_mutex_unlock(&recording.lock);
}

/* Required for being the one subscriber; no callback is enabled. */
static void CUPTIAPI ignore(void *context, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data)
{
    (void)context, (void)domain, (void)id, (void)data;
}

/* --- start and stop --- */

static void disable(size_t count)
{
    for (size_t i = 0; i < count; i++)
        (void)recording.cupti.cuptiActivityDisable_(kinds[i]);
}

/* The closest of a few readings: a process that waits for a core in the middle of one would move every kernel. */
static int compare_clocks(struct cb_err *err)
{
    uint64_t closest_ns = UINT64_MAX, cupti_ns = 0;
    for (int reading = 0; reading < 8; reading++) {
        uint64_t before_ns = clock_monotonic_ns();
        int rc = check(recording.cupti.cuptiGetTimestamp_(&cupti_ns), err, "asking for the time");
        uint64_t apart_ns = clock_monotonic_ns() - before_ns;
        if (rc)
            return rc;
        if (apart_ns >= closest_ns)
            continue;
        closest_ns = apart_ns;
        recording.cupti_ns = cupti_ns;
        recording.monotonic_ns = before_ns + apart_ns / 2;
    }
    return 0;
}

static int enable(struct cb_err *err)
{
    const struct cupti *cupti = &recording.cupti;
    size_t enabled = 0;
    int rc = check(cupti->cuptiActivityRegisterCallbacks_(give_buffer, take_buffer), err, "preparing");
    for (; enabled < KINDS && !rc; enabled += rc ? 0 : 1)
        rc = check(cupti->cuptiActivityEnable_(kinds[enabled]), err, "starting to record");
    if (!rc)
        rc = compare_clocks(err);
    if (rc)
        disable(enabled);
    return rc;
}

int cuda_start_activity(struct device *device, struct cb_err *err)
{
    (void)device; /* CUPTI records the process */
    const struct cupti *cupti = &recording.cupti;
    int rc = load(&recording.cupti, err);
    if (!rc)
        rc = check(cupti->cuptiSubscribe_(&recording.subscriber, ignore, NULL), err, "starting");
    if (rc)
        return rc;
    rc = enable(err);
    if (rc)
        (void)cupti->cuptiUnsubscribe_(recording.subscriber);
    return rc;
}

struct taker {
    device_activity_function *take;
    void *context;
    uint64_t lost;
};

static uint64_t monotonic(uint64_t cupti_ns)
{
    return recording.monotonic_ns + (cupti_ns - recording.cupti_ns); /* modulo 2^64, also before that moment */
}

static const char *copy_name(uint8_t kind)
{
    return kind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? "Memcpy HtoD"
           : kind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "Memcpy DtoH"
           : kind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOD ? "Memcpy DtoD"
                                                     : "Memcpy";
}

static void give(struct taker *taker, struct device_activity activity)
{
    if (activity.start_ns == 0 || activity.end_ns < activity.start_ns) { /* it has not ended */
        taker->lost++;
        return;
    }
    activity.start_ns = monotonic(activity.start_ns);
    activity.end_ns = monotonic(activity.end_ns);
    taker->take(taker->context, &activity);
}

static void give_kernel(struct taker *taker, const CUpti_ActivityKernel10 *kernel)
{
    int status = -1;
    char *readable = kernel->name ? __cxa_demangle(kernel->name, NULL, NULL, &status) : NULL;
    const char *name = readable ? readable : kernel->name ? kernel->name : "kernel";
    give(taker, (struct device_activity){.kind = DEVICE_KERNEL,
                                         .name = name,
                                         .stream = kernel->streamId,
                                         .start_ns = kernel->start,
                                         .end_ns = kernel->end});
    free(readable);
}

static void give_record(struct taker *taker, const CUpti_Activity *record)
{
    const void *of_kind = record;
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
        give_kernel(taker, of_kind);
    if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const CUpti_ActivityMemcpy6 *copy = of_kind;
        give(taker, (struct device_activity){.kind = DEVICE_COPY,
                                             .name = copy_name(copy->copyKind),
                                             .stream = copy->streamId,
                                             .start_ns = copy->start,
                                             .end_ns = copy->end,
                                             .bytes = copy->bytes});
    }
    if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const CUpti_ActivityMemset4 *set = of_kind;
        give(taker, (struct device_activity){.kind = DEVICE_COPY,
                                             .name = "Memset",
                                             .stream = set->streamId,
                                             .start_ns = set->start,
                                             .end_ns = set->end,
                                             .bytes = set->bytes});
    }
}

/* The next completed buffer; NULL: none is left. */
static struct buffer *next_buffer(void)
{
    pthread_mutex_lock(&recording.lock);
    struct buffer *buffer = recording.completed;
    if (buffer) {
        recording.completed = buffer->next;
        recording.made--;
    }
    pthread_mutex_unlock(&recording.lock);
    return buffer;
}

int cuda_stop_activity(struct device *device, device_activity_function *take, void *context, uint64_t *lost,
                       struct cb_err *err)
{
    const struct cupti *cupti = &recording.cupti;
    struct taker taker = {.take = take, .context = context};
    size_t dropped = 0;
    (void)device;
    disable(KINDS);
    int rc = check(cupti->cuptiActivityFlushAll_(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), err, "collecting");
    (void)cupti->cuptiActivityGetNumDroppedRecords_(NULL, 0, &dropped);
    for (struct buffer *buffer; (buffer = next_buffer()) != NULL; free(buffer)) {
        CUpti_Activity *record = NULL;
        while (!rc && cupti->cuptiActivityGetNextRecord_((uint8_t *)(buffer + 1), buffer->valid_bytes, &record) ==
                          CUPTI_SUCCESS)
            give_record(&taker, record);
    }
    (void)cupti->cuptiUnsubscribe_(recording.subscriber);
    *lost = taker.lost + dropped;
    return rc;
}

#else
#include "cuda/cuda.h"

int cuda_start_activity(struct device *device, struct cb_err *err)
{
    (void)device;
    return cb_fail(err, CB_ERR_UNSUPPORTED, "the plugin was built without CUPTI's headers (make cuda installs them)");
}

int cuda_stop_activity(struct device *device, device_activity_function *take, void *context, uint64_t *lost,
                       struct cb_err *err)
{
    (void)take, (void)context;
    *lost = 0;
    return cuda_start_activity(device, err);
}
#endif
