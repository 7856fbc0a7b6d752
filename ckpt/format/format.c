/* Dispatches to the formats. */
#include "ckpt/format/format.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/format/catalogue.h"
#include "ckpt/format/dcp.h"
#include "ckpt/format/raw.h"
#include "ckpt/format/safetensors.h"

static const struct {
    const char *name, *marker;
    bool checksums;
} formats[PLAN_FORMATS] = {
    [PLAN_DCP] = {"dcp", STORED_MARKER, true},
    [PLAN_RAW] = {"raw", STORED_MARKER, false},
    [PLAN_SAFETENSORS] = {"safetensors", SAFETENSORS_INDEX, false},
    [PLAN_DCP_SAFETENSORS] = {"dcp+safetensors", STORED_MARKER, false},
};

const char *format_name(enum plan_format format)
{
    return formats[format].name;
}

const char *format_marker(enum plan_format format)
{
    return formats[format].marker;
}

const char *format_marker_at(size_t index)
{
    static const char *const markers[] = {STORED_MARKER, SAFETENSORS_INDEX};
    return index < sizeof markers / sizeof *markers ? markers[index] : NULL;
}

bool format_is_marker(const char *path)
{
    const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
    for (size_t i = 0; format_marker_at(i); i++) {
        if (strcmp(last, format_marker_at(i)) == 0)
            return true;
    }
    return false;
}

bool format_has_checksums(enum plan_format format)
{
    return formats[format].checksums;
}

static bool is_safetensors(enum plan_format format)
{
    return format == PLAN_SAFETENSORS || format == PLAN_DCP_SAFETENSORS;
}

int format_item_frame(enum plan_format format, const struct state_tensor *tensor, const struct region *region,
                      uint64_t item_offset, uint32_t alignment, struct item_frame *frame, struct cb_err *err)
{
    if (is_safetensors(format)) { /* the file's header is written when all of its items are known */
        uint64_t bytes = tensor->kind == KIND_BYTES ? 0 : region_elements(region) * dtype_bytes(tensor->dtype);
        *frame = (struct item_frame){.payload_bytes = bytes};
        return 0;
    }
    return format == PLAN_RAW ? raw_item_frame(tensor, region, item_offset, alignment, frame, err)
                              : dcp_item_frame(tensor, region, item_offset, alignment, frame, err);
}

int format_item_header(enum plan_format format, const struct state_tensor *tensor, const struct plan_item *item,
                       struct buf *out, struct cb_err *err)
{
    if (is_safetensors(format))
        return 0;
    return format == PLAN_RAW ? raw_item_header(item, out, err) : dcp_item_header(tensor, item, out, err);
}

int format_plan_header(enum plan_format format, const struct layout *layout, const struct plan *plan,
                       const struct plan_item *item, struct buf *out, struct cb_err *err)
{
    if (!is_safetensors(format))
        return format_item_header(format, layout_tensor(layout, item->tensor), item, out, err);
    const struct plan_item *end = item;
    while (end < plan->items + plan->item_count && end->file == item->file)
        end++;
    uint64_t bytes = item->payload_offset - item->offset;
    if (bytes == 0)
        return 0; /* not the first of its file */
    size_t begin = out->len;
    int code = safetensors_put_header(layout, item, (size_t)(end - item), format == PLAN_DCP_SAFETENSORS,
                                      plan->payload_alignment, out, err);
    if (!code && out->len - begin != bytes)
        code = cb_fail(err, CB_ERR_INTERNAL, "the header of %s has another length than planned",
                       plan->files[item->file].name);
    return code;
}

int format_item_trailer(enum plan_format format, const struct state_tensor *tensor, const struct plan_item *item,
                        uint32_t crc, struct buf *out, struct cb_err *err)
{
    return format == PLAN_DCP ? dcp_item_trailer(tensor, item, crc, out, err) : 0;
}

int format_bytes_payload(enum plan_format format, const struct state_tensor *tensor, struct buf *out,
                         struct cb_err *err)
{
    if (is_safetensors(format))
        return 0; /* its literal is in the file's header */
    return format == PLAN_RAW ? raw_bytes_payload(tensor, out, err) : dcp_bytes_payload(tensor, out, err);
}

int format_write_metadata(enum plan_format format, const struct layout *layout, const struct plan *plan,
                          const char *checkpoint_id, struct buf *out, struct cb_err *err)
{
    switch (format) {
    case PLAN_RAW:
        return raw_write_metadata(layout, plan, out, err);
    case PLAN_SAFETENSORS:
        return safetensors_put_index(layout, plan, out, err);
    case PLAN_DCP_SAFETENSORS:
        return catalogue_write_plan(format, layout, plan, out, err);
    default:
        return dcp_write_metadata(layout, plan, checkpoint_id, out, err);
    }
}

int format_read_metadata(const char *name, const void *bytes, size_t len, struct stored_checkpoint **checkpoint,
                         struct cb_err *err)
{
    if (catalogue_is(bytes, len))
        return catalogue_read(name, bytes, len, checkpoint, err);
    return raw_is_metadata(bytes, len) ? raw_read_metadata(name, bytes, len, checkpoint, err)
                                       : dcp_read_metadata(name, bytes, len, checkpoint, err);
}

int format_parse_item(enum plan_format format, const struct stored_tensor *tensor, const struct region *region,
                      const void *bytes, size_t len, uint64_t item_length, struct stored_payload *payload,
                      struct cb_err *err)
{
    return format == PLAN_DCP ? dcp_parse_item(tensor, region, bytes, len, item_length, payload, err)
                              : raw_parse_item(tensor, region, item_length, payload, err);
}

bool format_expect_payload(enum plan_format format, const struct stored_tensor *tensor, const struct region *region,
                           uint64_t item_length, struct stored_payload *payload)
{
    if (format != PLAN_DCP)
        return raw_parse_item(tensor, region, item_length, payload, NULL) == 0;
    return dcp_expect_payload(tensor, region, item_length, payload);
}

int format_parse_trailer(enum plan_format format, const void *last_bytes, size_t len, struct stored_trailer *trailer,
                         struct cb_err *err)
{
    if (format != PLAN_DCP) {
        *trailer = (struct stored_trailer){0};
        return 0;
    }
    return dcp_parse_trailer(last_bytes, len, trailer, err);
}

int format_check_header(const struct stored_payload *payload, const struct stored_trailer *trailer, struct cb_err *err)
{
    if (payload->header_crc == 0 || trailer->header_crc == 0 || payload->header_crc == trailer->header_crc)
        return 0;
    return cb_fail(err, CB_ERR_CORRUPT, "what describes its bytes has the CRC-32 %08x, stored is %08x",
                   payload->header_crc, trailer->header_crc);
}

int format_parse_bytes_payload(enum plan_format format, const char *fqn, const void *bytes, size_t len,
                               struct buf *literal, struct cb_err *err)
{
    if (format != PLAN_DCP) {
        buf_append(literal, bytes, len);
        return buf_check(literal, fqn, err);
    }
    return dcp_parse_bytes_payload(fqn, bytes, len, literal, err);
}
