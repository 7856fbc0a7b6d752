/* YAML as settings: flattens a document into key=value words with the line and column of each.
 *
 * Mappings nest into dotted keys (`io: {block: 4MiB}` is io.block=4MiB). An unquoted value reads as on the command
 * line: commas and ranges sweep. A quoted value is literal. A list is a sweep, too. Anchors, tags, multiple documents
 * and duplicate keys are rejected with their name and position. */
#ifndef CORE_YAML_H
#define CORE_YAML_H

#include <stddef.h>

#include "core/err.h"
#include "core/setting.h"

/* Appends to `list`; messages call the text `name`. */
int yaml_read_settings(const char *name, const char *text, size_t len, struct setting_list *list,
                       struct cb_err *err) CB_MUST_CHECK;

/* Reads a YAML list of mappings, for model files: calls `item` for each with parallel keys and values. A value is a
 * scalar, or a list of scalars joined by commas. */
typedef int (*yaml_item_fn)(void *context, const char *const *keys, const char *const *values, size_t count,
                            size_t line, struct cb_err *err);
int yaml_read_items(const char *name, const char *text, size_t len, yaml_item_fn item, void *context,
                    struct cb_err *err) CB_MUST_CHECK;

#endif
