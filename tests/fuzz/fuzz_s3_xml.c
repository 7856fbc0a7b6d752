/* XML from any bytes: as itself, and as each of the documents that S3 answers with. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "store/s3/s3_answer.h"
#include "store/s3/s3_list.h"
#include "store/s3/s3_xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static int check_element(void *context, const char *path, const char *text, struct cb_err *err)
{
    (void)context, (void)err;
    if (strlen(path) >= S3_XML_PATH_BYTES || strlen(text) >= S3_XML_TEXT_BYTES || !*path)
        __builtin_trap();
    return 0;
}

static int check_object(void *context, const char *key, uint64_t length, struct cb_err *err)
{
    (void)context, (void)err;
    if (!*key || length > INT64_MAX)
        __builtin_trap();
    return 0;
}

static int check_upload(void *context, const struct s3_upload *upload, struct cb_err *err)
{
    (void)context, (void)err;
    if (!*upload->key || !*upload->id)
        __builtin_trap();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    const char *text = (const char *)bytes;
    struct cb_err err;
    struct s3_page page;
    struct s3_answer answer = {0};
    int rc = s3_xml_read("fuzz", text, len, check_element, NULL, &err);
    if (s3_answer_take_error(&answer, text, len) && (rc || !*answer.code))
        __builtin_trap();
    if (s3_read_object_page(text, len, check_object, NULL, &page, &err) == 0 && page.truncated && !*page.token)
        __builtin_trap();
    if (s3_read_upload_page(text, len, check_upload, NULL, &page, &err) == 0 && page.truncated && !*page.next_key)
        __builtin_trap();
    if (s3_read_delete_result(text, len, &err) == 0 && rc)
        __builtin_trap();
    return 0;
}
