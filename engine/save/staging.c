/* Staging memory of asynchronous saves: it holds the images of requests until they are written. Training waits only
 * while the state is copied into it.
 *
 * It is allocated and touched once and used by every save. If all requests fit, there is one round, and writing starts
 * after it, so that it does not compete with the copy. If not, rounds alternate between two halves: one is filled while
 * the other is written. A half is filled again when all writes from it have completed. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/units.h"
#include "engine/save/native_save.h"

#define IMAGE_ALIGNMENT UINT64_C(4096)
#define WATCH_NS (100 * NS_PER_MS)

static uint64_t image_bytes(const struct io_request *request)
{
    return (request->end - request->offset + IMAGE_ALIGNMENT - 1) / IMAGE_ALIGNMENT * IMAGE_ALIGNMENT;
}

static void release_lists(struct staging *self)
{
    for (uint32_t i = 0; i < self->area_count && self->areas; i++)
        free(self->areas[i].copies);
    free(self->image_at);
    free(self->round_of);
    free(self->rounds);
    self->image_at = NULL;
    self->round_of = NULL;
    self->rounds = NULL;
    self->round_count = self->copy_count = 0;
    for (uint32_t i = 0; i < self->area_count && self->areas; i++)
        self->areas[i].copies = NULL;
}

static void release_areas(struct staging *self, struct device *device)
{
    for (uint32_t i = 0; i < self->area_count && self->areas; i++) {
        if (self->areas[i].memory)
            device->ops->release(device, MEMORY_PINNED, self->areas[i].memory, self->mapped_bytes);
    }
    free(self->areas);
    self->areas = NULL;
    self->area_count = 0;
    self->mapped_bytes = 0;
}

void native_staging_release(struct native_save *self)
{
    release_lists(&self->staging);
    release_areas(&self->staging, self->engine->setup.device);
    memset(&self->staging, 0, sizeof self->staging);
}

/* --- layout of the images --- */

/* Assigns each request a place in an area, and divides the requests into rounds. */
static int place_images(struct native_save *self, struct cb_err *err)
{
    struct staging *staging = &self->staging;
    const struct io_schedule *schedule = &self->schedule;
    uint64_t total = 0, largest = 0, limit = self->engine->setup.config.staging_bytes;
    for (size_t i = 0; i < schedule->request_count; i++) {
        uint64_t bytes = image_bytes(&schedule->requests[i]);
        total += bytes;
        largest = bytes > largest ? bytes : largest;
    }
    bool whole = limit == 0 || total <= limit;
    uint64_t half = whole ? total : limit / 2 / IMAGE_ALIGNMENT * IMAGE_ALIGNMENT;
    if (half < largest) {
        char have[32], need[32];
        return cb_fail(err, CB_ERR_USAGE, "save.staging_bytes=%s is too little: two requests of io.block need %s",
                       units_format_bytes((double)limit, have), units_format_bytes(2 * (double)largest, need));
    }
    staging->area_bytes = whole ? total : 2 * half;
    uint64_t used = 0;
    for (size_t i = 0; i < schedule->request_count; i++) {
        uint64_t bytes = image_bytes(&schedule->requests[i]);
        if (i == 0 || used + bytes > half) {
            staging->rounds[staging->round_count++] = (struct round){.first_request = i, .end_request = i};
            used = 0;
        }
        struct round *round = &staging->rounds[staging->round_count - 1];
        staging->image_at[i] = (staging->round_count - 1) % 2 * half + used;
        staging->round_of[i] = (uint32_t)(staging->round_count - 1);
        round->end_request = i + 1;
        used += bytes;
    }
    return 0;
}

/* --- copies --- */

static int list_copies(struct native_save *self, struct copy_list *list, struct cb_err *err)
{
    struct staging *staging = &self->staging;
    int rc = 0;
    self->copied_bytes = 0;
    for (size_t i = 0; i < staging->round_count && !rc; i++) {
        struct round *round = &staging->rounds[i];
        round->first_copy = list->first = list->count;
        for (size_t request = round->first_request; request < round->end_request && !rc; request++)
            rc = native_copies_add(self, request, staging->image_at[request], list, err);
        round->end_copy = list->count;
    }
    return rc;
}

/* --- memory --- */

static int allocate_areas(struct native_save *self, struct cb_err *err)
{
    struct staging *staging = &self->staging;
    struct native_engine *engine = self->engine;
    struct device *device = engine->setup.device;
    if (staging->areas && staging->area_bytes <= staging->mapped_bytes)
        return 0;
    release_areas(staging, device);
    staging->areas = calloc(engine->setup.config.inflight, sizeof *staging->areas);
    struct iovec *regions = calloc(engine->setup.config.inflight, sizeof *regions);
    int rc = staging->areas && regions ? 0 : alloc_fail(err, "for the staging areas");
    if (!rc) {
        staging->area_count = engine->setup.config.inflight;
        staging->mapped_bytes = staging->area_bytes;
    }
    for (uint32_t i = 0; i < staging->area_count && staging->mapped_bytes > 0 && !rc; i++) {
        void *memory = NULL;
        rc = device->ops->allocate(device, MEMORY_PINNED, staging->mapped_bytes, &memory, err);
        staging->areas[i].memory = memory;
        regions[i] = (struct iovec){.iov_base = memory, .iov_len = staging->mapped_bytes};
    }
    if (!rc && staging->mapped_bytes > 0)
        store_register(engine->back.store, regions, engine->setup.config.inflight);
    free(regions);
    if (!rc)
        return 0;
    release_areas(staging, device);
    return cb_context(err, "staging memory of save.staging_bytes for save.inflight=%" PRIu32,
                      engine->setup.config.inflight);
}

/* The list has offsets in an area; makes a list with addresses for each area. */
static int give_copies(struct staging *staging, const struct copy_list *list, struct cb_err *err)
{
    staging->copy_count = list->count;
    for (uint32_t i = 0; i < staging->area_count; i++) {
        struct area *area = &staging->areas[i];
        area->copies = malloc((list->count + 1) * sizeof *area->copies);
        if (!area->copies)
            return alloc_fail(err, "for %zu copies", list->count);
        for (size_t k = 0; k < list->count; k++) {
            area->copies[k] = list->copies[k];
            area->copies[k].to = area->memory + (uintptr_t)list->copies[k].to;
        }
    }
    return 0;
}

int native_staging_build(struct native_save *self, struct cb_err *err)
{
    struct staging *staging = &self->staging;
    size_t requests = self->schedule.request_count;
    struct copy_list list = {0};
    release_lists(staging);
    staging->image_at = calloc(requests + 1, sizeof *staging->image_at);
    staging->round_of = calloc(requests + 1, sizeof *staging->round_of);
    staging->rounds = calloc(requests + 1, sizeof *staging->rounds);
    int rc = 0;
    if (!staging->image_at || !staging->round_of || !staging->rounds)
        rc = alloc_fail(err, "to stage %zu requests", requests);
    if (!rc)
        rc = place_images(self, err);
    if (!rc)
        rc = allocate_areas(self, err);
    if (!rc)
        rc = list_copies(self, &list, err);
    if (!rc)
        rc = give_copies(staging, &list, err);
    free(list.copies);
    return rc;
}

/* --- the copy --- */

static void wait_for_post(sem_t *posted, uint64_t until_ns)
{
    struct timespec until = {.tv_sec = (time_t)(until_ns / NS_PER_S), .tv_nsec = (long)(until_ns % NS_PER_S)};
    (void)sem_clockwait(posted, CLOCK_MONOTONIC, &until); /* the caller checks it */
}

/* Waits until the half of round `number` is free: the round two before it has been written. */
static int wait_for_half(struct native_job *job, uint32_t number, struct cb_err *err)
{
    struct native_operation *operation = &job->operation;
    timeline_enter(&job->front, STATE_IO);
    while (atomic_load_explicit(&job->rounds_written, memory_order_acquire) + 1 < number) {
        if (job->gave_up)
            return 0; /* the thread reports the reason */
        int rc = comm_check(operation->engine->front.comm, err);
        uint64_t now_ns = clock_monotonic_ns();
        if (!rc && now_ns > job->options.deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "the deadline passed while staging memory was still being written");
        if (rc)
            return rc;
        wait_for_post(&job->written_more, now_ns + WATCH_NS);
    }
    return 0;
}

int native_stage(struct native_job *job, void (*start)(struct native_job *job), struct cb_err *err)
{
    const struct staging *staging = &job->save->staging;
    const struct area *area = &staging->areas[job->area];
    struct device *device = job->operation.engine->setup.device;
    for (uint32_t i = 0; i < staging->round_count; i++) {
        const struct round *round = &staging->rounds[i];
        uint64_t event = 0;
        int rc = i >= 2 ? wait_for_half(job, i, err) : 0;
        if (rc || job->gave_up)
            return rc;
        timeline_enter(&job->front, STATE_STAGE);
        rc = device->ops->copy(device, DEVICE_TO_HOST, &area->copies[round->first_copy],
                               round->end_copy - round->first_copy, err);
        if (!rc)
            rc = device->ops->record(device, &event, err);
        if (!rc)
            rc = device->ops->wait(device, event, job->options.deadline_ns, err);
        if (rc)
            return cb_context(err, "copying the state to staging memory");
        atomic_store_explicit(&job->rounds_staged, i + 1, memory_order_release);
        sem_post(&job->staged_more);
        if (i == 0 && staging->round_count > 1)
            start(job);
    }
    return 0;
}

/* --- for the writing thread --- */

int native_staged_ready(void *context, size_t request, uint64_t until_ns, bool *ready, struct cb_err *err)
{
    const struct native_save *self = context;
    struct native_job *job = self->job;
    uint32_t round = self->staging.round_of[request];
    *ready = atomic_load_explicit(&job->rounds_staged, memory_order_acquire) > round;
    if (!*ready && until_ns > 0) {
        wait_for_post(&job->staged_more, until_ns);
        *ready = atomic_load_explicit(&job->rounds_staged, memory_order_acquire) > round;
    }
    if (*ready || !atomic_load_explicit(&job->stage_failed, memory_order_acquire))
        return 0;
    *err = job->stage_err;
    return err->code;
}

char *native_staged_place(void *context, size_t request)
{
    const struct native_save *self = context;
    return self->staging.areas[self->job->area].memory + self->staging.image_at[request];
}

/* Rounds are written in order, but the last requests of a round may end after the first of the next. */
void native_staged_written(void *context, size_t request)
{
    const struct native_save *self = context;
    struct native_job *job = self->job;
    uint32_t done = atomic_load_explicit(&job->rounds_written, memory_order_relaxed);
    job->left_in_round[self->staging.round_of[request] % 2]--;
    while (done < self->staging.round_count && job->left_in_round[done % 2] == 0) {
        const struct round *next = done + 2 < self->staging.round_count ? &self->staging.rounds[done + 2] : NULL;
        job->left_in_round[done % 2] = next ? next->end_request - next->first_request : SIZE_MAX;
        atomic_store_explicit(&job->rounds_written, ++done, memory_order_release);
        sem_post(&job->written_more);
    }
}
