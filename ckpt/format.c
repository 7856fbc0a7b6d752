/* Owns the choice between formats. Knows nothing of their bytes. */
#include "ckpt/format.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/dcp.h"
#include "ckpt/raw.h"

int format_item_frame(enum plan_format format, const struct state_tensor *tensor, const struct box *box,
                      uint64_t item_offset, uint32_t alignment, struct item_frame *frame, struct cb_err *err)
{
    return format == PLAN_RAW ? raw_item_frame(tensor, box, item_offset, alignment, frame, err)
                              : dcp_item_frame(tensor, box, item_offset, alignment, frame, err);
}

int format_item_header(enum plan_format format, const struct state_tensor *tensor, const struct plan_item *item,
                       struct buf *out, struct cb_err *err)
{
    return format == PLAN_RAW ? raw_item_header(item, out, err) : dcp_item_header(tensor, item, out, err);
}

int format_item_trailer(enum plan_format format, const struct state_tensor *tensor, const struct plan_item *item,
                        uint32_t crc, struct buf *out, struct cb_err *err)
{
    return format == PLAN_RAW ? 0 : dcp_item_trailer(tensor, item, crc, out, err);
}

int format_bytes_payload(enum plan_format format, const struct state_tensor *tensor, struct buf *out,
                         struct cb_err *err)
{
    return format == PLAN_RAW ? raw_bytes_payload(tensor, out, err) : dcp_bytes_payload(tensor, out, err);
}

int format_write_metadata(enum plan_format format, const struct layout *layout, const struct plan *plan,
                          const char *checkpoint_id, struct buf *out, struct cb_err *err)
{
    return format == PLAN_RAW ? raw_write_metadata(layout, plan, out, err)
                              : dcp_write_metadata(layout, plan, checkpoint_id, out, err);
}

int format_read_metadata(const char *name, const void *bytes, size_t len, struct stored_checkpoint **checkpoint,
                         struct cb_err *err)
{
    return raw_is_metadata(bytes, len) ? raw_read_metadata(name, bytes, len, checkpoint, err)
                                       : dcp_read_metadata(name, bytes, len, checkpoint, err);
}

int format_parse_item(enum plan_format format, const struct stored_tensor *tensor, const struct box *box,
                      const void *bytes, size_t len, uint64_t item_length, struct stored_payload *payload,
                      struct cb_err *err)
{
    return format == PLAN_RAW ? raw_parse_item(tensor, box, item_length, payload, err)
                              : dcp_parse_item(tensor, box, bytes, len, item_length, payload, err);
}

bool format_expect_payload(enum plan_format format, const struct stored_tensor *tensor, const struct box *box,
                           uint64_t item_length, struct stored_payload *payload)
{
    if (format == PLAN_RAW)
        return raw_parse_item(tensor, box, item_length, payload, NULL) == 0;
    return dcp_expect_payload(tensor, box, item_length, payload);
}

int format_parse_trailer(enum plan_format format, const void *last_bytes, size_t len, uint32_t *crc, bool *has_crc,
                         struct cb_err *err)
{
    if (format == PLAN_RAW) {
        *has_crc = false;
        return 0;
    }
    return dcp_parse_trailer(last_bytes, len, crc, has_crc, err);
}

int format_parse_bytes_payload(enum plan_format format, const char *fqn, const void *bytes, size_t len,
                               struct buf *literal, struct cb_err *err)
{
    if (format == PLAN_RAW) {
        buf_append(literal, bytes, len);
        return buf_check(literal, fqn, err);
    }
    return dcp_parse_bytes_payload(fqn, bytes, len, literal, err);
}

void stored_checkpoint_free(struct stored_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    for (size_t i = 0; i < checkpoint->tensor_count; i++)
        free(checkpoint->tensors[i].fqn);
    for (size_t i = 0; i < checkpoint->file_count; i++)
        free(checkpoint->files[i]);
    free(checkpoint->tensors);
    free(checkpoint->chunks);
    free(checkpoint->files);
    free(checkpoint);
}

static int compare_fqn(const void *fqn, const void *tensor)
{
    return strcmp(fqn, ((const struct stored_tensor *)tensor)->fqn);
}

const struct stored_tensor *stored_checkpoint_find(const struct stored_checkpoint *checkpoint, const char *fqn)
{
    return bsearch(fqn, checkpoint->tensors, checkpoint->tensor_count, sizeof *checkpoint->tensors, compare_fqn);
}
