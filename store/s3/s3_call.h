/* One request to S3 over one curl handle: composes and signs it, sends it, reads the reply. The loop retries it until
 * it is done.
 *
 * Body and destination are the caller's memory, borrowed until the call is done: curl's callbacks copy directly from
 * and to it (the only copy). After the first use of a call we allocate nothing; curl itself allocates a little for
 * every request. */
#ifndef STORE_S3_S3_CALL_H
#define STORE_S3_S3_CALL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef HAVE_CURL
#include <curl/curl.h>
#endif

#include "core/buf.h"
#include "core/err.h"
#include "core/histogram.h"
#include "store/s3/s3_answer.h"
#include "store/s3/s3_retry.h"
#include "store/s3/s3_session.h"
#include "store/store.h"

#define S3_QUERY_BYTES 8192
#define S3_MAX_LINES 16
#define S3_DETAIL_BYTES 896

enum s3_call_state {
    S3_CALL_IDLE,
    S3_CALL_QUEUED,  /* waits for the window */
    S3_CALL_RUNNING, /* with curl */
    S3_CALL_WAITING, /* until retry_ns */
    S3_CALL_DONE,    /* the code is the result */
};

enum s3_method { S3_GET, S3_PUT, S3_POST, S3_DELETE, S3_HEAD };

/* A position in segments. */
struct s3_cursor {
    const struct iovec *segments;
    uint32_t count, index;
    size_t inside;
    uint64_t moved, total;
};

/* Checks the reply to a request that succeeded. Sets code and message of the reply if the server reports an error after
 * all (a 200 with an error inside); returns false if the reply is malformed. */
struct s3_call;
typedef bool (*s3_check_fn)(struct s3_call *call);

struct s3_call {
    /* the request */
    enum s3_method method;
    bool is_data;  /* s3.checksum applies to its body; other bodies are small and always signed */
    bool with_crc; /* a part of an upload that was begun with a checksum: each part must have one */
    char path[S3_PATH_BYTES], query[S3_QUERY_BYTES];
    struct s3_cursor body, into; /* into.total: bytes of the range that starts at range_offset */
    uint64_t range_offset;
    bool if_absent; /* If-None-Match: * */
    char if_match[S3_ETAG_BYTES], content_md5[32];
    const char *algorithm; /* of the checksums of a new upload, or NULL */
    const char *mark;      /* mark of the object of a new upload, or NULL; borrowed */
    s3_check_fn check;
    uint32_t part; /* for messages; 0 if it has none */
    uint32_t most_attempts;
    uint64_t deadline_ns; /* from the first attempt */
    void *owner;          /* the caller's */

    /* the reply */
    struct s3_answer answer;
    struct buf answer_body; /* of replies that do not go to `into` */
    int curl_code;          /* of the last attempt */
    int code;               /* once done */
    char detail[S3_DETAIL_BYTES];

    /* while it is in progress */
    enum s3_call_state state;
    uint32_t attempts, address, signed_with; /* signed_with: number of the session's credentials */
    uint64_t first_ns, attempt_ns, progress_ns, sent_ns, retry_ns;
    bool answered;     /* the first byte of the reply has arrived */
    uint32_t silences; /* attempts in a row that stalled without one */
    uint64_t begun_at; /* bytes of `into` from earlier attempts; this attempt requests the rest */
    char payload_hash[2 * HASH_SHA256_BYTES + 1], crc32c[12], range[64];
    enum s3_failure last_failure;
    bool clock_was_set, was_renewed, was_signed; /* was_signed: for s3.checksum=auto, after S3_FAILURE_UNSIGNED */
    bool unsure;                                 /* an attempt ended without a reply: the server may have executed it */
    struct s3_call *next;                        /* link in a list of the loop */

    struct s3_session *session;
#ifdef HAVE_CURL
    CURL *easy;
    struct curl_slist nodes[S3_MAX_LINES], address_node; /* over `lines`: curl's own would be allocated every time */
#endif
    struct buf lines, scratch;
    char curl_error[256];
    struct store_statistics *statistics; /* of the loop that runs the call */
};

int s3_call_init(struct s3_call *self, struct s3_session *session, struct cb_err *err) CB_MUST_CHECK;
void s3_call_release(struct s3_call *self);

/* Starts composing a request for a key under the session's prefix (NULL: the bucket itself). Clears the previous
 * request. */
int s3_call_ask(struct s3_call *self, enum s3_method method, const char *key, struct cb_err *err) CB_MUST_CHECK;
/* The same for a full key, without the session's prefix. */
int s3_call_ask_key(struct s3_call *self, enum s3_method method, const char *key, struct cb_err *err) CB_MUST_CHECK;
/* Adds "name=value" (encoded) to the query. Names must be added in sorted order. */
int s3_call_add_query(struct s3_call *self, const char *name, const char *value, struct cb_err *err) CB_MUST_CHECK;
void s3_call_set_body(struct s3_call *self, const struct iovec *segments, uint32_t count, uint64_t bytes);
void s3_call_set_range(struct s3_call *self, uint64_t offset, const struct iovec *segments, uint32_t count,
                       uint64_t bytes);

/* --- for the loop --- */

/* Composes, signs, and sets up the handle for one more attempt. */
int s3_call_prepare(struct s3_call *self, struct cb_err *err) CB_MUST_CHECK;
/* Evaluates an attempt that ended with curl's `curl_code`; after a failure `detail` has the message. */
enum s3_failure s3_call_judge(struct s3_call *self, int curl_code);
/* Prepares an attempt with a signed body; only a part of an upload that was begun with a CRC-32C keeps it. */
void s3_call_sign(struct s3_call *self);
/* Prepares a retry after `failure`: keeps the received bytes of a range if they are known to be right, and drops all
 * others. Returns the number of bytes that must be transferred again. */
uint64_t s3_call_again(struct s3_call *self, enum s3_failure failure);
/* Completes the call, with the message of its last failure. */
void s3_call_give_up(struct s3_call *self, const char *why);
void s3_call_done(struct s3_call *self, int code);

#endif
