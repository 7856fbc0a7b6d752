/* Writes and reads traces of requests. */
#include "run/request_trace.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/path.h"
#include "core/slow_requests.h"

#define MAGIC "CBREQTRC"
#define VERSION 1
#define BUFFER_REQUESTS 4096
#define OPERATIONS_BYTES 232

_Static_assert(sizeof(struct traced_request) == 80, "the size of a record is part of the format");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are written as they lie in memory");

struct header {
    char magic[8];
    uint32_t version, record_bytes, rank, unused;
    char operations[OPERATIONS_BYTES]; /* their names, joined by commas: a record has a position in this list */
};
_Static_assert(sizeof(struct header) == 256, "the size of the header is part of the format");

struct request_trace {
    int fd;
    bool broken; /* a write failed: nothing more is written, so that the file stays whole */
    uint64_t written, lost;
    size_t count;
    struct traced_request requests[BUFFER_REQUESTS];
};

static bool write_all(int fd, const void *bytes, size_t len)
{
    const char *at = bytes;
    while (len > 0) {
        ssize_t done = write(fd, at, len);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        at += done;
        len -= (size_t)done;
    }
    return true;
}

static bool write_header(int fd, uint32_t rank)
{
    struct header header = {.version = VERSION, .record_bytes = sizeof(struct traced_request), .rank = rank};
    size_t used = 0;
    memcpy(header.magic, MAGIC, sizeof header.magic);
    for (unsigned op = 0; op < OP_COUNT; op++)
        used += (size_t)snprintf(header.operations + used, sizeof header.operations - used, "%s%s", op ? "," : "",
                                 operation_name((enum operation)op));
    return write_all(fd, &header, sizeof header);
}

int request_trace_open(const char *path, uint32_t rank, struct request_trace **trace, struct cb_err *err)
{
    struct request_trace *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for a trace of requests");
    int rc = path_make_folders(path, 0777, err);
    self->fd = rc ? -1 : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (!rc && self->fd < 0)
        rc = cb_fail_errno(err, errno, "creating %s", path);
    else if (!rc && !write_header(self->fd, rank))
        rc = cb_fail_errno(err, errno, "writing %s", path);
    if (rc) {
        if (self->fd >= 0)
            close(self->fd);
        free(self);
        return rc;
    }
    *trace = self;
    return 0;
}

void request_trace_flush(struct request_trace *self)
{
    if (self->count == 0)
        return;
    self->broken = self->broken || !write_all(self->fd, self->requests, self->count * sizeof *self->requests);
    if (self->broken)
        self->lost += self->count;
    else
        self->written += self->count;
    self->count = 0;
}

void request_trace_add(struct request_trace *self, const struct traced_request *request)
{
    if (self->count == BUFFER_REQUESTS)
        request_trace_flush(self);
    self->requests[self->count++] = *request;
}

void request_trace_close(struct request_trace *self, uint64_t *written, uint64_t *lost)
{
    request_trace_flush(self);
    if (close(self->fd) < 0 && self->written > 0) { /* some file systems report a full disk only now */
        self->lost += self->written;
        self->written = 0;
    }
    *written = self->written;
    *lost = self->lost;
    free(self);
}

/* ---- reading ---- */

static int read_operations(const struct header *header, unsigned operations[OP_COUNT], unsigned *count,
                           struct cb_err *err)
{
    char names[OPERATIONS_BYTES + 1], *rest = names;
    memcpy(names, header->operations, OPERATIONS_BYTES);
    names[OPERATIONS_BYTES] = '\0';
    *count = 0;
    for (char *name; (name = strsep(&rest, ","));) {
        enum operation op;
        if (*count == OP_COUNT || (!operation_find(name, &op) && strcmp(name, operation_name(OP_NONE)) != 0))
            return cb_fail(err, CB_ERR_FORMAT, "the operation %s is not known here: a newer release wrote it", name);
        if (strcmp(name, operation_name(OP_NONE)) == 0)
            op = OP_NONE;
        operations[(*count)++] = op;
    }
    return 0;
}

static int parse(const struct buf *bytes, struct request_trace_file *file, struct cb_err *err)
{
    struct header header;
    unsigned operations[OP_COUNT], operation_count;
    if (bytes->len < sizeof header || memcmp(bytes->data, MAGIC, sizeof header.magic) != 0)
        return cb_fail(err, CB_ERR_FORMAT, "not a trace of requests");
    memcpy(&header, bytes->data, sizeof header);
    if (header.version != VERSION || header.record_bytes != sizeof(struct traced_request))
        return cb_fail(err, CB_ERR_FORMAT, "version %u, this program reads %d", header.version, VERSION);
    int rc = read_operations(&header, operations, &operation_count, err);
    if (rc)
        return rc;
    file->rank = header.rank;
    file->count = (bytes->len - sizeof header) / sizeof *file->requests;
    file->requests = calloc(file->count ? file->count : 1, sizeof *file->requests);
    if (!file->requests)
        return alloc_fail(err, "for %zu requests", file->count);
    memcpy(file->requests, bytes->data + sizeof header, file->count * sizeof *file->requests);
    for (size_t i = 0; i < file->count; i++) {
        struct traced_request *request = &file->requests[i];
        if (request->op >= operation_count || request->kind >= REQUEST_KINDS) {
            request_trace_release(file);
            return cb_fail(err, CB_ERR_FORMAT, "request %zu is malformed", i);
        }
        request->op = (uint16_t)operations[request->op];
    }
    return 0;
}

int request_trace_read(const char *path, struct request_trace_file *file, struct cb_err *err)
{
    struct stat facts;
    struct buf bytes;
    *file = (struct request_trace_file){0};
    if (stat(path, &facts) < 0)
        return cb_fail_errno(err, errno, "opening %s", path);
    buf_init(&bytes, (size_t)facts.st_size);
    int rc = buf_read_file(&bytes, path, err);
    if (!rc) {
        rc = parse(&bytes, file, err);
        if (rc)
            cb_context(err, "%s", path);
    }
    buf_release(&bytes);
    return rc;
}

void request_trace_release(struct request_trace_file *file)
{
    free(file->requests);
    *file = (struct request_trace_file){0};
}
