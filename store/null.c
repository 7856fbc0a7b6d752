/* "null:", a store without cost, to measure the cost of everything above it.
 *
 * Writes are discarded. Reads leave the caller's memory as it is: filling it would measure memset. Names and lengths,
 * and the bytes of published objects, are remembered for the life of the store, so that stat, list, open_read and
 * read_small work within one process; another process sees none of it. There are no folders. Requests complete in the
 * order of their submission. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <search.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "store/backend.h"
#include "store/kind.h"

struct null_entry {
    const char *name; /* first, so that a lookup needs no entry of its own */
    uint64_t length;
    uint64_t written_wall_ns;
    char *bytes; /* of a published object, else NULL */
};

/* finished[tail … tail+finished_count), modulo depth, are the completions that have not been fetched. */
struct null_store {
    struct backend base;
    void *entries; /* a tree of struct null_entry, by name */
    struct backend_completion *finished;
    uint32_t finished_tail, finished_count;
};

static struct null_store *null_of(struct backend *backend)
{
    return (struct null_store *)backend;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct null_entry *)a)->name, ((const struct null_entry *)b)->name);
}

static struct null_entry *find(struct null_store *self, const char *name)
{
    struct null_entry key = {.name = name};
    void *node = tfind(&key, &self->entries, compare_names);
    return node ? *(struct null_entry **)node : NULL;
}

static void entry_free(void *pointer)
{
    struct null_entry *entry = pointer;
    free(entry->bytes);
    free(entry);
}

/* Adds or replaces; takes ownership of `bytes`. */
static int remember(struct null_store *self, const char *name, uint64_t length, char *bytes, struct cb_err *err)
{
    struct null_entry *entry = find(self, name);
    if (!entry) {
        size_t size = strlen(name) + 1;
        entry = calloc(1, sizeof(*entry) + size);
        if (!entry)
            goto no_memory;
        entry->name = memcpy(entry + 1, name, size);
        if (!tsearch(entry, &self->entries, compare_names)) {
            free(entry);
            goto no_memory;
        }
    }
    free(entry->bytes);
    entry->bytes = bytes;
    entry->length = length;
    entry->written_wall_ns = clock_wall_ns();
    return 0;

no_memory:
    free(bytes);
    return alloc_fail(err, "to remember %s in store '" STORE_NULL "'", name);
}

static int not_found(const char *name, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_NOT_FOUND,
                   "%s: nothing of that name was written to store '" STORE_NULL "' by this process", name);
}

int null_open(const char *where, const struct store_options *options, struct backend **backend, struct cb_err *err)
{
    if (*where)
        return cb_fail(err, CB_ERR_USAGE, "store '" STORE_NULL "%s': nothing may follow '" STORE_NULL "'", where);
    struct null_store *self = calloc(1, sizeof(*self));
    if (self)
        self->finished = calloc(options->depth, sizeof(*self->finished));
    if (!self || !self->finished) {
        free(self);
        return alloc_fail(err, "for store '" STORE_NULL "'");
    }
    self->base.ops = &null_backend;
    self->base.capabilities = (struct store_capabilities){
        .offset_alignment = 1,
        .memory_alignment = 1,
        .length_alignment = 1,
        .tail_unaligned = true,
        .max_segments = 256,
        .max_depth = options->depth,
        .atomic_publish = true,
        .ranged_reads = false, /* reads move no bytes */
    };
    *backend = &self->base;
    return 0;
}

static void null_free(struct backend *backend)
{
    struct null_store *self = null_of(backend);
    tdestroy(self->entries, entry_free);
    free(self->finished);
    free(self);
}

static const char *null_describe(const struct backend *backend)
{
    (void)backend;
    return "null (writes vanish, reads leave memory as it is)";
}

static void null_register(struct backend *backend, const struct iovec *regions, uint32_t count)
{
    (void)backend;
    (void)regions;
    (void)count;
}

static int object_new(const char *name, uint64_t length, struct backend_object **object, struct cb_err *err)
{
    struct backend_object *made = malloc(sizeof(*made));
    if (!made)
        return alloc_fail(err, "to open %s", name);
    *made = (struct backend_object){.length = length};
    *object = made;
    return 0;
}

static int null_create(struct backend *backend, const char *name, uint64_t length, struct backend_object **object,
                       struct cb_err *err)
{
    struct null_store *self = null_of(backend);
    if (find(self, name))
        return cb_fail(err, CB_ERR_EXISTS, "%s exists already in store '" STORE_NULL "'", name);
    int rc = remember(self, name, length, NULL, err);
    return rc ? rc : object_new(name, length, object, err);
}

/* Objects that another rank created are unknown here, so this cannot require that the object exists. */
static int null_open_shared(struct backend *backend, const char *name, uint64_t length, struct backend_object **object,
                            struct cb_err *err)
{
    int rc = remember(null_of(backend), name, length, NULL, err);
    return rc ? rc : object_new(name, length, object, err);
}

static int null_open_read(struct backend *backend, const char *name, struct backend_object **object, struct cb_err *err)
{
    const struct null_entry *entry = find(null_of(backend), name);
    return entry ? object_new(name, entry->length, object, err) : not_found(name, err);
}

static void null_close(struct backend *backend, struct backend_object *object)
{
    (void)backend;
    free(object);
}

static int null_submit(struct backend *backend, const struct backend_request *requests, size_t count,
                       struct cb_err *err)
{
    (void)err;
    struct null_store *self = null_of(backend);
    uint32_t depth = self->base.capabilities.max_depth;
    uint64_t now_ns = clock_monotonic_ns();
    for (size_t i = 0; i < count; i++) {
        const struct backend_request *request = &requests[i];
        uint64_t length = request->object->length;
        uint64_t there = request->offset < length ? length - request->offset : 0;
        bool is_short = request->kind == STORE_READ && request->length > there;
        self->finished[(self->finished_tail + self->finished_count++) % depth] = (struct backend_completion){
            .slot = request->slot,
            .code = is_short ? CB_ERR_CORRUPT : 0,
            .bytes = is_short ? there : request->length,
            .completed_ns = now_ns,
        };
    }
    return 0;
}

static int null_poll(struct backend *backend, struct backend_completion *completions, size_t capacity,
                     uint64_t deadline_ns, size_t *count, struct cb_err *err)
{
    (void)deadline_ns;
    (void)err;
    struct null_store *self = null_of(backend);
    size_t got = 0;
    while (got < capacity && self->finished_count > 0) {
        completions[got++] = self->finished[self->finished_tail];
        self->finished_tail = (self->finished_tail + 1) % self->base.capabilities.max_depth;
        self->finished_count--;
    }
    *count = got;
    return 0;
}

static void null_cancel(struct backend *backend)
{
    (void)backend; /* all requests have already completed */
}

static int keep_piece(void *to, const void *bytes, size_t len, struct cb_err *err)
{
    buf_append(to, bytes, len);
    return buf_check(to, "an object of store '" STORE_NULL "'", err);
}

static int null_publish(struct backend *backend, const char *name, store_pass_fn pass, void *context,
                        struct cb_err *err)
{
    struct buf kept;
    buf_init(&kept, SIZE_MAX);
    int rc = pass(context, keep_piece, &kept, err);
    if (rc) {
        buf_release(&kept);
        return rc;
    }
    uint64_t len = kept.len;
    buf_append(&kept, "", 0); /* so that an empty object has memory too */
    char *bytes = buf_take(&kept);
    return bytes ? remember(null_of(backend), name, len, bytes, err)
                 : alloc_fail(err, "to remember %s in store '" STORE_NULL "'", name);
}

static int null_swap(struct backend *backend, const char *name, const char *before, const char *after, bool *guarded,
                     struct cb_err *err)
{
    const struct null_entry *entry = find(null_of(backend), name);
    *guarded = true; /* no other process sees this store */
    if (before ? !entry || !entry->bytes || entry->length != strlen(before) ||
                     memcmp(entry->bytes, before, strlen(before)) != 0
               : entry != NULL)
        return cb_fail(err, CB_ERR_EXISTS, "%s in store '" STORE_NULL "' is not what it was", name);
    struct iovec whole = {.iov_base = (void *)after, .iov_len = strlen(after)}; /* read-only */
    return null_publish(backend, name, backend_pass_whole, &whole, err);
}

static int null_folder(struct backend *backend, const char *folder, struct cb_err *err)
{
    (void)backend;
    (void)folder;
    (void)err;
    return 0;
}

static int null_read_small(struct backend *backend, const char *name, struct buf *out, struct cb_err *err)
{
    const struct null_entry *entry = find(null_of(backend), name);
    if (!entry)
        return not_found(name, err);
    if (!entry->bytes)
        return cb_fail(err, CB_ERR_NOT_FOUND, "%s: store '" STORE_NULL "' keeps only the bytes of published objects",
                       name);
    buf_append(out, entry->bytes, (size_t)entry->length);
    return buf_check(out, name, err);
}

static int null_stat(struct backend *backend, const char *name, uint64_t *length, struct cb_err *err)
{
    const struct null_entry *entry = find(null_of(backend), name);
    if (!entry)
        return not_found(name, err);
    *length = entry->length;
    return 0;
}

static int null_modified(struct backend *backend, const char *name, uint64_t *wall_ns, struct cb_err *err)
{
    const struct null_entry *entry = find(null_of(backend), name);
    if (!entry)
        return not_found(name, err);
    *wall_ns = entry->written_wall_ns;
    return 0;
}

struct walk {
    const char *folder;
    size_t folder_len;
    store_list_fn each;
    void *context;
    struct cb_err *err;
    int rc;
};

static void visit(const void *node, VISIT which, void *closure)
{
    struct walk *walk = closure;
    const struct null_entry *entry = *(const struct null_entry *const *)node;
    if (walk->rc || (which != postorder && which != leaf))
        return;
    if (walk->folder_len == 0 ||
        (strncmp(entry->name, walk->folder, walk->folder_len) == 0 && entry->name[walk->folder_len] == '/'))
        walk->rc = walk->each(walk->context, entry->name, entry->length, walk->err);
}

static int null_list(struct backend *backend, const char *folder, store_list_fn each, void *context, struct cb_err *err)
{
    struct walk walk = {.folder = folder, .folder_len = strlen(folder), .each = each, .context = context, .err = err};
    twalk_r(null_of(backend)->entries, visit, &walk);
    return walk.rc;
}

static int null_remove(struct backend *backend, const char *name, struct cb_err *err)
{
    struct null_store *self = null_of(backend);
    struct null_entry *entry = find(self, name);
    if (!entry)
        return not_found(name, err);
    tdelete(entry, &self->entries, compare_names);
    entry_free(entry);
    return 0;
}

static int null_free_bytes(struct backend *backend, uint64_t *bytes, struct cb_err *err)
{
    (void)backend;
    (void)err;
    *bytes = UINT64_MAX;
    return 0;
}

static int null_drop_cache(struct backend *backend, const char *name, double *resident_fraction, struct cb_err *err)
{
    if (!find(null_of(backend), name))
        return not_found(name, err);
    *resident_fraction = (double)NAN;
    return 0;
}

const struct backend_ops null_backend = {
    .version = BACKEND_VERSION,
    .free = null_free,
    .describe = null_describe,
    .register_memory = null_register,
    .create = null_create,
    .open_shared = null_open_shared,
    .open_read = null_open_read,
    .close = null_close,
    .submit = null_submit,
    .poll = null_poll,
    .cancel = null_cancel,
    .publish = null_publish,
    .swap = null_swap,
    .sync_folder = null_folder,
    .make_folder = null_folder,
    .read_small = null_read_small,
    .stat = null_stat,
    .modified = null_modified,
    .list = null_list,
    .remove = null_remove,
    .remove_folder = null_folder,
    .free_bytes = null_free_bytes,
    .drop_cache = null_drop_cache,
};
