/* Credentials: finds them, and keeps secrets inside this module.
 *
 * Sources in the order of the AWS tools: the environment (unless a key selects a profile), the credentials file, the
 * config file (keys, or credential_process), a container's address, the machine's metadata (IMDSv2). Only `source` may
 * be shown. */
#ifndef STORE_S3_S3_CREDENTIALS_H
#define STORE_S3_S3_CREDENTIALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

struct s3_credentials {
    char access_key[160], secret_key[160];
    char session_token[8192]; /* "" if there is none */
    uint64_t expires_ns;      /* wall clock; 0: never */
    char source[320];         /* "environment", "profile default in ~/.aws/credentials" */
};

/* Blocking: may ask a server or start a program. `profile` is the s3.profile key, "" for none. */
int s3_credentials_find(const char *profile, struct s3_credentials *credentials, struct cb_err *err) CB_MUST_CHECK;
void s3_credentials_wipe(struct s3_credentials *credentials);
/* Whether to look for new credentials because these are about to expire. */
bool s3_credentials_are_old(const struct s3_credentials *credentials, uint64_t wall_ns);

/* Parses the output of a credential_process or the reply of a container or machine. Messages never quote it. `what`
 * begins them; `is_process` requires "Version": 1. Pure. */
int s3_credentials_parse(const char *what, const char *text, size_t len, bool is_process,
                         struct s3_credentials *credentials, struct cb_err *err) CB_MUST_CHECK;
/* "2026-11-21T12:00:00Z", fractions and "+00:00" allowed. Pure. */
bool s3_parse_time(const char *text, uint64_t *wall_ns);

#endif
