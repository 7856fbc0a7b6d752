/* The rows of safetensors: a file's header contains what surrounds payloads in other formats, values included. */
#include "ckpt/format/catalogue.h"
#include "ckpt/format/format_ops.h"
#include "ckpt/format/raw.h"
#include "ckpt/format/safetensors.h"

/* The file's header is written when all of its items are known. */
static int item_frame(const struct state_tensor *tensor, const struct region *region, uint64_t item_offset,
                      uint32_t alignment, struct item_frame *frame, struct cb_err *err)
{
    (void)item_offset, (void)alignment, (void)err;
    uint64_t bytes = tensor->kind == KIND_BYTES ? 0 : region_elements(region) * dtype_bytes(tensor->dtype);
    *frame = (struct item_frame){.payload_bytes = bytes};
    return 0;
}

/* Its literal is in the file's header. */
static int bytes_payload(const struct state_tensor *tensor, struct buf *out, struct cb_err *err)
{
    (void)tensor, (void)out, (void)err;
    return 0;
}

static int write_index(const struct layout *layout, const struct plan *plan, const char *checkpoint_id, struct buf *out,
                       struct cb_err *err)
{
    (void)checkpoint_id;
    return safetensors_put_index(layout, plan, out, err);
}

static int write_catalogue(const struct layout *layout, const struct plan *plan, const char *checkpoint_id,
                           struct buf *out, struct cb_err *err)
{
    (void)checkpoint_id;
    return catalogue_write_plan(PLAN_DCP_SAFETENSORS, layout, plan, out, err);
}

const struct format_ops safetensors_format = {
    .name = "safetensors",
    .marker = SAFETENSORS_INDEX,
    .has_file_headers = true,
    .item_frame = item_frame,
    .bytes_payload = bytes_payload,
    .write_metadata = write_index,
    .parse_item = raw_parse_item,
    .expect_payload = raw_expect_payload,
};

const struct format_ops dcp_safetensors_format = {
    .name = "dcp+safetensors",
    .marker = STORED_MARKER,
    .has_file_headers = true,
    .has_parts = true,
    .item_frame = item_frame,
    .bytes_payload = bytes_payload,
    .write_metadata = write_catalogue,
    .is_metadata = catalogue_is,
    .read_metadata = catalogue_read,
    .parse_item = raw_parse_item,
    .expect_payload = raw_expect_payload,
};

enum plan_format safetensors_format_of(bool has_parts)
{
    return has_parts ? PLAN_DCP_SAFETENSORS : PLAN_SAFETENSORS;
}
