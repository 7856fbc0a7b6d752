/* The row of PyTorch DCP. */
#include "ckpt/format/dcp.h"

#include "ckpt/format/format_ops.h"
#include "ckpt/format/zip.h"

const struct format_ops dcp_format = {
    .name = "dcp",
    .marker = STORED_MARKER,
    .suffix = "distcp",
    .has_checksums = true,
    .has_folders = true,
    .keeps_objects = true,
    .item_frame = dcp_item_frame,
    .item_header = dcp_item_header,
    .item_trailer = dcp_item_trailer,
    .bytes_payload = dcp_bytes_payload,
    .write_metadata = dcp_write_metadata,
    .pass_metadata = dcp_pass_metadata,
    .read_save_id = zip_read_save_id,
    .parse_item = dcp_parse_item,
    .expect_payload = dcp_expect_payload,
    .parse_trailer = dcp_parse_trailer,
    .parse_bytes_payload = dcp_parse_bytes_payload,
};
