/* A request as a sequence of steps, the same for every engine: continues after short transfers, retries, and handles
 * the unaligned tail of O_DIRECT. */
#include "core/alloc.h"
#include "store/posix/posix.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"

#define MAX_RETRIES 1000 /* of EINTR and EAGAIN, in a row */

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void posix_request_fail(struct posix_request *self, int code, int sys_errno)
{
    self->code = code;
    self->sys_errno = sys_errno;
    self->completed_ns = clock_monotonic_ns();
}

/* Takes the tail off the last segment, which contains all of it: the others are whole blocks. */
static void cut_tail(struct posix_request *self, uint32_t length)
{
    struct iovec *last = &self->segments[self->step.segment_count - 1];
    last->iov_len -= length;
    self->tail = (char *)last->iov_base + last->iov_len;
    self->tail_length = length;
    if (last->iov_len == 0)
        self->step.segment_count--;
}

static void start_tail_write(struct posix_request *self)
{
    self->segments[0] = (struct iovec){.iov_base = self->bounce, .iov_len = self->tail_length};
    self->step.segments = self->segments;
    self->step.segment_count = 1;
    self->step.fd = self->object->tail_fd;
    self->tail_length = 0;
}

static void begin_transfer(struct posix_request *self, const struct backend_request *from)
{
    const struct posix_object *object = self->object;
    bool writes = from->kind == STORE_WRITE;
    memcpy(self->segments, from->segments, from->segment_count * sizeof(*from->segments));
    self->step = (struct posix_step){
        .kind = writes ? POSIX_STEP_WRITE : POSIX_STEP_READ,
        .fd = object->fd,
        .segments = self->segments,
        .segment_count = from->segment_count,
        .offset = from->offset,
    };
    uint32_t tail = (uint32_t)(from->length % object->block);
    if (tail == 0)
        return;
    cut_tail(self, tail);
    if (!writes) {
        self->segments[self->step.segment_count++] = (struct iovec){.iov_base = self->bounce, .iov_len = object->block};
        return;
    }
    memcpy(self->bounce, self->tail, tail);
    if (self->step.segment_count == 0)
        start_tail_write(self);
}

/* Without a sync, closing a descriptor reports the bytes that a network file system failed to write. Closes a copy,
 * since the object stays open. */
static bool begin_finish(struct posix_request *self, bool durable)
{
    self->step = (struct posix_step){.kind = POSIX_STEP_SYNC, .fd = self->object->fd};
    if (durable)
        return true;
    self->step.fd = fcntl(self->object->fd, F_DUPFD_CLOEXEC, 0);
    if (self->step.fd < 0) {
        posix_request_fail(self, backend_code_of_errno(errno), errno);
        return false;
    }
    self->step.kind = POSIX_STEP_CLOSE;
    return true;
}

bool posix_request_begin(struct posix_request *self, const struct backend_request *from, bool durable)
{
    self->object = (const struct posix_object *)from->object;
    self->kind = from->kind;
    self->offset = from->offset;
    self->wanted = from->length;
    self->done = 0;
    self->tail_length = 0;
    self->retries = 0;
    self->code = 0;
    self->sys_errno = 0;
    self->detail = NULL;
    if (from->kind == STORE_FINISH)
        return begin_finish(self, durable);
    bool on_device = from->memory == MEMORY_DEVICE;
    if (on_device && (!self->object->device_file || from->length % self->object->block != 0)) {
        posix_request_fail(self, CB_ERR_UNSUPPORTED, 0);
        return false;
    }
    begin_transfer(self, from);
    self->step.device = on_device ? self->object : NULL;
    return true;
}

static void consume(struct posix_step *step, uint64_t bytes)
{
    step->offset += bytes;
    while (bytes > 0) {
        struct iovec *first = step->segments;
        size_t taken = (size_t)min_u64(first->iov_len, bytes);
        first->iov_base = (char *)first->iov_base + taken;
        first->iov_len -= taken;
        bytes -= taken;
        if (first->iov_len == 0) {
            step->segments++;
            step->segment_count--;
        }
    }
}

static bool advance_failed(struct posix_request *self, int sys_errno)
{
    bool may_retry = self->step.kind != POSIX_STEP_CLOSE; /* close frees the descriptor, whatever it returns */
    if (may_retry && (sys_errno == EINTR || sys_errno == EAGAIN) && self->retries++ < MAX_RETRIES)
        return true;
    if (sys_errno == ECANCELED)
        posix_request_fail(self, CB_ERR_ABORTED, 0);
    else
        posix_request_fail(self, backend_code_of_errno(sys_errno), sys_errno);
    return false;
}

/* A read ends when all bytes are there, or at the end of the file; a direct read recognises that by a transfer that is
 * not a whole number of blocks. */
static bool advance_read(struct posix_request *self, uint64_t moved)
{
    uint64_t whole = self->wanted - self->tail_length;
    bool at_end = moved == 0 || moved % self->object->block != 0;
    if (self->done < self->wanted && !at_end)
        return true;
    self->done = min_u64(self->done, self->wanted);
    if (self->tail_length > 0 && self->done > whole)
        memcpy(self->tail, self->bounce, self->done - whole);
    if (self->done < self->wanted)
        posix_request_fail(self, CB_ERR_CORRUPT, 0);
    return false;
}

static bool advance_write(struct posix_request *self, uint64_t moved)
{
    if (moved == 0 || (self->step.fd == self->object->fd && moved % self->object->block != 0)) {
        posix_request_fail(self, CB_ERR_SYSTEM, EIO); /* too little progress to continue */
        return false;
    }
    if (self->step.segment_count > 0)
        return true;
    if (self->tail_length == 0)
        return false;
    start_tail_write(self);
    return true;
}

bool posix_request_advance(struct posix_request *self, int64_t result, bool stop)
{
    bool more = false;
    if (self->step.kind == POSIX_STEP_CLOSE && result != -ECANCELED)
        self->step.fd = -1;
    if (result < DEVICE_FILES_LEAST_ERRNO && self->step.device) {
        self->detail = self->object->device_files->ops->explain(result);
        posix_request_fail(self, CB_ERR_SYSTEM, 0);
    } else if (result < 0) {
        more = advance_failed(self, (int)-result);
    } else if (self->kind == STORE_FINISH) {
        if (self->object->watch && self->step.kind == POSIX_STEP_SYNC)
            self->object->watch->is_durable(self->object->watch, self->object->fd);
    } else {
        self->retries = 0;
        self->done += (uint64_t)result;
        consume(&self->step, (uint64_t)result);
        more = self->kind == STORE_READ ? advance_read(self, (uint64_t)result) : advance_write(self, (uint64_t)result);
    }
    if (more && stop) {
        posix_request_fail(self, CB_ERR_ABORTED, 0);
        more = false;
    }
    if (!more && self->code == 0)
        self->completed_ns = clock_monotonic_ns();
    return more;
}

void posix_request_complete(struct posix_request *self, uint32_t slot, struct backend_completion *completion)
{
    if (self->step.kind == POSIX_STEP_CLOSE && self->step.fd >= 0) { /* cancelled before it ran */
        close(self->step.fd);
        self->step.fd = -1;
    }
    *completion = (struct backend_completion){
        .slot = slot,
        .code = self->code,
        .sys_errno = self->sys_errno,
        .bytes = min_u64(self->done, self->wanted),
        .completed_ns = self->completed_ns,
        .detail = self->detail,
    };
}

/* One block of memory: the requests, their segment lists, then the bounces, aligned. */
int posix_requests_new(uint32_t depth, uint32_t block, struct posix_request **requests, struct cb_err *err)
{
    size_t lists = POSIX_MAX_SEGMENTS + 1;
    size_t bounce = block > 1 ? block : 0;
    size_t alignment = block > 1 ? block : POSIX_MIN_BLOCK;
    size_t small = depth * (sizeof(struct posix_request) + lists * sizeof(struct iovec));
    size_t start = (small + alignment - 1) / alignment * alignment;
    size_t total = (start + depth * bounce + alignment - 1) / alignment * alignment;
    char *memory = aligned_alloc(alignment, total);
    if (!memory)
        return alloc_fail(err, "for %u requests in flight", depth);
    memset(memory, 0, total); /* touched now, so that the data path has no page faults */
    struct posix_request *made = (struct posix_request *)(void *)memory;
    struct iovec *segments = (struct iovec *)(void *)(made + depth);
    for (uint32_t i = 0; i < depth; i++) {
        made[i].segments = segments + i * lists;
        made[i].bounce = bounce ? (unsigned char *)memory + start + i * bounce : NULL;
    }
    *requests = made;
    return 0;
}

void posix_requests_free(struct posix_request *requests)
{
    free(requests);
}
