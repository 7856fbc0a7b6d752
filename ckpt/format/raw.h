/* The raw format (see ckpt/format/format.h): payloads in sequence at aligned offsets, nothing around them, and a
 * binary index as the marker. The index, all little-endian: "CKPTRAW1"; u64 counts of tensors, chunks and files; then
 * tensors: u32 bytes of name, name, u8 bytes item?, u8 type, u8 dims, u64 per dimension, u32 chunks;
 * chunks, tensor by tensor: u32 file, u64 offset, u64 length, u64 region offsets, u64 region sizes;
 * files: u32 bytes of name, name; and last the CRC-32C of everything before it as u32. */
#ifndef CKPT_FORMAT_RAW_H
#define CKPT_FORMAT_RAW_H

#include "ckpt/format/item.h"
#include "ckpt/plan.h"
#include "ckpt/stored.h"
#include "core/buf.h"

int raw_item_frame(const struct state_tensor *tensor, const struct region *region, uint64_t item_offset,
                   uint32_t alignment, struct item_frame *frame, struct cb_err *err) CB_MUST_CHECK;
int raw_item_header(const struct state_tensor *tensor, const struct plan_item *item, struct buf *out,
                    struct cb_err *err) CB_MUST_CHECK;
int raw_bytes_payload(const struct state_tensor *tensor, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
int raw_write_metadata(const struct layout *layout, const struct plan *plan, const char *checkpoint_id, struct buf *out,
                       struct cb_err *err) CB_MUST_CHECK;

bool raw_is_metadata(const void *bytes, size_t len);
int raw_read_metadata(const char *name, const void *bytes, size_t len, struct stored_checkpoint **checkpoint,
                      struct cb_err *err) CB_MUST_CHECK;
int raw_parse_item(const struct stored_tensor *tensor, const struct region *region, const void *bytes, size_t len,
                   uint64_t item_length, struct stored_payload *payload, struct cb_err *err) CB_MUST_CHECK;
bool raw_expect_payload(const struct stored_tensor *tensor, const struct region *region, uint64_t item_length,
                        struct stored_payload *payload);

#endif
