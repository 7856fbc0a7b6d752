/* Credentials from any bytes: the AWS tools' files, and the JSON of credential_process and metadata services. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "store/s3/s3_credentials.h"
#include "store/s3/s3_profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static int check_pair(void *context, const char *section, const char *key, const char *value)
{
    (void)context;
    if (strlen(section) > 4096 || strlen(key) > 4096 || strlen(value) >= S3_PROFILE_VALUE_BYTES)
        __builtin_trap();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    const char *text = (const char *)bytes;
    (void)s3_profile_parse(text, len, check_pair, NULL);
    for (int process = 0; process < 2; process++) {
        struct s3_credentials credentials = {0};
        struct cb_err err;
        if (s3_credentials_parse("fuzz", text, len, process, &credentials, &err) == 0 &&
            (!*credentials.access_key || !*credentials.secret_key || strpbrk(credentials.session_token, "\r\n")))
            __builtin_trap();
    }
    return 0;
}
