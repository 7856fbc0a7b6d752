/* JSON: a writer into a buffer, and a reader with checked access.
 *
 * Numbers are written so that they read back to the same value; a double that is not finite is written as null, as is
 * an absent value. The writer adds commas and tracks nesting; misuse fails an assertion. The reader limits depth and
 * size and rejects duplicate keys and integers from 2^63; its error messages name the place ("experiment.dp: expected
 * a number"). Not thread-safe on one object. */
#ifndef CORE_JSON_H
#define CORE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"

#define JSON_MAX_DEPTH 64

struct json_writer {
    struct buf *out; /* borrowed */
    int depth;
    bool has_items[JSON_MAX_DEPTH];
    char brackets[JSON_MAX_DEPTH]; /* that end the open arrays and objects */
    bool after_key;
    int indent; /* spaces per level; 0 writes one line */
};

void json_writer_init(struct json_writer *self, struct buf *out, int indent);
void json_write_begin_object(struct json_writer *self);
void json_write_end_object(struct json_writer *self);
void json_write_begin_array(struct json_writer *self);
void json_write_end_array(struct json_writer *self);
void json_write_end_all(struct json_writer *self); /* ends every open array and object */
void json_write_key(struct json_writer *self, const char *key);
void json_write_text(struct json_writer *self,
                     const char *text); /* NULL writes null; bytes that are not UTF-8 become U+FFFD */
void json_write_u64(struct json_writer *self, uint64_t value);
void json_write_i64(struct json_writer *self, int64_t value);
void json_write_double(struct json_writer *self, double value);                        /* null unless it is finite */
void json_write_doubles(struct json_writer *self, const double *values, size_t count); /* an array */
void json_write_bool(struct json_writer *self, bool value);
void json_write_null(struct json_writer *self);
/* A key and its value. */
void json_member_text(struct json_writer *self, const char *key, const char *text);
void json_member_u64(struct json_writer *self, const char *key, uint64_t value);
void json_member_i64(struct json_writer *self, const char *key, int64_t value);
void json_member_double(struct json_writer *self, const char *key, double value);
void json_member_bool(struct json_writer *self, const char *key, bool value);
void json_member_u64_or_null(struct json_writer *self, const char *key, bool is_known, uint64_t value);
/* A key, and the start of its array or object. */
void json_member_doubles(struct json_writer *self, const char *key, const double *values, size_t count);
void json_member_object(struct json_writer *self, const char *key);
void json_member_array(struct json_writer *self, const char *key);
/* Inserts a value that is already JSON, unchanged. */
void json_write_raw(struct json_writer *self, const char *json);

/* A parsed value. Children are borrowed from the root and live as long as it does. */
struct json_value;

int json_parse(const char *text, size_t len, struct json_value **root, struct cb_err *err) CB_MUST_CHECK;
int json_parse_file(const char *path, size_t max_bytes, struct json_value **root, struct cb_err *err) CB_MUST_CHECK;
void json_value_free(struct json_value *root);

/* Access: NULL or false if the value is absent or of another type. */
const struct json_value *json_get(const struct json_value *object, const char *key);
const struct json_value *json_at(const struct json_value *array, size_t index);
size_t json_count(const struct json_value *array_or_object);
bool json_is_object(const struct json_value *value);
bool json_is_array(const struct json_value *value);
bool json_is_null(const struct json_value *value);
bool json_as_text(const struct json_value *value, const char **text);
bool json_as_u64(const struct json_value *value, uint64_t *number);
bool json_as_double(const struct json_value *value, double *number); /* also accepts integers */
bool json_as_bool(const struct json_value *value, bool *boolean);

/* Iterates over an object's members in file order: start with *position = 0; false at the end. */
bool json_next(const struct json_value *object, size_t *position, const char **key, const struct json_value **value);

/* Required members: a failure names the key. */
int json_need_text(const struct json_value *object, const char *key, const char **text,
                   struct cb_err *err) CB_MUST_CHECK;
int json_need_u64(const struct json_value *object, const char *key, uint64_t *number, struct cb_err *err) CB_MUST_CHECK;
int json_need_u32(const struct json_value *object, const char *key, uint32_t *number, struct cb_err *err) CB_MUST_CHECK;
/* Copies a text of less than `bytes` bytes to `place`. */
int json_copy_text(const struct json_value *object, const char *key, char *place, size_t bytes,
                   struct cb_err *err) CB_MUST_CHECK;

#endif
