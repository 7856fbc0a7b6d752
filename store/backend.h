/* What a kind of store must provide: one versioned table of operations, of which four are optional.
 *
 * The front (store.c) checks arguments, counts what is in flight, gives every request a slot and composes the messages
 * about completions; a backend moves bytes. A slot is a number below options->depth that belongs to one request from
 * submit to its completion, so a backend keeps what it needs in arrays made at open, and never allocates between submit
 * and poll.
 *
 * Every operation is called by one thread at a time. The front guarantees: names are relative and clean; objects belong
 * to this backend; segments, offsets and lengths obey the capabilities; memory is not NULL; no more than `depth`
 * requests are in flight; an object is closed only when none of its requests is in flight. Fallible operations return 0
 * or a cb_code with a sentence that names the object, and leave their outputs untouched on failure. */
#ifndef STORE_BACKEND_H
#define STORE_BACKEND_H

#include "store/store.h"

#define BACKEND_VERSION 2

struct backend_ops;

/* Records which changes are durable (store/fault/power_cut.h); called by any thread. */
struct disk_watch {
    /* Right before a sync; may kill the process. */
    void (*begins)(struct disk_watch *watch);
    /* The current contents of the file or folder are durable; for a file that was just created, that it is empty. */
    void (*is_durable)(struct disk_watch *watch, int fd);
};

/* First member of every backend's own struct. The capabilities are set by open and stay. */
struct backend {
    const struct backend_ops *ops;
    struct store_capabilities capabilities;
};

/* First member of every backend's own object. */
struct backend_object {
    uint64_t length;
    const char *mount; /* for messages: in a store of several mounts, the mount that the object is on; else NULL */
};

struct backend_request {
    uint32_t slot;
    enum store_request_kind kind;
    struct backend_object *object;
    uint64_t offset;
    const struct iovec *segments; /* borrowed until submit returns */
    uint32_t segment_count;
    uint64_t length; /* of all segments; 0 for STORE_FINISH */
    enum memory_kind memory;
};

struct backend_completion {
    uint32_t slot;
    int code;      /* 0 or a cb_code */
    int sys_errno; /* with CB_ERR_SYSTEM and CB_ERR_NO_SPACE */
    uint64_t bytes;
    uint64_t completed_ns;
    const char *detail; /* of a failure, or NULL; valid until the slot is used again */
};

struct backend_ops {
    uint32_t version; /* BACKEND_VERSION it was written for */

    /* Nothing is in flight and every object is closed. */
    void (*free)(struct backend *backend);
    /* One line; valid until register_memory or free. */
    const char *(*describe)(const struct backend *backend);
    /* A hint; the description reports the outcome. */
    void (*register_memory)(struct backend *backend, const struct iovec *regions, uint32_t count);

    /* See store_create, store_open_shared, store_open_read. */
    int (*create)(struct backend *backend, const char *name, uint64_t length, struct backend_object **object,
                  struct cb_err *err);
    int (*open_shared)(struct backend *backend, const char *name, uint64_t length, struct backend_object **object,
                       struct cb_err *err);
    int (*open_read)(struct backend *backend, const char *name, struct backend_object **object, struct cb_err *err);
    void (*close)(struct backend *backend, struct backend_object *object);

    /* Accepts the whole batch, or fails and accepts nothing. Must not wait for the device. A request that fails at once
     * still completes through poll. */
    int (*submit)(struct backend *backend, const struct backend_request *requests, size_t count, struct cb_err *err);
    /* As store_poll; at least one request is in flight. May return early without a completion. */
    int (*poll)(struct backend *backend, struct backend_completion *completions, size_t capacity, uint64_t deadline_ns,
                size_t *count, struct cb_err *err);
    /* Cancels what can be cancelled; must not wait. Everything still completes through poll. */
    void (*cancel)(struct backend *backend);

    /* As in store.h; these block. */
    int (*publish)(struct backend *backend, const char *name, store_pass_fn pass, void *context, struct cb_err *err);
    int (*swap)(struct backend *backend, const char *name, const char *before, const char *after, bool *guarded,
                struct cb_err *err);
    int (*sync_folder)(struct backend *backend, const char *folder, struct cb_err *err);
    int (*make_folder)(struct backend *backend, const char *folder, struct cb_err *err);
    int (*read_small)(struct backend *backend, const char *name, struct buf *out, struct cb_err *err);
    int (*stat)(struct backend *backend, const char *name, uint64_t *length, struct cb_err *err);
    int (*modified)(struct backend *backend, const char *name, uint64_t *wall_ns, struct cb_err *err);
    int (*list)(struct backend *backend, const char *folder, store_list_fn each, void *context, struct cb_err *err);
    int (*remove)(struct backend *backend, const char *name, struct cb_err *err);
    int (*remove_folder)(struct backend *backend, const char *folder, struct cb_err *err);
    int (*free_bytes)(struct backend *backend, uint64_t *bytes, struct cb_err *err);
    int (*drop_cache)(struct backend *backend, const char *name, double *resident_fraction, struct cb_err *err);

    /* Optional (NULL). */
    int (*list_near)(struct backend *backend, const char *folder, uint32_t depth, store_list_fn each, void *context,
                     struct cb_err *err); /* see store_list_near */
    int (*remove_many)(struct backend *backend, const char *const *names, size_t count, struct cb_err *err);
    bool (*take_statistics)(struct backend *backend,
                            struct store_statistics *statistics); /* false: nothing is counted */
    uint64_t (*waited_in_backoff_ns)(struct backend *backend);    /* see store_waited_in_backoff_ns */
};

/* One open function per row of the table of kinds; s3 is missing from a build without libcurl. */
extern const struct backend_ops posix_backend, s3_backend, null_backend, fault_backend;
int posix_open(const char *where, const struct store_options *options, struct backend **backend,
               struct cb_err *err) CB_MUST_CHECK;
int s3_open(const char *where, const struct store_options *options, struct backend **backend,
            struct cb_err *err) CB_MUST_CHECK;
int null_open(const char *where, const struct store_options *options, struct backend **backend,
              struct cb_err *err) CB_MUST_CHECK;

struct fault_spec;
struct power_cut;
/* A backend that passes requests on to `inner`, with faults. Owns `inner` and `cut`, which may be NULL; both are freed
 * on failure too. `text` is the spec as it was given, for the description. */
int fault_wrap(struct backend *inner, const struct fault_spec *spec, struct power_cut *cut, const char *text,
               int text_bytes, const struct store_options *options, struct backend **backend,
               struct cb_err *err) CB_MUST_CHECK;

/* Opens the backend that a URI names (kind.c). */
int backend_open(const char *uri, const struct store_options *options, struct backend **backend,
                 struct cb_err *err) CB_MUST_CHECK;

/* Rejects a table of another version or with an operation missing. `name` is the kind's. */
int backend_check(const char *name, const struct backend_ops *ops, struct cb_err *err) CB_MUST_CHECK;

/* A store_pass_fn of bytes in memory; the context is a struct iovec. */
int backend_pass_whole(void *context, store_put_fn put, void *to, struct cb_err *err);

/* The cb_code of a completion that failed with `sys_errno`. */
int backend_code_of_errno(int sys_errno);

#endif
