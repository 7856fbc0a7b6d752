/* The AWS tools' files: ~/.aws/config and ~/.aws/credentials. Reads them; never writes them. */
#ifndef STORE_S3_S3_PROFILE_H
#define STORE_S3_S3_PROFILE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"

#define S3_PROFILE_VALUE_BYTES 8192
#define S3_PROFILE_MAX_BYTES ((size_t)1 << 20)

/* Called for every "key = value" below "[section]"; "outer.inner" for one that is indented below "outer =". What it
 * returns, if not 0, ends the reading and is returned. Lines that are neither are passed over, as the AWS tools do. */
typedef int (*s3_profile_fn)(void *context, const char *section, const char *key, const char *value);
int s3_profile_parse(const char *text, size_t len, s3_profile_fn each, void *context);

enum s3_profile_file { S3_PROFILE_CREDENTIALS, S3_PROFILE_CONFIG };

/* The path of a file, from the environment or under HOME. `path` holds `room`. */
void s3_profile_path(enum s3_profile_file file, char *path, size_t room);

/* The value of a key in a profile, with *found false where file, profile or key do not exist. Fails when a file cannot
 * be read. `value` holds S3_PROFILE_VALUE_BYTES. */
int s3_profile_get(enum s3_profile_file file, const char *profile, const char *key, char *value, bool *found,
                   struct cb_err *err) CB_MUST_CHECK;
/* Whether the file has the profile at all. */
int s3_profile_exists(enum s3_profile_file file, const char *profile, bool *found, struct cb_err *err) CB_MUST_CHECK;

/* The profile that is meant: `given`, AWS_PROFILE, or "default". */
const char *s3_profile_name(const char *given);

#endif
