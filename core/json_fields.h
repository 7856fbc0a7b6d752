/* Structs as JSON objects, written and read by one table of their members.
 *
 * Keys are written in the order of the table, and every written key is also read. Members of other kinds have a pair
 * of functions. Pure except for the file. */
#ifndef CORE_JSON_FIELDS_H
#define CORE_JSON_FIELDS_H

#include <stddef.h>

#include "core/json.h"

struct json_field {
    const char *key;
    enum {
        FIELD_TEXT, /* char[bytes] */
        FIELD_U64,
        FIELD_U32,
        FIELD_BOOL,
        FIELD_DOUBLE, /* NAN is null, and absent */
        FIELD_OWN,    /* uses the functions write and read */
    } kind;
    size_t offset;
    size_t bytes;     /* of a text */
    bool is_optional; /* may be absent in an older file: then "", for texts only */
    /* For FIELD_OWN: the value after its key, and the value at its key (NULL if absent); read is NULL for values that
     * are only for people. */
    void (*write)(struct json_writer *json, const void *object);
    int (*read)(const struct json_value *value, void *object, struct cb_err *err);
};

#define JSON_FIELD(type, kind, member)                                                                                 \
    {                                                                                                                  \
#member, kind, offsetof(type, member), sizeof(((type *)0)->member)                                             \
    }
#define JSON_FIELD_OPTIONAL(type, kind, member)                                                                        \
    {                                                                                                                  \
#member, kind, offsetof(type, member), sizeof(((type *)0)->member), true                                       \
    }
#define JSON_FIELD_OWN(key, write, read)                                                                               \
    {                                                                                                                  \
        key, FIELD_OWN, 0, 0, false, write, read                                                                       \
    }
#define JSON_FIELDS(table) (table), sizeof(table) / sizeof *(table)

/* Writes the members into the currently open object. */
void json_write_fields(struct json_writer *json, const struct json_field *fields, size_t count, const void *object);
/* Reads them from an object. A failure names the key; the members before it have been filled. */
int json_read_fields(const struct json_value *value, const struct json_field *fields, size_t count, void *object,
                     struct cb_err *err) CB_MUST_CHECK;

/* A complete document, with a final line feed: "version" first, then the fields. */
void json_write_document(struct buf *text, uint64_t version, const struct json_field *fields, size_t count,
                         const void *object);
/* CB_ERR_FORMAT for another version. Error messages begin with `name`, the file's name. `object` must be initialised,
 * and may be partially filled after a failure. */
int json_read_document(const char *name, const char *text, size_t len, uint64_t version,
                       const struct json_field *fields, size_t count, void *object, struct cb_err *err) CB_MUST_CHECK;

#endif
