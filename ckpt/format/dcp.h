/* PyTorch DCP (docs/dcp-format.md). The functions implement those of ckpt/format/format.h. */
#ifndef CKPT_FORMAT_DCP_H
#define CKPT_FORMAT_DCP_H

#include "ckpt/format/byte_source.h"
#include "ckpt/format/item.h"
#include "ckpt/format/metadata_sink.h"
#include "ckpt/plan.h"
#include "ckpt/stored_sink.h"
#include "core/buf.h"

int dcp_item_frame(const struct state_tensor *tensor, const struct region *region, uint64_t item_offset,
                   uint32_t alignment, struct item_frame *frame, struct cb_err *err) CB_MUST_CHECK;
int dcp_item_header(const struct state_tensor *tensor, const struct plan_item *item, uint64_t save_id, struct buf *out,
                    struct cb_err *err) CB_MUST_CHECK;
int dcp_item_trailer(const struct state_tensor *tensor, const struct plan_item *item, uint64_t save_id, uint32_t crc,
                     struct buf *out, struct cb_err *err) CB_MUST_CHECK;
int dcp_bytes_payload(const struct state_tensor *tensor, uint64_t save_id, struct buf *out,
                      struct cb_err *err) CB_MUST_CHECK;
int dcp_write_metadata(const struct layout *layout, const struct plan *plan, const char *checkpoint_id,
                       uint64_t save_id, struct metadata_sink *sink, struct cb_err *err) CB_MUST_CHECK;

int dcp_pass_metadata(const char *name, const struct byte_source *source, const struct stored_sink *sink,
                      struct cb_err *err) CB_MUST_CHECK;
int dcp_parse_item(const struct stored_tensor *tensor, const struct region *region, const void *bytes, size_t len,
                   uint64_t item_length, struct stored_payload *payload, struct cb_err *err) CB_MUST_CHECK;
bool dcp_expect_payload(const struct stored_tensor *tensor, const struct region *region, uint64_t item_length,
                        struct stored_payload *payload);
int dcp_parse_trailer(const void *last_bytes, size_t len, struct stored_trailer *trailer,
                      struct cb_err *err) CB_MUST_CHECK;
int dcp_parse_bytes_payload(const char *fqn, const void *bytes, size_t len, struct buf *literal,
                            struct cb_err *err) CB_MUST_CHECK;

#endif
