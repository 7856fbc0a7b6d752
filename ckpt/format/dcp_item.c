/* Reads the items of DCP, which are written by torch.save.
 *
 * Untrusted input: every value's kind and range is checked before use. */
#include <string.h>

#include "ckpt/format/dcp.h"
#include "ckpt/format/dcp_values.h"
#include "ckpt/format/literal.h"
#include "ckpt/format/zip.h"
#include "core/hash.h"

bool dcp_read_sizes(const struct pickle *pickle, const struct pickle_node *node, uint64_t *values, uint32_t *count)
{
    if (!node || (node->kind != PICKLE_TUPLE && node->kind != PICKLE_LIST) || node->count > CKPT_MAX_DIMS)
        return false;
    for (uint32_t i = 0; i < node->count; i++) {
        const struct pickle_node *value = pickle_child(pickle, node, i);
        if (value->kind != PICKLE_INT || value->value.integer < 0)
            return false;
        values[i] = (uint64_t)value->value.integer;
    }
    *count = node->count;
    return true;
}

bool dcp_read_count(const struct pickle_node *node, uint64_t *value)
{
    if (!node || node->kind != PICKLE_INT || node->value.integer < 0)
        return false;
    *value = (uint64_t)node->value.integer;
    return true;
}

struct item_tensor { /* the contents of data.pkl */
    enum dtype dtype;
    uint64_t storage_bytes, offset; /* offset in elements */
    uint32_t dims, strides;
    uint64_t size[CKPT_MAX_DIMS], stride[CKPT_MAX_DIMS];
    char record[64];     /* "data/0" */
    uint32_t pickle_crc; /* of data.pkl itself */
};

static bool read_storage(const struct pickle *pickle, const struct pickle_node *node, struct item_tensor *item,
                         bool *untyped)
{
    const struct pickle_node *id = node && node->kind == PICKLE_PERSISTENT ? pickle_child(pickle, node, 0) : NULL;
    if (!id || id->kind != PICKLE_TUPLE || id->count != 5 || !pickle_text_is(pickle_child(pickle, id, 0), "storage"))
        return false;
    const struct pickle_node *class = pickle_child(pickle, id, 1), *key = pickle_child(pickle, id, 2);
    uint64_t count;
    if (class->kind != PICKLE_GLOBAL || key->kind != PICKLE_TEXT || key->count > 40 ||
        !dcp_read_count(pickle_child(pickle, id, 4), &count))
        return false;
    *untyped = class->global == PICKLE_G_UNTYPED_STORAGE;
    if (!*untyped && class->global != PICKLE_G_STORAGE)
        return false;
    item->dtype = *untyped ? DTYPE_U8 : (enum dtype) class->dtype;
    if (__builtin_mul_overflow(count, dtype_bytes(item->dtype), &item->storage_bytes))
        return false;
    memcpy(item->record, "data/", 5);
    memcpy(item->record + 5, key->value.text, key->count);
    item->record[5 + key->count] = '\0';
    return true;
}

static bool read_item_tensor(const struct pickle *pickle, struct item_tensor *item)
{
    const struct pickle_node *root = pickle_root(pickle), *arguments = pickle_arguments(pickle, root);
    bool third = pickle_is(pickle, root, PICKLE_G_REBUILD_V3), untyped;
    if ((!third && !pickle_is(pickle, root, PICKLE_G_REBUILD_V2)) || root->kind != PICKLE_CALL ||
        !read_storage(pickle, pickle_child(pickle, arguments, 0), item, &untyped) || untyped != third ||
        !dcp_read_count(pickle_child(pickle, arguments, 1), &item->offset) ||
        !dcp_read_sizes(pickle, pickle_child(pickle, arguments, 2), item->size, &item->dims) ||
        !dcp_read_sizes(pickle, pickle_child(pickle, arguments, 3), item->stride, &item->strides) ||
        item->dims != item->strides)
        return false;
    if (!third)
        return true;
    const struct pickle_node *dtype = pickle_child(pickle, arguments, 6);
    if (!dtype || dtype->kind != PICKLE_GLOBAL || dtype->global != PICKLE_G_DTYPE)
        return false;
    item->dtype = (enum dtype)dtype->dtype;
    return true;
}

/* Elements from the first to the last one that the strides reach; false on overflow. */
static bool span_of(const struct item_tensor *item, uint64_t *span)
{
    uint64_t last = 0;
    for (uint32_t i = 0; i < item->dims; i++) {
        uint64_t reach;
        if (item->size[i] == 0) {
            *span = 0;
            return true;
        }
        if (__builtin_mul_overflow(item->size[i] - 1, item->stride[i], &reach) ||
            __builtin_add_overflow(last, reach, &last))
            return false;
    }
    return !__builtin_add_overflow(last, 1, span);
}

static int locate(const struct item_tensor *item, uint64_t data, uint64_t length, struct stored_payload *payload,
                  struct cb_err *err)
{
    uint64_t span, end, element = dtype_bytes(item->dtype);
    if (!span_of(item, &span) || __builtin_add_overflow(span, item->offset, &end) ||
        __builtin_mul_overflow(end, element, &end) || (span > 0 && end > item->storage_bytes))
        return cb_fail(err, CB_ERR_CORRUPT, "the item's strides leave its storage");
    if (data > length || item->storage_bytes > length - data)
        return cb_fail(err, CB_ERR_CORRUPT, "the item of %llu bytes is too short for its payload of %llu",
                       (unsigned long long)length, (unsigned long long)item->storage_bytes);
    bool contiguous = true;
    uint64_t step = 1;
    for (uint32_t i = item->dims; i-- > 0 && span > 0; step *= item->size[i])
        contiguous &= item->size[i] == 1 || item->stride[i] == step;
    *payload = (struct stored_payload){.offset = data + (span > 0 ? item->offset * element : 0),
                                       .bytes = span * element,
                                       .contiguous = contiguous,
                                       .whole = span * element == item->storage_bytes,
                                       .header_crc = item->pickle_crc};
    memcpy(payload->stride, item->stride, item->dims * sizeof *item->stride);
    return 0;
}

static bool record_is(const struct zip_record *record, const char *name)
{
    return zip_name_is(record->name, record->name_len, name);
}

static int read_data_pickle(const void *bytes, const struct zip_record *record, struct item_tensor *item,
                            struct cb_err *err)
{
    struct pickle *pickle;
    const char *text = (const char *)bytes + record->offset;
    int code = pickle_read("its data.pkl", text, (size_t)record->bytes, &pickle, err);
    if (code)
        return code;
    item->pickle_crc = crc32_zip(0, text, (size_t)record->bytes);
    if (!read_item_tensor(pickle, item))
        code = cb_fail(err, CB_ERR_FORMAT, "the item is no plain tensor");
    pickle_free(pickle);
    return code;
}

/* For callers that do not use zip.h: the bytes around a tensor's data. */
static int damaged_frame(struct cb_err *err)
{
    return err ? cb_context(err, "what surrounds its bytes is damaged") : CB_ERR_CORRUPT;
}

int dcp_parse_item(const struct stored_tensor *tensor, const struct region *region, const void *bytes, size_t len,
                   uint64_t item_length, struct stored_payload *payload, struct cb_err *err)
{
    if (tensor->is_bytes) {
        *payload = (struct stored_payload){.bytes = item_length, .contiguous = true};
        return 0;
    }
    if (len > item_length)
        len = item_length;
    struct item_tensor item = {0};
    bool known = false;
    for (size_t at = 0, records = 0; records < 16; records++) {
        struct zip_record record;
        int code = zip_next_record(bytes, len, at, &record, &at, err);
        if (code)
            return damaged_frame(err);
        if (known && record_is(&record, item.record) && record.bytes != UINT64_MAX && record.bytes < item.storage_bytes)
            return cb_fail(err, CB_ERR_CORRUPT, "the item's storage of %llu bytes lies in a record of %llu",
                           (unsigned long long)item.storage_bytes, (unsigned long long)record.bytes);
        if (known && record_is(&record, item.record))
            return locate(&item, record.offset, item_length, payload, err);
        if (record.bytes == UINT64_MAX || record.bytes > len - record.offset)
            break;
        if (record_is(&record, "data.pkl")) {
            code = read_data_pickle(bytes, &record, &item, err);
            if (code)
                return code;
            if (item.dtype != tensor->dtype)
                return cb_fail(err, CB_ERR_CORRUPT, "the item holds %s, the metadata says %s", dtype_name(item.dtype),
                               dtype_name(tensor->dtype));
            if (item.dims != region->dims || memcmp(item.size, region->size, region->dims * sizeof *region->size) != 0)
                return cb_fail(err, CB_ERR_CORRUPT, "the item has another shape than the metadata says");
            known = true;
        } else if (record_is(&record, "byteorder") &&
                   (record.bytes != 6 || memcmp((const char *)bytes + record.offset, "little", 6) != 0)) {
            return cb_fail(err, CB_ERR_UNSUPPORTED, "the item is not little-endian");
        }
    }
    return cb_fail(err, CB_ERR_CORRUPT,
                   "what surrounds its bytes is damaged: the item has no payload in its first %zu bytes", len);
}

/* 0 means that PyTorch or we computed no checksum. */
int dcp_parse_trailer(const void *last_bytes, size_t len, struct stored_trailer *trailer, struct cb_err *err)
{
    struct stored_trailer found;
    uint64_t bytes;
    int code = zip_find_crc(last_bytes, len, "data/0", &found.crc, &bytes, err);
    if (!code)
        code = zip_find_crc(last_bytes, len, "data.pkl", &found.header_crc, &bytes, err);
    if (code)
        return damaged_frame(err);
    *trailer = found;
    return 0;
}

/* Locates the pickle inside the torch.save of a value, and verifies its checksum. */
static int find_value_pickle(const void *bytes, size_t len, struct zip_record *record, struct cb_err *err)
{
    size_t next;
    uint64_t stored_bytes;
    uint32_t crc;
    int code = zip_next_record(bytes, len, 0, record, &next, err);
    if (!code && (!record_is(record, "data.pkl") || record->bytes > len - record->offset))
        code = cb_fail(err, CB_ERR_CORRUPT, "the item does not begin with its data.pkl");
    if (!code)
        code = zip_find_crc(bytes, len, "data.pkl", &crc, &stored_bytes, err);
    if (!code && crc != 0 && crc32_zip(0, (const char *)bytes + record->offset, (size_t)record->bytes) != crc)
        code =
            cb_fail(err, CB_ERR_CORRUPT, "its bytes are not those of the checksum %08x that is stored with them", crc);
    return code;
}

int dcp_parse_bytes_payload(const char *fqn, const void *bytes, size_t len, struct buf *literal, struct cb_err *err)
{
    struct zip_record record;
    struct pickle *pickle;
    int code = find_value_pickle(bytes, len, &record, err);
    if (code && err)
        cb_context(err, "the value is damaged");
    if (!code)
        code = pickle_read(fqn, (const char *)bytes + record.offset, (size_t)record.bytes, &pickle, err);
    if (code)
        return code;
    code = literal_from_pickle(pickle, pickle_root(pickle), literal, err);
    if (code)
        cb_context(err, "%s", fqn);
    pickle_free(pickle);
    return code;
}
