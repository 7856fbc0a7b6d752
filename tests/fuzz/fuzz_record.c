/* Records of foreign bytes. Checksums are put right first, or nothing would get past them. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "run/record.h"

#define FILE_HEAD_BYTES 12
#define BLOCK_HEAD_BYTES 12

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void put_checksums_right(uint8_t *bytes, size_t size)
{
    size_t at = FILE_HEAD_BYTES;
    while (size >= at && size - at > BLOCK_HEAD_BYTES) {
        uint64_t payload;
        memcpy(&payload, bytes + at + 4, sizeof payload);
        if (payload > size - at - BLOCK_HEAD_BYTES || size - at - BLOCK_HEAD_BYTES - payload < 4)
            return;
        uint32_t crc = crc32c(0, bytes + at, BLOCK_HEAD_BYTES + payload);
        memcpy(bytes + at + BLOCK_HEAD_BYTES + payload, &crc, sizeof crc);
        at += BLOCK_HEAD_BYTES + payload + sizeof crc;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct record record;
    struct cb_err err;
    if (record_parse("fuzz", data, size, &record, &err) == 0)
        record_release(&record);
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        return 0;
    if (size)
        memcpy(copy, data, size);
    put_checksums_right(copy, size);
    if (record_parse("fuzz", copy, size, &record, &err) == 0)
        record_release(&record);
    free(copy);
    return 0;
}
