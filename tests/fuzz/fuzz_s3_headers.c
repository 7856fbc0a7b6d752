/* The header lines of an answer from any bytes, and the values in them; endpoints and URIs, too. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "store/s3/s3_answer.h"
#include "store/s3/s3_uri.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void take_lines(const char *bytes, size_t len)
{
    struct s3_answer answer = {0};
    while (len > 0) {
        const char *newline = memchr(bytes, '\n', len);
        size_t line = newline ? (size_t)(newline - bytes) + 1 : len;
        s3_answer_take_line(&answer, bytes, line);
        bytes += line;
        len -= line;
    }
    for (const char *c = answer.etag; *c; c++) {
        if ((unsigned char)*c < ' ')
            __builtin_trap();
    }
    if (answer.has_range && (answer.range_last < answer.range_first || answer.range_all <= answer.range_last))
        __builtin_trap();
    if (answer.has_length && answer.length > INT64_MAX)
        __builtin_trap();
    (void)s3_etag_parts(answer.etag);
}

static void take_names(const char *text)
{
    char bucket[S3_BUCKET_BYTES], prefix[S3_KEY_BYTES], encoded[64];
    struct s3_endpoint endpoint;
    if (s3_uri_parse(text, bucket, prefix, NULL) == 0 &&
        (!*bucket || prefix[0] == '/' || (*prefix && prefix[strlen(prefix) - 1] == '/')))
        __builtin_trap();
    if (s3_endpoint_make(text, "us-east-1", "bucket", -1, &endpoint, NULL) == 0 && (!*endpoint.host || !*endpoint.name))
        __builtin_trap();
    size_t length = s3_encode(text, true, encoded, sizeof encoded);
    if (length != SIZE_MAX && length != strlen(encoded))
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    char *text = malloc(len + 1);
    if (!text)
        return 0;
    memcpy(text, bytes, len);
    text[len] = '\0';
    take_lines(text, len);
    take_names(text);
    free(text);
    return 0;
}
