/* The front of every store: opens by URI, checks arguments, counts requests in flight, gives each a slot, and composes
 * the message when one fails. */
#include "store/store.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "store/backend.h"

struct store_object {
    struct store *store;
    struct backend_object *inner;
    struct store_object *previous, *next; /* of the store's open objects */
    uint64_t length;
    uint32_t in_flight;
    uint32_t writes_in_flight;
    bool writable;
    char name[];
};

struct slot {
    struct store_object *object; /* NULL: free */
    enum store_request_kind kind;
    uint64_t user, offset, length;
    uint64_t submitted_ns;
};

/* free_slots[0 … free_count-1] are the slots that are free; the others belong to requests in flight. */
struct store {
    struct backend *backend;
    struct store_object *objects;
    struct slot *slots;
    uint32_t *free_slots;
    uint32_t free_count, depth;
    struct backend_request *batch;          /* holds `depth` of them */
    struct backend_completion *completions; /* holds `depth` of them */
    char *uri;
    store_completion_fn each; /* NULL: nobody watches */
    void *each_context;
};

static int store_allocate(struct store *self, const char *uri, uint32_t depth, struct cb_err *err)
{
    self->depth = depth;
    self->slots = calloc(depth, sizeof(*self->slots));
    self->free_slots = calloc(depth, sizeof(*self->free_slots));
    self->batch = calloc(depth, sizeof(*self->batch));
    self->completions = calloc(depth, sizeof(*self->completions));
    self->uri = strdup(uri);
    if (!self->slots || !self->free_slots || !self->batch || !self->completions || !self->uri)
        return alloc_fail(err, "for the requests of store '%s'", uri);
    for (uint32_t i = 0; i < depth; i++)
        self->free_slots[i] = depth - 1 - i;
    self->free_count = depth;
    return 0;
}

int store_open(const char *uri, const struct store_options *options, struct store **store, struct cb_err *err)
{
    assert(uri && options && store && options->depth > 0);
    struct store *self = calloc(1, sizeof(*self));
    if (!self)
        return alloc_fail(err, "for store '%s'", uri);
    int rc = store_allocate(self, uri, options->depth, err);
    if (!rc)
        rc = backend_open(uri, options, &self->backend, err);
    if (rc) {
        store_free(self);
        return rc;
    }
    assert(self->backend && self->backend->capabilities.max_depth == options->depth);
    *store = self;
    return 0;
}

static void drain(struct store *self)
{
    struct store_completion completions[16];
    store_cancel(self);
    while (store_in_flight(self) > 0) {
        size_t count;
        if (store_poll(self, completions, 16, UINT64_MAX, &count, NULL))
            return;
    }
}

void store_free(struct store *self)
{
    if (!self)
        return;
    if (self->backend) {
        drain(self);
        while (self->objects && self->objects->in_flight == 0)
            store_close(self, self->objects);
        self->backend->ops->free(self->backend);
    }
    free(self->slots);
    free(self->free_slots);
    free(self->batch);
    free(self->completions);
    free(self->uri);
    free(self);
}

const struct store_capabilities *store_capabilities(const struct store *self)
{
    return &self->backend->capabilities;
}

const char *store_describe(const struct store *self)
{
    return self->backend->ops->describe(self->backend);
}

/* The number of parts of an object is limited, so a long object has longer parts, of whole MiB. */
uint64_t store_part_bytes(const struct store_capabilities *capabilities, uint64_t length)
{
    uint64_t unit = UINT64_C(1) << 20, most = capabilities->max_parts, part = capabilities->part_bytes;
    if (part == 0 || most == 0 || length / most < part)
        return part;
    uint64_t needed = (length + most - 1) / most;
    needed = (needed + unit - 1) / unit * unit;
    return needed > part ? needed : part;
}

bool store_take_statistics(struct store *self, struct store_statistics *statistics)
{
    const struct backend_ops *ops = self->backend->ops;
    return ops->take_statistics && ops->take_statistics(self->backend, statistics);
}

uint64_t store_waited_in_backoff_ns(struct store *self)
{
    const struct backend_ops *ops = self->backend->ops;
    return ops->waited_in_backoff_ns ? ops->waited_in_backoff_ns(self->backend) : 0;
}

void store_register(struct store *self, const struct iovec *regions, uint32_t count)
{
    assert(regions && count > 0 && store_in_flight(self) == 0);
    self->backend->ops->register_memory(self->backend, regions, count);
}

/* A name may come from foreign metadata, so it is untrusted: it must not lead out of the store. */
static int check_name(const struct store *self, const char *name, bool is_folder, struct cb_err *err)
{
    assert(name);
    if (is_folder && !*name)
        return 0;
    for (const char *part = name;;) {
        size_t len = strcspn(part, "/");
        if (len == 0 || (len == 1 && part[0] == '.') || (len == 2 && part[0] == '.' && part[1] == '.'))
            return cb_fail(err, CB_ERR_USAGE,
                           "store '%s': the name '%s' is not a plain relative one (no leading or double '/', '.' or "
                           "'..')",
                           self->uri, name);
        if (!part[len])
            return 0;
        part += len + 1;
    }
}

/* Makes the front's object around the backend's; on failure closes the backend's. */
static int wrap_object(struct store *self, const char *name, struct backend_object *inner, bool writable,
                       struct store_object **object, struct cb_err *err)
{
    size_t name_size = strlen(name) + 1;
    struct store_object *wrapped = calloc(1, sizeof(*wrapped) + name_size);
    if (!wrapped) {
        self->backend->ops->close(self->backend, inner);
        return alloc_fail(err, "to open %s", name);
    }
    wrapped->store = self;
    wrapped->inner = inner;
    wrapped->length = inner->length;
    wrapped->writable = writable;
    memcpy(wrapped->name, name, name_size);
    wrapped->next = self->objects;
    if (self->objects)
        self->objects->previous = wrapped;
    self->objects = wrapped;
    *object = wrapped;
    return 0;
}

int store_create(struct store *self, const char *name, uint64_t length, struct store_object **object,
                 struct cb_err *err)
{
    assert(object);
    struct backend_object *inner = NULL;
    int rc = check_name(self, name, false, err);
    if (!rc)
        rc = self->backend->ops->create(self->backend, name, length, &inner, err);
    return rc ? rc : wrap_object(self, name, inner, true, object, err);
}

int store_open_shared(struct store *self, const char *name, uint64_t length, struct store_object **object,
                      struct cb_err *err)
{
    assert(object);
    struct backend_object *inner = NULL;
    int rc = check_name(self, name, false, err);
    if (!rc)
        rc = self->backend->ops->open_shared(self->backend, name, length, &inner, err);
    return rc ? rc : wrap_object(self, name, inner, true, object, err);
}

int store_open_read(struct store *self, const char *name, struct store_object **object, uint64_t *length,
                    struct cb_err *err)
{
    assert(object);
    struct backend_object *inner = NULL;
    int rc = check_name(self, name, false, err);
    if (!rc)
        rc = self->backend->ops->open_read(self->backend, name, &inner, err);
    if (!rc)
        rc = wrap_object(self, name, inner, false, object, err);
    if (!rc && length)
        *length = (*object)->length;
    return rc;
}

void store_close(struct store *self, struct store_object *object)
{
    if (!object)
        return;
    assert(object->store == self && object->in_flight == 0);
    if (object->previous)
        object->previous->next = object->next;
    else
        self->objects = object->next;
    if (object->next)
        object->next->previous = object->previous;
    self->backend->ops->close(self->backend, object->inner);
    free(object);
}

const char *store_object_name(const struct store_object *object)
{
    return object->name;
}

/* Checks what the header requires of a caller; a violation is our own bug. Returns the bytes of the request. */
static uint64_t check_request(const struct store *self, const struct store_request *request)
{
    const struct store_capabilities *can = &self->backend->capabilities;
    const struct store_object *object = request->object;
    assert(object && object->store == self);
    if (request->kind == STORE_FINISH) {
        assert(object->writable && object->writes_in_flight == 0);
        return 0;
    }
    assert(request->segments && request->segment_count > 0 && request->segment_count <= can->max_segments);
    uint64_t length = 0;
    for (uint32_t i = 0; i < request->segment_count; i++) {
        const struct iovec *segment = &request->segments[i];
        assert(segment->iov_base && segment->iov_len > 0);
        assert((uintptr_t)segment->iov_base % can->memory_alignment == 0);
        assert(i + 1 == request->segment_count || segment->iov_len % can->length_alignment == 0);
        length += segment->iov_len;
    }
    uint64_t end = request->offset + length;
    assert(end >= length && request->offset % can->offset_alignment == 0);
    assert(length % can->offset_alignment == 0 || (can->tail_unaligned && end >= object->length));
    assert(request->kind == STORE_READ ? !object->writable : object->writable && end <= object->length);
    uint64_t part = request->kind == STORE_WRITE ? store_part_bytes(can, object->length) : 0;
    assert(part == 0 || (request->offset % part == 0 && (length == part || end == object->length)));
    return length;
}

static void take_slot(struct store *self, const struct store_request *request, struct backend_request *out,
                      uint64_t now_ns)
{
    uint64_t length = check_request(self, request);
    uint32_t index = self->free_slots[--self->free_count];
    self->slots[index] = (struct slot){
        .object = request->object,
        .kind = request->kind,
        .user = request->user,
        .offset = request->offset,
        .length = length,
        .submitted_ns = now_ns,
    };
    request->object->in_flight++;
    request->object->writes_in_flight += request->kind == STORE_WRITE;
    *out = (struct backend_request){
        .slot = index,
        .kind = request->kind,
        .object = request->object->inner,
        .offset = request->offset,
        .segments = request->segments,
        .segment_count = request->kind == STORE_FINISH ? 0 : request->segment_count,
        .length = length,
        .memory = request->memory,
    };
}

static void give_slot_back(struct store *self, uint32_t index)
{
    struct slot *slot = &self->slots[index];
    assert(slot->object);
    slot->object->in_flight--;
    slot->object->writes_in_flight -= slot->kind == STORE_WRITE;
    slot->object = NULL;
    self->free_slots[self->free_count++] = index;
}

int store_submit(struct store *self, const struct store_request *requests, size_t count, struct cb_err *err)
{
    assert(count <= self->free_count);
    uint64_t now_ns = clock_monotonic_ns();
    for (size_t i = 0; i < count; i++)
        take_slot(self, &requests[i], &self->batch[i], now_ns);
    int rc = self->backend->ops->submit(self->backend, self->batch, count, err);
    if (rc)
        for (size_t i = count; i-- > 0;)
            give_slot_back(self, self->batch[i].slot);
    return rc;
}

static void complete(struct store *self, const struct backend_completion *from, struct store_completion *to)
{
    const struct slot *slot = &self->slots[from->slot];
    *to = (struct store_completion){
        .user = slot->user,
        .code = from->code,
        .sys_errno = from->sys_errno,
        .bytes = from->bytes,
        .submitted_ns = slot->submitted_ns,
        .completed_ns = from->completed_ns,
        .kind = slot->kind,
        .object = slot->object,
        .offset = slot->offset,
        .length = slot->length,
        .detail = from->detail,
    };
    assert(from->code || from->bytes == slot->length);
    give_slot_back(self, from->slot);
}

void store_watch(struct store *self, store_completion_fn each, void *context)
{
    self->each = each;
    self->each_context = context;
}

int store_poll(struct store *self, struct store_completion *completions, size_t capacity, uint64_t deadline_ns,
               size_t *count, struct cb_err *err)
{
    assert(completions && capacity > 0 && count);
    size_t room = capacity < self->depth ? capacity : self->depth;
    size_t got = 0;
    while (got == 0 && store_in_flight(self) > 0) {
        int rc = self->backend->ops->poll(self->backend, self->completions, room, deadline_ns, &got, err);
        if (rc)
            return rc;
        if (got == 0 && (deadline_ns == 0 || clock_monotonic_ns() >= deadline_ns))
            break;
    }
    for (size_t i = 0; i < got; i++) {
        complete(self, &self->completions[i], &completions[i]);
        if (self->each)
            self->each(self->each_context, &completions[i]);
    }
    *count = got;
    return 0;
}

int store_completion_error(const struct store *self, const struct store_completion *completion, struct cb_err *err)
{
    static const char *const doing[] = {"writing", "reading", "finishing"};
    const char *verb = doing[completion->kind], *name = completion->object->name;
    const char *mount = completion->object->inner->mount, *where = mount ? mount : self->uri;
    int code = completion->code;
    assert(code);
    if (completion->detail)
        (void)cb_fail(err, code, "%s %s at offset %" PRIu64 ": %s", verb, name, completion->offset, completion->detail);
    else if (completion->sys_errno)
        (void)cb_fail_errno(err, completion->sys_errno,
                            "%s %s at offset %" PRIu64 " (%" PRIu64 " of %" PRIu64 " bytes moved) in store '%s'", verb,
                            name, completion->offset, completion->bytes, completion->length, where);
    else
        (void)cb_fail(err, code,
                      "%s %s at offset %" PRIu64 " in store '%s': %s (%" PRIu64 " of %" PRIu64 " bytes moved)", verb,
                      name, completion->offset, where,
                      code == CB_ERR_CORRUPT   ? "the object is shorter than it must be"
                      : code == CB_ERR_ABORTED ? "stopped on request"
                                               : cb_code_name(code),
                      completion->bytes, completion->length);
    if (err)
        err->code = code;
    return code;
}

/* A read that is given up must end before its memory may be used again. */
static void give_up(struct store *self, uint64_t grace_ns)
{
    struct store_completion completion;
    size_t count = 0;
    store_cancel(self);
    (void)!store_poll(self, &completion, 1, clock_monotonic_ns() + grace_ns, &count, NULL);
}

int store_read_at(struct store *self, struct store_object *object, uint64_t offset, void *memory, uint64_t bytes,
                  const struct store_read_watch *watch, uint64_t *moved, struct cb_err *err)
{
    struct iovec segment = {memory, bytes};
    struct store_request request = {
        .kind = STORE_READ, .object = object, .offset = offset, .segments = &segment, .segment_count = 1};
    struct store_completion completion = {0};
    size_t count = 0;
    int rc = bytes > 0 ? store_submit(self, &request, 1, err) : 0;
    if (rc || bytes == 0)
        return rc;
    while (!rc && count == 0) {
        uint64_t until_ns = watch ? clock_monotonic_ns() + watch->slice_ns : UINT64_MAX;
        rc = store_poll(self, &completion, 1, until_ns, &count, err);
        if (!rc && count == 0 && watch)
            rc = watch->ask(watch->context, err);
    }
    if (count == 0) {
        give_up(self, watch ? watch->grace_ns : 0);
        return rc;
    }
    if (moved)
        *moved = completion.bytes;
    return completion.code ? store_completion_error(self, &completion, err) : 0;
}

void store_cancel(struct store *self)
{
    if (store_in_flight(self) > 0)
        self->backend->ops->cancel(self->backend);
}

size_t store_in_flight(const struct store *self)
{
    return self->depth - self->free_count;
}

int store_publish(struct store *self, const char *name, const void *bytes, size_t len, struct cb_err *err)
{
    assert(bytes || len == 0);
    struct iovec whole = {.iov_base = (void *)bytes, .iov_len = len}; /* read-only */
    int rc = check_name(self, name, false, err);
    return rc ? rc : self->backend->ops->publish(self->backend, name, backend_pass_whole, &whole, err);
}

int store_publish_pieces(struct store *self, const char *name, store_pass_fn pass, void *context, struct cb_err *err)
{
    assert(pass && store_in_flight(self) == 0);
    int rc = check_name(self, name, false, err);
    return rc ? rc : self->backend->ops->publish(self->backend, name, pass, context, err);
}

int store_swap(struct store *self, const char *name, const char *before, const char *after, bool *guarded,
               struct cb_err *err)
{
    assert(after && guarded);
    int rc = check_name(self, name, false, err);
    return rc ? rc : self->backend->ops->swap(self->backend, name, before, after, guarded, err);
}

int store_sync_folder(struct store *self, const char *folder, struct cb_err *err)
{
    int rc = check_name(self, folder, true, err);
    return rc ? rc : self->backend->ops->sync_folder(self->backend, folder, err);
}

int store_make_folder(struct store *self, const char *folder, struct cb_err *err)
{
    int rc = check_name(self, folder, true, err);
    return rc ? rc : self->backend->ops->make_folder(self->backend, folder, err);
}

int store_read_small(struct store *self, const char *name, struct buf *out, struct cb_err *err)
{
    assert(out);
    int rc = check_name(self, name, false, err);
    return rc ? rc : self->backend->ops->read_small(self->backend, name, out, err);
}

int store_stat(struct store *self, const char *name, uint64_t *length, struct cb_err *err)
{
    assert(length);
    int rc = check_name(self, name, false, err);
    return rc ? rc : self->backend->ops->stat(self->backend, name, length, err);
}

int store_modified(struct store *self, const char *name, uint64_t *wall_ns, struct cb_err *err)
{
    assert(wall_ns);
    int rc = check_name(self, name, false, err);
    return rc ? rc : self->backend->ops->modified(self->backend, name, wall_ns, err);
}

int store_list(struct store *self, const char *folder, store_list_fn each, void *context, struct cb_err *err)
{
    assert(each);
    int rc = check_name(self, folder, true, err);
    return rc ? rc : self->backend->ops->list(self->backend, folder, each, context, err);
}

struct sum {
    uint64_t bytes, files;
};

static int add_length(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    (void)name, (void)err;
    struct sum *self = context;
    self->bytes += length;
    self->files++;
    return 0;
}

int store_measure(struct store *self, const char *folder, uint64_t *bytes, uint64_t *files, struct cb_err *err)
{
    struct sum sum = {0};
    int rc = store_list(self, folder, add_length, &sum, err);
    if (rc)
        return rc;
    *bytes = sum.bytes;
    *files = sum.files;
    return 0;
}

int store_list_near(struct store *self, const char *folder, uint32_t depth, store_list_fn each, void *context,
                    struct cb_err *err)
{
    const struct backend_ops *ops = self->backend->ops;
    assert(each);
    int rc = check_name(self, folder, true, err);
    if (rc)
        return rc;
    return ops->list_near ? ops->list_near(self->backend, folder, depth, each, context, err)
                          : ops->list(self->backend, folder, each, context, err);
}

int store_remove(struct store *self, const char *name, struct cb_err *err)
{
    int rc = check_name(self, name, false, err);
    return rc ? rc : self->backend->ops->remove(self->backend, name, err);
}

int store_remove_many(struct store *self, const char *const *names, size_t count, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < count && !rc; i++)
        rc = check_name(self, names[i], false, err);
    if (!rc && self->backend->ops->remove_many)
        return self->backend->ops->remove_many(self->backend, names, count, err);
    for (size_t i = 0; i < count && !rc; i++)
        rc = self->backend->ops->remove(self->backend, names[i], err);
    return rc;
}

int store_remove_folder(struct store *self, const char *folder, struct cb_err *err)
{
    int rc = check_name(self, folder, false, err);
    return rc ? rc : self->backend->ops->remove_folder(self->backend, folder, err);
}

int store_free_bytes(struct store *self, uint64_t *bytes, struct cb_err *err)
{
    assert(bytes);
    return self->backend->ops->free_bytes(self->backend, bytes, err);
}

int store_drop_cache(struct store *self, const char *name, double *resident_fraction, struct cb_err *err)
{
    assert(resident_fraction);
    int rc = check_name(self, name, false, err);
    return rc ? rc : self->backend->ops->drop_cache(self->backend, name, resident_fraction, err);
}
