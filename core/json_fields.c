#include "core/json_fields.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/clock.h"

#define FILE_MAX_BYTES (4u << 20)

bool name_find(const struct name_list *self, const char *name, unsigned *value)
{
    for (size_t i = 0; i < self->count; i++) {
        if (strcmp(self->names[i], name) == 0) {
            *value = (unsigned)i;
            return true;
        }
    }
    return false;
}

/* The size of a member of this kind; 0 means any. */
static size_t size_of_kind(const struct json_field *field)
{
    static const size_t sizes[] = {[FIELD_U64] = sizeof(uint64_t),
                                   [FIELD_U32] = sizeof(uint32_t),
                                   [FIELD_BOOL] = sizeof(bool),
                                   [FIELD_DOUBLE] = sizeof(double),
                                   [FIELD_NAME] = sizeof(unsigned),
                                   [FIELD_UTC] = sizeof(uint64_t),
                                   [FIELD_OWN] = 0};
    return sizes[field->kind];
}

static void write_field(struct json_writer *json, const struct json_field *field, const void *object)
{
    const void *at = (const char *)object + field->offset;
    char utc[21];
    assert(!size_of_kind(field) || field->bytes == size_of_kind(field));
    json_write_key(json, field->key);
    switch (field->kind) {
    case FIELD_TEXT:
        json_write_text(json, at);
        break;
    case FIELD_U64:
        json_write_u64(json, *(const uint64_t *)at);
        break;
    case FIELD_U32:
        json_write_u64(json, *(const uint32_t *)at);
        break;
    case FIELD_BOOL:
        json_write_bool(json, *(const bool *)at);
        break;
    case FIELD_DOUBLE:
        json_write_double(json, *(const double *)at);
        break;
    case FIELD_NAME:
        json_write_text(json, *(const unsigned *)at < field->names->count ? field->names->names[*(const unsigned *)at]
                                                                          : "unknown");
        break;
    case FIELD_UTC:
        clock_format_utc(*(const uint64_t *)at, utc);
        json_write_text(json, utc);
        break;
    case FIELD_OWN:
        field->write(json, object);
        break;
    }
}

void json_write_fields(struct json_writer *json, const struct json_field *fields, size_t count, const void *object)
{
    for (size_t i = 0; i < count; i++)
        write_field(json, &fields[i], object);
}

static int read_field(const struct json_value *value, const struct json_field *field, void *object, struct cb_err *err)
{
    void *at = (char *)object + field->offset;
    const struct json_value *own = json_get(value, field->key);
    const char *name = "";
    switch (field->kind) {
    case FIELD_TEXT:
        *(char *)at = '\0';
        return field->is_optional && !own ? 0 : json_copy_text(value, field->key, at, field->bytes, err);
    case FIELD_U64:
        return json_need_u64(value, field->key, at, err);
    case FIELD_U32:
        return json_need_u32(value, field->key, at, err);
    case FIELD_BOOL:
        return json_as_bool(own, at) ? 0 : cb_fail(err, CB_ERR_FORMAT, "%s is neither true nor false", field->key);
    case FIELD_DOUBLE:
        if (!json_as_double(own, at))
            *(double *)at = NAN;
        return 0;
    case FIELD_NAME:
        return json_as_text(own, &name) && name_find(field->names, name, at)
                   ? 0
                   : cb_fail(err, CB_ERR_FORMAT, "%s %.40s", field->names->unknown, name);
    case FIELD_UTC:
        return 0;
    case FIELD_OWN:
        return field->read ? field->read(own, object, err) : 0;
    }
    return 0;
}

int json_read_fields(const struct json_value *value, const struct json_field *fields, size_t count, void *object,
                     struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = read_field(value, &fields[i], object, err);
    return rc;
}

void json_write_document(struct buf *text, uint64_t version, const struct json_field *fields, size_t count,
                         const void *object)
{
    struct json_writer json;
    json_writer_init(&json, text, 2);
    json_write_begin_object(&json);
    json_member_u64(&json, "version", version);
    json_write_fields(&json, fields, count, object);
    json_write_end_object(&json);
    buf_append_char(text, '\n');
}

int json_read_document(const char *name, const char *text, size_t len, uint64_t version,
                       const struct json_field *fields, size_t count, void *object, struct cb_err *err)
{
    struct json_value *root = NULL;
    struct cb_err own;
    uint64_t found = 0;
    int rc = json_parse(text, len, &root, &own);
    if (rc == 0)
        rc = json_need_u64(root, "version", &found, &own);
    if (rc == 0 && found != version)
        rc = cb_fail(&own, CB_ERR_FORMAT, "version %" PRIu64 ", this program reads %" PRIu64, found, version);
    if (rc == 0)
        rc = json_read_fields(root, fields, count, object, &own);
    json_value_free(root);
    return rc ? cb_fail(err, rc, "%s: %s", name, own.message) : 0;
}

int json_write_file(struct file_batch *batch, const char *path, uint64_t version, const struct json_field *fields,
                    size_t count, const void *object, struct cb_err *err)
{
    struct buf text;
    buf_init(&text, FILE_MAX_BYTES);
    json_write_document(&text, version, fields, count, object);
    int rc = buf_check(&text, path, err);
    if (rc == 0)
        rc = file_write(batch, &text, path, 0666, err);
    buf_release(&text);
    return rc;
}
