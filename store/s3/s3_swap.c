/* Replaces a small object only if it has the expected contents, by conditional writes: If-None-Match: * creates it,
 * If-Match with its ETag replaces it. A server that does not support them ignores or rejects them; repeating such a
 * write shows which. */
#include <stdio.h>
#include <string.h>

#include "store/s3/s3_client.h"

#ifdef HAVE_CURL

#define NO_ETAG "\"00000000000000000000000000000000\""
#define MOST_BYTES ((size_t)64 << 10)

static int refuse(const char *name, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_EXISTS, "%s is not what it was: another process has changed it", name);
}

/* `etag` "": the object must not exist. */
static int put_if(struct s3_client *self, const char *name, const char *etag, const char *text, struct cb_err *err)
{
    struct iovec segment = {.iov_base = (void *)text, .iov_len = strlen(text)}; /* read-only */
    int rc = s3_call_ask(&self->call, S3_PUT, name, err);
    if (rc)
        return rc;
    self->call.is_data = true;
    self->call.if_absent = !*etag;
    size_t len = strlen(etag);
    bool plain = self->plain_etags && len > 2 && etag[0] == '"';
    snprintf(self->call.if_match, sizeof self->call.if_match, "%.*s", (int)(plain ? len - 2 : len), etag + plain);
    s3_call_set_body(&self->call, &segment, 1, segment.iov_len);
    return s3_client_run(self, err);
}

static bool condition_failed(const struct s3_client *self)
{
    long status = self->call.answer.status;
    return status == 412 || status == 409 || status == 404; /* 404: If-Match, and there is no object */
}

/* The object's ETag if its contents are `text`. */
static int match(struct s3_client *self, const char *name, const char *text, char etag[S3_ETAG_BYTES],
                 struct cb_err *err)
{
    uint64_t length = 0;
    struct buf found;
    int rc = s3_client_head(self, name, &length, etag, err);
    if (rc)
        return rc == CB_ERR_NOT_FOUND ? refuse(name, err) : rc;
    buf_init(&found, MOST_BYTES);
    rc = s3_client_get(self, name, &found, err); /* if the object changes meanwhile, a write with the old ETag fails */
    bool is_it = found.len == length && strcmp(found.data, text) == 0;
    buf_release(&found);
    if (rc)
        return rc == CB_ERR_NOT_FOUND ? refuse(name, err) : rc;
    return is_it ? 0 : refuse(name, err);
}

/* Whether the server rejects conditions that do not hold; tested by writing the present contents again. */
static bool knows_conditions(struct s3_client *self, const char *name, const char *text)
{
    static const char *const etags[] = {"", NO_ETAG};
    for (size_t i = 0; i < sizeof etags / sizeof *etags; i++)
        if (put_if(self, name, etags[i], text, NULL) == 0 || !condition_failed(self))
            return false;
    return true;
}

/* Without conditions, two simultaneous callers both succeed. */
static int put_blindly(struct s3_client *self, const char *name, bool replaces, const char *text, struct cb_err *err)
{
    uint64_t length;
    if (!replaces && s3_client_stat(self, name, &length, NULL) == 0)
        return refuse(name, err);
    return s3_client_put(self, name, text, strlen(text), err);
}

/* Called when the server reports that the condition does not hold. Either another client has written, or the reply to
 * our own write was lost, or the server, like Ceph's, compares ETags with their quotes. */
static int put_again(struct s3_client *self, const char *name, const char *before, const char *after,
                     struct cb_err *err)
{
    char etag[S3_ETAG_BYTES];
    bool renews = before && strcmp(before, after) == 0;
    if (!renews && match(self, name, after, etag, NULL) == 0)
        return 0;
    if (!before || self->plain_etags)
        return refuse(name, err);
    int rc = match(self, name, before, etag, err);
    if (rc)
        return rc;
    self->plain_etags = true;
    rc = put_if(self, name, etag, after, err);
    return rc && condition_failed(self) ? refuse(name, err) : rc;
}

int s3_client_swap(struct s3_client *self, const char *name, const char *before, const char *after, bool *guarded,
                   struct cb_err *err)
{
    char etag[S3_ETAG_BYTES] = "";
    *guarded = true;
    int rc = before ? match(self, name, before, etag, err) : 0;
    if (rc)
        return rc;
    rc = put_if(self, name, etag, after, err);
    if (rc && self->call.answer.status == 501) {
        *guarded = false;
        return put_blindly(self, name, before != NULL, after, err);
    }
    if (rc && condition_failed(self))
        rc = put_again(self, name, before, after, err);
    if (!rc && (!before || strcmp(before, after) != 0))
        *guarded = knows_conditions(self, name, after);
    return rc;
}

#endif
