/* A stored checkpoint as bytes: what read_metadata.c makes of files that have no metadata of their own, to hand it to other
 * ranks, and the commit marker of format=dcp+safetensors.
 *
 * All little-endian: "CKPTCAT1"; u32 format, u32 marked?; u64 counts of tensors, chunks and files; then
 * tensors: name, u8 bytes item?, u8 type, u8 dims, u64 a dimension, u32 chunks, literal, path;
 * chunks, tensor by tensor: u32 file, u8 compressed?, u64 offset, u64 length, u64 box offsets, u64 box sizes;
 * files: name; and last the CRC-32C of all before it as u32. A text is u32 bytes and the bytes; literal and path may
 * be 0xffffffff, which is none. */
#ifndef CKPT_FORMAT_CATALOGUE_H
#define CKPT_FORMAT_CATALOGUE_H

#include "ckpt/stored/stored.h"

int catalogue_write(const struct stored_checkpoint *checkpoint, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
/* The catalogue of what a plan of dcp+safetensors writes. */
int catalogue_write_plan(enum plan_format format, const struct layout *layout, const struct plan *plan, struct buf *out,
                         struct cb_err *err) CB_MUST_CHECK;
bool catalogue_is(const void *bytes, size_t len);
int catalogue_read(const char *name, const void *bytes, size_t len, struct stored_checkpoint **checkpoint,
                   struct cb_err *err) CB_MUST_CHECK;

#endif
