/* The io_uring engine: the ring, registered memory and fixed buffers. Without liburing it fails with the reason, and
 * the next engine is tried. */
#include "store/posix/posix.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/clock.h"

#ifdef HAVE_LIBURING
#include <liburing.h>

#define CANCEL_MARK UINT64_MAX               /* user data of a cancellation (and of liburing's own timeouts) */
#define MAX_REGION_BYTES (UINT64_C(1) << 30) /* the kernel's limit for one registered buffer */
#define MAX_REGIONS 16384u

struct region {
    uintptr_t start, end;
};

/* `regions` is sorted by address; the index is the kernel's buffer index. `ready` holds slots whose request ended
 * without a step. A slot in flight is either in the ring (`in_kernel[slot]`) or in `ready`. The submission queue is
 * empty between calls. */
struct uring {
    struct posix_engine base;
    struct io_uring ring;
    struct posix_request *requests;
    uint32_t depth;
    bool durable, stopping; /* set by a cancel until everything has ended */
    struct region *regions;
    uint32_t region_count;
    bool *in_kernel;
    uint32_t in_kernel_count;
    uint32_t *ready;
    uint32_t ready_count;
};

static struct uring *uring_of(struct posix_engine *engine)
{
    return (struct uring *)engine;
}

static void uring_free(struct posix_engine *engine)
{
    struct uring *self = uring_of(engine);
    io_uring_queue_exit(&self->ring);
    free(self->regions);
    free(self->in_kernel);
    free(self->ready);
    free(self);
}

/* The registered buffer that contains the whole segment, or -1. */
static int find_region(const struct uring *self, const struct iovec *segment)
{
    uintptr_t start = (uintptr_t)segment->iov_base, end = start + segment->iov_len;
    uint32_t low = 0, high = self->region_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (self->regions[middle].end <= start)
            low = middle + 1;
        else
            high = middle;
    }
    bool inside = low < self->region_count && self->regions[low].start <= start && end <= self->regions[low].end;
    return inside ? (int)low : -1;
}

static void prepare_transfer(const struct uring *self, struct io_uring_sqe *sqe, const struct posix_step *step)
{
    bool writes = step->kind == POSIX_STEP_WRITE;
    const struct iovec *first = step->segments;
    int region = step->segment_count == 1 && first->iov_len <= INT32_MAX ? find_region(self, first) : -1;
    if (region >= 0) {
        if (writes)
            io_uring_prep_write_fixed(sqe, step->fd, first->iov_base, (unsigned)first->iov_len, step->offset, region);
        else
            io_uring_prep_read_fixed(sqe, step->fd, first->iov_base, (unsigned)first->iov_len, step->offset, region);
    } else if (writes) {
        io_uring_prep_writev(sqe, step->fd, step->segments, step->segment_count, step->offset);
    } else {
        io_uring_prep_readv(sqe, step->fd, step->segments, step->segment_count, step->offset);
    }
}

static void mark_ready(struct uring *self, uint32_t slot)
{
    self->ready[self->ready_count++] = slot;
}

static void left_kernel(struct uring *self, uint32_t slot)
{
    self->in_kernel[slot] = false;
    self->in_kernel_count--;
}

/* Always succeeds: the queue has an entry per slot and is empty between calls. */
static void queue_step(struct uring *self, uint32_t slot)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&self->ring);
    const struct posix_step *step = &self->requests[slot].step;
    if (!sqe) {
        posix_request_fail(&self->requests[slot], CB_ERR_INTERNAL, 0);
        mark_ready(self, slot);
        return;
    }
    if (step->kind == POSIX_STEP_SYNC)
        io_uring_prep_fsync(sqe, step->fd, 0);
    else if (step->kind == POSIX_STEP_CLOSE)
        io_uring_prep_close(sqe, step->fd);
    else
        prepare_transfer(self, sqe, step);
    io_uring_sqe_set_data64(sqe, slot);
    self->in_kernel[slot] = true;
    self->in_kernel_count++;
}

/* Submits everything queued. After a permanent error the queued requests fail, and poll returns them. */
static void flush(struct uring *self)
{
    while (io_uring_sq_ready(&self->ring) > 0) {
        int rc = io_uring_submit(&self->ring);
        if (rc >= 0 || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY)
            continue;
        struct io_uring_sq *queue = &self->ring.sq;
        for (unsigned at = *queue->khead; at != queue->sqe_tail; at++) {
            uint64_t slot = queue->sqes[at & *queue->kring_mask].user_data;
            if (slot == CANCEL_MARK)
                continue;
            posix_request_fail(&self->requests[slot], backend_code_of_errno(-rc), -rc);
            left_kernel(self, (uint32_t)slot);
            mark_ready(self, (uint32_t)slot);
        }
        queue->sqe_head = queue->sqe_tail = *queue->khead;
        __atomic_store_n(queue->ktail, *queue->khead, __ATOMIC_RELEASE);
    }
}

static int uring_submit(struct posix_engine *engine, const struct backend_request *requests, size_t count,
                        struct cb_err *err)
{
    (void)err;
    struct uring *self = uring_of(engine);
    for (size_t i = 0; i < count; i++) {
        uint32_t slot = requests[i].slot;
        if (posix_request_begin(&self->requests[slot], &requests[i], self->durable))
            queue_step(self, slot);
        else
            mark_ready(self, slot);
    }
    flush(self);
    return 0;
}

/* Handles the kernel's completions; requests that need another step are queued again. */
static size_t reap(struct uring *self, struct backend_completion *completions, size_t capacity)
{
    size_t got = 0;
    while (got < capacity && self->ready_count > 0) {
        uint32_t slot = self->ready[--self->ready_count];
        posix_request_complete(&self->requests[slot], slot, &completions[got++]);
    }
    struct io_uring_cqe *cqe;
    while (got < capacity && io_uring_peek_cqe(&self->ring, &cqe) == 0) {
        uint64_t slot = io_uring_cqe_get_data64(cqe);
        int result = cqe->res;
        io_uring_cqe_seen(&self->ring, cqe);
        if (slot == CANCEL_MARK)
            continue;
        struct posix_request *request = &self->requests[slot];
        left_kernel(self, (uint32_t)slot);
        if (posix_request_advance(request, result, self->stopping))
            queue_step(self, (uint32_t)slot);
        else
            posix_request_complete(request, (uint32_t)slot, &completions[got++]);
    }
    flush(self);
    self->stopping = self->stopping && self->in_kernel_count > 0;
    return got;
}

static int wait_for_one(struct uring *self, uint64_t deadline_ns)
{
    struct io_uring_cqe *cqe;
    if (deadline_ns == UINT64_MAX)
        return io_uring_wait_cqe(&self->ring, &cqe);
    uint64_t now_ns = clock_monotonic_ns();
    if (now_ns >= deadline_ns)
        return -ETIME;
    uint64_t left_ns = deadline_ns - now_ns;
    struct __kernel_timespec left = {.tv_sec = (int64_t)(left_ns / NS_PER_S),
                                     .tv_nsec = (long long)(left_ns % NS_PER_S)};
    return io_uring_wait_cqe_timeout(&self->ring, &cqe, &left);
}

static int uring_poll(struct posix_engine *engine, struct backend_completion *completions, size_t capacity,
                      uint64_t deadline_ns, size_t *count, struct cb_err *err)
{
    struct uring *self = uring_of(engine);
    size_t got;
    while ((got = reap(self, completions, capacity)) == 0) {
        int rc = wait_for_one(self, deadline_ns);
        if (rc == -ETIME)
            break;
        if (rc < 0 && rc != -EINTR && rc != -EAGAIN)
            return cb_fail_errno(err, -rc, "waiting for io_uring");
    }
    *count = got;
    return 0;
}

static void uring_cancel(struct posix_engine *engine)
{
    struct uring *self = uring_of(engine);
    self->stopping = true;
    for (uint32_t slot = 0; slot < self->depth; slot++) {
        struct io_uring_sqe *sqe = self->in_kernel[slot] ? io_uring_get_sqe(&self->ring) : NULL;
        if (!sqe)
            continue;
        io_uring_prep_cancel64(sqe, slot, 0);
        io_uring_sqe_set_data64(sqe, CANCEL_MARK);
    }
    flush(self);
}

static int compare_buffers(const void *a, const void *b)
{
    uintptr_t first = (uintptr_t)((const struct iovec *)a)->iov_base;
    uintptr_t second = (uintptr_t)((const struct iovec *)b)->iov_base;
    return (first > second) - (first < second);
}

/* Splits the regions into buffers of a size that the kernel accepts, sorted; NULL if out of memory. */
static struct iovec *cut_regions(const struct iovec *regions, uint32_t count, uint32_t *buffer_count)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += (regions[i].iov_len + MAX_REGION_BYTES - 1) / MAX_REGION_BYTES;
    struct iovec *buffers = total > 0 ? calloc(total, sizeof(*buffers)) : NULL;
    if (!buffers)
        return NULL;
    uint32_t made = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint64_t at = 0; at < regions[i].iov_len; at += MAX_REGION_BYTES) {
            uint64_t left = regions[i].iov_len - at;
            buffers[made++] = (struct iovec){.iov_base = (char *)regions[i].iov_base + at,
                                             .iov_len = left < MAX_REGION_BYTES ? left : MAX_REGION_BYTES};
        }
    qsort(buffers, made, sizeof(*buffers), compare_buffers);
    *buffer_count = made;
    return buffers;
}

static void explain_registration(int sys_errno, char reason[160])
{
    struct rlimit limit;
    if (sys_errno == ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        snprintf(reason, 160, "the limit on locked memory is %llu KiB; raise it with ulimit -l",
                 (unsigned long long)limit.rlim_cur / 1024);
    else
        snprintf(reason, 160, "%s", strerror(sys_errno));
}

static int uring_register(struct posix_engine *engine, const struct iovec *regions, uint32_t count, char reason[160])
{
    struct uring *self = uring_of(engine);
    uint32_t buffer_count = 0;
    int rc = -ENOMEM;
    struct iovec *buffers = cut_regions(regions, count, &buffer_count);
    struct region *made = buffers ? calloc(buffer_count, sizeof(*made)) : NULL;
    reason[0] = 0;
    if (self->region_count > 0)
        io_uring_unregister_buffers(&self->ring);
    self->region_count = 0;
    if (made)
        rc = buffer_count <= MAX_REGIONS ? io_uring_register_buffers(&self->ring, buffers, buffer_count) : -E2BIG;
    if (rc < 0) {
        explain_registration(-rc, reason);
        free(made);
    } else {
        for (uint32_t i = 0; i < buffer_count; i++)
            made[i] = (struct region){.start = (uintptr_t)buffers[i].iov_base,
                                      .end = (uintptr_t)buffers[i].iov_base + buffers[i].iov_len};
        free(self->regions);
        self->regions = made;
        self->region_count = buffer_count;
    }
    free(buffers);
    return rc < 0 ? rc : 0;
}

static const struct posix_engine_ops uring_ops = {
    .free = uring_free,
    .register_memory = uring_register,
    .submit = uring_submit,
    .poll = uring_poll,
    .cancel = uring_cancel,
};

static void explain_setup(int sys_errno, char reason[160])
{
    const char *why = strerror(sys_errno);
    if (sys_errno == EPERM)
        why = "not permitted here (sysctl kernel.io_uring_disabled, or a container's seccomp filter)";
    else if (sys_errno == ENOSYS)
        why = "the kernel or a seccomp filter does not offer it";
    else if (sys_errno == ENOMEM)
        why = "no memory for the ring (on older kernels: raise the limit with ulimit -l)";
    snprintf(reason, 160, "%s", why);
}

int uring_new(const struct posix_engine_setup *setup, struct posix_engine **engine, char reason[160])
{
    struct uring *self = calloc(1, sizeof(*self));
    bool *in_kernel = calloc(setup->depth, sizeof(*in_kernel));
    uint32_t *ready = calloc(setup->depth, sizeof(*ready));
    int rc = self && in_kernel && ready ? 0 : -ENOMEM;
    if (!rc) {
        rc = io_uring_queue_init(setup->depth, &self->ring, IORING_SETUP_COOP_TASKRUN);
        if (rc == -EINVAL) /* before Linux 5.19 */
            rc = io_uring_queue_init(setup->depth, &self->ring, 0);
    }
    if (rc) {
        explain_setup(-rc, reason);
        free(self);
        free(in_kernel);
        free(ready);
        return backend_code_of_errno(-rc);
    }
    self->base.ops = &uring_ops;
    self->requests = setup->requests;
    self->depth = setup->depth;
    self->durable = setup->durable;
    self->in_kernel = in_kernel;
    self->ready = ready;
    *engine = &self->base;
    return 0;
}

#else /* !HAVE_LIBURING */

int uring_new(const struct posix_engine_setup *setup, struct posix_engine **engine, char reason[160])
{
    (void)setup;
    (void)engine;
    snprintf(reason, 160, "this program was built without liburing");
    return CB_ERR_UNSUPPORTED;
}

#endif
