/* The bytes of an item in a file, whatever the format: header, payload, trailer. What formats fill for ckpt/format/format.h. */
#ifndef CKPT_FORMAT_ITEM_H
#define CKPT_FORMAT_ITEM_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/region.h"

/* Of an item to be written. */
struct item_frame {
    uint32_t header_bytes;
    uint64_t payload_bytes;
    uint32_t trailer_bytes;
};

#define ITEM_MAX_HEADER 131072
/* Of one that is stored, from its first bytes. */
struct stored_payload {
    uint64_t offset, bytes;
    uint64_t stride[CKPT_MAX_DIMS];
    bool contiguous;
    bool whole;          /* all of what is stored, of which the trailer's checksum is; false for a view of it */
    uint32_t header_crc; /* CRC-32 of the bytes that say all this (DCP's data.pkl); 0 where there are none */
};

#define ITEM_MAX_TRAILER 4096
/* The CRC-32s that its last bytes have; 0 where it stores none. */
struct stored_trailer {
    uint32_t crc;        /* of the payload */
    uint32_t header_crc; /* of what describes it */
};

#endif
