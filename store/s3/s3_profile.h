/* The AWS tools' files ~/.aws/config and ~/.aws/credentials, read only. */
#ifndef STORE_S3_S3_PROFILE_H
#define STORE_S3_S3_PROFILE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"

#define S3_PROFILE_VALUE_BYTES 8192
#define S3_PROFILE_MAX_BYTES ((size_t)1 << 20)

/* Called for every "key = value" below "[section]"; the key is "outer.inner" for a line indented below "outer =". A
 * non-zero result stops and is returned. Other lines are skipped, as in the AWS tools. */
typedef int (*s3_profile_fn)(void *context, const char *section, const char *key, const char *value);
int s3_profile_parse(const char *text, size_t len, s3_profile_fn each, void *context);

enum s3_profile_file { S3_PROFILE_CREDENTIALS, S3_PROFILE_CONFIG };

/* The path of a file, from the environment or under HOME. `path` holds `room`. */
void s3_profile_path(enum s3_profile_file file, char *path, size_t room);

/* The value of a key in a profile; *found is false if file, profile or key do not exist. Fails if a file cannot be
 * read. `value` holds S3_PROFILE_VALUE_BYTES. */
int s3_profile_get(enum s3_profile_file file, const char *profile, const char *key, char *value, bool *found,
                   struct cb_err *err) CB_MUST_CHECK;
/* Whether the file has the profile at all. */
int s3_profile_exists(enum s3_profile_file file, const char *profile, bool *found, struct cb_err *err) CB_MUST_CHECK;

/* The profile to use: `given`, AWS_PROFILE, or "default". */
const char *s3_profile_name(const char *given);

#endif
