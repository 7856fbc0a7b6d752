/* The zip around a stored tensor: what torch.load requires, and other zip tools check.
 *
 * Four records, all STORED, under the folder "archive": data.pkl, byteorder, version and last data/0, the payload, so
 * that everything before it is header and everything after it trailer. Written to memory of sufficient size. */
#ifndef CKPT_FORMAT_ZIP_H
#define CKPT_FORMAT_ZIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

#define ZIP_MAX_ALIGNMENT 32768 /* limit of the padding in a local header's extra field */
#define ZIP_MAX_TRAILER 400

/* The payload's offset in an item that begins at `item_offset` of its file and has a save id. */
uint32_t zip_header_bytes(size_t pickle_bytes, uint64_t payload_bytes, uint64_t item_offset, uint32_t alignment);
uint32_t zip_trailer_bytes(uint64_t payload_bytes);

/* The save id is in an extra field of the first record's local header, which other readers skip; save_id 0 leaves the
 * field out, as older versions did. */

/* Writes exactly `header_bytes`, using the padding. Returns the end. */
char *zip_put_header(char *at, const void *pickle, size_t pickle_bytes, uint64_t payload_bytes, uint32_t header_bytes,
                     uint64_t save_id);
/* `crc` of the payload, 0 if unknown. */
char *zip_put_trailer(char *at, const void *pickle, size_t pickle_bytes, uint64_t payload_bytes, uint32_t header_bytes,
                      uint32_t crc, uint64_t save_id);
/* A complete archive of one pickle without payload, as torch.save writes for a plain value. */
size_t zip_plain_bytes(size_t pickle_bytes, uint64_t save_id);
char *zip_put_plain(char *at, const void *pickle, size_t pickle_bytes, uint64_t save_id);

/* --- reading foreign archives --- */

struct zip_record {
    const char *name; /* borrowed, not terminated */
    size_t name_len;
    uint64_t offset; /* of the data, in the archive */
    uint64_t bytes;  /* UINT64_MAX if neither the header nor the given bytes contain it */
};

/* The record whose local header is at `at` of the first `len` bytes; *next is the offset of the next one. Sizes that
 * are only in a descriptor after the data are searched in the given bytes. */
int zip_next_record(const void *bytes, size_t len, size_t at, struct zip_record *record, size_t *next,
                    struct cb_err *err) CB_MUST_CHECK;

/* The save id in the archive's first bytes; 0 if there is none. */
uint64_t zip_read_save_id(const void *bytes, size_t len);
/* Replaces the save id; an archive without one is left unchanged. */
void zip_replace_save_id(void *bytes, size_t len, uint64_t save_id);

/* Whether a record's name is FOLDER/NAME. */
bool zip_name_is(const char *record_name, size_t len, const char *name);
/* CRC and length of the record NAME ("data/0", without the folder) from the last bytes of the archive, whose records
 * must be in the order of the directory, none inside another. */
int zip_find_crc(const void *last_bytes, size_t len, const char *name, uint32_t *crc, uint64_t *bytes,
                 struct cb_err *err) CB_MUST_CHECK;

#endif
