/* The rows of formats whose items are payloads without a description. raw: payloads in sequence at aligned offsets,
 * before each "CKPTSAVE" and the save id as u64 (older versions: nothing), and a binary index as the marker.
 * safetensors and DCP over safetensors: a file's header contains what surrounds payloads in other formats, values
 * included. */
#include <string.h>

#include "ckpt/format/catalogue.h"
#include "ckpt/format/format_ops.h"
#include "ckpt/format/safetensors.h"

/* --- stored items --- */

static int parse_item(const struct stored_tensor *tensor, const struct region *region, const void *bytes_read,
                      size_t len, uint64_t item_length, struct stored_payload *payload, struct cb_err *err)
{
    (void)bytes_read, (void)len;
    uint64_t bytes = tensor->is_bytes ? item_length : region_elements(region) * dtype_bytes(tensor->dtype);
    if (bytes > item_length)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the item has %llu bytes, its box %llu", tensor->fqn,
                       (unsigned long long)item_length, (unsigned long long)bytes);
    *payload =
        (struct stored_payload){.offset = item_length - bytes, .bytes = bytes, .contiguous = true, .whole = true};
    uint64_t step = 1;
    for (uint32_t i = region->dims; i-- > 0;) {
        payload->stride[i] = step;
        step *= region->size[i] ? region->size[i] : 1;
    }
    return 0;
}

static bool expect_payload(const struct stored_tensor *tensor, const struct region *region, uint64_t item_length,
                           struct stored_payload *payload)
{
    return parse_item(tensor, region, NULL, 0, item_length, payload, NULL) == 0;
}

/* --- raw --- */

#define HEAD_BYTES 16 /* mark and save id */

static const char mark[8] = "CKPTSAVE"; /* literals never begin like this */

static int raw_item_frame(const struct state_tensor *tensor, const struct region *region, uint64_t item_offset,
                          uint32_t alignment, struct item_frame *frame, struct cb_err *err)
{
    if (alignment == 0 || (alignment & (alignment - 1)) != 0)
        return cb_fail(err, CB_ERR_USAGE, "payloads cannot be aligned to %u bytes: a power of two", alignment);
    if (tensor->kind == KIND_BYTES) {
        *frame = (struct item_frame){.payload_bytes = HEAD_BYTES + strlen(tensor->literal)};
        return 0;
    }
    frame->header_bytes = HEAD_BYTES + (uint32_t)(-(item_offset + HEAD_BYTES) & (alignment - 1));
    frame->payload_bytes = region_elements(region) * dtype_bytes(tensor->dtype);
    frame->trailer_bytes = 0;
    return 0;
}

static void put_head(char *at, uint64_t save_id)
{
    memcpy(at, mark, sizeof mark);
    memcpy(at + sizeof mark, &save_id, sizeof save_id);
}

static int raw_item_header(const struct state_tensor *tensor, const struct plan_item *item, uint64_t save_id,
                           struct buf *out, struct cb_err *err)
{
    (void)tensor;
    size_t bytes = item->payload_offset - item->offset;
    char *header = bytes > 0 ? buf_extend(out, bytes) : NULL;
    if (header)
        memset(header, 0, bytes);
    if (header && save_id && bytes >= HEAD_BYTES)
        put_head(header, save_id);
    return buf_check(out, "an item's header", err);
}

static int raw_bytes_payload(const struct state_tensor *tensor, uint64_t save_id, struct buf *out, struct cb_err *err)
{
    char *head = save_id ? buf_extend(out, HEAD_BYTES) : NULL;
    if (head)
        put_head(head, save_id);
    buf_append_text(out, tensor->literal);
    return buf_check(out, "a bytes item", err);
}

static uint64_t raw_read_save_id(const void *front, size_t len)
{
    uint64_t save_id = 0;
    if (len >= HEAD_BYTES && memcmp(front, mark, sizeof mark) == 0)
        memcpy(&save_id, (const char *)front + sizeof mark, sizeof save_id);
    return save_id;
}

/* A literal, after a save id except in checkpoints of older versions. */
static int raw_parse_bytes_payload(const char *fqn, const void *bytes, size_t len, struct buf *literal,
                                   struct cb_err *err)
{
    size_t head = raw_read_save_id(bytes, len) ? HEAD_BYTES : 0;
    buf_append(literal, (const char *)bytes + head, len - head);
    return buf_check(literal, fqn, err);
}

const struct format_ops raw_format = {
    .name = "raw",
    .marker = STORED_MARKER,
    .suffix = "raw",
    .has_folders = true,
    .item_frame = raw_item_frame,
    .item_header = raw_item_header,
    .bytes_payload = raw_bytes_payload,
    .write_metadata = raw_index_write,
    .is_metadata = raw_index_is,
    .pass_metadata = raw_index_pass,
    .read_save_id = raw_read_save_id,
    .parse_item = parse_item,
    .expect_payload = expect_payload,
    .parse_bytes_payload = raw_parse_bytes_payload,
};

/* --- safetensors --- */

/* The file's header is written when all of its items are known. */
static int safetensors_item_frame(const struct state_tensor *tensor, const struct region *region, uint64_t item_offset,
                                  uint32_t alignment, struct item_frame *frame, struct cb_err *err)
{
    (void)item_offset, (void)alignment, (void)err;
    uint64_t bytes = tensor->kind == KIND_BYTES ? 0 : region_elements(region) * dtype_bytes(tensor->dtype);
    *frame = (struct item_frame){.payload_bytes = bytes};
    return 0;
}

/* Its literal is in the file's header. */
static int safetensors_bytes_payload(const struct state_tensor *tensor, uint64_t save_id, struct buf *out,
                                     struct cb_err *err)
{
    (void)tensor, (void)save_id, (void)out, (void)err;
    return 0;
}

const struct format_ops safetensors_format = {
    .name = "safetensors",
    .marker = SAFETENSORS_INDEX,
    .has_file_headers = true,
    .item_frame = safetensors_item_frame,
    .bytes_payload = safetensors_bytes_payload,
    .write_metadata = safetensors_write_index,
    .read_save_id = safetensors_read_save_id,
    .parse_item = parse_item,
    .expect_payload = expect_payload,
};

const struct format_ops dcp_safetensors_format = {
    .name = "dcp+safetensors",
    .marker = STORED_MARKER,
    .has_file_headers = true,
    .has_parts = true,
    .item_frame = safetensors_item_frame,
    .bytes_payload = safetensors_bytes_payload,
    .write_metadata = catalogue_write_plan,
    .is_metadata = catalogue_is,
    .pass_metadata = catalogue_pass,
    .read_save_id = safetensors_read_save_id,
    .parse_item = parse_item,
    .expect_payload = expect_payload,
};

enum plan_format safetensors_format_of(bool has_parts)
{
    return has_parts ? PLAN_DCP_SAFETENSORS : PLAN_SAFETENSORS;
}
