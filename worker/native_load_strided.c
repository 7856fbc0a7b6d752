/* Loading: after a pass. Places items whose strides are not ours, and looks at values, both of which may
 * take memory. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/unpack.h"
#include "worker/native_load.h"
#include "worker/state.h"

/* Beside a payload: what PyTorch writes around it, and holes that its strides may leave. */
#define UNPACK_FRAME_BYTES (UINT64_C(64) * 1024 * 1024)

/* What of a compressed item has to be read again as if it had been stored so. */
static int unpack(const struct native_load *self, const struct load_item *item, const void *bytes, struct buf *plain,
                  struct cb_err *err)
{
    const struct stored_tensor *tensor = native_load_tensor(self, item);
    uint64_t payload = box_elements(&native_load_chunk(self, item)->box) * dtype_bytes(tensor->dtype);
    buf_init(plain, (tensor->is_bytes ? LOAD_VALUE_MAX_BYTES : payload) + UNPACK_FRAME_BYTES);
    return unpack_zstd(tensor->fqn, bytes, native_load_chunk(self, item)->length, plain, err);
}

/* Parsing a value allocates, so it is kept until the pass is over. */
static void check_value(struct native_load *self, struct load_item *item)
{
    struct cb_err err;
    struct buf plain = {.data = item->value, .len = native_load_chunk(self, item)->length};
    bool compressed = native_load_chunk(self, item)->compressed;
    buf_clear(&self->frame);
    int rc = compressed ? unpack(self, item, item->value, &plain, &err) : 0;
    if (!rc)
        rc = format_parse_bytes_payload(self->checkpoint->format, native_load_tensor(self, item)->fqn, plain.data,
                                        plain.len, &self->frame, &err);
    if (compressed)
        buf_release(&plain);
    if (rc && rc != CB_ERR_UNSUPPORTED) /* a kind of value that only Python knows is none of our business */
        native_load_fail_item(self, item, rc, err.message);
    else
        item->state = ITEM_DONE;
}

/* One element of the part, by its index in `common`, from a payload with other strides. */
static uint64_t strided_element(const struct stored_payload *payload, const struct box *stored,
                                const struct box *common, uint64_t index)
{
    uint64_t element = 0;
    for (uint32_t i = common->dims; i-- > 0; index /= common->size[i])
        element += (common->offset[i] - stored->offset[i] + index % common->size[i]) * payload->stride[i];
    return element;
}

static uint64_t held_element(const struct box *held, const struct box *common, uint64_t index)
{
    uint64_t element = 0, stride = 1;
    for (uint32_t i = common->dims; i-- > 0; index /= common->size[i]) {
        element += (common->offset[i] - held->offset[i] + index % common->size[i]) * stride;
        stride *= held->size[i];
    }
    return element;
}

/* One read of it to `memory`, which holds `held`. False where its bytes are too few. */
static bool take_elements(struct native_load *self, struct load_item *item, const struct box *common,
                          const struct box *held, char *memory)
{
    const struct stored_chunk *chunk = native_load_chunk(self, item);
    size_t element_bytes = dtype_bytes(native_load_tensor(self, item)->dtype);
    uint64_t count = box_elements(common);
    for (uint64_t j = 0; j < count; j++) {
        uint64_t from = strided_element(&item->payload, &chunk->box, common, j);
        if ((from + 1) * element_bytes > item->payload.bytes) {
            native_load_fail_item(self, item, CB_ERR_CORRUPT, "its strides reach beyond its bytes");
            return false;
        }
        memcpy(memory + held_element(held, common, j) * element_bytes, (char *)item->strided + from * element_bytes,
               element_bytes);
    }
    return true;
}

/* The same where the state is on a device: in order in pinned memory first. */
static int place_on_device(struct native_load *self, struct load_item *item, uint32_t read, struct cb_err *err)
{
    struct device *device = self->operation->state->device;
    const struct box *common = &self->plan->reads[read].common;
    size_t element_bytes = dtype_bytes(native_load_tensor(self, item)->dtype);
    uint64_t bytes = box_elements(common) * element_bytes, copied = 0, event = 0;
    struct mapping mapping;
    int rc = pinned_reserve(&self->bounce, device, bytes, err);
    if (rc || !take_elements(self, item, common, common, self->bounce.memory))
        return rc;
    mapping_init(&mapping, common, &self->mappings[read].held, common, element_bytes);
    rc = pinned_scatter(device, &mapping, 0, self->bounce.memory, bytes, self->memory[self->plan->reads[read].piece],
                        &copied, err);
    if (!rc)
        rc = device->ops->record(device, &event, err);
    if (!rc)
        rc = device->ops->wait(device, event, self->operation->options->deadline_ns, err);
    if (rc)
        pinned_leave(&self->bounce); /* it may still be read from */
    return rc;
}

static int place_strided(struct native_load *self, struct load_item *item, struct cb_err *err)
{
    size_t element_bytes = dtype_bytes(native_load_tensor(self, item)->dtype);
    for (uint32_t i = item->first_read; i < item->first_read + item->read_count && item->state != ITEM_FAILED; i++) {
        const struct box *common = &self->plan->reads[i].common;
        char *memory = self->memory[self->plan->reads[i].piece];
        if (box_elements(common) == 0)
            continue;
        if (!state_is_on_device(self->operation->state, memory))
            (void)take_elements(self, item, common, &self->mappings[i].held, memory);
        else if (place_on_device(self, item, i, err) != 0)
            return err->code;
        if (item->state == ITEM_FAILED)
            return 0;
        self->operation->bytes_copied += box_elements(common) * element_bytes;
        self->arrived[i] = box_elements(common) * element_bytes;
    }
    return 0;
}

/* Decompresses what was read of a compressed item; then it is one with strides. False where it failed. */
static bool unpack_item(struct native_load *self, struct load_item *item)
{
    struct cb_err err;
    struct buf plain;
    struct stored_payload payload;
    int rc = unpack(self, item, item->strided, &plain, &err);
    if (!rc)
        rc = format_parse_item(
            self->checkpoint->format, native_load_tensor(self, item), &native_load_chunk(self, item)->box, plain.data,
            plain.len < FORMAT_MAX_HEADER ? plain.len : FORMAT_MAX_HEADER, plain.len, &payload, &err);
    if (rc) {
        native_load_fail_item(self, item, rc, err.message);
        buf_release(&plain);
        return false;
    }
    free(item->strided);
    item->strided = buf_take(&plain);
    memmove(item->strided, (char *)item->strided + payload.offset, payload.bytes);
    item->payload = payload;
    buf_release(&plain);
    return true;
}

int native_load_after_pass(struct native_load *self, bool *again, struct cb_err *err)
{
    int rc = 0;
    *again = false;
    for (size_t i = 0; i < self->item_count; i++) {
        struct load_item *item = &self->items[i];
        if (!native_load_is_open(item))
            continue;
        if (item->value) {
            check_value(self, item);
            continue;
        }
        if (item->strided) {
            if (item->state != ITEM_FAILED && (!native_load_chunk(self, item)->compressed || unpack_item(self, item)))
                rc = place_strided(self, item, err);
            if (rc)
                return rc;
            free(item->strided);
            item->strided = NULL;
            native_load_settle(self, item, item->state != ITEM_FAILED);
            item->state = item->state == ITEM_FAILED ? ITEM_FAILED : ITEM_DONE;
            continue;
        }
        *again = true;
        if (item->state != ITEM_KNOWN || item->payload.contiguous)
            continue;
        item->strided = aligned_alloc(4096, (item->payload.bytes / 4096 + 1) * 4096);
        if (!item->strided)
            return cb_fail(err, CB_ERR_MEMORY, "no memory for %" PRIu64 " bytes of %s, which is stored with strides",
                           item->payload.bytes, native_load_tensor(self, item)->fqn);
    }
    return 0;
}
