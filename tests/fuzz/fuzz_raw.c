/* The index of a raw checkpoint from any bytes. Magic and checksum are put right, or nothing would get past them. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/format.h"
#include "core/hash.h"

#define MAGIC "CKPTRAW" /* the version after it is the fuzzer's */
#define MAGIC_BYTES 7
#define CHECKSUM_BYTES 4

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check(const struct stored_checkpoint *checkpoint)
{
    uint64_t chunks = 0;
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        const struct stored_tensor *tensor = &checkpoint->tensors[i];
        struct region whole = region_whole(tensor->dims, tensor->shape);
        for (uint32_t k = 0; k < tensor->chunk_count; k++) {
            const struct stored_chunk *chunk = &checkpoint->chunks[tensor->first_chunk + k];
            if (chunk->file >= checkpoint->file_count || !region_contains(&whole, &chunk->region))
                __builtin_trap();
        }
        chunks += tensor->chunk_count;
    }
    if (chunks != checkpoint->chunk_count)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    if (len < MAGIC_BYTES + 1 + CHECKSUM_BYTES)
        return 0;
    uint8_t *copy = malloc(len);
    if (!copy)
        return 0;
    memcpy(copy, bytes, len);
    memcpy(copy, MAGIC, MAGIC_BYTES);
    uint32_t crc = crc32c(0, copy, len - CHECKSUM_BYTES);
    memcpy(copy + len - CHECKSUM_BYTES, &crc, sizeof crc);
    struct stored_checkpoint *checkpoint;
    struct cb_err err;
    if (format_read_metadata("fuzz", copy, len, &checkpoint, &err) == 0) {
        check(checkpoint);
        stored_checkpoint_free(checkpoint);
    }
    free(copy);
    return 0;
}
