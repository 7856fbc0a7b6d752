/* The client's blocking operations on single objects. Lists, deletions and uploads left behind are in s3_list.c. */
#include "store/s3/s3_client.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"

#ifdef HAVE_CURL

#define DOCUMENT_MAX_BYTES ((size_t)4 << 20)
/* Larger "small" objects are read in pieces of this size. */
#define PIECE_BYTES (UINT64_C(64) << 20)
/* `ckptbench s3 clean` finds uploads that remain nevertheless. */
#define HURRY_ATTEMPTS 2
#define HURRY_DEADLINE_NS (10 * NS_PER_S)

int s3_client_new(const char *uri, const struct s3_options *options, uint32_t rank, uint32_t capacity,
                  struct s3_client **client, struct cb_err *err)
{
    struct s3_client *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for store '%s'", uri);
    int rc = s3_session_open(&self->session, uri, options ? options : &s3_options_default, rank, err);
    if (rc) {
        free(self);
        return rc;
    }
    buf_init(&self->document, DOCUMENT_MAX_BYTES);
    snprintf(self->endpoint_url, sizeof self->endpoint_url, "%s://%s", self->session.endpoint.tls ? "https" : "http",
             self->session.endpoint.host);
    rc = s3_call_init(&self->call, &self->session, err);
    if (!rc)
        rc = s3_loop_new(&self->session, capacity + 1, &self->loop, err);
    if (rc) {
        s3_client_free(self);
        return rc;
    }
    *client = self;
    return 0;
}

int s3_client_open(const char *uri, const struct s3_options *options, uint32_t rank, struct s3_client **client,
                   struct cb_err *err)
{
    return s3_client_new(uri, options, rank, 0, client, err);
}

void s3_client_free(struct s3_client *self)
{
    if (!self)
        return;
    s3_loop_free(self->loop);
    s3_call_release(&self->call);
    buf_release(&self->document);
    s3_session_release(&self->session);
    free(self);
}

void s3_client_facts(const struct s3_client *self, struct s3_facts *facts)
{
    const struct s3_session *session = &self->session;
    *facts = (struct s3_facts){
        .bucket = session->bucket,
        .prefix = session->prefix,
        .region = session->options.region,
        .endpoint = self->endpoint_url,
        .endpoint_source = session->endpoint_source,
        .credentials_source = session->credentials.source,
        .credentials_expire_ns = session->credentials.expires_ns,
        .protection = s3_session_protection(session),
        .addresses = (const char *const *)session->addresses,
        .address_count = session->address_count,
        .clock_offset_ns =
            self->call.answer.has_date ? (int64_t)self->call.answer.date_ns - (int64_t)clock_wall_ns() : 0,
        .status = self->call.answer.status,
        .code = self->call.answer.code,
    };
}

int s3_client_run(struct s3_client *self, struct cb_err *err)
{
    if (self->in_a_hurry) {
        self->call.most_attempts = HURRY_ATTEMPTS;
        self->call.deadline_ns = HURRY_DEADLINE_NS;
    }
    return s3_loop_run(self->loop, &self->call, err);
}

const char *s3_name_of_key(const struct s3_session *session, const char *key)
{
    size_t len = strlen(session->prefix);
    if (len == 0)
        return key;
    return strncmp(key, session->prefix, len) == 0 && key[len] == '/' ? key + len + 1 : NULL;
}

int s3_folder_key(const struct s3_session *session, const char *folder, char key[S3_KEY_BYTES + 8], struct cb_err *err)
{
    const char *prefix = session->prefix;
    int len = snprintf(key, S3_KEY_BYTES, "%s%s%s%s", prefix, *prefix ? "/" : "", folder, *folder ? "/" : "");
    return len < S3_KEY_BYTES
               ? 0
               : cb_fail(err, CB_ERR_USAGE, "the folder %.80s… makes keys of more than 1024 bytes", folder);
}

int s3_append_xml(struct buf *out, const char *text, struct cb_err *err)
{
    for (const char *c = text; *c; c++) {
        const char *entity = *c == '&'   ? "&amp;"
                             : *c == '<' ? "&lt;"
                             : *c == '>' ? "&gt;"
                             : *c == '"' ? "&quot;"
                                         : NULL;
        if ((unsigned char)*c < ' ')
            return cb_fail(err, CB_ERR_USAGE, "the key %.200s holds a control character", text);
        if (entity)
            buf_append_text(out, entity);
        else
            buf_append_char(out, *c);
    }
    return 0;
}

/* --- single objects --- */

static bool has_length(struct s3_call *call)
{
    return call->answer.has_length;
}

static int ask_head(struct s3_client *self, const char *name, s3_check_fn check, struct cb_err *err)
{
    int rc = s3_call_ask(&self->call, S3_HEAD, name, err);
    if (rc)
        return rc;
    self->call.check = check;
    return s3_client_run(self, err);
}

/* A refused HEAD has no body with the reason, which is needed to correct the clock or to renew credentials. Listing one
 * object is refused for the same reason and reports it. If listing succeeds, the HEAD is repeated. */
static int head(struct s3_client *self, const char *name, s3_check_fn check, struct cb_err *err)
{
    int rc = ask_head(self, name, check, err);
    long status = self->call.answer.status;
    if (!rc || rc == CB_ERR_NOT_FOUND || status < 300 || status > 499)
        return rc;
    rc = s3_call_ask(&self->call, S3_GET, NULL, err);
    if (!rc)
        rc = s3_call_add_query(&self->call, "list-type", "2", err);
    if (!rc)
        rc = s3_call_add_query(&self->call, "max-keys", "1", err);
    if (!rc)
        rc = s3_client_run(self, err);
    return rc ? rc : ask_head(self, name, check, err);
}

int s3_client_head(struct s3_client *self, const char *name, uint64_t *length, char etag[S3_ETAG_BYTES],
                   struct cb_err *err)
{
    int rc = head(self, name, has_length, err);
    if (rc == CB_ERR_NOT_FOUND)
        return cb_fail(err, rc, "there is no %s in bucket %s%s%s", name, self->session.bucket,
                       self->session.prefix[0] ? " under " : "", self->session.prefix);
    if (rc)
        return rc;
    *length = self->call.answer.length;
    memcpy(etag, self->call.answer.etag, S3_ETAG_BYTES);
    return 0;
}

int s3_client_stat(struct s3_client *self, const char *name, uint64_t *length, struct cb_err *err)
{
    char etag[S3_ETAG_BYTES];
    return s3_client_head(self, name, length, etag, err);
}

int s3_client_modified(struct s3_client *self, const char *name, uint64_t *wall_ns, struct cb_err *err)
{
    uint64_t length;
    char etag[S3_ETAG_BYTES];
    int rc = s3_client_head(self, name, &length, etag, err);
    if (rc)
        return rc;
    if (self->call.answer.modified_ns == 0)
        return cb_fail(err, CB_ERR_FORMAT, "the server does not say when %s was last written", name);
    *wall_ns = self->call.answer.modified_ns;
    return 0;
}

int s3_client_check_bucket(struct s3_client *self, struct cb_err *err)
{
    int rc = head(self, NULL, NULL, err);
    if (rc == CB_ERR_NOT_FOUND)
        rc = cb_fail(err, rc, "there is no bucket %s at %s; make it, or name another", self->session.bucket,
                     self->endpoint_url);
    return rc;
}

int s3_client_put(struct s3_client *self, const char *name, const void *bytes, size_t len, struct cb_err *err)
{
    struct iovec segment = {.iov_base = (void *)bytes, .iov_len = len}; /* read-only */
    int rc = s3_call_ask(&self->call, S3_PUT, name, err);
    if (rc)
        return rc;
    self->call.is_data = true;
    s3_call_set_body(&self->call, &segment, len > 0 ? 1 : 0, len);
    return s3_client_run(self, err);
}

int s3_client_get(struct s3_client *self, const char *name, struct buf *out, struct cb_err *err)
{
    uint64_t length = 0;
    char etag[S3_ETAG_BYTES];
    int rc = s3_client_head(self, name, &length, etag, err);
    for (uint64_t at = 0; at < length && !rc;) {
        uint64_t piece = length - at < PIECE_BYTES ? length - at : PIECE_BYTES;
        struct iovec segment = {.iov_base = buf_extend(out, piece), .iov_len = piece};
        if (!segment.iov_base)
            return buf_check(out, name, err);
        rc = s3_call_ask(&self->call, S3_GET, name, err);
        if (rc)
            return rc;
        memcpy(self->call.if_match, etag, sizeof etag);
        s3_call_set_range(&self->call, at, &segment, 1, piece);
        rc = s3_client_run(self, err);
        at += piece;
    }
    return rc;
}

#else /* !HAVE_CURL */

int s3_client_open(const char *uri, const struct s3_options *options, uint32_t rank, struct s3_client **client,
                   struct cb_err *err)
{
    (void)options, (void)rank, (void)client;
    return cb_fail(err, CB_ERR_UNSUPPORTED, "store '%s': this program was built without libcurl", uri);
}

#define NO_CLIENT                                                                                                      \
    (void)self;                                                                                                        \
    return cb_fail(err, CB_ERR_UNSUPPORTED, "this program was built without libcurl")

void s3_client_free(struct s3_client *self)
{
    (void)self;
}

void s3_client_facts(const struct s3_client *self, struct s3_facts *facts)
{
    (void)self;
    *facts = (struct s3_facts){.code = "", .protection = ""};
}

int s3_client_put(struct s3_client *self, const char *name, const void *bytes, size_t len, struct cb_err *err)
{
    (void)name, (void)bytes, (void)len;
    NO_CLIENT;
}

int s3_client_get(struct s3_client *self, const char *name, struct buf *out, struct cb_err *err)
{
    (void)name, (void)out;
    NO_CLIENT;
}

int s3_client_stat(struct s3_client *self, const char *name, uint64_t *length, struct cb_err *err)
{
    (void)name, (void)length;
    NO_CLIENT;
}

int s3_client_modified(struct s3_client *self, const char *name, uint64_t *wall_ns, struct cb_err *err)
{
    (void)name, (void)wall_ns;
    NO_CLIENT;
}

int s3_client_list(struct s3_client *self, const char *folder, store_list_fn each, void *context, struct cb_err *err)
{
    (void)folder, (void)each, (void)context;
    NO_CLIENT;
}

int s3_client_remove(struct s3_client *self, const char *const *names, size_t count, struct cb_err *err)
{
    (void)names, (void)count;
    NO_CLIENT;
}

int s3_client_list_uploads(struct s3_client *self, const char *folder, s3_upload_fn each, void *context,
                           struct cb_err *err)
{
    (void)folder, (void)each, (void)context;
    NO_CLIENT;
}

int s3_client_abort_upload(struct s3_client *self, const char *key, const char *id, struct cb_err *err)
{
    (void)key, (void)id;
    NO_CLIENT;
}

int s3_client_abort_uploads(struct s3_client *self, const char *folder, bool (*is_theirs)(const char *name),
                            uint64_t *count, struct cb_err *err)
{
    (void)folder, (void)is_theirs, (void)count;
    NO_CLIENT;
}

int s3_client_check_bucket(struct s3_client *self, struct cb_err *err)
{
    NO_CLIENT;
}

#endif
