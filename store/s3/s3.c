/* Objects in a bucket: gives every request a slot with a call of its own, and collects the replies.
 *
 * Writes are parts (store_part_bytes). An object no longer than a part is one PUT; longer objects are multipart
 * uploads, begun by their first part, completed and then checked by STORE_FINISH. Reads are ranged GETs of one version
 * of the object (If-Match). curl's callbacks read and write the caller's memory; there is no buffer of ours. An object
 * is durable when the server has acknowledged it. There are no folders, and nothing is synced. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/units.h"
#include "store/kind.h"
#include "store/s3/s3_object.h"
#include "store/s3/s3_pool.h"
#include "store/s3/s3_publish.h"

#ifdef HAVE_CURL

/* Enough for a part of small tensors; longer lists are copied by the caller. */
#define MAX_SEGMENTS 4096

struct s3_slot {
    struct s3_call call;
    struct iovec *segments; /* copies, valid until the call is done */
    struct s3_object *object;
    enum store_request_kind kind;
    uint32_t segment_count;
    uint64_t offset, bytes;
    bool begins;         /* a part whose call first requests the upload */
    bool is_short;       /* a read that extends past the object's end */
    enum s3_finish step; /* of a FINISH */
};

/* A slot in use is with the pool, or in `ready`. */
struct s3_store {
    struct backend base;
    struct s3_client *client;
    struct s3_pool *pool;
    struct s3_slot *slots;
    struct iovec *segments; /* of all slots */
    struct backend_completion *ready;
    uint32_t ready_count;
    bool cancelled;  /* nothing new may start */
    enum s3_crc crc; /* as the description reports it */
    char description[768];
};

static struct s3_store *s3_of(struct backend *backend)
{
    return (struct s3_store *)backend;
}

static void s3_free(struct backend *backend)
{
    struct s3_store *self = s3_of(backend);
    s3_pool_free(self->pool);
    for (uint32_t i = 0; self->slots && i < self->base.capabilities.max_depth; i++)
        s3_call_release(&self->slots[i].call);
    s3_client_free(self->client);
    free(self->slots);
    free(self->segments);
    free(self->ready);
    free(self);
}

static void describe(struct s3_store *self)
{
    struct s3_session *session = &self->client->session;
    const struct s3_options *options = &session->options;
    char part[32], endpoints[48] = "", addresses[64] = "", loops[32] = "";
    if (session->endpoint_count > 1)
        snprintf(endpoints, sizeof endpoints, " (ranks spread over %u endpoints)", session->endpoint_count);
    if (session->address_count > 1)
        snprintf(addresses, sizeof addresses, ", %zu addresses", session->address_count);
    if (options->loops > 1)
        snprintf(loops, sizeof loops, ", %u threads", options->loops);
    pthread_mutex_lock(&session->lock); /* of the credentials' source */
    snprintf(self->description, sizeof self->description,
             "s3 %.160s%s%s, region %s, %s style, parts of %s%s, %s, credentials: %.200s", self->client->endpoint_url,
             endpoints, addresses, options->region, session->endpoint.base[0] ? "path" : "virtual-host",
             units_format_bytes((double)options->part_bytes, part), loops, s3_session_protection(session),
             session->credentials.source);
    pthread_mutex_unlock(&session->lock);
}

static int allocate(struct s3_store *self, uint32_t depth, struct cb_err *err)
{
    self->slots = calloc(depth, sizeof *self->slots);
    self->segments = calloc((size_t)depth * MAX_SEGMENTS, sizeof *self->segments); /* touched up to the used length */
    self->ready = calloc(depth, sizeof *self->ready);
    if (!self->slots || !self->segments || !self->ready)
        return alloc_fail(err, "for %" PRIu32 " requests to S3", depth);
    int rc = 0;
    for (uint32_t i = 0; i < depth && !rc; i++) {
        struct s3_slot *slot = &self->slots[i];
        rc = s3_call_init(&slot->call, &self->client->session, err);
        slot->segments = self->segments + (size_t)i * MAX_SEGMENTS;
        slot->call.owner = slot;
        slot->call.address = self->client->session.rank * depth + i; /* ranks begin at different ones */
    }
    return rc;
}

int s3_open(const char *where, const struct store_options *options, struct backend **backend, struct cb_err *err)
{
    struct s3_store *self = calloc(1, sizeof *self);
    char uri[2 * S3_KEY_BYTES];
    if (!self)
        return alloc_fail(err, "for store '" STORE_S3 "%s'", where);
    if ((size_t)snprintf(uri, sizeof uri, STORE_S3 "%s", where) >= sizeof uri) {
        free(self);
        return cb_fail(err, CB_ERR_USAGE, "store '" STORE_S3 "%.80s…' is too long", where);
    }
    int rc = s3_client_new(uri, options->s3, options->rank, options->depth, &self->client, err);
    if (rc) {
        free(self);
        return rc;
    }
    self->client->session.time_origin_ns = options->time_origin_ns;
    self->base.ops = &s3_backend;
    self->base.capabilities = (struct store_capabilities){
        .offset_alignment = 1,
        .memory_alignment = 1,
        .length_alignment = 1,
        .tail_unaligned = true,
        .max_segments = MAX_SEGMENTS,
        .max_depth = options->depth,
        .part_bytes = self->client->session.options.part_bytes,
        .max_parts = S3_MAX_PARTS,
        .atomic_publish = true,
        .ranged_reads = true,
    };
    const struct s3_session *session = &self->client->session;
    rc = s3_pool_new(&self->client->session, self->client->loop, session->options.loops, options->depth, &self->pool,
                     err);
    if (!rc)
        rc = allocate(self, options->depth, err);
    if (rc) {
        s3_free(&self->base);
        return rc;
    }
    describe(self);
    *backend = &self->base;
    return 0;
}

static const char *s3_describe(const struct backend *backend)
{
    return ((const struct s3_store *)backend)->description;
}

static void s3_register(struct backend *backend, const struct iovec *regions, uint32_t count)
{
    (void)backend, (void)regions, (void)count; /* sockets cannot use registered memory */
}

/* --- objects --- */

static int s3_create(struct backend *backend, const char *name, uint64_t length, struct backend_object **object,
                     struct cb_err *err)
{
    struct s3_object *made = NULL;
    uint64_t part_bytes = store_part_bytes(&backend->capabilities, length);
    int rc = s3_object_create(name, length, part_bytes, &made, err);
    if (rc)
        return rc;
    *object = &made->base;
    return 0;
}

static int s3_open_shared(struct backend *backend, const char *name, uint64_t length, struct backend_object **object,
                          struct cb_err *err)
{
    (void)backend, (void)length, (void)object;
    return cb_fail(err, CB_ERR_UNSUPPORTED, "%s: an object in S3 is written by one rank: use io.files=rank", name);
}

static int s3_open_read(struct backend *backend, const char *name, struct backend_object **object, struct cb_err *err)
{
    struct s3_object *made = NULL;
    int rc = s3_object_open(s3_of(backend)->client, name, &made, err);
    if (rc)
        return rc;
    *object = &made->base;
    return 0;
}

static void s3_close(struct backend *backend, struct backend_object *object)
{
    s3_object_close(s3_of(backend)->client, (struct s3_object *)object);
}

/* --- requests --- */

static uint32_t number_of(const struct s3_store *self, const struct s3_slot *slot)
{
    return (uint32_t)(slot - self->slots);
}

/* Completes the slot's request, which needs no further call. */
static void complete(struct s3_store *self, struct s3_slot *slot, int code)
{
    if (!code && slot->is_short)
        code = CB_ERR_CORRUPT;
    self->ready[self->ready_count++] = (struct backend_completion){
        .slot = number_of(self, slot),
        .code = code,
        .bytes = code == 0 || code == CB_ERR_CORRUPT ? slot->bytes : 0,
        .completed_ns = clock_monotonic_ns(),
        .detail = code && slot->call.detail[0] ? slot->call.detail : NULL,
    };
}

static void begin_finish(struct s3_store *self, struct s3_slot *slot)
{
    bool more;
    int code = s3_object_next_finish(slot->object, &slot->call, &slot->step, &more);
    if (more)
        s3_pool_start(self->pool, &slot->call, number_of(self, slot));
    else
        complete(self, slot, code);
}

static int ask_transfer(struct s3_slot *slot, struct cb_err *err)
{
    const struct backend_request request = {.kind = slot->kind,
                                            .offset = slot->offset,
                                            .segments = slot->segments,
                                            .segment_count = slot->segment_count,
                                            .length = slot->bytes};
    if (slot->kind == STORE_READ)
        return s3_object_ask_read(slot->object, &slot->call, &request, slot->bytes, err);
    if (s3_object_needs_upload(slot->object)) {
        slot->begins = true;
        return s3_object_ask_begin(slot->object, &slot->call, err);
    }
    int rc = s3_object_ask_write(slot->object, &slot->call, &request, err);
    if (!rc)
        s3_call_set_body(&slot->call, slot->segments, slot->segment_count, slot->bytes);
    return rc;
}

static void begin_transfer(struct s3_store *self, struct s3_slot *slot)
{
    struct cb_err err = {0};
    int rc = ask_transfer(slot, &err);
    if (rc) {
        snprintf(slot->call.detail, sizeof slot->call.detail, "%.800s", err.message);
        complete(self, slot, rc);
    } else {
        s3_pool_start(self->pool, &slot->call, number_of(self, slot));
    }
}

/* An upload has begun, or failed to: starts or fails the part that requested it and the parts that wait for it. */
static void end_begin(struct s3_store *self, struct s3_slot *slot)
{
    struct s3_object *object = slot->object;
    int code = s3_object_take_begin(object, &slot->call);
    struct s3_call *waiting = object->waiting;
    object->waiting = NULL;
    slot->begins = false;
    slot->call.next = waiting;
    if (!code && self->cancelled)
        code = CB_ERR_ABORTED;
    for (struct s3_call *call = &slot->call, *next; call; call = next) {
        next = call->next;
        if (code && call != &slot->call)
            memcpy(call->detail, slot->call.detail, sizeof call->detail);
        if (code)
            complete(self, call->owner, code);
        else
            begin_transfer(self, call->owner);
    }
}

static void begin_request(struct s3_store *self, const struct backend_request *request)
{
    struct s3_slot *slot = &self->slots[request->slot];
    uint64_t length = request->object->length;
    slot->object = (struct s3_object *)request->object;
    slot->kind = request->kind;
    slot->offset = request->offset;
    slot->bytes = request->length;
    slot->segment_count = request->segment_count;
    slot->step = S3_FINISH_START;
    slot->is_short = slot->begins = false;
    slot->call.detail[0] = '\0';
    slot->call.state = S3_CALL_IDLE;
    if (request->kind == STORE_FINISH) {
        begin_finish(self, slot);
        return;
    }
    if (request->kind == STORE_READ && request->offset + request->length > length) {
        slot->is_short = true;
        slot->bytes = request->offset < length ? length - request->offset : 0;
    }
    if (slot->bytes == 0) {
        complete(self, slot, 0);
        return;
    }
    memcpy(slot->segments, request->segments, request->segment_count * sizeof *slot->segments);
    if (slot->kind == STORE_WRITE && slot->object->beginning) {
        struct s3_call **last = &slot->object->waiting;
        while (*last)
            last = &(*last)->next;
        slot->call.next = NULL;
        *last = &slot->call;
    } else {
        begin_transfer(self, slot);
    }
}

static int s3_submit(struct backend *backend, const struct backend_request *requests, size_t count, struct cb_err *err)
{
    struct s3_store *self = s3_of(backend);
    self->cancelled = false;
    for (size_t i = 0; i < count; i++)
        begin_request(self, &requests[i]);
    /* Sends new bytes and continues with those in flight. An error here is repeated by poll, which reports it. */
    int rc = s3_pool_drive(self->pool, 0, err);
    (void)rc;
    return 0;
}

/* Updates the description when replies have shown how the server treats bodies. */
static void take_protection(struct s3_store *self)
{
    enum s3_crc crc = self->client->session.crc;
    if (self->crc == crc)
        return;
    self->crc = crc;
    describe(self);
}

static void take_done(struct s3_store *self)
{
    for (struct s3_call *call = s3_pool_take_done(self->pool); call; call = s3_pool_take_done(self->pool)) {
        struct s3_slot *slot = call->owner;
        if (slot->kind == STORE_FINISH) {
            begin_finish(self, slot);
            continue;
        }
        if (slot->begins) {
            end_begin(self, slot);
            continue;
        }
        if (slot->kind == STORE_WRITE && call->code == 0) {
            s3_object_take_write(slot->object, call, slot->offset);
            take_protection(self);
        }
        complete(self, slot, call->code);
    }
}

static int s3_poll(struct backend *backend, struct backend_completion *completions, size_t capacity,
                   uint64_t deadline_ns, size_t *count, struct cb_err *err)
{
    struct s3_store *self = s3_of(backend);
    take_done(self);
    while (self->ready_count == 0) {
        s3_blocked_wait(&self->client->session.blocked, true);
        int rc = s3_pool_drive(self->pool, deadline_ns, err);
        s3_blocked_wait(&self->client->session.blocked, false);
        if (rc)
            return rc;
        take_done(self);
        if (self->ready_count == 0 && clock_monotonic_ns() >= deadline_ns)
            break;
    }
    size_t got = self->ready_count < capacity ? self->ready_count : capacity;
    memcpy(completions, self->ready, got * sizeof *completions);
    memmove(self->ready, self->ready + got, (self->ready_count - got) * sizeof *self->ready);
    self->ready_count -= (uint32_t)got;
    *count = got;
    return 0;
}

static void s3_cancel(struct backend *backend)
{
    s3_of(backend)->cancelled = true;
    s3_pool_cancel(s3_of(backend)->pool);
}

/* --- small operations --- */

static int s3_publish(struct backend *backend, const char *name, store_pass_fn pass, void *context, struct cb_err *err)
{
    return s3_publish_pieces(backend, s3_of(backend)->client, name, pass, context, err);
}

static int s3_swap(struct backend *backend, const char *name, const char *before, const char *after, bool *guarded,
                   struct cb_err *err)
{
    return s3_client_swap(s3_of(backend)->client, name, before, after, guarded, err);
}

static int s3_no_folder(struct backend *backend, const char *folder, struct cb_err *err)
{
    (void)backend, (void)folder, (void)err;
    return 0;
}

static int s3_read_small(struct backend *backend, const char *name, struct buf *out, struct cb_err *err)
{
    return s3_client_get(s3_of(backend)->client, name, out, err);
}

static int s3_stat(struct backend *backend, const char *name, uint64_t *length, struct cb_err *err)
{
    return s3_client_stat(s3_of(backend)->client, name, length, err);
}

static int s3_modified(struct backend *backend, const char *name, uint64_t *wall_ns, struct cb_err *err)
{
    return s3_client_modified(s3_of(backend)->client, name, wall_ns, err);
}

static int s3_list(struct backend *backend, const char *folder, store_list_fn each, void *context, struct cb_err *err)
{
    return s3_client_list(s3_of(backend)->client, folder, each, context, err);
}

static int s3_remove(struct backend *backend, const char *name, struct cb_err *err)
{
    return s3_client_remove(s3_of(backend)->client, &name, 1, err);
}

static int s3_remove_many(struct backend *backend, const char *const *names, size_t count, struct cb_err *err)
{
    return s3_client_remove(s3_of(backend)->client, names, count, err);
}

static int s3_free_bytes(struct backend *backend, uint64_t *bytes, struct cb_err *err)
{
    (void)backend, (void)err;
    *bytes = UINT64_MAX;
    return 0;
}

static int s3_drop_cache(struct backend *backend, const char *name, double *resident_fraction, struct cb_err *err)
{
    (void)backend, (void)name, (void)err;
    *resident_fraction = (double)NAN;
    return 0;
}

static bool s3_take_statistics(struct backend *backend, struct store_statistics *statistics)
{
    s3_pool_take_statistics(s3_of(backend)->pool, statistics);
    return true;
}

static uint64_t s3_waited_in_backoff_ns(struct backend *backend)
{
    return s3_blocked_ns(&s3_of(backend)->client->session.blocked);
}

const struct backend_ops s3_backend = {
    .version = BACKEND_VERSION,
    .free = s3_free,
    .describe = s3_describe,
    .register_memory = s3_register,
    .create = s3_create,
    .open_shared = s3_open_shared,
    .open_read = s3_open_read,
    .close = s3_close,
    .submit = s3_submit,
    .poll = s3_poll,
    .cancel = s3_cancel,
    .publish = s3_publish,
    .swap = s3_swap,
    .sync_folder = s3_no_folder,
    .make_folder = s3_no_folder,
    .read_small = s3_read_small,
    .stat = s3_stat,
    .modified = s3_modified,
    .list = s3_list,
    .remove = s3_remove,
    .remove_folder = s3_no_folder,
    .free_bytes = s3_free_bytes,
    .drop_cache = s3_drop_cache,
    .remove_many = s3_remove_many,
    .take_statistics = s3_take_statistics,
    .waited_in_backoff_ns = s3_waited_in_backoff_ns,
};

#endif
