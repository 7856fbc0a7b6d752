/* Objects being written and read: the id of an upload, its parts, completing, checking and aborting it. */
#include "store/s3/s3_object.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/hash.h"
#include "store/s3/s3_xml.h"

#ifdef HAVE_CURL

#define DOCUMENT_MAX_BYTES ((size_t)4 << 20)
/* After one abort without a reply the server is not asked to abort others, so that a save of many files ends. The agent
 * and `ckptbench s3 clean` find the remaining uploads by listing them. */
#define HOPELESS_NS (60 * NS_PER_S)

static int object_new(const char *name, uint64_t length, struct s3_object **object, struct cb_err *err)
{
    struct s3_object *self = calloc(1, sizeof *self);
    char *copy = strdup(name);
    if (!self || !copy) {
        free(self);
        free(copy);
        return alloc_fail(err, "to open %s", name);
    }
    self->base.length = length;
    self->name = copy;
    buf_init(&self->document, DOCUMENT_MAX_BYTES);
    *object = self;
    return 0;
}

static void object_free(struct s3_object *self)
{
    buf_release(&self->document);
    free(self->parts);
    free(self->name);
    free(self);
}

/* --- beginning and ending an upload --- */

static int take_upload_id(void *context, const char *path, const char *text, struct cb_err *err)
{
    (void)err;
    char *id = context;
    if (strcmp(path, "InitiateMultipartUploadResult/UploadId") == 0 && strlen(text) < S3_TOKEN_BYTES)
        memcpy(id, text, strlen(text) + 1);
    return 0;
}

static bool has_upload_id(struct s3_call *call)
{
    char id[S3_TOKEN_BYTES] = "";
    return s3_xml_read("", call->answer_body.data, call->answer_body.len, take_upload_id, id, NULL) == 0 && id[0];
}

bool s3_object_needs_upload(const struct s3_object *self)
{
    return self->is_upload && !self->upload_id[0];
}

int s3_object_ask_begin(struct s3_object *self, struct s3_call *call, struct cb_err *err)
{
    int rc = s3_call_ask(call, S3_POST, self->name, err);
    if (!rc)
        rc = s3_call_add_query(call, "uploads", "", err);
    if (rc)
        return rc;
    call->check = has_upload_id;
    enum s3_checksum checksum = call->session->options.checksum;
    if (checksum == S3_CHECKSUM_CRC32C || (checksum == S3_CHECKSUM_AUTO && call->session->crc != S3_CRC_REFUSED))
        call->algorithm = "CRC32C";
    call->mark = self->mark;
    self->beginning = true;
    return 0;
}

int s3_object_take_begin(struct s3_object *self, struct s3_call *call)
{
    struct cb_err err;
    self->beginning = false;
    self->unsure = self->unsure || call->unsure;
    self->with_crc = call->algorithm != NULL;
    if (call->code)
        return call->code;
    int rc = s3_xml_read("the upload's id", call->answer_body.data, call->answer_body.len, take_upload_id,
                         self->upload_id, &err);
    if (rc)
        snprintf(call->detail, sizeof call->detail, "%.800s", err.message);
    return rc;
}

int s3_object_create(const char *name, uint64_t length, uint64_t part_bytes, struct s3_object **object,
                     struct cb_err *err)
{
    struct s3_object *self = NULL;
    int rc = object_new(name, length, &self, err);
    if (rc)
        return rc;
    self->writable = true;
    self->part_bytes = part_bytes;
    self->is_upload = length > part_bytes;
    unsigned char random[(S3_MARK_BYTES - 1) / 2];
    random_bytes(random, sizeof random);
    hash_hex(random, sizeof random, self->mark);
    if (self->is_upload && part_bytes > S3_MAX_PART_BYTES)
        rc = cb_fail(err, CB_ERR_USAGE, "%s: an object of %" PRIu64 " bytes is too long for S3", name, length);
    if (!rc && self->is_upload) {
        self->part_count = (uint32_t)((length + part_bytes - 1) / part_bytes);
        self->parts = calloc(self->part_count, sizeof *self->parts);
        if (!self->parts)
            rc = alloc_fail(err, "for the %" PRIu32 " parts of %s", self->part_count, name);
    }
    if (rc) {
        object_free(self);
        return rc;
    }
    *object = self;
    return 0;
}

void s3_object_end(struct s3_object *self, uint64_t length)
{
    assert(self->is_upload && length <= self->base.length);
    self->base.length = length;
    self->part_count = (uint32_t)((length + self->part_bytes - 1) / self->part_bytes);
}

int s3_object_open(struct s3_client *client, const char *name, struct s3_object **object, struct cb_err *err)
{
    struct s3_object *self = NULL;
    uint64_t length = 0;
    char etag[S3_ETAG_BYTES];
    int rc = s3_client_head(client, name, &length, etag, err);
    if (!rc)
        rc = object_new(name, length, &self, err);
    if (rc)
        return rc;
    memcpy(self->etag, etag, sizeof etag);
    *object = self;
    return 0;
}

void s3_object_close(struct s3_client *client, struct s3_object *self)
{
    uint64_t failed_ns = client->cleanup_failed_ns;
    bool hopeless = failed_ns > 0 && clock_monotonic_ns() < failed_ns + HOPELESS_NS;
    int rc = 0;
    client->in_a_hurry = true;
    if (!hopeless && self->upload_id[0] && !self->finished)
        rc = s3_client_abort_upload_of(client, self->name, self->upload_id, NULL);
    if (!hopeless && !rc && self->unsure)
        rc = s3_client_abort_uploads_of(client, self->name, NULL);
    client->in_a_hurry = false;
    if (rc)
        client->cleanup_failed_ns = clock_monotonic_ns();
    object_free(self);
}

/* --- requests --- */

static bool has_etag(struct s3_call *call)
{
    return call->answer.etag[0] != '\0';
}

int s3_object_ask_write(struct s3_object *self, struct s3_call *call, const struct backend_request *request,
                        struct cb_err *err)
{
    int rc = s3_call_ask(call, S3_PUT, self->name, err);
    if (!rc && self->is_upload) {
        char number[16];
        call->part = (uint32_t)(request->offset / self->part_bytes + 1);
        snprintf(number, sizeof number, "%" PRIu32, call->part);
        rc = s3_call_add_query(call, "partNumber", number, err);
        if (!rc)
            rc = s3_call_add_query(call, "uploadId", self->upload_id, err);
    }
    if (rc)
        return rc;
    call->is_data = true;
    call->with_crc = self->with_crc;
    call->was_signed = self->is_upload && !self->with_crc; /* begun without it: its parts are signed */
    call->check = has_etag;
    self->begun = true;
    return 0;
}

int s3_object_ask_read(struct s3_object *self, struct s3_call *call, const struct backend_request *request,
                       uint64_t bytes, struct cb_err *err)
{
    int rc = s3_call_ask(call, S3_GET, self->name, err);
    if (rc)
        return rc;
    memcpy(call->if_match, self->etag, sizeof self->etag);
    s3_call_set_range(call, request->offset, request->segments, request->segment_count, bytes);
    return 0;
}

void s3_object_take_write(struct s3_object *self, const struct s3_call *call, uint64_t offset)
{
    if (!self->is_upload)
        return;
    struct s3_part *part = &self->parts[offset / self->part_bytes];
    memcpy(part->etag, call->answer.etag, sizeof part->etag);
    memcpy(part->crc32c, call->crc32c, sizeof part->crc32c);
}

/* --- finishing --- */

static int fail_finish(struct s3_call *call, int code, const char *format, ...) CB_PRINTF(3, 4);
static int fail_finish(struct s3_call *call, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(call->detail, sizeof call->detail, format, arguments);
    va_end(arguments);
    return code;
}

static int compose_parts(struct s3_object *self, struct s3_call *call)
{
    struct buf *document = &self->document;
    struct cb_err err = {0};
    buf_clear(document);
    buf_append_text(document, "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (uint32_t i = 0; i < self->part_count; i++) {
        const struct s3_part *part = &self->parts[i];
        if (!part->etag[0])
            return fail_finish(call, CB_ERR_INTERNAL, "part %" PRIu32 " of %" PRIu32 " was never written", i + 1,
                               self->part_count);
        buf_printf(document, "<Part><PartNumber>%" PRIu32 "</PartNumber><ETag>", i + 1);
        if (s3_append_xml(document, part->etag, &err))
            return fail_finish(call, err.code, "%.800s", err.message);
        buf_append_text(document, "</ETag>");
        if (part->crc32c[0])
            buf_printf(document, "<ChecksumCRC32C>%s</ChecksumCRC32C>", part->crc32c);
        buf_append_text(document, "</Part>");
    }
    buf_append_text(document, "</CompleteMultipartUpload>");
    if (buf_check(document, "the list of parts", &err))
        return fail_finish(call, err.code, "%.800s", err.message);
    return 0;
}

static int see_root(void *context, const char *path, const char *text, struct cb_err *err)
{
    (void)text, (void)err;
    bool *seen = context;
    *seen = *seen || strcmp(path, "CompleteMultipartUploadResult") == 0;
    return 0;
}

static bool is_completed(struct s3_call *call)
{
    bool seen = false;
    return s3_xml_read("", call->answer_body.data, call->answer_body.len, see_root, &seen, NULL) == 0 && seen;
}

static bool has_length(struct s3_call *call)
{
    return call->answer.has_length;
}

/* Composes the request. The error message can be dropped: a name that is too long failed when the object was
 * created. */
static int ask_finish(struct s3_object *self, struct s3_call *call, enum s3_finish step)
{
    static const enum s3_method methods[] = {S3_PUT, S3_PUT, S3_POST, S3_HEAD};
    struct cb_err err = {0};
    int rc = s3_call_ask(call, methods[step], self->name, &err);
    if (!rc && step == S3_FINISH_COMPLETE)
        rc = s3_call_add_query(call, "uploadId", self->upload_id, &err);
    if (rc)
        return fail_finish(call, rc, "%.800s", err.message);
    call->check = step == S3_FINISH_COMPLETE ? is_completed : step == S3_FINISH_LOOK ? has_length : has_etag;
    if (step == S3_FINISH_COMPLETE) {
        self->document_segment = (struct iovec){.iov_base = self->document.data, .iov_len = self->document.len};
        s3_call_set_body(call, &self->document_segment, 1, self->document.len);
    }
    return 0;
}

/* Checks that the server has what was sent: the mark, the length, and the number of parts if its ETag contains that.
 * Accepts a server that keeps no metadata, unless it had lost the upload. */
static int check_object(struct s3_object *self, struct s3_call *call)
{
    uint32_t parts = s3_etag_parts(call->answer.etag);
    if ((self->was_gone || call->answer.mark[0]) && strcmp(call->answer.mark, self->mark) != 0)
        return fail_finish(call, CB_ERR_CORRUPT,
                           "after completion the server has what another upload wrote%s (request id %s)",
                           self->was_gone ? "; this one was gone before it was complete" : "", call->answer.request_id);
    if (call->answer.length != self->base.length)
        return fail_finish(call, CB_ERR_CORRUPT,
                           "the server has %" PRIu64 " bytes of it after completion, %" PRIu64
                           " were sent (request id %s)",
                           call->answer.length, self->base.length, call->answer.request_id);
    if (parts != 0 && parts != self->part_count)
        return fail_finish(call, CB_ERR_CORRUPT,
                           "the server has %" PRIu32 " parts of it after completion, %" PRIu32
                           " were sent (request id %s)",
                           parts, self->part_count, call->answer.request_id);
    self->finished = true;
    return 0;
}

int s3_object_next_finish(struct s3_object *self, struct s3_call *call, enum s3_finish *step, bool *more)
{
    int rc = 0;
    *more = false;
    switch (*step) {
    case S3_FINISH_START:
        if (!self->is_upload && self->begun)
            return 0; /* one PUT, which is done */
        *step = self->is_upload ? S3_FINISH_COMPLETE : S3_FINISH_PUT;
        if (!self->is_upload && self->base.length > 0)
            return fail_finish(call, CB_ERR_INTERNAL, "its %" PRIu64 " bytes were never written", self->base.length);
        rc = self->is_upload ? compose_parts(self, call) : 0;
        break;
    case S3_FINISH_PUT:
        return call->code;
    case S3_FINISH_COMPLETE:
        /* An earlier attempt may have completed it and its reply been lost: the check below decides. */
        if (call->code && !(call->answer.status == 404 && call->attempts > 1))
            return call->code;
        self->was_gone = call->code != 0;
        *step = S3_FINISH_LOOK;
        break;
    case S3_FINISH_LOOK:
        return call->code ? call->code : check_object(self, call);
    }
    if (!rc)
        rc = ask_finish(self, call, *step);
    *more = rc == 0;
    return rc;
}

#endif
