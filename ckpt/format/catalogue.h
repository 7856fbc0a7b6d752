/* Our own two indexes of a checkpoint, all little-endian. A text is a u32 length and the bytes; literal and path may be
 * 0xffffffff for none.
 *
 * The catalogue is any stored checkpoint as bytes: the commit marker of format=dcp+safetensors, and what identifies the
 * source of a conversion. "CKPTCAT2"; u64 save
 * id; u32 format, u32 marked?; u64 counts of tensors, chunks and files; then
 * tensors: name, u8 bytes item?, u8 type, u8 dims, u64 per dimension, u32 chunks, literal, path;
 * chunks, tensor by tensor: u32 file, u8 compressed?, u64 offset, u64 length, u64 region offsets, u64 region sizes;
 * files: name; and last the CRC-32C of everything before it as u32.
 *
 * The index of format=raw, its marker, is "CKPTRAW2" and the same without format, marked, literals, paths and
 * compressed. Older versions wrote "CKPTCAT1" and "CKPTRAW1" without the save id. */
#ifndef CKPT_FORMAT_CATALOGUE_H
#define CKPT_FORMAT_CATALOGUE_H

#include "ckpt/format/byte_source.h"
#include "ckpt/format/metadata_sink.h"
#include "ckpt/stored_sink.h"
#include "core/buf.h"

int catalogue_write(const struct stored_checkpoint *checkpoint, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

/* Operations of ckpt/format/format_ops.h: for dcp+safetensors … */
int catalogue_write_plan(const struct layout *layout, const struct plan *plan, const char *checkpoint_id,
                         uint64_t save_id, struct metadata_sink *sink, struct cb_err *err) CB_MUST_CHECK;
bool catalogue_is(const void *bytes, size_t len);
int catalogue_pass(const char *name, const struct byte_source *source, const struct stored_sink *sink,
                   struct cb_err *err) CB_MUST_CHECK;
/* … and for raw. */
int raw_index_write(const struct layout *layout, const struct plan *plan, const char *checkpoint_id, uint64_t save_id,
                    struct metadata_sink *sink, struct cb_err *err) CB_MUST_CHECK;
bool raw_index_is(const void *bytes, size_t len);
int raw_index_pass(const char *name, const struct byte_source *source, const struct stored_sink *sink,
                   struct cb_err *err) CB_MUST_CHECK;

#endif
