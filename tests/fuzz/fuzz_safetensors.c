/* The header of a safetensors file, and its index, from any bytes. The first byte chooses. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/format/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check_file(const char *file)
{
    if (file[0] == '/' || strncmp(file, "../", 3) == 0 || strstr(file, "/../"))
        __builtin_trap();
}

static void fuzz_index(const char *json, size_t len)
{
    struct safetensors_index index;
    struct cb_err err;
    if (safetensors_read_index("fuzz", json, len, &index, &err))
        return;
    for (size_t i = 0; i < index.count; i++)
        check_file(index.entries[i].file);
    for (size_t i = 0; i < index.value_file_count; i++)
        check_file(index.value_files[i]);
    safetensors_index_release(&index);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    if (len == 0)
        return 0;
    const char *json = (const char *)bytes + 1;
    struct safetensors_header header;
    struct cb_err err;
    if (bytes[0] & 1) {
        fuzz_index(json, len - 1);
        return 0;
    }
    if (safetensors_read_header("fuzz", json, len - 1, &header, &err))
        return 0;
    uint64_t end = SAFETENSORS_LENGTH_BYTES + len - 1;
    for (size_t i = 0; i < header.entry_count; i++) {
        const struct safetensors_entry *entry = &header.entries[i];
        if (entry->offset != end || entry->bytes != region_elements(&entry->region) * dtype_bytes(entry->dtype))
            __builtin_trap();
        end += entry->bytes;
    }
    if (end != header.end_bytes)
        __builtin_trap();
    safetensors_header_release(&header);
    return 0;
}
