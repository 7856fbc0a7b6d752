/* The properties and operations of a checkpoint format: one constant per format, listed in ckpt/format/formats.def.
 * Code uses a property or calls an operation, and never compares formats. ckpt/format/format.h documents the
 * operations. */
#ifndef CKPT_FORMAT_FORMAT_OPS_H
#define CKPT_FORMAT_FORMAT_OPS_H

#include "ckpt/format/byte_source.h"
#include "ckpt/format/item.h"
#include "ckpt/format/metadata_sink.h"
#include "ckpt/plan.h"
#include "ckpt/stored_sink.h"
#include "core/buf.h"

struct format_ops {
    const char *name;      /* the value of format= */
    const char *marker;    /* the file that makes a checkpoint complete */
    const char *suffix;    /* of data files; NULL: names count the files, as model-00001-of-00002.safetensors */
    bool has_checksums;    /* items contain the payload's checksum */
    bool has_file_headers; /* safetensors: a header lists a file's tensors, without holes, each name once */
    bool has_parts;        /* with file headers: a file can contain part of a tensor */
    bool has_folders;      /* data files may lie in a folder of their rank (s3.prefix_strategy) */
    bool keeps_objects;    /* values may be torch.saves of any kind; else only Python literals */

    int (*item_frame)(const struct state_tensor *tensor, const struct region *region, uint64_t item_offset,
                      uint32_t alignment, struct item_frame *frame, struct cb_err *err);
    /* NULL: an item has no header. */
    int (*item_header)(const struct state_tensor *tensor, const struct plan_item *item, uint64_t save_id,
                       struct buf *out, struct cb_err *err);
    int (*item_trailer)(const struct state_tensor *tensor, const struct plan_item *item, uint64_t save_id, uint32_t crc,
                        struct buf *out, struct cb_err *err);
    int (*bytes_payload)(const struct state_tensor *tensor, uint64_t save_id, struct buf *out, struct cb_err *err);
    int (*write_metadata)(const struct layout *layout, const struct plan *plan, const char *checkpoint_id,
                          uint64_t save_id, struct metadata_sink *sink, struct cb_err *err);

    /* Whether its first bytes show that a file is this format's metadata; NULL: it cannot be recognised, so this format is tried last. */
    bool (*is_metadata)(const void *bytes, size_t len);
    /* NULL: its metadata is not in the marker (ckpt/stored/read_metadata.h reads the headers of its files). */
    int (*pass_metadata)(const char *name, const struct byte_source *source, const struct stored_sink *sink,
                         struct cb_err *err);
    /* The save id in the first bytes of an item, or of a file with a header; 0 if it has none. NULL: items have no
     * id. */
    uint64_t (*read_save_id)(const void *front, size_t len);
    int (*parse_item)(const struct stored_tensor *tensor, const struct region *region, const void *bytes, size_t len,
                      uint64_t item_length, struct stored_payload *payload, struct cb_err *err);
    bool (*expect_payload)(const struct stored_tensor *tensor, const struct region *region, uint64_t item_length,
                           struct stored_payload *payload);
    /* NULL: there is no trailer. */
    int (*parse_trailer)(const void *last_bytes, size_t len, struct stored_trailer *trailer, struct cb_err *err);
    /* NULL: the bytes are the literal. */
    int (*parse_bytes_payload)(const char *fqn, const void *bytes, size_t len, struct buf *literal, struct cb_err *err);
};

const struct format_ops *format_ops_of(enum plan_format format);

#endif
