/* A stored item from any bytes: the header of a tensor, its trailer, and a small value. The first two bytes choose
 * type and shape. */
#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    if (len < 2)
        return 0;
    char fqn[] = "tensor";
    struct stored_tensor tensor = {.fqn = fqn, .dtype = (enum dtype)(bytes[0] % DTYPE_COUNT), .dims = 2};
    struct region region = {.dims = 2, .size = {bytes[1] % 4, bytes[1] / 4}};
    struct stored_payload payload;
    struct cb_err err;
    const uint8_t *item = bytes + 2;
    size_t item_len = len - 2;
    if (format_parse_item(PLAN_DCP, &tensor, &region, item, item_len, item_len, &payload, &err) == 0 &&
        (payload.offset > item_len || payload.bytes > item_len - payload.offset))
        __builtin_trap();
    struct stored_trailer trailer;
    size_t tail = item_len < ITEM_MAX_TRAILER ? item_len : ITEM_MAX_TRAILER;
    (void)!format_parse_trailer(PLAN_DCP, item + item_len - tail, tail, &trailer, &err);
    struct buf literal;
    buf_init(&literal, 65536);
    (void)!format_parse_bytes_payload(PLAN_DCP, fqn, item, item_len, &literal, &err);
    buf_release(&literal);
    return 0;
}
