/* A setting: a key, its value or the values of its sweep, and where it was written. run/experiment.h knows which keys
 * exist and what values mean; core/yaml.h reads files of settings. */
#ifndef CORE_SETTING_H
#define CORE_SETTING_H

#include <stddef.h>

#include "core/err.h"

#define SETTING_MAX_KEY_BYTES 256

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

/* Parses one "key=value" word of a command line: a comma separates the values of a sweep, `\,` is a literal comma,
 * "2..8" is the range 2,3,…,8, "2..64*2" the powers 2,4,…,64. */
int setting_parse_word(const char *word, struct setting_list *list, struct cb_err *err) CB_MUST_CHECK;

/* Appends key=value with a single value. */
int setting_add(struct setting_list *list, const char *key, const char *value, const char *origin,
                struct cb_err *err) CB_MUST_CHECK;
void setting_list_release(struct setting_list *list);

/* --- step by step, for parsers of files --- */

/* Initialises a setting without values. */
int setting_init(struct setting *self, const char *key, const char *origin, struct cb_err *err) CB_MUST_CHECK;
/* May be called after a failed init. */
void setting_release(struct setting *self);
/* One value, verbatim. */
int setting_add_value(struct setting *self, const char *text, size_t len, struct cb_err *err) CB_MUST_CHECK;
/* Values as on the command line: split at commas, ranges expanded. */
int setting_add_sweep(struct setting *self, const char *text, struct cb_err *err) CB_MUST_CHECK;
/* Appends `item` and empties it; on failure `item` stays with the caller. */
int setting_list_take(struct setting_list *list, struct setting *item, struct cb_err *err) CB_MUST_CHECK;

#endif
