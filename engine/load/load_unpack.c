/* Completion of a load: decompresses items that PyTorch compressed. The bytes in the window (load_pass.c) are
 * decompressed in order and in steps, and each step is placed immediately, so that no item is held in memory as a
 * whole. */
#include <string.h>

#include "ckpt/stored/unpack.h"
#include "core/alloc.h"
#include "core/hash.h"
#include "engine/load/load_stages.h"
#include "engine/state.h"

/* Bytes besides the payload: PyTorch's headers, and gaps that strides may leave. */
#define FRAME_BYTES (UINT64_C(64) << 20)

/* An item whose decompression has begun. */
struct unpacking {
    struct unpack_stream stream;
    struct buf head; /* the first bytes, until they contain the payload's offset */
    bool is_known;   /* the payload's offset is known */
    uint64_t at;     /* decompressed bytes so far */
    uint64_t most;   /* limit of decompressed bytes */
    uint32_t crc;    /* of the payload */
    char tail[ITEM_MAX_TRAILER];
    size_t tail_bytes;
};

static int begin_unpacking(struct native_load *self, struct load_item *item, struct cb_err *err)
{
    const struct stored_tensor *tensor = native_load_tensor(self, item);
    struct unpacking *unpacking = calloc(1, sizeof *unpacking);
    if (!unpacking)
        return alloc_fail(err, "to decompress %s", tensor->fqn);
    item->unpacking = unpacking;
    buf_init(&unpacking->head, ITEM_MAX_HEADER + LOAD_STEP_BYTES);
    unpacking->most =
        region_elements(&native_load_chunk(self, item)->region) * dtype_bytes(tensor->dtype) + FRAME_BYTES;
    return unpack_stream_open(&unpacking->stream, tensor->fqn, err);
}

void native_load_forget_unpacking(struct load_item *item)
{
    if (!item->unpacking)
        return;
    unpack_stream_close(&item->unpacking->stream);
    buf_release(&item->unpacking->head);
    free(item->unpacking);
    item->unpacking = NULL;
}

static void keep_tail(struct unpacking *self, const char *bytes, size_t len)
{
    size_t most = sizeof self->tail;
    if (len < most) {
        size_t kept = self->tail_bytes < most - len ? self->tail_bytes : most - len;
        memmove(self->tail, self->tail + self->tail_bytes - kept, kept);
        memcpy(self->tail + kept, bytes, len);
        self->tail_bytes = kept + len;
    } else {
        memcpy(self->tail, bytes + len - most, most);
        self->tail_bytes = most;
    }
}

/* Waits for copies to a device before their source changes. */
static int end_copies(struct native_load *self, struct cb_err *err)
{
    struct device *device = self->operation->state->device;
    uint64_t event = 0;
    if (!device)
        return 0;
    int rc = self->complete.copy_code;
    if (rc)
        *err = self->complete.copy_err;
    if (!rc)
        rc = device->ops->record(device, &event, err);
    if (!rc)
        rc = device->ops->wait(device, event, self->operation->options->deadline_ns, err);
    if (rc) {
        self->complete.copy_code = rc;
        self->io.window.step = NULL;
        pinned_leave(&self->io.bounce); /* copies may still read from it */
    }
    return rc;
}

/* Receives the next decompressed bytes, and places the part of them that is payload. */
static int place_plain(struct native_load *self, struct load_item *item, const char *bytes, uint64_t len,
                       struct cb_err *err)
{
    struct unpacking *unpacking = item->unpacking;
    const struct stored_payload *payload = &item->payload;
    uint64_t at = unpacking->at, end = payload->offset + payload->bytes;
    uint64_t first = at > payload->offset ? at : payload->offset, last = at + len < end ? at + len : end;
    unpacking->at += len;
    if (first >= last)
        return 0;
    if (self->operation->engine->setup.config.checksum)
        unpacking->crc = crc32_zip(unpacking->crc, bytes + (first - at), last - first);
    native_load_place(self, item, first - payload->offset, bytes + (first - at), last - first);
    return end_copies(self, err);
}

static int begin_payload(struct native_load *self, struct load_item *item, struct cb_err *err)
{
    struct unpacking *unpacking = item->unpacking;
    const struct buf *head = &unpacking->head;
    int rc = buf_check(head, native_load_tensor(self, item)->fqn, err);
    if (!rc)
        rc = format_parse_item(
            self->plan.checkpoint->format, native_load_tensor(self, item), &native_load_chunk(self, item)->region,
            head->data, head->len < ITEM_MAX_HEADER ? head->len : ITEM_MAX_HEADER, UINT64_MAX, &item->payload, err);
    if (rc)
        return rc;
    unpacking->is_known = true;
    rc = place_plain(self, item, head->data, head->len, err);
    buf_release(&unpacking->head);
    return rc;
}

static int take_plain(struct native_load *self, struct load_item *item, const char *bytes, size_t len,
                      struct cb_err *err)
{
    struct unpacking *unpacking = item->unpacking;
    keep_tail(unpacking, bytes, len);
    if (unpacking->at + len > unpacking->most)
        return cb_fail(err, CB_ERR_CORRUPT, "it decompresses to more than its tensor has");
    if (unpacking->is_known)
        return place_plain(self, item, bytes, len, err);
    buf_append(&unpacking->head, bytes, len);
    return unpacking->head.len < ITEM_MAX_HEADER ? 0 : begin_payload(self, item, err);
}

static int take_packed(struct native_load *self, struct load_item *item, const char *bytes, uint64_t len,
                       struct cb_err *err)
{
    const char *fqn = native_load_tensor(self, item)->fqn;
    size_t used = 0;
    int rc = item->unpacking ? 0 : begin_unpacking(self, item, err);
    while (!rc) {
        size_t before = used, made = 0;
        rc = unpack_stream_take(&item->unpacking->stream, fqn, bytes + used, len - used, &used, self->io.window.step,
                                LOAD_STEP_BYTES, &made, err);
        if (!rc && used == before && made == 0)
            break; /* more of the item is needed */
        if (!rc)
            rc = take_plain(self, item, self->io.window.step, made, err);
    }
    return rc;
}

static int end_unpacking(struct native_load *self, struct load_item *item, struct cb_err *err)
{
    struct unpacking *unpacking = item->unpacking;
    const struct stored_payload *payload = &item->payload;
    struct stored_trailer trailer;
    if (unpacking->stream.wanted > 0)
        return cb_fail(err, CB_ERR_CORRUPT, "what is compressed is cut off");
    int rc = unpacking->is_known ? 0 : begin_payload(self, item, err);
    if (!rc && unpacking->at < payload->offset + payload->bytes)
        rc = cb_fail(err, CB_ERR_CORRUPT, "it decompresses to less than its tensor has");
    if (rc || !self->operation->engine->setup.config.checksum)
        return rc;
    rc = format_parse_trailer(self->plan.checkpoint->format, unpacking->tail, unpacking->tail_bytes, &trailer, err);
    if (!rc)
        rc = format_check_header(payload, &trailer, err);
    if (!rc && trailer.crc != 0 && payload->whole && trailer.crc != unpacking->crc)
        rc =
            cb_fail(err, CB_ERR_CORRUPT, "its bytes have the CRC-32 %08x, stored is %08x", unpacking->crc, trailer.crc);
    return rc;
}

int native_load_unpack(struct native_load *self, struct load_item *item, struct cb_err *err)
{
    struct cb_err why = {0};
    self->complete.copy_code = 0;
    timeline_enter(&self->operation->timeline, STATE_SERIALIZE);
    int rc = take_packed(self, item, self->io.window.memory + item->window_at, item->in_window, &why);
    item->taken += item->in_window;
    bool ends = item->taken == native_load_chunk(self, item)->length;
    if (!rc && ends)
        rc = end_unpacking(self, item, &why);
    if (!rc && !ends)
        return 0;
    native_load_forget_unpacking(item);
    if (self->complete.copy_code) { /* the device has failed */
        *err = why;
        return rc;
    }
    if (rc)
        native_load_fail_item(self, item, rc, why.message);
    native_load_settle(self, item, rc == 0);
    if (!rc)
        item->state = ITEM_DONE;
    return 0;
}
