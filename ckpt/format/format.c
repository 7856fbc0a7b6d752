/* The table of formats, and code that all of them share. */
#include "ckpt/format/format.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/format_ops.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/format/save_id.h"

#define FORMAT(ID, row) extern const struct format_ops row##_format;
#include "ckpt/format/formats.def"
#undef FORMAT

static const struct format_ops *const formats[PLAN_FORMATS] = {
#define FORMAT(ID, row) &row##_format,
#include "ckpt/format/formats.def"
#undef FORMAT
};

const struct format_ops *format_ops_of(enum plan_format format)
{
    return formats[format];
}

bool format_find(const char *name, enum plan_format *format)
{
    for (int i = 0; i < PLAN_FORMATS; i++) {
        if (strcmp(formats[i]->name, name) == 0) {
            *format = (enum plan_format)i;
            return true;
        }
    }
    return false;
}

const char *format_name(enum plan_format format)
{
    return formats[format]->name;
}

const char *format_marker(enum plan_format format)
{
    return formats[format]->marker;
}

const char *format_marker_at(size_t index)
{
    static const char *const markers[] = {STORED_MARKER, SAFETENSORS_INDEX};
    return index < sizeof markers / sizeof *markers ? markers[index] : NULL;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* # stands for digits. Returns the rest of the name after the pattern; NULL if the name does not begin like it. */
static const char *skip(const char *name, const char *pattern)
{
    for (; *pattern; pattern++) {
        size_t bytes = *pattern == '#' ? strspn(name, "0123456789") : *name == *pattern;
        if (bytes == 0)
            return NULL;
        name += bytes;
    }
    return name;
}

bool format_is_data_file(const char *path)
{
    const char *name = last_part(path), *numbered = skip(name, "__#_#."), *part = skip(name, "shard-#-");
    const char *counted = skip(part ? part : name, "model-#-of-#" SAFETENSORS_SUFFIX);
    bool found = counted && *counted == '\0';
    for (size_t i = 0; i < PLAN_FORMATS && numbered && !found; i++)
        found = formats[i]->suffix && strcmp(numbered, formats[i]->suffix) == 0;
    return found;
}

bool format_is_data_file_within(const char *name)
{
    static const char *const folders[] = {"copy-#/", "d#/"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        const char *inside = skip(name, folders[i]);
        name = inside ? inside : name;
    }
    return !strchr(name, '/') && format_is_data_file(name);
}

bool format_is_file_within(const char *name)
{
    return format_is_data_file_within(name) || (!strchr(name, '/') && format_is_marker(name));
}

bool format_is_fanned_out(const char *path)
{
    const char *slash = strrchr(path, '/'), *folder = slash;
    while (folder && folder > path && folder[-1] != '/')
        folder--;
    return folder && skip(folder, "d#/") == slash + 1;
}

bool format_is_marker(const char *path)
{
    const char *last = last_part(path);
    for (size_t i = 0; format_marker_at(i); i++) {
        if (strcmp(last, format_marker_at(i)) == 0)
            return true;
    }
    return false;
}

bool format_has_checksums(enum plan_format format)
{
    return formats[format]->has_checksums;
}

int format_item_frame(enum plan_format format, const struct state_tensor *tensor, const struct region *region,
                      uint64_t item_offset, uint32_t alignment, struct item_frame *frame, struct cb_err *err)
{
    return formats[format]->item_frame(tensor, region, item_offset, alignment, frame, err);
}

int format_item_header(enum plan_format format, const struct state_tensor *tensor, const struct plan_item *item,
                       uint64_t save_id, struct buf *out, struct cb_err *err)
{
    return formats[format]->item_header ? formats[format]->item_header(tensor, item, save_id, out, err) : 0;
}

int format_plan_header(enum plan_format format, const struct layout *layout, const struct plan *plan,
                       const struct plan_item *items, size_t count, uint64_t save_id, struct buf *out,
                       struct cb_err *err)
{
    if (!formats[format]->has_file_headers)
        return format_item_header(format, layout_tensor(layout, items->tensor), items, save_id, out, err);
    size_t of_file = 1;
    while (of_file < count && items[of_file].file == items->file)
        of_file++;
    uint64_t bytes = items->payload_offset - items->offset;
    if (bytes == 0)
        return 0; /* not the first of its file */
    size_t begin = out->len;
    int code = safetensors_put_header(layout, items, of_file, formats[format]->has_parts,
                                      plan->options.payload_alignment, save_id, out, err);
    if (!code && out->len - begin != bytes) {
        char name[PLAN_NAME_BYTES];
        plan_file_name(plan, items->file, name);
        code = cb_fail(err, CB_ERR_INTERNAL, "the header of %s has another length than planned", name);
    }
    return code;
}

int format_item_trailer(enum plan_format format, const struct state_tensor *tensor, const struct plan_item *item,
                        uint64_t save_id, uint32_t crc, struct buf *out, struct cb_err *err)
{
    return formats[format]->item_trailer ? formats[format]->item_trailer(tensor, item, save_id, crc, out, err) : 0;
}

int format_bytes_payload(enum plan_format format, const struct state_tensor *tensor, uint64_t save_id, struct buf *out,
                         struct cb_err *err)
{
    return formats[format]->bytes_payload(tensor, save_id, out, err);
}

int format_write_metadata(enum plan_format format, const struct layout *layout, const struct plan *plan,
                          const char *checkpoint_id, uint64_t save_id, struct metadata_sink *sink, struct cb_err *err)
{
    return formats[format]->write_metadata(layout, plan, checkpoint_id, save_id, sink, err);
}

/* The longest mark at the begin of a metadata file. */
#define FIRST_BYTES 8

static int ops_for(const struct byte_source *source, const struct format_ops **ops, struct cb_err *err)
{
    struct byte_window window;
    size_t len = source->len < FIRST_BYTES ? (size_t)source->len : FIRST_BYTES;
    int code = byte_window_init(&window, source, err);
    if (code)
        return code;
    const unsigned char *first = byte_window_take(&window, len, err);
    *ops = NULL;
    for (int i = 0; i < PLAN_FORMATS && first; i++) {
        if (formats[i]->is_metadata && formats[i]->is_metadata(first, len)) {
            *ops = formats[i];
            break;
        }
        if (formats[i]->pass_metadata && !formats[i]->is_metadata)
            *ops = formats[i];
    }
    code = window.code;
    byte_window_release(&window);
    return code;
}

int format_pass_metadata(const char *name, const struct byte_source *source, const struct stored_sink *sink,
                         struct cb_err *err)
{
    const struct format_ops *ops;
    int code = ops_for(source, &ops, err);
    if (code)
        return code;
    assert(ops); /* one format takes whatever no other recognises */
    return ops->pass_metadata(name, source, sink, err);
}

int format_read_metadata(const char *name, const void *bytes, size_t len, struct stored_checkpoint **checkpoint,
                         struct cb_err *err)
{
    struct byte_source source = byte_source_of(bytes, len);
    struct stored_collector collector = {.name = name};
    struct stored_sink sink = stored_collector_sink(&collector);
    int code = format_pass_metadata(name, &source, &sink, err);
    if (!code)
        code = stored_collector_take(&collector, checkpoint, err);
    stored_collector_release(&collector);
    return code;
}

int format_check_save(const struct stored_checkpoint *checkpoint, bool is_value, const void *front, size_t len,
                      struct cb_err *err)
{
    const struct format_ops *ops = formats[checkpoint->format];
    uint64_t found = checkpoint->save_id && ops->read_save_id ? ops->read_save_id(front, len) : checkpoint->save_id;
    char expected[SAVE_ID_TEXT_BYTES], other[SAVE_ID_TEXT_BYTES];
    if (found == checkpoint->save_id || (found == 0 && is_value))
        return 0;
    save_id_format(checkpoint->save_id, expected);
    save_id_format(found, other);
    return cb_fail(err, CB_ERR_CORRUPT, "the file is of another save: its save id is %s, the checkpoint's %s",
                   found ? other : "missing", expected);
}

int format_parse_item(enum plan_format format, const struct stored_tensor *tensor, const struct region *region,
                      const void *bytes, size_t len, uint64_t item_length, struct stored_payload *payload,
                      struct cb_err *err)
{
    return formats[format]->parse_item(tensor, region, bytes, len, item_length, payload, err);
}

bool format_expect_payload(enum plan_format format, const struct stored_tensor *tensor, const struct region *region,
                           uint64_t item_length, struct stored_payload *payload)
{
    return formats[format]->expect_payload(tensor, region, item_length, payload);
}

int format_parse_trailer(enum plan_format format, const void *last_bytes, size_t len, struct stored_trailer *trailer,
                         struct cb_err *err)
{
    if (formats[format]->parse_trailer)
        return formats[format]->parse_trailer(last_bytes, len, trailer, err);
    *trailer = (struct stored_trailer){0};
    return 0;
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
    if (formats[format]->parse_bytes_payload)
        return formats[format]->parse_bytes_payload(fqn, bytes, len, literal, err);
    buf_append(literal, bytes, len);
    return buf_check(literal, fqn, err);
}
