/* Composes the bytes of a request: copies payload that is not written in place, adds headers and trailers, and computes
 * checksums of the bytes that will be written. */
#include <string.h>

#include "core/hash.h"
#include "engine/save/native_save.h"

/* Longer copies count as state "stage", shorter ones as "serialize". */
#define STAGE_STATE_BYTES 65536

static const struct state_tensor *tensor_of(const struct native_save *self, const struct plan_item *item)
{
    return layout_tensor(self->operation->layout, item->tensor);
}

static int compose_frame(struct native_save *self, const struct part *part, char *to, struct cb_err *err)
{
    const struct plan_item *item = &self->items[part->item];
    const struct state_tensor *tensor = tensor_of(self, item);
    enum plan_format format = self->engine->setup.config.plan.format;
    int rc;
    buf_clear(&self->frame);
    if (part->kind == PART_HEADER)
        rc = format_plan_header(format, self->operation->layout, self->plan, item, self->item_count - part->item,
                                self->operation->save_id, &self->frame, err);
    else if (part->kind == PART_TRAILER)
        rc = format_item_trailer(format, tensor, item, self->operation->save_id, self->sources[part->item].crc,
                                 &self->frame, err);
    else
        rc = format_bytes_payload(format, tensor, self->operation->save_id, &self->frame, err);
    if (rc)
        return rc;
    if (part->skip + part->bytes > self->frame.len)
        return cb_fail(err, CB_ERR_INTERNAL, "header, payload or trailer of %s is shorter than planned", tensor->fqn);
    memcpy(to, self->frame.data + part->skip, part->bytes);
    return 0;
}

static void copy_part(struct native_save *self, const struct part *part, char *to)
{
    const struct source *source = &self->sources[part->item];
    if (part->bytes >= STAGE_STATE_BYTES)
        timeline_enter(&self->operation->timeline, STATE_STAGE);
    if (source->mapping)
        mapping_gather(source->mapping, part->skip, to, part->bytes, source->memory);
    else
        memcpy(to, part->memory, part->bytes);
    self->operation->bytes_copied += part->bytes;
    if (part->bytes >= STAGE_STATE_BYTES)
        timeline_enter(&self->operation->timeline, STATE_SERIALIZE);
}

int write_frames(void *context, const struct io_request *request, char *image, struct cb_err *err)
{
    struct native_save *self = context;
    uint64_t position = request->offset;
    timeline_enter(&self->operation->timeline, STATE_SERIALIZE);
    for (size_t i = 0; i < request->part_count; i++) {
        const struct part *part = &self->schedule.parts[request->first_part + i];
        struct source *source = &self->sources[part->item];
        char *to = image + (part->offset - request->offset);
        if (part->offset > position)
            memset(image + (position - request->offset), 0, part->offset - position);
        position = part->offset + part->bytes;
        if (part->kind == PART_HEADER || part->kind == PART_TRAILER || !source->memory) {
            int rc = compose_frame(self, part, to, err);
            if (rc)
                return rc;
            continue;
        }
        if (!part->direct && !self->staged && !self->bounces)
            copy_part(self, part, to);
        if (self->engine->setup.config.checksum && format_has_checksums(self->engine->setup.config.plan.format))
            source->crc = crc32_zip(source->crc, part->direct ? part->memory : to, part->bytes);
    }
    if (position < request->end)
        memset(image + (position - request->offset), 0, request->end - position);
    return 0;
}
