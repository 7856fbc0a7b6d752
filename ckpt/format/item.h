/* The bytes of an item in a file, in any format: header, payload, trailer. Formats fill these structs for
 * ckpt/format/format.h. */
#ifndef CKPT_FORMAT_ITEM_H
#define CKPT_FORMAT_ITEM_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/region.h"

/* An item to be written. */
struct item_frame {
    uint32_t header_bytes;
    uint64_t payload_bytes;
    uint32_t trailer_bytes;
};

#define ITEM_MAX_HEADER 131072
/* A stored item, from its first bytes. */
struct stored_payload {
    uint64_t offset, bytes;
    uint64_t stride[CKPT_MAX_DIMS];
    bool contiguous;
    bool whole; /* whether it is the tensor's complete storage, which the trailer's checksum covers; false for a view */
    uint32_t header_crc; /* CRC-32 of the description (DCP's data.pkl); 0 if there is none */
};

#define ITEM_MAX_TRAILER 4096
/* The CRC-32s in its last bytes; 0 if it has none. */
struct stored_trailer {
    uint32_t crc;        /* of the payload */
    uint32_t header_crc; /* of the description */
};

#endif
