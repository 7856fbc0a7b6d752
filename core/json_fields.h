/* Structs as JSON objects, written and read by one table of their members.
 *
 * Keys are written in the order of the table, and every written key is also read. Members of other kinds have a pair
 * of functions. Pure except for the file. */
#ifndef CORE_JSON_FIELDS_H
#define CORE_JSON_FIELDS_H

#include <stddef.h>

#include "core/file_batch.h"
#include "core/json.h"

/* The names of an enum's values, in order. */
struct name_list {
    const char *const *names;
    size_t count;
    const char *unknown; /* used in the error message for an unknown name: "there is no state" */
};
#define NAME_LIST(names, unknown)                                                                                      \
    {                                                                                                                  \
        names, sizeof(names) / sizeof *(names), unknown                                                                \
    }
bool name_find(const struct name_list *self, const char *name, unsigned *value);

struct json_field {
    const char *key;
    enum {
        FIELD_TEXT, /* char[bytes] */
        FIELD_U64,
        FIELD_U32,
        FIELD_BOOL,
        FIELD_DOUBLE, /* NAN is null, and absent */
        FIELD_NAME,   /* an enum, by its name */
        FIELD_UTC,    /* a date for people, from a wall clock's uint64_t in nanoseconds; not read */
        FIELD_OWN,    /* uses the functions write and read */
    } kind;
    size_t offset;
    size_t bytes;     /* of a text */
    bool is_optional; /* texts only: may be absent in an older file, and is then "" */
    /* For FIELD_OWN: write is called with the value after its key, read with the value at its key (NULL if absent).
     * read is NULL for values that are only for people. */
    void (*write)(struct json_writer *json, const void *object);
    int (*read)(const struct json_value *value, void *object, struct cb_err *err);
    const struct name_list *names; /* of FIELD_NAME */
};

#define JSON_FIELD(type, kind, member)                                                                                 \
    {                                                                                                                  \
#member, kind, offsetof(type, member), sizeof(((type *)0)->member)                                             \
    }
#define JSON_FIELD_OPTIONAL(type, kind, member)                                                                        \
    {                                                                                                                  \
#member, kind, offsetof(type, member), sizeof(((type *)0)->member), true                                       \
    }
#define JSON_FIELD_NAME(type, member, names)                                                                           \
    {                                                                                                                  \
#member, FIELD_NAME, offsetof(type, member), sizeof(((type *)0)->member), false, NULL, NULL, names             \
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

/* Writes a document to a file, durably; the file joins a batch (NULL: written immediately). */
int json_write_file(struct file_batch *batch, const char *path, uint64_t version, const struct json_field *fields,
                    size_t count, const void *object, struct cb_err *err) CB_MUST_CHECK;

#endif
