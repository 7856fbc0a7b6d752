/* JSON: our own writer, and checked access to the jansson parser. */
#include "core/json.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"

/* jansson defines macros with these names; we define functions. */
#undef json_is_object
#undef json_is_array
#undef json_is_null

void json_writer_init(struct json_writer *self, struct buf *out, int indent)
{
    *self = (struct json_writer){.out = out, .indent = indent};
}

static void new_line(struct json_writer *self)
{
    if (self->indent == 0)
        return;
    buf_append_char(self->out, '\n');
    for (int i = 0; i < self->depth * self->indent; i++)
        buf_append_char(self->out, ' ');
}

/* Writes the separator before a value or key: a comma and a new line, or nothing after a key. */
static void begin_item(struct json_writer *self)
{
    if (self->after_key) {
        self->after_key = false;
        return;
    }
    if (self->depth == 0)
        return;
    if (self->has_items[self->depth - 1])
        buf_append_text(self->out, self->indent ? "," : ", ");
    self->has_items[self->depth - 1] = true;
    new_line(self);
}

static void begin_nest(struct json_writer *self, char bracket)
{
    begin_item(self);
    assert(self->depth < JSON_MAX_DEPTH);
    buf_append_char(self->out, bracket);
    self->brackets[self->depth] = bracket == '{' ? '}' : ']';
    self->has_items[self->depth++] = false;
}

static void end_nest(struct json_writer *self, char bracket)
{
    assert(self->depth > 0 && !self->after_key && self->brackets[self->depth - 1] == bracket);
    bool had_items = self->has_items[--self->depth];
    if (had_items)
        new_line(self);
    buf_append_char(self->out, bracket);
}

void json_write_begin_object(struct json_writer *self)
{
    begin_nest(self, '{');
}

void json_write_end_object(struct json_writer *self)
{
    end_nest(self, '}');
}

void json_write_begin_array(struct json_writer *self)
{
    begin_nest(self, '[');
}

void json_write_end_array(struct json_writer *self)
{
    end_nest(self, ']');
}

void json_write_end_all(struct json_writer *self)
{
    while (self->depth > 0)
        end_nest(self, self->brackets[self->depth - 1]);
}

/* The code point of a character that JSON allows unescaped but YAML does not, else 0: C1 controls, line separators, the byte
 * order mark, two non-characters. Label files must be valid as both. */
static unsigned code_point_to_escape(const unsigned char *at, size_t len)
{
    unsigned point = len == 2   ? (at[0] & 0x1Fu) << 6 | (at[1] & 0x3Fu)
                     : len == 3 ? (at[0] & 0x0Fu) << 12 | (at[1] & 0x3Fu) << 6 | (at[2] & 0x3Fu)
                                : 0;
    bool is_special = (point >= 0x80 && point < 0xA0) || point == 0x2028 || point == 0x2029 || point == 0xFEFF ||
                      point == 0xFFFE || point == 0xFFFF;
    return is_special ? point : 0;
}

static void write_quoted(struct buf *out, const char *text)
{
    buf_append_char(out, '"');
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        size_t len = utf8_length(at);
        if (len == 0)
            buf_append_text(out, "\xEF\xBF\xBD");
        else if (*at == '"' || *at == '\\')
            buf_printf(out, "\\%c", *at);
        else if (*at == '\n')
            buf_append_text(out, "\\n");
        else if (*at == '\t')
            buf_append_text(out, "\\t");
        else if (*at < 0x20 || *at == 0x7F)
            buf_printf(out, "\\u%04x", *at);
        else if (code_point_to_escape(at, len))
            buf_printf(out, "\\u%04x", code_point_to_escape(at, len));
        else
            buf_append(out, at, len);
        at += len ? len : 1;
    }
    buf_append_char(out, '"');
}

void json_write_key(struct json_writer *self, const char *key)
{
    assert(self->depth > 0 && !self->after_key);
    begin_item(self);
    write_quoted(self->out, key);
    buf_append_text(self->out, ": ");
    self->after_key = true;
}

void json_write_text(struct json_writer *self, const char *text)
{
    begin_item(self);
    if (text)
        write_quoted(self->out, text);
    else
        buf_append_text(self->out, "null");
}

void json_write_u64(struct json_writer *self, uint64_t value)
{
    begin_item(self);
    buf_printf(self->out, "%" PRIu64, value);
}

void json_write_i64(struct json_writer *self, int64_t value)
{
    begin_item(self);
    buf_printf(self->out, "%" PRId64, value);
}

void json_write_double(struct json_writer *self, double value)
{
    begin_item(self);
    if (!isfinite(value)) {
        buf_append_text(self->out, "null");
        return;
    }
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        double back = strtod(text, NULL);
        if (memcmp(&back, &value, sizeof back) == 0)
            break;
    }
    buf_append_text(self->out, text);
}

void json_write_bool(struct json_writer *self, bool value)
{
    begin_item(self);
    buf_append_text(self->out, value ? "true" : "false");
}

void json_write_raw(struct json_writer *self, const char *json)
{
    begin_item(self);
    buf_append_text(self->out, json);
}

void json_write_null(struct json_writer *self)
{
    begin_item(self);
    buf_append_text(self->out, "null");
}

void json_member_text(struct json_writer *self, const char *key, const char *text)
{
    json_write_key(self, key);
    json_write_text(self, text);
}

void json_member_u64(struct json_writer *self, const char *key, uint64_t value)
{
    json_write_key(self, key);
    json_write_u64(self, value);
}

void json_member_i64(struct json_writer *self, const char *key, int64_t value)
{
    json_write_key(self, key);
    json_write_i64(self, value);
}

void json_member_double(struct json_writer *self, const char *key, double value)
{
    json_write_key(self, key);
    json_write_double(self, value);
}

void json_member_bool(struct json_writer *self, const char *key, bool value)
{
    json_write_key(self, key);
    json_write_bool(self, value);
}

void json_write_doubles(struct json_writer *self, const double *values, size_t count)
{
    json_write_begin_array(self);
    for (size_t i = 0; i < count; i++)
        json_write_double(self, values[i]);
    json_write_end_array(self);
}

void json_member_doubles(struct json_writer *self, const char *key, const double *values, size_t count)
{
    json_write_key(self, key);
    json_write_doubles(self, values, count);
}

void json_member_u64_or_null(struct json_writer *self, const char *key, bool is_known, uint64_t value)
{
    json_write_key(self, key);
    if (is_known)
        json_write_u64(self, value);
    else
        json_write_null(self);
}

void json_member_object(struct json_writer *self, const char *key)
{
    json_write_key(self, key);
    json_write_begin_object(self);
}

void json_member_array(struct json_writer *self, const char *key)
{
    json_write_key(self, key);
    json_write_begin_array(self);
}

/* A json_value is a json_t under our own name; it is never defined. */
static const json_t *inner(const struct json_value *value)
{
    return (const json_t *)value;
}

static const struct json_value *outer(const json_t *value)
{
    return (const struct json_value *)value;
}

/* jansson limits its recursion far higher than we do (2048), so this recursion has a limit, too. */
static int depth_of(const json_t *value)
{
    int deepest = 0;
    if (json_is_array(outer(value))) {
        for (size_t i = 0; i < json_array_size(value); i++) {
            int depth = depth_of(json_array_get(value, i));
            deepest = depth > deepest ? depth : deepest;
        }
        return deepest + 1;
    }
    if (json_is_object(outer(value))) {
        size_t position = 0;
        const char *key;
        const struct json_value *member;
        while (json_next(outer(value), &position, &key, &member)) {
            int depth = depth_of(inner(member));
            deepest = depth > deepest ? depth : deepest;
        }
        return deepest + 1;
    }
    return 0;
}

int json_parse(const char *text, size_t len, struct json_value **root, struct cb_err *err)
{
    json_error_t error;
    json_t *value = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!value)
        return cb_fail(err, CB_ERR_FORMAT, "line %d, column %d: not JSON: %s", error.line, error.column, error.text);
    if (depth_of(value) > JSON_MAX_DEPTH) {
        json_decref(value);
        return cb_fail(err, CB_ERR_FORMAT, "JSON nested deeper than %d levels", JSON_MAX_DEPTH);
    }
    *root = (struct json_value *)value;
    return 0;
}

int json_parse_file(const char *path, size_t max_bytes, struct json_value **root, struct cb_err *err)
{
    struct buf text;
    buf_init(&text, max_bytes);
    int rc = buf_read_file(&text, path, err);
    if (rc == 0) {
        rc = json_parse(text.data, text.len, root, err);
        if (rc && err)
            cb_context(err, "%s", path);
    }
    buf_release(&text);
    return rc;
}

void json_value_free(struct json_value *root)
{
    json_decref((json_t *)root);
}

const struct json_value *json_get(const struct json_value *object, const char *key)
{
    return outer(json_object_get(inner(object), key));
}

const struct json_value *json_at(const struct json_value *array, size_t index)
{
    return outer(json_array_get(inner(array), index));
}

size_t json_count(const struct json_value *array_or_object)
{
    const json_t *value = inner(array_or_object);
    return json_is_array(array_or_object) ? json_array_size(value) : json_object_size(value);
}

static bool has_type(const struct json_value *value, json_type type)
{
    return value && json_typeof(inner(value)) == type;
}

bool json_is_object(const struct json_value *value)
{
    return has_type(value, JSON_OBJECT);
}

bool json_is_array(const struct json_value *value)
{
    return has_type(value, JSON_ARRAY);
}

bool json_is_null(const struct json_value *value)
{
    return has_type(value, JSON_NULL);
}

bool json_as_text(const struct json_value *value, const char **text)
{
    if (!has_type(value, JSON_STRING))
        return false;
    *text = json_string_value(inner(value));
    return true;
}

bool json_as_u64(const struct json_value *value, uint64_t *number)
{
    if (!has_type(value, JSON_INTEGER) || json_integer_value(inner(value)) < 0)
        return false;
    *number = (uint64_t)json_integer_value(inner(value));
    return true;
}

bool json_as_double(const struct json_value *value, double *number)
{
    if (!has_type(value, JSON_INTEGER) && !has_type(value, JSON_REAL))
        return false;
    *number = json_number_value(inner(value));
    return true;
}

bool json_as_bool(const struct json_value *value, bool *boolean)
{
    if (!has_type(value, JSON_TRUE) && !has_type(value, JSON_FALSE))
        return false;
    *boolean = has_type(value, JSON_TRUE);
    return true;
}

/* *position is jansson's iterator of the member returned last. */
bool json_next(const struct json_value *object, size_t *position, const char **key, const struct json_value **value)
{
    json_t *members = (json_t *)object;
    void *iterator = *position ? json_object_iter_next(members, (void *)*position) : json_object_iter(members);
    if (!iterator)
        return false;
    *position = (size_t)iterator;
    *key = json_object_iter_key(iterator);
    *value = outer(json_object_iter_value(iterator));
    return true;
}

int json_need_text(const struct json_value *object, const char *key, const char **text, struct cb_err *err)
{
    return json_as_text(json_get(object, key), text) ? 0 : cb_fail(err, CB_ERR_FORMAT, "%s: expected a text", key);
}

int json_need_u64(const struct json_value *object, const char *key, uint64_t *number, struct cb_err *err)
{
    return json_as_u64(json_get(object, key), number)
               ? 0
               : cb_fail(err, CB_ERR_FORMAT, "%s: expected a whole number from 0", key);
}

int json_need_u32(const struct json_value *object, const char *key, uint32_t *number, struct cb_err *err)
{
    uint64_t value = 0;
    int rc = json_need_u64(object, key, &value, err);
    if (rc)
        return rc;
    if (value > UINT32_MAX)
        return cb_fail(err, CB_ERR_FORMAT, "%s is out of range", key);
    *number = (uint32_t)value;
    return 0;
}

int json_copy_text(const struct json_value *object, const char *key, char *place, size_t bytes, struct cb_err *err)
{
    const char *text = NULL;
    int rc = json_need_text(object, key, &text, err);
    if (rc)
        return rc;
    if (strlen(text) >= bytes)
        return cb_fail(err, CB_ERR_FORMAT, "%s is longer than %zu bytes", key, bytes - 1);
    memcpy(place, text, strlen(text) + 1);
    return 0;
}
