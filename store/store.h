/* The stores: one vtable based on completions, one file per backend (posix, s3, null, fault).
 *
 * A store belongs to one thread at a time. Objects are named relative to the store ("my-run/__0_0.distcp"); a name that
 * is absolute or has an empty, "." or ".." part is rejected, since names may come from foreign metadata. submit() takes
 * a batch and returns at once; poll() hands back completions, each with its time stamps; every request completes
 * exactly once, also after a cancel or an error. Memory given to a request must stay until its completion. Durable
 * means: survives a power cut, as far as the backend can ask for it. Every operation can fail; messages name the object
 * and the store. Between submit and poll nothing is allocated, locked or logged, except psync's queue, and allocations
 * of curl and of a hash's state for S3. */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/histogram.h"
#include "core/time_buckets.h"

#define STORE_VERSION 1
#define STORE_MOST_MOUNTS 64 /* of a store in folders of several mounts */

enum memory_kind { MEMORY_HOST, MEMORY_PINNED, MEMORY_DEVICE };

enum store_request_kind {
    STORE_WRITE,
    STORE_READ,
    STORE_FINISH, /* completes an object (fsync if the store is durable; completes an upload). No write of the
                     object may be in flight or precede it in the same batch */
};

struct store_object; /* an object being created or read; opaque, owned by the store until store_close */

struct store_request {
    enum store_request_kind kind;
    struct store_object *object;
    uint64_t offset;              /* in the object */
    const struct iovec *segments; /* of memory, in order; borrowed until submit returns */
    uint32_t segment_count;       /* at most capabilities.max_segments */
    enum memory_kind memory;
    uint64_t user; /* returned in the completion */
};

struct store_completion {
    uint64_t user;
    int code;       /* 0, or a cb_code */
    int sys_errno;  /* with CB_ERR_SYSTEM and CB_ERR_NO_SPACE; else 0 */
    uint64_t bytes; /* moved: all of them when code is 0. A read at the end of an object is CB_ERR_CORRUPT with fewer */
    uint64_t submitted_ns, completed_ns; /* monotonic */
    enum store_request_kind kind;        /* from the request: */
    struct store_object *object;
    uint64_t offset, length;
    const char *detail; /* the backend's reason for a failure, or NULL; valid until the next call */
};

struct store_capabilities {
    uint32_t offset_alignment; /* of offsets and lengths of requests; for the end of an object see tail_unaligned */
    uint32_t memory_alignment; /* of segments' addresses */
    uint32_t length_alignment; /* of each segment's length, except the object's last */
    bool tail_unaligned;       /* the request that ends the object may have any length */
    uint32_t max_segments;
    uint32_t max_depth;
    uint64_t part_bytes, max_parts; /* writes are parts of an object: see store_part_bytes; 0: they are not */
    bool atomic_publish;
    bool ranged_reads;
    bool page_cache;    /* a read may be served from this machine's memory */
    bool direct;        /* O_DIRECT */
    bool device_memory; /* requests of MEMORY_DEVICE, of one segment and whole blocks of offset_alignment */
    /* Not 0: reads are executed by the caller, who best uses their bytes while they are in its cache: so many at a time. */
    uint64_t read_bytes;
};

enum store_direct { STORE_DIRECT_AUTO, STORE_DIRECT_YES, STORE_DIRECT_NO };

struct store_options {
    bool use_io_uring; /* else psync */
    enum store_direct direct;
    uint32_t depth;
    uint32_t threads; /* of psync */
    bool in_caller;   /* psync by the calling thread itself: for callers that wait for each request anyway */
    /* For the caller and its requests: then those to files in memory are executed by the caller instead of io_uring, whose
     * threads would only take turns with it. */
    bool has_one_core;
    bool durable;              /* STORE_FINISH and publish sync */
    uint32_t rank;             /* of the caller: fault specs can select one */
    uint64_t time_origin_ns;   /* monotonic: origin of the statistics over time */
    const char *shared_folder; /* for a fault store's cap shared by all ranks: node-local, of this run; or NULL */
    bool read_only;            /* nothing will be written: a read-only file system suffices */
    struct disk_watch *watch;  /* of a store that is a folder: records what is durable; or NULL */
    /* For requests of MEMORY_DEVICE, in a store that is a folder and supports O_DIRECT. Each object is opened with them, and
     * that fails if its file system does not support it. NULL: such requests fail. Must stay until store_free. */
    struct device_files *device_files;
    const struct s3_options *s3; /* of an S3 store; NULL: the default of every s3.* key */
};

/* Counters of a store that uses a server. */
struct store_statistics {
    uint64_t requests; /* sent, including retries and the store's own (lists, completing uploads) */
    uint64_t failed;   /* given up */
    uint64_t retries_throttled, retries_server, retries_connection, retries_stalled;
    uint64_t wire_sent_bytes, wire_received_bytes; /* bodies and headers, without TLS */
    uint64_t connections;                          /* opened */
    uint64_t throttled_ns;                         /* while the server asked for fewer requests */
    uint64_t backoff_ns;                           /* backoff of failed requests, in sum */
    uint64_t repeated_bytes;                       /* of bodies that were transferred and must be sent again */
    uint32_t most_in_flight;
    struct time_buckets backoff; /* backoff_ns over time, since options.time_origin_ns */
    struct histogram ttfb;       /* to a reply's first byte; from the end of the body, or the start without one */
};

struct store;
struct s3_options;
struct device_files;

/* Opens "PATH", "PATH+PATH" (docs/store.md), "s3://BUCKET/PREFIX" (docs/s3.md), "null:" or "fault:SPEC:STORE" (docs/fault-store.md). The path must
 * be an existing folder and, unless options->read_only, writable. */
int store_open(const char *uri, const struct store_options *options, struct store **store,
               struct cb_err *err) CB_MUST_CHECK;
void store_free(struct store *self); /* cancels, waits for what is in flight, closes objects */

const struct store_capabilities *store_capabilities(const struct store *self);
/* The engine and modes in use, after any step down: "io_uring registered-buffers O_DIRECT", "psync buffered (io_uring:
 * …)". Valid until store_register or store_free. */
const char *store_describe(const struct store *self);

/* The bytes that every write of an object of `length` must have, except the last one; its offset must be a multiple of
 * them. 0 if writes are free. */
uint64_t store_part_bytes(const struct store_capabilities *capabilities, uint64_t length);

/* Returns what was counted since the last call; false if this kind of store counts nothing. Nothing may be in
 * flight. */
bool store_take_statistics(struct store *self, struct store_statistics *statistics);
/* Time since the store was opened in which its user waited while all requests in flight were in backoff; 0 if this
 * kind of store has no retries. */
uint64_t store_waited_in_backoff_ns(struct store *self);

/* Registers memory for repeated use (io_uring fixed buffers; with O_DIRECT it is also made of huge pages, so regions
 * should be some MiB, aligned to 2 MiB). May fail if the memlock limit is small: the store then continues without it,
 * and store_describe reports that. Replaces what was registered before. Nothing may be in flight. */
void store_register(struct store *self, const struct iovec *regions, uint32_t count);

/* Creates an object of known length (must not exist; S3 replaces an existing one) and its parent folders. Readers may
 * see it, with its full length, before it is finished: the commit marker decides. */
int store_create(struct store *self, const char *name, uint64_t length, struct store_object **object,
                 struct cb_err *err) CB_MUST_CHECK;
/* Opens an existing object for writing; no two ranks may write the same range (one file shared by all ranks). */
int store_open_shared(struct store *self, const char *name, uint64_t length, struct store_object **object,
                      struct cb_err *err) CB_MUST_CHECK;
int store_open_read(struct store *self, const char *name, struct store_object **object, uint64_t *length,
                    struct cb_err *err) CB_MUST_CHECK;
/* Closes the object; abandons it if it was not finished. No request of it may be in flight. */
void store_close(struct store *self, struct store_object *object);
const char *store_object_name(const struct store_object *object);

/* Queues a batch. Fails as a whole or not at all. At most max_depth requests may be in flight. */
int store_submit(struct store *self, const struct store_request *requests, size_t count,
                 struct cb_err *err) CB_MUST_CHECK;
/* Calls `each` for every completion that store_poll returns, after the request's slot is free; NULL: no longer. */
typedef void (*store_completion_fn)(void *context, const struct store_completion *completion);
void store_watch(struct store *self, store_completion_fn each, void *context);
/* Waits until there is a completion or the monotonic deadline has passed (0 never waits, UINT64_MAX waits for ever);
 * returns up to `capacity`. *count is 0 only at the deadline, or if nothing is in flight. Fails only if waiting itself
 * fails: a request's failure is in its completion. */
int store_poll(struct store *self, struct store_completion *completions, size_t capacity, uint64_t deadline_ns,
               size_t *count, struct cb_err *err) CB_MUST_CHECK;
/* Reads and waits, in a store without other requests in flight. `watch` NULL waits for ever; else watch->ask is called
 * every slice_ns. Once it fails, the read is cancelled and has grace_ns to end; a read that does not end stays in
 * flight, and its memory must stay. Fails with the error of `ask` or of store_completion_error. *moved, which may be
 * NULL, is the number of bytes read; it is not set if the read was given up. */
struct store_read_watch {
    uint64_t slice_ns, grace_ns;
    int (*ask)(void *context, struct cb_err *err);
    void *context;
};
int store_read_at(struct store *self, struct store_object *object, uint64_t offset, void *memory, uint64_t bytes,
                  const struct store_read_watch *watch, uint64_t *moved, struct cb_err *err) CB_MUST_CHECK;
/* The message for a completion whose code is not 0: "writing NAME at offset N: …"; returns its code. */
int store_completion_error(const struct store *self, const struct store_completion *completion,
                           struct cb_err *err) CB_MUST_CHECK;
/* Cancels everything in flight; each request still completes (CB_ERR_ABORTED if it was stopped). */
void store_cancel(struct store *self);
size_t store_in_flight(const struct store *self);

/* Writes a small object whole and atomically: readers see nothing, or all of it. If the store was opened durable, it is
 * durable before it becomes visible, and visible durably on return. Blocking. */
int store_publish(struct store *self, const char *name, const void *bytes, size_t len,
                  struct cb_err *err) CB_MUST_CHECK;
/* store_publish of an object of any length, which is never whole in memory (except in "null:", which keeps it): `pass`
 * is called once and passes the bytes on in order, each piece to put(to, …). It returns its own failure or that of put,
 * and then nothing is published. Nothing may be in flight. */
typedef int (*store_put_fn)(void *to, const void *bytes, size_t len, struct cb_err *err);
typedef int (*store_pass_fn)(void *context, store_put_fn put, void *to, struct cb_err *err);
int store_publish_pieces(struct store *self, const char *name, store_pass_fn pass, void *context,
                         struct cb_err *err) CB_MUST_CHECK;
/* Replaces a small text if it is still `before`, or creates it if `before` is NULL and the name is free; of
 * simultaneous callers, one succeeds. With `after` equal to `before` the object is only written again, which
 * store_modified shows. CB_ERR_EXISTS if it is not as expected. *guarded: no simultaneous change can be lost; false if
 * a file system has no record locks, or a server no conditional writes. Otherwise as store_publish. */
int store_swap(struct store *self, const char *name, const char *before, const char *after, bool *guarded,
               struct cb_err *err) CB_MUST_CHECK;
/* Makes the creations and removals in a folder durable, and the folder itself: fsync of it and of its
 * parents up to the store, whichever rank made them. Nothing on object stores, and nothing if the
 * store was not opened durable. "" is the store itself, here and below. */
int store_sync_folder(struct store *self, const char *folder, struct cb_err *err) CB_MUST_CHECK;
int store_make_folder(struct store *self, const char *folder,
                      struct cb_err *err) CB_MUST_CHECK; /* succeeds if it exists */
int store_read_small(struct store *self, const char *name, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
int store_stat(struct store *self, const char *name, uint64_t *length, struct cb_err *err) CB_MUST_CHECK;
/* When an object was written, by the store's clock, in nanoseconds since 1970; some stores only have whole seconds. */
int store_modified(struct store *self, const char *name, uint64_t *wall_ns, struct cb_err *err) CB_MUST_CHECK;
/* Calls `each` for every object under a folder and its folders, in any order, with names relative to the store; a
 * missing folder lists as empty, as on object stores. `each` must not change the store. A result of `each` that is not
 * 0 ends the list and is returned. */
typedef int (*store_list_fn)(void *context, const char *name, uint64_t length, struct cb_err *err);
int store_list(struct store *self, const char *folder, store_list_fn each, void *context,
               struct cb_err *err) CB_MUST_CHECK;
/* Sum and number of the files under a folder. */
int store_measure(struct store *self, const char *folder, uint64_t *bytes, uint64_t *files,
                  struct cb_err *err) CB_MUST_CHECK;
/* For searching a place of unknown contents: only objects in the folder (depth 0) or in folders at most `depth` below
 * it. Skips folders that may not be entered. Stores whose folders are only names may return deeper objects, too. */
int store_list_near(struct store *self, const char *folder, uint32_t depth, store_list_fn each, void *context,
                    struct cb_err *err) CB_MUST_CHECK;
/* Removes one object. Never follows a link: the target does not belong to the store. */
int store_remove(struct store *self, const char *name, struct cb_err *err) CB_MUST_CHECK;
int store_remove_many(struct store *self, const char *const *names, size_t count, struct cb_err *err) CB_MUST_CHECK;
int store_remove_folder(struct store *self, const char *folder, struct cb_err *err) CB_MUST_CHECK; /* an empty one */

/* Free space for new objects; UINT64_MAX if unlimited or unknown. */
int store_free_bytes(struct store *self, uint64_t *bytes, struct cb_err *err) CB_MUST_CHECK;

/* Page cache of one object: drops it, and returns the share that is still resident (NAN if unknown or if there is no
 * cache). */
int store_drop_cache(struct store *self, const char *name, double *resident_fraction, struct cb_err *err) CB_MUST_CHECK;

#endif
