/* Wraps any other store and injects faults (docs/fault-store.md): each request is passed on, answered here, or never
 * answered. Completions are held until their time. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "store/backend.h"
#include "store/fault/fault_bucket.h"
#include "store/fault/fault_spec.h"
#include "store/fault/power_cut.h"

#define LOOK_NS (2 * NS_PER_MS) /* interval between checks for the file of `until` */

/* What happens to a request, by slot. */
struct fate {
    bool stalled;                         /* completes only when cancelled */
    bool is_slow;                         /* `delay` is to be added when the inner store is done */
    bool waits;                           /* held until the spec's file exists */
    bool is_cut;                          /* only a part was passed on; completes as a short write */
    unsigned char *flip;                  /* the byte to damage when the read is done, or NULL */
    uint64_t earliest_ns;                 /* because of the bandwidth */
    struct backend_completion completion; /* while held */
    uint64_t release_ns;                  /* of the held completion */
};

/* A slot in flight is in one of: the inner store (`inside` counts them), held[0 … held_count-1],
 * stalled. */
struct fault_store {
    struct backend base;
    struct backend *inner;
    struct fault_spec spec;
    struct fault_bucket *bucket; /* NULL without a bandwidth */
    struct power_cut *cut;       /* NULL without one */
    bool active;                 /* false on ranks to which the spec does not apply */
    uint64_t counted, writes, reads, written_bytes;
    struct fate *fates;
    uint32_t *held;
    uint32_t held_count, inside;
    struct backend_request *batch;
    struct backend_completion *completions;
    struct iovec *cut_segments;
    char description[1024];
};

static struct fault_store *fault_of(struct backend *backend)
{
    return (struct fault_store *)backend;
}

static void fault_free(struct backend *backend)
{
    struct fault_store *self = fault_of(backend);
    if (self->inner)
        self->inner->ops->free(self->inner);
    fault_bucket_free(self->bucket);
    power_cut_close(self->cut);
    free(self->fates);
    free(self->held);
    free(self->batch);
    free(self->completions);
    free(self->cut_segments);
    free(self);
}

static int allocate(struct fault_store *self, uint32_t depth, struct cb_err *err)
{
    self->fates = calloc(depth, sizeof(*self->fates));
    self->held = calloc(depth, sizeof(*self->held));
    self->batch = calloc(depth, sizeof(*self->batch));
    self->completions = calloc(depth, sizeof(*self->completions));
    self->cut_segments = calloc(self->inner->capabilities.max_segments, sizeof(*self->cut_segments));
    if (!self->fates || !self->held || !self->batch || !self->completions || !self->cut_segments)
        return alloc_fail(err, "for a fault store");
    return 0;
}

int fault_wrap(struct backend *inner, const struct fault_spec *spec, struct power_cut *cut, const char *text,
               int text_bytes, const struct store_options *options, struct backend **backend, struct cb_err *err)
{
    struct fault_store *self = calloc(1, sizeof(*self));
    if (!self) {
        inner->ops->free(inner);
        power_cut_close(cut);
        return alloc_fail(err, "for a fault store");
    }
    self->base = (struct backend){.ops = &fault_backend, .capabilities = inner->capabilities};
    self->inner = inner;
    self->cut = cut;
    self->spec = *spec;
    self->active = !spec->has_rank || spec->rank == options->rank;
    int rc = allocate(self, options->depth, err);
    if (!rc && self->active && spec->bandwidth_bytes_per_s > 0)
        rc = fault_bucket_new(options->shared_folder, spec->bandwidth_bytes_per_s, &self->bucket, err);
    if (rc) {
        fault_free(&self->base);
        return rc;
    }
    snprintf(self->description, sizeof(self->description), "fault(%.*s%s) over %s", text_bytes, text,
             self->active ? "" : ", not on this rank", inner->ops->describe(inner));
    *backend = &self->base;
    return 0;
}

static const char *fault_describe(const struct backend *backend)
{
    return ((const struct fault_store *)backend)->description;
}

static void fault_register(struct backend *backend, const struct iovec *regions, uint32_t count)
{
    struct fault_store *self = fault_of(backend);
    self->inner->ops->register_memory(self->inner, regions, count);
    char *over = strstr(self->description, ") over ");
    if (over) {
        over += strlen(") over ");
        snprintf(over, sizeof(self->description) - (size_t)(over - self->description), "%s",
                 self->inner->ops->describe(self->inner));
    }
}

/* ---- which fault hits a request ---- */

static void hold(struct fault_store *self, const struct backend_completion *completion, uint64_t release_ns)
{
    struct fate *fate = &self->fates[completion->slot];
    fate->completion = *completion;
    fate->release_ns = release_ns;
    self->held[self->held_count++] = completion->slot;
}

static void answer(struct fault_store *self, uint32_t slot, int code, int sys_errno, uint64_t release_ns)
{
    hold(self, &(struct backend_completion){.slot = slot, .code = code, .sys_errno = sys_errno}, release_ns);
}

static void block_for_ever(void)
{
    for (;;)
        pause();
}

/* Cuts the request to half, in whole blocks; false when nothing is left of it. */
static bool cut(struct fault_store *self, struct backend_request *request)
{
    uint64_t half = request->length / 2, left;
    half -= half % self->base.capabilities.offset_alignment;
    left = half;
    uint32_t count = 0;
    for (; left > 0; count++) {
        struct iovec *segment = &self->cut_segments[count];
        *segment = request->segments[count];
        if (segment->iov_len > left)
            segment->iov_len = left;
        left -= segment->iov_len;
    }
    request->segments = self->cut_segments;
    request->segment_count = count;
    request->length = half;
    self->fates[request->slot].is_cut = true;
    return half > 0;
}

static unsigned char *byte_at(const struct backend_request *request, uint64_t at)
{
    const struct iovec *segment = request->segments;
    for (; at >= segment->iov_len; segment++)
        at -= segment->iov_len;
    return (unsigned char *)segment->iov_base + at;
}

/* Applies the faults of the operations `ops`. True if the request was completed or held here. */
static bool meet_counted_fault(struct fault_store *self, uint32_t slot, uint64_t now_ns)
{
    const struct fault_spec *spec = &self->spec;
    uint64_t number = ++self->counted;
    if (number == spec->block_at)
        block_for_ever();
    if (number == spec->stall_at) {
        self->fates[slot].stalled = true;
        return true;
    }
    if (number == spec->error_at || (spec->error_every > 0 && number % spec->error_every == 0)) {
        answer(self, slot, backend_code_of_errno(spec->error_errno), spec->error_errno, now_ns + spec->delay_ns);
        return true;
    }
    return false;
}

static unsigned operation_of(enum store_request_kind kind)
{
    return kind == STORE_WRITE ? FAULT_WRITE : kind == STORE_READ ? FAULT_READ : FAULT_FINISH;
}

static bool is_full(struct fault_store *self, uint64_t bytes)
{
    if (bytes > self->spec.enospc_after_bytes || self->written_bytes > self->spec.enospc_after_bytes - bytes)
        return true;
    self->written_bytes += bytes;
    return false;
}

/* Called before a change on the disk. */
static void change(struct fault_store *self)
{
    if (self->cut)
        power_cut_count(self->cut);
}

/* True if the request, possibly changed, is passed on to the inner store. */
static bool decide(struct fault_store *self, struct backend_request *request, uint64_t now_ns)
{
    const struct fault_spec *spec = &self->spec;
    struct fate *fate = &self->fates[request->slot];
    *fate = (struct fate){0};
    if (request->kind != STORE_READ)
        change(self);
    if (!self->active)
        return true;
    unsigned operation = operation_of(request->kind);
    fate->is_slow = (spec->ops & operation) != 0;
    fate->waits = fate->is_slow && spec->until[0];
    if (fate->is_slow && meet_counted_fault(self, request->slot, now_ns))
        return false;
    if (operation & spec->fail) {
        answer(self, request->slot, backend_code_of_errno(spec->fail_errno), spec->fail_errno, now_ns);
        return false;
    }
    if (fate->is_slow && self->bucket && request->length > 0)
        fate->earliest_ns = fault_bucket_reserve(self->bucket, request->length, now_ns);
    if (request->kind == STORE_READ && ++self->reads == spec->bit_flip_at)
        fate->flip = byte_at(request, request->length / 2);
    if (request->kind != STORE_WRITE)
        return true;
    if (is_full(self, request->length)) {
        answer(self, request->slot, CB_ERR_NO_SPACE, ENOSPC, now_ns);
        return false;
    }
    if (++self->writes == spec->short_write_at && !cut(self, request)) {
        answer(self, request->slot, CB_ERR_SYSTEM, EIO, now_ns);
        return false;
    }
    return true;
}

static int fault_submit(struct backend *backend, const struct backend_request *requests, size_t count,
                        struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    uint64_t now_ns = clock_monotonic_ns();
    uint32_t held_before = self->held_count, passed = 0;
    for (size_t i = 0; i < count; i++) {
        self->batch[passed] = requests[i];
        passed += decide(self, &self->batch[passed], now_ns);
    }
    int rc = passed > 0 ? self->inner->ops->submit(self->inner, self->batch, passed, err) : 0;
    if (!rc) {
        self->inside += passed;
        return 0;
    }
    self->held_count = held_before;
    for (size_t i = 0; i < count; i++)
        self->fates[requests[i].slot].stalled = false;
    return rc;
}

/* ---- completions ---- */

/* Handles a completion of the inner store: damages and delays it as its fate requires. */
static void settle(struct fault_store *self, struct backend_completion *completion)
{
    struct fate *fate = &self->fates[completion->slot];
    if (fate->flip && completion->code == 0)
        *fate->flip ^= 1u;
    if (fate->is_cut && completion->code == 0) {
        completion->code = CB_ERR_SYSTEM;
        completion->sys_errno = EIO;
    }
    uint64_t release_ns = completion->completed_ns + (fate->is_slow ? self->spec.delay_ns : 0);
    hold(self, completion, release_ns > fate->earliest_ns ? release_ns : fate->earliest_ns);
}

static bool must_wait(const struct fault_spec *spec)
{
    return spec->until[0] && access(spec->until, F_OK) != 0;
}

static size_t take_released(struct fault_store *self, struct backend_completion *completions, size_t capacity,
                            uint64_t now_ns)
{
    size_t got = 0;
    bool closed = self->held_count > 0 && must_wait(&self->spec);
    for (uint32_t i = 0; i < self->held_count && got < capacity;) {
        struct fate *fate = &self->fates[self->held[i]];
        if (fate->release_ns > now_ns || (closed && fate->waits)) {
            i++;
            continue;
        }
        completions[got] = fate->completion;
        completions[got++].completed_ns = fate->waits ? now_ns : fate->release_ns;
        self->held[i] = self->held[--self->held_count];
    }
    return got;
}

/* When to check again: nothing signals that the file of `until` has appeared. */
static uint64_t next_release_ns(const struct fault_store *self, uint64_t now_ns)
{
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < self->held_count; i++) {
        const struct fate *fate = &self->fates[self->held[i]];
        uint64_t look_ns = fate->waits ? now_ns + LOOK_NS : 0;
        uint64_t release_ns = fate->release_ns > look_ns ? fate->release_ns : look_ns;
        next = release_ns < next ? release_ns : next;
    }
    return next;
}

/* Lets the inner store work, or time pass, until `until_ns` at most. */
static int wait_until(struct fault_store *self, uint64_t until_ns, struct cb_err *err)
{
    if (self->inside == 0) {
        uint64_t now_ns = clock_monotonic_ns();
        if (until_ns > now_ns)
            clock_sleep_ns(until_ns - now_ns < NS_PER_S ? until_ns - now_ns : NS_PER_S);
        return 0;
    }
    size_t got = 0;
    int rc =
        self->inner->ops->poll(self->inner, self->completions, self->base.capabilities.max_depth, until_ns, &got, err);
    self->inside -= (uint32_t)got;
    for (size_t i = 0; i < got; i++)
        settle(self, &self->completions[i]);
    return rc;
}

static int fault_poll(struct backend *backend, struct backend_completion *completions, size_t capacity,
                      uint64_t deadline_ns, size_t *count, struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    for (bool last = false;;) {
        uint64_t now_ns = clock_monotonic_ns();
        size_t got = take_released(self, completions, capacity, now_ns);
        if (got > 0 || last) {
            *count = got;
            return 0;
        }
        last = now_ns >= deadline_ns; /* one more poll of the inner store */
        uint64_t next_ns = next_release_ns(self, now_ns);
        int rc = wait_until(self, next_ns < deadline_ns ? next_ns : deadline_ns, err);
        if (rc)
            return rc;
    }
}

static void fault_cancel(struct backend *backend)
{
    struct fault_store *self = fault_of(backend);
    uint64_t now_ns = clock_monotonic_ns();
    for (uint32_t i = 0; i < self->held_count; i++)
        if (self->fates[self->held[i]].release_ns > now_ns)
            self->fates[self->held[i]].release_ns = now_ns;
    for (uint32_t slot = 0; slot < self->base.capabilities.max_depth; slot++) {
        self->fates[slot].waits = false;
        if (self->fates[slot].stalled) {
            self->fates[slot].stalled = false;
            answer(self, slot, CB_ERR_ABORTED, 0, now_ns);
        }
    }
    if (self->inside > 0)
        self->inner->ops->cancel(self->inner);
}

/* ---- names ---- */

static int fail_asked(const struct fault_store *self, unsigned operation, const char *doing, const char *name,
                      struct cb_err *err)
{
    if (!self->active || !(self->spec.fail & operation))
        return 0;
    return cb_fail_errno(err, self->spec.fail_errno, "%s %s (by the fault store)", doing, name);
}

static int fault_create(struct backend *backend, const char *name, uint64_t length, struct backend_object **object,
                        struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    change(self);
    int rc = fail_asked(self, FAULT_CREATE, "creating", name, err);
    return rc ? rc : self->inner->ops->create(self->inner, name, length, object, err);
}

static int fault_open_shared(struct backend *backend, const char *name, uint64_t length, struct backend_object **object,
                             struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    return self->inner->ops->open_shared(self->inner, name, length, object, err);
}

static int fault_open_read(struct backend *backend, const char *name, struct backend_object **object,
                           struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    return self->inner->ops->open_read(self->inner, name, object, err);
}

static void fault_close(struct backend *backend, struct backend_object *object)
{
    struct fault_store *self = fault_of(backend);
    self->inner->ops->close(self->inner, object);
}

/* A publish is not a request, so a stalled publish cannot be cancelled: it blocks, as with block_at. */
static int publish_counted(struct fault_store *self, const char *name, struct cb_err *err)
{
    const struct fault_spec *spec = &self->spec;
    uint64_t number = ++self->counted;
    if (number == spec->block_at || number == spec->stall_at)
        block_for_ever();
    for (uint64_t until_ns = clock_monotonic_ns() + spec->delay_ns, now_ns; (now_ns = clock_monotonic_ns()) < until_ns;)
        clock_sleep_ns(until_ns - now_ns);
    while (must_wait(spec))
        clock_sleep_ns(LOOK_NS);
    return number == spec->error_at ? cb_fail_errno(err, spec->error_errno, "publishing %s (by the fault store)", name)
                                    : 0;
}

/* The pieces of an object on their way to the inner store. */
struct pieces {
    struct fault_store *store;
    const char *name;
    store_pass_fn pass;
    void *context;
    store_put_fn put; /* the inner store's */
    void *to;
    bool more; /* than one */
};

static int put_piece(void *context, const void *bytes, size_t len, struct cb_err *err)
{
    struct pieces *self = context;
    if (self->more)
        change(self->store);
    self->more = true;
    if (self->store->active && is_full(self->store, len))
        return cb_fail_errno(err, ENOSPC, "publishing %s (by the fault store)", self->name);
    return self->put(self->to, bytes, len, err);
}

static int pass_pieces(void *context, store_put_fn put, void *to, struct cb_err *err)
{
    struct pieces *self = context;
    self->put = put;
    self->to = to;
    return self->pass(self->context, put_piece, self, err);
}

static int fault_publish(struct backend *backend, const char *name, store_pass_fn pass, void *context,
                         struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    struct pieces pieces = {.store = self, .name = name, .pass = pass, .context = context};
    change(self);
    int rc = self->active && (self->spec.ops & FAULT_PUBLISH) ? publish_counted(self, name, err) : 0;
    if (!rc)
        rc = fail_asked(self, FAULT_PUBLISH, "publishing", name, err);
    return rc ? rc : self->inner->ops->publish(self->inner, name, pass_pieces, &pieces, err);
}

static int fault_swap(struct backend *backend, const char *name, const char *before, const char *after, bool *guarded,
                      struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    return self->inner->ops->swap(self->inner, name, before, after, guarded, err);
}

static int fault_sync_folder(struct backend *backend, const char *folder, struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    change(self);
    int rc = fail_asked(self, FAULT_SYNC_FOLDER, "syncing folder", folder, err);
    return rc ? rc : self->inner->ops->sync_folder(self->inner, folder, err);
}

static int fault_make_folder(struct backend *backend, const char *folder, struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    change(self);
    return self->inner->ops->make_folder(self->inner, folder, err);
}

static int fault_read_small(struct backend *backend, const char *name, struct buf *out, struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    return self->inner->ops->read_small(self->inner, name, out, err);
}

static int fault_stat(struct backend *backend, const char *name, uint64_t *length, struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    return self->inner->ops->stat(self->inner, name, length, err);
}

static int fault_modified(struct backend *backend, const char *name, uint64_t *wall_ns, struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    return self->inner->ops->modified(self->inner, name, wall_ns, err);
}

static int fault_list(struct backend *backend, const char *folder, store_list_fn each, void *context,
                      struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    return self->inner->ops->list(self->inner, folder, each, context, err);
}

static int fault_list_near(struct backend *backend, const char *folder, uint32_t depth, store_list_fn each,
                           void *context, struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    const struct backend_ops *ops = self->inner->ops;
    return ops->list_near ? ops->list_near(self->inner, folder, depth, each, context, err)
                          : ops->list(self->inner, folder, each, context, err);
}

static int fault_remove(struct backend *backend, const char *name, struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    change(self);
    return self->inner->ops->remove(self->inner, name, err);
}

static int fault_remove_folder(struct backend *backend, const char *folder, struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    change(self);
    return self->inner->ops->remove_folder(self->inner, folder, err);
}

static int fault_free_bytes(struct backend *backend, uint64_t *bytes, struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    return self->inner->ops->free_bytes(self->inner, bytes, err);
}

static int fault_drop_cache(struct backend *backend, const char *name, double *resident_fraction, struct cb_err *err)
{
    struct fault_store *self = fault_of(backend);
    return self->inner->ops->drop_cache(self->inner, name, resident_fraction, err);
}

static int fault_remove_many(struct backend *backend, const char *const *names, size_t count, struct cb_err *err)
{
    struct backend *inner = fault_of(backend)->inner;
    int rc = 0;
    if (inner->ops->remove_many)
        return inner->ops->remove_many(inner, names, count, err);
    for (size_t i = 0; i < count && !rc; i++)
        rc = fault_remove(backend, names[i], err);
    return rc;
}

static bool fault_take_statistics(struct backend *backend, struct store_statistics *statistics)
{
    struct backend *inner = fault_of(backend)->inner;
    return inner->ops->take_statistics && inner->ops->take_statistics(inner, statistics);
}

static uint64_t fault_waited_in_backoff_ns(struct backend *backend)
{
    struct backend *inner = fault_of(backend)->inner;
    return inner->ops->waited_in_backoff_ns ? inner->ops->waited_in_backoff_ns(inner) : 0;
}

const struct backend_ops fault_backend = {
    .version = BACKEND_VERSION,
    .free = fault_free,
    .describe = fault_describe,
    .register_memory = fault_register,
    .create = fault_create,
    .open_shared = fault_open_shared,
    .open_read = fault_open_read,
    .close = fault_close,
    .submit = fault_submit,
    .poll = fault_poll,
    .cancel = fault_cancel,
    .publish = fault_publish,
    .swap = fault_swap,
    .sync_folder = fault_sync_folder,
    .make_folder = fault_make_folder,
    .read_small = fault_read_small,
    .stat = fault_stat,
    .modified = fault_modified,
    .list = fault_list,
    .list_near = fault_list_near,
    .remove = fault_remove,
    .remove_folder = fault_remove_folder,
    .free_bytes = fault_free_bytes,
    .drop_cache = fault_drop_cache,
    .remove_many = fault_remove_many,
    .take_statistics = fault_take_statistics,
    .waited_in_backoff_ns = fault_waited_in_backoff_ns,
};
