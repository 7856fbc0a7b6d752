/* YAML as settings: flattens a document into key=value words with the line and column of each.
 *
 * Mappings nest into dotted keys (`io: {block: 4MiB}` is io.block=4MiB). A value without quotes reads
 * as on the command line: commas and ranges sweep. A quoted one is taken as it stands. A list is a
 * sweep, too. Anchors, tags, several documents and a key set twice are refused by name and place. */
#ifndef CORE_YAML_H
#define CORE_YAML_H

#include <stddef.h>

#include "core/err.h"

struct setting {
    char *key;
    char **values; /* one, or several for a sweep */
    size_t value_count;
    char *origin; /* "nightly.yaml:3:5", "command line" */
};

struct setting_list {
    struct setting *items;
    size_t count;
};

/* `name` is how messages call the text. Appends to `list`. */
int yaml_read_settings(const char *name, const char *text, size_t len, struct setting_list *list,
                       struct cb_err *err) CB_MUST_CHECK;

/* One "key=value" word of a command line: a comma separates the values of a sweep, `\,` is a comma
 * that is meant, "2..8" is the range 2,3,…,8, "2..64*2" the powers 2,4,…,64. */
int setting_parse_word(const char *word, struct setting_list *list, struct cb_err *err) CB_MUST_CHECK;

/* Appends key=value with a single value. */
int setting_add(struct setting_list *list, const char *key, const char *value, const char *origin,
                struct cb_err *err) CB_MUST_CHECK;
void setting_list_release(struct setting_list *list);

/* A YAML list of mappings, for model files: calls `item` for each with parallel keys/values. A value is
 * a scalar, or a list of scalars, which arrives joined by commas. */
typedef int (*yaml_item_fn)(void *context, const char *const *keys, const char *const *values, size_t count,
                            size_t line, struct cb_err *err);
int yaml_read_items(const char *name, const char *text, size_t len, yaml_item_fn item, void *context,
                    struct cb_err *err) CB_MUST_CHECK;

#endif
