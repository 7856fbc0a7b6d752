/* The data path: keeps requests of a schedule in flight. */
#include "engine/io/transfer.h"

#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "engine/store_metrics.h"

#define STAGING_ALIGNMENT UINT64_C(4096)
/* The longest wait before deadline and stop requests are checked again. */
#define WATCH_NS (100 * NS_PER_MS)
/* The longest wait while there is other work besides the requests. */
#define MEANWHILE_NS (100 * NS_PER_US)
/* How long to wait for cancelled requests. If a disk stalls for longer, the requests are abandoned. */
#define DRAIN_NS (5 * NS_PER_S)
#define POLL_CAPACITY 64

struct file {
    struct store_object *object;
    uint64_t length;
    size_t left;       /* requests not yet completed */
    struct cb_err why; /* code != 0: the file could not be opened */
    bool opened;
};

struct slot {
    char *own_staging;
    char *staging;                    /* of the request in flight */
    const struct io_request *request; /* NULL: a FINISH of `file` */
    uint32_t file;
    uint32_t next_free;
};

struct transfer {
    struct transfer_setup setup;
    struct slot *slots;
    uint32_t first_free; /* `depth` if there is none */
    struct iovec *segments;
    uint32_t max_segments;
    char *staging;
    uint64_t staging_bytes; /* a slot */
    struct file *files;
    uint32_t file_capacity;
    bool stuck;

    /* of the current run */
    const struct transfer_run *run;
    struct transfer_counts counts;
    uint32_t in_flight, finishing; /* requests, and how many of them are FINISH */
};

int transfer_new(const struct transfer_setup *setup, struct transfer **transfer, struct cb_err *err)
{
    struct transfer *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for the transfer");
    self->setup = *setup;
    const struct store_capabilities *capabilities = store_capabilities(setup->store);
    if (self->setup.depth > capabilities->max_depth && capabilities->max_depth > 0)
        self->setup.depth = capabilities->max_depth;
    self->max_segments = capabilities->max_segments > 0 ? capabilities->max_segments : 1;
    self->slots = calloc(self->setup.depth, sizeof *self->slots);
    self->segments = calloc(self->max_segments, sizeof *self->segments);
    if (!self->slots || !self->segments) {
        transfer_free(self);
        return alloc_fail(err, "for %" PRIu32 " requests in flight", setup->depth);
    }
    *transfer = self;
    return 0;
}

void transfer_free(struct transfer *self)
{
    if (!self)
        return;
    if (!self->stuck) /* if not, the kernel may still write to it */
        free(self->staging);
    free(self->files);
    free(self->segments);
    free(self->slots);
    free(self);
}

bool transfer_is_stuck(const struct transfer *self)
{
    return self->stuck;
}

static int reserve_staging(struct transfer *self, uint64_t bytes, struct cb_err *err)
{
    uint64_t rounded = (bytes + STAGING_ALIGNMENT - 1) / STAGING_ALIGNMENT * STAGING_ALIGNMENT;
    if (rounded <= self->staging_bytes)
        return 0;
    char *staging = aligned_alloc(STAGING_ALIGNMENT, rounded * self->setup.depth);
    if (!staging)
        return alloc_fail(err, "to stage %" PRIu32 " requests of %" PRIu64 " bytes", self->setup.depth, rounded);
    free(self->staging);
    self->staging = staging;
    self->staging_bytes = rounded;
    for (uint32_t i = 0; i < self->setup.depth; i++)
        self->slots[i].own_staging = staging + rounded * i;
    return 0;
}

int transfer_reserve(struct transfer *self, uint32_t files, uint64_t staging_bytes, struct cb_err *err)
{
    int rc = reserve_staging(self, staging_bytes, err);
    if (rc || files <= self->file_capacity)
        return rc;
    struct file *larger = realloc(self->files, files * sizeof *larger);
    if (!larger)
        return alloc_fail(err, "for %" PRIu32 " files", files);
    self->files = larger;
    self->file_capacity = files;
    return 0;
}

/* Sets up the bookkeeping of a run; nothing is allocated later. */
static void begin_run(struct transfer *self, const struct transfer_run *run)
{
    self->run = run;
    self->counts = (struct transfer_counts){0};
    self->in_flight = self->finishing = 0;
    self->first_free = 0;
    for (uint32_t i = 0; i < self->setup.depth; i++)
        self->slots[i].next_free = i + 1;
    for (uint32_t i = 0; i < run->schedule->file_count; i++)
        self->files[i] = (struct file){0};
    for (size_t i = 0; i < run->schedule->request_count; i++)
        self->files[run->schedule->requests[i].file].left++;
}

static int open_file(struct transfer *self, uint32_t number)
{
    struct file *file = &self->files[number];
    file->opened = true;
    timeline_enter(self->run->timeline, STATE_IO);
    if (self->run->ops->open(self->run->context, number, &file->object, &file->length, &file->why) != 0)
        file->object = NULL;
    else
        file->why.code = 0;
    return file->why.code;
}

static void close_file(struct transfer *self, struct file *file)
{
    if (file->object)
        store_close(self->setup.store, file->object);
    file->object = NULL;
}

/* The offset up to which a request can be read: its end, or the end of the file. Direct parts are requested only as a whole,
 * since their lengths must stay aligned. */
static uint64_t reachable_end(const struct io_schedule *schedule, const struct io_request *request, uint64_t length)
{
    if (length >= request->end)
        return request->end;
    if (length <= request->offset)
        return request->offset;
    for (size_t i = 0; i < request->part_count; i++) {
        const struct part *part = &schedule->parts[request->first_part + i];
        if (part->offset + part->bytes > length && part->direct)
            return part->offset < length ? part->offset : length;
    }
    return length;
}

static int submit(struct transfer *self, uint32_t slot_index, const struct store_request *request, struct cb_err *err)
{
    timeline_enter(self->run->timeline, request->kind == STORE_FINISH ? STATE_FSYNC : STATE_IO);
    int rc = store_submit(self->setup.store, request, 1, err);
    if (rc)
        return rc;
    self->first_free = self->slots[slot_index].next_free;
    self->in_flight++;
    self->finishing += request->kind == STORE_FINISH ? 1 : 0;
    self->counts.requests++;
    return 0;
}

/* Counts a finished request of a file; after the last one, closes the file or, for writes, finishes it. */
static int request_done(struct transfer *self, uint32_t number, struct cb_err *err)
{
    struct file *file = &self->files[number];
    if (--file->left > 0)
        return 0;
    if (!self->run->write) {
        close_file(self, file);
        return 0;
    }
    uint32_t slot_index = self->first_free;
    self->slots[slot_index].request = NULL;
    self->slots[slot_index].file = number;
    struct store_request finish = {.kind = STORE_FINISH, .object = file->object, .user = slot_index};
    return submit(self, slot_index, &finish, err);
}

static int nothing_came(struct transfer *self, const struct io_request *request, const struct cb_err *why,
                        struct cb_err *err)
{
    int rc = self->run->ops->complete(self->run->context, request, NULL, request->offset, why, err);
    return rc ? rc : request_done(self, request->file, err);
}

static size_t number_of(const struct transfer *self, const struct io_request *request)
{
    return (size_t)(request - self->run->schedule->requests);
}

static int start_request(struct transfer *self, const struct io_request *request, struct cb_err *err)
{
    struct file *file = &self->files[request->file];
    if (!file->opened && open_file(self, request->file) != 0 && self->run->write) {
        *err = file->why;
        return err->code;
    }
    if (!file->object)
        return nothing_came(self, request, &file->why, err);
    uint64_t end = reachable_end(self->run->schedule, request, file->length);
    if (end <= request->offset) {
        struct cb_err why;
        cb_fail(&why, CB_ERR_CORRUPT, "the file is too short: it has %" PRIu64 " bytes", file->length);
        return nothing_came(self, request, &why, err);
    }
    uint32_t slot_index = self->first_free;
    struct slot *slot = &self->slots[slot_index];
    slot->staging =
        self->run->ops->place ? self->run->ops->place(self->run->context, number_of(self, request)) : slot->own_staging;
    if (self->run->write) {
        int rc = self->run->ops->prepare(self->run->context, request, slot->staging, err);
        if (rc)
            return rc;
    }
    slot->request = request;
    slot->file = request->file;
    struct store_request store_request = {
        .kind = self->run->write ? STORE_WRITE : STORE_READ,
        .object = file->object,
        .offset = request->offset,
        .segments = self->segments,
        .segment_count = io_schedule_segments(self->run->schedule, request, end, slot->staging, self->segments),
        .memory = io_schedule_is_apart(self->run->schedule, request) ? MEMORY_DEVICE : MEMORY_HOST,
        .user = slot_index,
    };
    return submit(self, slot_index, &store_request, err);
}

/* The error of a completion; code 0 if it succeeded. */
static void describe(const struct transfer *self, const struct store_completion *completion, struct cb_err *why)
{
    why->code = completion->code;
    if (completion->code != 0)
        why->code = store_completion_error(self->setup.store, completion, why);
}

static void count_completion(struct transfer *self, const struct store_completion *completion)
{
    struct status_page *page = self->setup.page;
    self->in_flight--;
    self->counts.bytes += completion->bytes;
    self->counts.errors += completion->code != 0 ? 1 : 0;
    store_metrics_record(page, self->run->timeline->op, self->run->warmup, self->run->iteration, completion);
    atomic_fetch_add_explicit(self->setup.async ? &page->behind_bytes_done : &page->bytes_done, completion->bytes,
                              memory_order_relaxed);
    atomic_store_explicit(&page->progress_ns, completion->completed_ns, memory_order_relaxed);
}

static int finish_completed(struct transfer *self, struct slot *slot, const struct store_completion *completion,
                            struct cb_err *err)
{
    struct io_request whole = {.file = slot->file};
    struct cb_err why;
    describe(self, completion, &why); /* while the object still has its name */
    self->finishing--;
    close_file(self, &self->files[slot->file]);
    return why.code ? self->run->ops->complete(self->run->context, &whole, NULL, 0, &why, err) : 0;
}

static int take_completion(struct transfer *self, const struct store_completion *completion, struct cb_err *err)
{
    uint32_t slot_index = (uint32_t)completion->user;
    struct slot *slot = &self->slots[slot_index];
    count_completion(self, completion);
    slot->next_free = self->first_free;
    self->first_free = slot_index;
    if (!slot->request)
        return finish_completed(self, slot, completion, err);
    const struct io_request *request = slot->request;
    if (completion->code != 0 || !self->run->write) {
        struct cb_err why;
        describe(self, completion, &why);
        uint64_t available = request->offset;
        if (completion->code == 0 || completion->code == CB_ERR_CORRUPT)
            available += completion->bytes;
        if (!self->run->write)
            timeline_enter(self->run->timeline, STATE_STAGE);
        int rc = self->run->ops->complete(self->run->context, request, slot->staging, available, &why, err);
        if (rc)
            return rc;
    } else if (self->run->ops->written) {
        self->run->ops->written(self->run->context, number_of(self, request));
    }
    return request_done(self, slot->file, err);
}

static int look_around(struct transfer *self, struct cb_err *err)
{
    int rc = comm_check(self->setup.comm, err);
    if (!rc && clock_monotonic_ns() >= self->run->deadline_ns)
        rc = cb_fail(err, CB_ERR_TIMEOUT,
                     "the deadline passed with %" PRIu32 " requests in flight and %" PRIu64 " bytes done",
                     self->in_flight, self->counts.bytes);
    return rc;
}

/* Waits for completions, but not longer than until the next check. */
static int wait_for_some(struct transfer *self, struct cb_err *err)
{
    struct store_completion completions[POLL_CAPACITY];
    size_t count = 0;
    enum rank_state blocked_on = self->finishing == self->in_flight ? STATE_FSYNC : STATE_IO;
    uint64_t now_ns = timeline_enter(self->run->timeline, blocked_on);
    bool soon = self->run->ops->meanwhile && self->run->ops->meanwhile(self->run->context);
    uint64_t watch_ns = soon ? MEANWHILE_NS : WATCH_NS;
    uint64_t until_ns = now_ns + watch_ns < self->run->deadline_ns ? now_ns + watch_ns : self->run->deadline_ns;
    int rc = store_poll(self->setup.store, completions, POLL_CAPACITY, until_ns, &count, err);
    for (size_t i = 0; i < count && !rc; i++)
        rc = take_completion(self, &completions[i], err);
    if (!rc)
        rc = count == 0 ? look_around(self, err) : comm_check(self->setup.comm, err);
    return rc;
}

/* Waits while nothing is in flight because the next request is not ready. */
static int wait_until_ready(struct transfer *self, size_t number, struct cb_err *err)
{
    uint64_t now_ns = timeline_enter(self->run->timeline, STATE_STAGE);
    uint64_t until_ns = now_ns + WATCH_NS < self->run->deadline_ns ? now_ns + WATCH_NS : self->run->deadline_ns;
    bool ready = false;
    int rc = self->run->ops->ready(self->run->context, number, until_ns, &ready, err);
    return rc || ready ? rc : look_around(self, err);
}

/* Cancels the requests in flight after a failure, and waits for them. */
static void drain(struct transfer *self)
{
    struct store_completion completions[POLL_CAPACITY];
    uint64_t give_up_ns = clock_monotonic_ns() + DRAIN_NS;
    timeline_enter(self->run->timeline, STATE_IO);
    store_cancel(self->setup.store);
    while (store_in_flight(self->setup.store) > 0) {
        size_t count = 0;
        if (store_poll(self->setup.store, completions, POLL_CAPACITY, give_up_ns, &count, NULL) != 0 || count == 0)
            break;
    }
    self->stuck = store_in_flight(self->setup.store) > 0;
    for (uint32_t i = 0; i < self->run->schedule->file_count && !self->stuck; i++)
        close_file(self, &self->files[i]);
}

int transfer_run(struct transfer *self, const struct transfer_run *run, struct transfer_counts *counts,
                 struct cb_err *err)
{
    if (self->stuck)
        return cb_fail(err, CB_ERR_ABORTED, "requests of an earlier operation are still stuck in the store");
    begin_run(self, run);
    int rc = 0;
    size_t next = 0;
    while (!rc && (next < run->schedule->request_count || self->in_flight > 0)) {
        bool may_start = next < run->schedule->request_count && self->first_free < self->setup.depth;
        if (may_start && run->ops->ready)
            rc = run->ops->ready(run->context, next, 0, &may_start, err);
        if (!rc && may_start)
            rc = start_request(self, &run->schedule->requests[next++], err);
        else if (!rc && self->in_flight > 0)
            rc = wait_for_some(self, err);
        else if (!rc)
            rc = wait_until_ready(self, next, err);
    }
    if (rc)
        drain(self);
    *counts = self->counts;
    return rc;
}
