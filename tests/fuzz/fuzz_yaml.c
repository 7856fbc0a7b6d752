/* Settings and item lists from any bytes: refused or read, never a crash. */
#include <stddef.h>
#include <stdint.h>

#include "core/yaml.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static int ignore_item(void *context, const char *const *keys, const char *const *values, size_t count, size_t line,
                       struct cb_err *err)
{
    (void)context, (void)keys, (void)values, (void)count, (void)line, (void)err;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct setting_list list = {0};
    struct cb_err err;
    int rc = yaml_read_settings("fuzz.yaml", (const char *)bytes, len, &list, &err);
    if (rc == 0)
        for (size_t i = 0; i < list.count; i++)
            if (list.items[i].value_count == 0)
                __builtin_trap();
    setting_list_release(&list);
    rc = yaml_read_items("fuzz.yaml", (const char *)bytes, len, ignore_item, NULL, &err);
    (void)rc;
    return 0;
}
