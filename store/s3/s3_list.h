/* The documents of lists and deletions. Pure except for the callbacks; all input is untrusted. */
#ifndef STORE_S3_S3_LIST_H
#define STORE_S3_S3_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "store/s3/s3.h"
#include "store/s3/s3_uri.h"

#define S3_TOKEN_BYTES 2048

/* One page of a list of objects or uploads. */
struct s3_page {
    bool truncated;
    char token[S3_TOKEN_BYTES];  /* token of the next page of objects */
    char next_key[S3_KEY_BYTES]; /* and of uploads, with the id */
    char next_id[S3_TOKEN_BYTES];
    uint64_t count;
};

typedef int (*s3_object_fn)(void *context, const char *key, uint64_t length, struct cb_err *err);
int s3_read_object_page(const char *bytes, size_t len, s3_object_fn each, void *context, struct s3_page *page,
                        struct cb_err *err) CB_MUST_CHECK;
int s3_read_upload_page(const char *bytes, size_t len, s3_upload_fn each, void *context, struct s3_page *page,
                        struct cb_err *err) CB_MUST_CHECK;
/* The first key that could not be deleted, as an error; 0 if all were. */
int s3_read_delete_result(const char *bytes, size_t len, struct cb_err *err) CB_MUST_CHECK;

#endif
