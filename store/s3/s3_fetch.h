/* One small blocking HTTP exchange, for services that issue credentials. Never through a proxy. */
#ifndef STORE_S3_S3_FETCH_H
#define STORE_S3_S3_FETCH_H

#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"

struct s3_fetch {
    const char *method; /* "GET", "PUT" */
    const char *url;
    const char *header; /* an additional "Name: value", or NULL; may be a secret, so it is never quoted */
    uint64_t timeout_ns;
};

/* Appends the body of a 200; any other reply is CB_ERR_NOT_FOUND (404) or CB_ERR_SYSTEM with its status. */
int s3_fetch(const struct s3_fetch *request, struct buf *body, struct cb_err *err) CB_MUST_CHECK;

#endif
