/* Shared by all requests to one bucket: endpoint, addresses, credentials, the clock, and signing.
 *
 * Thread-safe once open; only a lookup of new credentials blocks other threads. */
#ifndef STORE_S3_S3_SESSION_H
#define STORE_S3_S3_SESSION_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/hash.h"
#include "store/s3/s3_blocked.h"
#include "store/s3/s3_credentials.h"
#include "store/s3/s3_options.h"
#include "store/s3/s3_sign.h"
#include "store/s3/s3_uri.h"

/* How the server treats bodies that are unsigned and have a CRC-32C. */
enum s3_crc {
    S3_CRC_UNKNOWN,
    S3_CRC_COMPARED, /* its replies repeat the CRC-32C that it computed */
    S3_CRC_IGNORED,  /* it accepts them, and nothing shows that it checks them */
    S3_CRC_REFUSED,  /* it accepted the same body signed: s3.checksum=auto signs the others, too */
};

struct s3_session {
    struct s3_options options;   /* with endpoint, region and tls.ca resolved */
    const char *endpoint_source; /* "s3.endpoint", "AWS_ENDPOINT_URL", "AWS" */
    char bucket[S3_BUCKET_BYTES], prefix[S3_KEY_BYTES];
    struct s3_endpoint endpoint;
    uint32_t endpoint_count; /* ranks are spread over them; this session uses one */
    uint32_t attempts, rank; /* of the caller, to spread ranks over endpoints and addresses */
    char **addresses;        /* "::ADDRESS:PORT" for curl's CONNECT_TO; empty if a proxy resolves */
    size_t address_count;
    uint64_t time_origin_ns; /* of the statistics over time */
    struct s3_blocked blocked;
    _Atomic enum s3_crc crc;

    pthread_mutex_t lock; /* protects the members below */
    struct s3_credentials credentials;
    uint32_t credentials_number; /* incremented whenever credentials changed */
    uint64_t looked_ns;          /* monotonic: last lookup of credentials */
    unsigned char signing_key[HASH_SHA256_BYTES];
    char signing_day[S3_SCOPE_DATE_BYTES]; /* "": none yet */
    int64_t clock_offset_ns;               /* server clock minus ours, once it rejected ours */
};

/* Resolves all settings and finds credentials; contacts name servers and credential services, but not S3. */
int s3_session_open(struct s3_session *self, const char *uri, const struct s3_options *options, uint32_t rank,
                    struct cb_err *err) CB_MUST_CHECK;
void s3_session_release(struct s3_session *self);

/* Headers of a request; the signature covers all but Range, If-Match, If-None-Match and Content-MD5. */
struct s3_outgoing {
    const char *method, *path, *query; /* encoded */
    const char *payload_hash;
    const char *crc32c;                                         /* x-amz-checksum-crc32c, or NULL */
    const char *algorithm;                                      /* x-amz-checksum-algorithm, or NULL */
    const char *mark;                                           /* S3_MARK, or NULL */
    const char *range, *if_match, *if_none_match, *content_md5; /* or NULL */
};

/* Composes "Name: value" lines into `lines`, each ended by a NUL; first refreshes credentials that are about to
 * expire. The lines contain secrets. *signed_with is the number of the credentials, for s3_session_renew. */
int s3_session_headers(struct s3_session *self, const struct s3_outgoing *request, struct buf *scratch,
                       struct buf *lines, uint32_t *signed_with, struct cb_err *err) CB_MUST_CHECK;

/* The server says that the credentials with this number have expired: looks up new ones, unless another request has
 * done so meanwhile. Fails if they have not changed. */
int s3_session_renew(struct s3_session *self, uint32_t signed_with, struct cb_err *err) CB_MUST_CHECK;
/* What protects bodies in transit, as far as replies have shown it: "bodies unsigned, the server compares their
 * CRC-32C". */
const char *s3_session_protection(const struct s3_session *self);
/* The server says that our clock is wrong, and sends its time: adopts it. False if that had been done already. */
bool s3_session_set_clock(struct s3_session *self, uint64_t server_wall_ns);

#endif
