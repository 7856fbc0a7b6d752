/* JSON from any bytes, walked with the checked access. */
#include <stddef.h>
#include <stdint.h>

#include "core/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void walk(const struct json_value *value)
{
    const char *text, *key;
    uint64_t number;
    double real;
    bool boolean;
    size_t position = 0, members = 0;
    const struct json_value *member;
    (void)(json_as_text(value, &text) || json_as_u64(value, &number) || json_as_double(value, &real) ||
           json_as_bool(value, &boolean) || json_is_null(value));
    for (size_t i = 0; json_is_array(value) && i < json_count(value); i++)
        walk(json_at(value, i));
    while (json_is_object(value) && json_next(value, &position, &key, &member)) {
        if (json_get(value, key) != member)
            __builtin_trap();
        members++;
        walk(member);
    }
    if (json_is_object(value) && members != json_count(value))
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct json_value *root;
    struct cb_err err;
    if (json_parse((const char *)bytes, len, &root, &err))
        return 0;
    walk(root);
    json_value_free(root);
    return 0;
}
