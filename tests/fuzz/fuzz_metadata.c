/* The metadata file of a checkpoint, DCP or raw, from any bytes; what is accepted must be safe to use. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/format/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct stored_checkpoint *checkpoint;
    struct cb_err err;
    if (format_read_metadata("fuzz", bytes, len, &checkpoint, &err))
        return 0;
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        const struct stored_tensor *tensor = &checkpoint->tensors[i];
        if (stored_checkpoint_find(checkpoint, tensor->fqn) != tensor)
            __builtin_trap();
        struct region whole = region_whole(tensor->dims, tensor->shape);
        for (uint32_t k = 0; k < tensor->chunk_count; k++) {
            const struct stored_chunk *chunk = &checkpoint->chunks[tensor->first_chunk + k];
            if (chunk->tensor != i || chunk->file >= checkpoint->file_count || !region_contains(&whole, &chunk->region))
                __builtin_trap();
            const char *file = checkpoint->files[chunk->file]; /* "a.../b" is a name like others */
            if (strncmp(file, "../", 3) == 0 || strstr(file, "/../") || file[0] == '/')
                __builtin_trap();
        }
    }
    stored_checkpoint_free(checkpoint);
    return 0;
}
