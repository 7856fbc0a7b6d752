/* Shared by the files of the posix backend: a request as a sequence of steps, the engines that execute steps, the
 * test for O_DIRECT, and names under a folder. Private to store/posix/ and store/in_caller.c. */
#ifndef STORE_POSIX_POSIX_H
#define STORE_POSIX_POSIX_H

#include "store/backend.h"
#include "store/device_files.h"

#define POSIX_MAX_SEGMENTS 256
#define POSIX_MAX_BLOCK 65536 /* of O_DIRECT; larger alignments count as unsupported */
#define POSIX_MIN_BLOCK 4096

/* ---- objects and requests (posix_request.c) ---- */

struct posix_object {
    struct backend_object base;
    int fd;                            /* O_DIRECT if block > 1 */
    int tail_fd;                       /* buffered, for the bytes after the last whole block of a write; else -1 */
    uint32_t block;                    /* alignment of offsets and lengths that fd requires; 1 when buffered */
    struct disk_watch *watch;          /* or NULL */
    struct device_files *device_files; /* for device memory; or NULL */
    void *device_file;                 /* fd, as these know it */
};

enum posix_step_kind { POSIX_STEP_WRITE, POSIX_STEP_READ, POSIX_STEP_SYNC, POSIX_STEP_CLOSE };

/* The arguments of one system call. `segments` are consumed from the front as bytes move. */
struct posix_step {
    enum posix_step_kind kind;
    int fd;
    struct iovec *segments;
    uint32_t segment_count;
    uint64_t offset;
    const struct posix_object *device; /* of a transfer of device memory, which goes to its device_files; else NULL */
};

/* A request in progress; one per slot, allocated at open. With O_DIRECT the tail (the bytes after the last whole
 * block) goes through `bounce`: a write sends it through the buffered descriptor after the rest, a read fetches the
 * whole block with the rest and copies from it. (Padding a write and truncating it with ftruncate was slower, since
 * truncating reads the block back and writes it again.) Invariant while a step runs: step.offset == offset + done,
 * and the step's segments are the rest of the whole blocks (and the bounce of a read), or the bounce of a write. */
struct posix_request {
    const struct posix_object *object;
    enum store_request_kind kind;
    struct posix_step step;
    uint64_t offset, wanted, done;
    uint32_t tail_length; /* 0: no tail, or already sent */
    uint32_t retries;
    int code, sys_errno;
    const char *detail; /* of a failure, or NULL */
    uint64_t completed_ns;
    void *tail;             /* target of a read's tail */
    struct iovec *segments; /* room for POSIX_MAX_SEGMENTS + 1 */
    unsigned char *bounce;  /* one block, aligned to it; NULL when buffered */
};

/* Both return true if `step` must be run (again), false if the request is complete. */
bool posix_request_begin(struct posix_request *self, const struct backend_request *from, bool durable);
/* `result` is as of a system call: bytes moved, or a negative errno. `stop`: give up instead of continuing. */
bool posix_request_advance(struct posix_request *self, int64_t result, bool stop);
/* Ends a request without running it. */
void posix_request_fail(struct posix_request *self, int code, int sys_errno);
void posix_request_complete(struct posix_request *self, uint32_t slot, struct backend_completion *completion);

/* One array for all slots, and its memory. `block` is 1 when buffered. */
int posix_requests_new(uint32_t depth, uint32_t block, struct posix_request **requests, struct cb_err *err);
void posix_requests_free(struct posix_request *requests);

/* ---- engines (uring.c, psync.c, in_caller.c) ---- */

struct posix_engine;

struct posix_engine_setup {
    uint32_t depth, threads;
    bool durable;
    struct posix_request *requests; /* by slot; borrowed */
};

struct posix_engine_ops {
    void (*free)(struct posix_engine *self);
    /* 0, or a negative errno with the reason; the engine then continues without registered buffers. */
    int (*register_memory)(struct posix_engine *self, const struct iovec *regions, uint32_t count, char reason[160]);
    int (*submit)(struct posix_engine *self, const struct backend_request *requests, size_t count, struct cb_err *err);
    int (*poll)(struct posix_engine *self, struct backend_completion *completions, size_t capacity,
                uint64_t deadline_ns, size_t *count, struct cb_err *err);
    void (*cancel)(struct posix_engine *self);
};

struct posix_engine {
    const struct posix_engine_ops *ops;
};

/* Fails with a code and, in `reason`, why io_uring is unavailable. */
int uring_new(const struct posix_engine_setup *setup, struct posix_engine **engine, char reason[160]);
int psync_new(const struct posix_engine_setup *setup, struct posix_engine **engine, struct cb_err *err);
int in_caller_new(const struct posix_engine_setup *setup, struct posix_engine **engine, struct cb_err *err);

/* Executes a step's system call in the calling thread; its result goes to posix_request_advance.
 * (store/posix/psync.c) */
int64_t posix_step_run(const struct posix_step *step);

/* ---- O_DIRECT (posix_direct.c) ---- */

struct posix_direct {
    bool possible;
    uint32_t memory_alignment, block;
    char reason[160]; /* if not possible */
};

/* Asks the kernel about an open, writable regular file, or tests it. */
void posix_direct_probe(int fd, struct posix_direct *direct);
/* Of a file or folder: its file system has no device, as a tmpfs. */
bool posix_is_in_memory(int fd);
/* The best guess for a read-only folder; opening a file may still fail. */
void posix_direct_guess(int folder_fd, struct posix_direct *direct);

/* ---- names under the folder (posix_names.c) ---- */

struct posix_names {
    int root_fd;
    char *root; /* for messages; owned */
    bool durable;
    struct disk_watch *watch; /* or NULL */
};

int posix_names_make_parents(const struct posix_names *self, const char *name, struct cb_err *err);
int posix_names_make_folder(const struct posix_names *self, const char *folder, struct cb_err *err);
int posix_names_sync_folder(const struct posix_names *self, const char *folder, struct cb_err *err);
int posix_names_publish(const struct posix_names *self, const char *name, store_pass_fn pass, void *context,
                        struct cb_err *err);
/* Whether the name leads to this open file, and not to another run's. Opens it again, since a network file system then
 * looks the name up again. */
bool posix_names_leads_to(const struct posix_names *self, const char *name, int fd);
/* Removes the name if it leads to this file. */
void posix_names_remove_own(const struct posix_names *self, const char *name, int fd);
/* posix_swap.c: see store_swap. */
int posix_names_swap(const struct posix_names *self, const char *name, const char *before, const char *after,
                     bool *guarded, struct cb_err *err);
/* Opens an object that exists: O_RDONLY or O_WRONLY, and O_DIRECT or not. CB_ERR_CORRUPT for a name that is no regular
 * file: it does not wait for a FIFO or a device. */
int posix_names_open(const struct posix_names *self, const char *name, int flags, int *fd, uint64_t *length,
                     struct cb_err *err);
int posix_names_read_small(const struct posix_names *self, const char *name, struct buf *out, struct cb_err *err);
int posix_names_stat(const struct posix_names *self, const char *name, uint64_t *length, struct cb_err *err);
int posix_names_modified(const struct posix_names *self, const char *name, uint64_t *wall_ns, struct cb_err *err);
int posix_names_list(const struct posix_names *self, const char *folder, store_list_fn each, void *context,
                     struct cb_err *err);
int posix_names_list_near(const struct posix_names *self, const char *folder, uint32_t depth, store_list_fn each,
                          void *context, struct cb_err *err) CB_MUST_CHECK;
int posix_names_remove(const struct posix_names *self, const char *name, struct cb_err *err);
int posix_names_remove_folder(const struct posix_names *self, const char *folder, struct cb_err *err);

/* ---- page cache (posix_cache.c) ---- */

int posix_cache_drop(const struct posix_names *names, const char *name, double *resident_fraction, struct cb_err *err);

#endif
