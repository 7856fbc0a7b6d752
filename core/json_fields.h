/* Structs as JSON objects, written and read by one table of their members.
 *
 * A key that is written is also read, in the order of the table; what a member of another kind is says its pair of
 * functions. Pure but for the file. */
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
        FIELD_OWN,    /* write and read do it */
    } kind;
    size_t offset;
    size_t bytes;     /* of a text */
    bool is_optional; /* may be absent in an older file: "" then, for texts alone */
    /* With FIELD_OWN: the value after its key, and the value at its key (NULL where it is absent); read
     * is NULL where what is written is for people alone. */
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

/* Writes the members into the object that is open. */
void json_write_fields(struct json_writer *json, const struct json_field *fields, size_t count, const void *object);
/* Reads them from an object. A failure names the key; members before it have been filled. */
int json_read_fields(const struct json_value *value, const struct json_field *fields, size_t count, void *object,
                     struct cb_err *err) CB_MUST_CHECK;

/* A whole document, as text with a line's end: "version" first, then the fields. */
void json_write_document(struct buf *text, uint64_t version, const struct json_field *fields, size_t count,
                         const void *object);
/* CB_ERR_FORMAT for another version. Sentences begin with `name`, which is the file's. `object` must be initialised and
 * may have been filled in part after a failure. */
int json_read_document(const char *name, const char *text, size_t len, uint64_t version,
                       const struct json_field *fields, size_t count, void *object, struct cb_err *err) CB_MUST_CHECK;

#endif
