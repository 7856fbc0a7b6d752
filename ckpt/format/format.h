/* Checkpoint formats on disk: the bytes around payloads, and the metadata that commits.
 *
 * All lengths are known before a byte is written, so files are created with their final length. A tensor's item is
 * header, payload, trailer; the trailer may contain the payload's CRC, which the writer computes while it writes.
 * Formats: PyTorch DCP and raw (docs/dcp-format.md), safetensors and DCP over safetensors (docs/safetensors.md), in
 * which the header of a file's first item is that of the file. Pure functions; ckpt/stored/read_metadata.h reads from
 * a store. */
#ifndef CKPT_FORMAT_FORMAT_H
#define CKPT_FORMAT_FORMAT_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/format/byte_source.h"
#include "ckpt/format/item.h"
#include "ckpt/format/metadata_sink.h"
#include "ckpt/layout/layout.h"
#include "ckpt/plan.h"
#include "ckpt/stored_sink.h"
#include "core/buf.h"
#include "core/err.h"

const char *format_name(enum plan_format format); /* "dcp+safetensors" */
bool format_find(const char *name, enum plan_format *format);
/* The file that makes a checkpoint complete, published last. */
const char *format_marker(enum plan_format format);
/* All marker names, from index 0; NULL after the last. */
const char *format_marker_at(size_t index);
/* Whether the last part of a path is a marker name. */
bool format_is_marker(const char *path);
/* Whether the last part of a path is a name that a data file of some format has. */
bool format_is_data_file(const char *path);
/* The same for a name relative to the folder of its checkpoint, which must be in that folder or in those of copies= and
 * io.fanout: other folders may hold other checkpoints. */
bool format_is_data_file_within(const char *name);
/* The same, or the marker of that checkpoint. */
bool format_is_file_within(const char *name);
/* Whether a file is in one of the folders of io.fanout, as d00003/__7_0.distcp. */
bool format_is_fanned_out(const char *path);
/* Whether items store the payload's checksum. */
bool format_has_checksums(enum plan_format format);

/* The payload's offset in an item that starts at `item_offset` of its file, and the lengths of header and trailer.
 * `alignment`: of the payload in the file. Bytes items: the payload is the torch.save. */
int format_item_frame(enum plan_format format, const struct state_tensor *tensor, const struct region *region,
                      uint64_t item_offset, uint32_t alignment, struct item_frame *frame,
                      struct cb_err *err) CB_MUST_CHECK;

/* Appends exactly frame.header_bytes / frame.trailer_bytes. `save_id`: see ckpt/format/save_id.h; 0 would change the
 * lengths. */
int format_item_header(enum plan_format format, const struct state_tensor *tensor, const struct plan_item *item,
                       uint64_t save_id, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
int format_item_trailer(enum plan_format format, const struct state_tensor *tensor, const struct plan_item *item,
                        uint64_t save_id, uint32_t crc, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
/* The header of items[0] of a plan; for the first item of a file including the file's header. The others of the file
 * follow it. */
int format_plan_header(enum plan_format format, const struct layout *layout, const struct plan *plan,
                       const struct plan_item *items, size_t count, uint64_t save_id, struct buf *out,
                       struct cb_err *err) CB_MUST_CHECK;
/* The payload of a bytes item: a complete torch.save of its literal. */
int format_bytes_payload(enum plan_format format, const struct state_tensor *tensor, uint64_t save_id, struct buf *out,
                         struct cb_err *err) CB_MUST_CHECK;

/* The metadata file of a complete plan. `checkpoint_id` is the checkpoint's path as a user would write it. */
int format_write_metadata(enum plan_format format, const struct layout *layout, const struct plan *plan,
                          const char *checkpoint_id, uint64_t save_id, struct metadata_sink *sink,
                          struct cb_err *err) CB_MUST_CHECK;

/* Parses a metadata file and passes on what it lists; strict. Its memory grows with the number of tensors and files,
 * and with the chunks of one tensor, but not with the length of the file. */
int format_pass_metadata(const char *name, const struct byte_source *source, const struct stored_sink *sink,
                         struct cb_err *err) CB_MUST_CHECK;
/* Everything that it lists. */
int format_read_metadata(const char *name, const void *bytes, size_t len, struct stored_checkpoint **checkpoint,
                         struct cb_err *err) CB_MUST_CHECK;

/* Compares the save id in the first bytes of an item, or of a file with its own header, with the checkpoint's.
 * SAVE_ID_FRONT_BYTES of them suffice. Passes if the checkpoint has no id, and for a value without one, since a
 * conversion writes foreign values unchanged. CB_ERR_CORRUPT if they differ. */
int format_check_save(const struct stored_checkpoint *checkpoint, bool is_value, const void *front, size_t len,
                      struct cb_err *err) CB_MUST_CHECK;

/* Parses the first bytes of a stored item (at most ITEM_MAX_HEADER; fewer at a file's end): the payload's offset in
 * the item, its length, and its strides in elements. Checks dtype and size against `tensor` and `region`. `item_length`
 * is UINT64_MAX if not known yet. */
int format_parse_item(enum plan_format format, const struct stored_tensor *tensor, const struct region *region,
                      const void *bytes, size_t len, uint64_t item_length, struct stored_payload *payload,
                      struct cb_err *err) CB_MUST_CHECK;

/* Where our writer would put the payload of an item of this length: the trailer's length is known, so it does not
 * depend on the alignment. A hint that allows reading header and payload at once; format_parse_item on the header
 * confirms it. False if an item of this length cannot be ours. */
bool format_expect_payload(enum plan_format format, const struct stored_tensor *tensor, const struct region *region,
                           uint64_t item_length, struct stored_payload *payload);

/* The CRC-32s in the item's last bytes; 0 if it has none. */
int format_parse_trailer(enum plan_format format, const void *last_bytes, size_t len, struct stored_trailer *trailer,
                         struct cb_err *err) CB_MUST_CHECK;
/* Verifies the checksum of the payload's description, since a stride with a flipped bit would still be readable.
 * CB_ERR_CORRUPT. */
int format_check_header(const struct stored_payload *payload, const struct stored_trailer *trailer,
                        struct cb_err *err) CB_MUST_CHECK;

/* Appends the value of a bytes item as a Python literal ("3", "'adamw'", "[0.9, 0.95]"), given the complete item.
 * CB_ERR_UNSUPPORTED if the value is not a number, text, bool, None, list, tuple or dict. */
int format_parse_bytes_payload(enum plan_format format, const char *fqn, const void *bytes, size_t len,
                               struct buf *literal, struct cb_err *err) CB_MUST_CHECK;

#endif
