/* Settings: the meaning of commas and ranges in a value. */
#include "core/setting.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/units.h"

#define MAX_VALUES 100000 /* limit of values per setting: no sweep is larger */

void setting_release(struct setting *self)
{
    for (size_t i = 0; i < self->value_count; i++)
        free(self->values[i]);
    free(self->values);
    free(self->key);
    free(self->origin);
    *self = (struct setting){0};
}

void setting_list_release(struct setting_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        setting_release(&list->items[i]);
    free(list->items);
    *list = (struct setting_list){0};
}

static int no_memory(struct cb_err *err)
{
    return alloc_fail(err, "for settings");
}

int setting_add_value(struct setting *self, const char *text, size_t len, struct cb_err *err)
{
    if (self->value_count == MAX_VALUES)
        return cb_fail(err, CB_ERR_USAGE, "%s: more than %d values", self->key, MAX_VALUES);
    if (alloc_grow(&self->values, self->value_count, sizeof *self->values, err))
        return CB_ERR_MEMORY;
    self->values[self->value_count] = strndup(text, len);
    if (!self->values[self->value_count])
        return no_memory(err);
    self->value_count++;
    return 0;
}

int setting_init(struct setting *self, const char *key, const char *origin, struct cb_err *err)
{
    *self = (struct setting){.key = strdup(key), .origin = strdup(origin)};
    return self->key && self->origin ? 0 : no_memory(err);
}

/* The one key whose commas form a list: hosts of one run, not a sweep over hosts. */
#define JOINED_KEY "hosts"

static int join_values(struct setting *self, struct cb_err *err)
{
    size_t bytes = 0;
    for (size_t i = 0; i < self->value_count; i++)
        bytes += strlen(self->values[i]) + 1;
    char *joined = calloc(bytes, 1);
    if (!joined)
        return no_memory(err);
    char *end = joined;
    for (size_t i = 0; i < self->value_count; i++) {
        end = stpcpy(stpcpy(end, i ? "," : ""), self->values[i]);
        free(self->values[i]);
    }
    self->values[0] = joined;
    self->value_count = 1;
    return 0;
}

int setting_list_take(struct setting_list *list, struct setting *item, struct cb_err *err)
{
    int rc = item->value_count > 1 && strcmp(item->key, JOINED_KEY) == 0 ? join_values(item, err) : 0;
    if (!rc)
        rc = alloc_grow(&list->items, list->count, sizeof *list->items, err);
    if (rc)
        return rc;
    list->items[list->count++] = *item;
    *item = (struct setting){0};
    return 0;
}

int setting_add(struct setting_list *list, const char *key, const char *value, const char *origin, struct cb_err *err)
{
    struct setting item;
    int rc = setting_init(&item, key, origin, err);
    if (rc == 0)
        rc = setting_add_value(&item, value, strlen(value), err);
    if (rc == 0)
        rc = setting_list_take(list, &item, err);
    setting_release(&item);
    return rc;
}

static const char *skip_digits(const char *text)
{
    while (isdigit((unsigned char)*text))
        text++;
    return text;
}

/* "2..8", "2..64*2". False if the text is not a range. */
static bool is_range(const char *text)
{
    const char *at = skip_digits(text);
    if (at == text || strncmp(at, "..", 2) != 0)
        return false;
    const char *end = skip_digits(at + 2);
    if (end == at + 2)
        return false;
    if (*end == '*' && isdigit((unsigned char)end[1]))
        end = skip_digits(end + 1);
    return *end == '\0';
}

static int add_range(struct setting *self, const char *text, struct cb_err *err)
{
    char copy[72], number[24];
    uint64_t first, last, factor = 1;
    if (strlen(text) >= sizeof copy)
        return cb_fail(err, CB_ERR_USAGE, "%s: the range %s is too large", self->key, text);
    snprintf(copy, sizeof copy, "%s", text);
    char *dots = strstr(copy, ".."), *star = strchr(copy, '*');
    *dots = '\0';
    if (star)
        *star = '\0';
    int rc = units_parse_u64(copy, &first, err);
    if (rc == 0)
        rc = units_parse_u64(dots + 2, &last, err);
    if (rc == 0 && star)
        rc = units_parse_u64(star + 1, &factor, err);
    if (rc)
        return err ? cb_context(err, "%s", self->key) : rc;
    if (last < first)
        return cb_fail(err, CB_ERR_USAGE, "%s: the range %s ends before it begins", self->key, text);
    if (star && (factor < 2 || first == 0))
        return cb_fail(err, CB_ERR_USAGE, "%s: the range %s never ends; start at 1 and multiply by 2 or more",
                       self->key, text);
    for (uint64_t value = first;;) {
        int len = snprintf(number, sizeof number, "%" PRIu64, value);
        rc = setting_add_value(self, number, (size_t)len, err);
        uint64_t room = last - value;
        uint64_t step = star ? value : 1; /* value * factor = value + value * (factor - 1) */
        if (rc || room / step < (star ? factor - 1 : 1))
            return rc;
        value = star ? value * factor : value + 1;
    }
}

/* One value between two commas; "\," has already become a comma. */
static int add_part(struct setting *self, const char *text, bool several, bool kept_comma, struct cb_err *err)
{
    if (several && *text == '\0')
        return cb_fail(err, CB_ERR_USAGE, "%s: an empty value between commas; write \\, for a comma that is meant",
                       self->key);
    return !kept_comma && is_range(text) ? add_range(self, text, err)
                                         : setting_add_value(self, text, strlen(text), err);
}

static bool has_separator(const char *text)
{
    for (; *text; text++) {
        if (text[0] == '\\' && text[1] == ',')
            text++;
        else if (*text == ',')
            return true;
    }
    return false;
}

int setting_add_sweep(struct setting *self, const char *text, struct cb_err *err)
{
    bool several = has_separator(text), kept_comma = false;
    char *part = calloc(strlen(text) + 1, 1); /* zeroed: the analyzer does not see that a part ends before it is read */
    if (!part)
        return no_memory(err);
    size_t len = 0;
    int rc = 0;
    for (const char *at = text; rc == 0; at++) {
        if (at[0] == '\\' && at[1] == ',') {
            part[len++] = ',';
            kept_comma = true;
            at++;
        } else if (*at == ',' || *at == '\0') {
            part[len] = '\0';
            rc = add_part(self, part, several, kept_comma, err);
            len = 0;
            kept_comma = false;
            if (*at == '\0')
                break;
        } else {
            part[len++] = *at;
        }
    }
    free(part);
    return rc;
}

int setting_parse_word(const char *word, struct setting_list *list, struct cb_err *err)
{
    const char *equals = strchr(word, '=');
    if (!equals)
        return cb_fail(err, CB_ERR_USAGE, "'%s' is not key=value", word);
    if (equals == word)
        return cb_fail(err, CB_ERR_USAGE, "a setting without a key");
    if (equals - word > SETTING_MAX_KEY_BYTES)
        return cb_fail(err, CB_ERR_USAGE, "a key of %zu bytes; the limit is %d", (size_t)(equals - word),
                       SETTING_MAX_KEY_BYTES);
    char *key = strndup(word, (size_t)(equals - word));
    if (!key)
        return no_memory(err);
    struct setting item = {0};
    int rc = setting_init(&item, key, "command line", err);
    if (rc == 0)
        rc = setting_add_sweep(&item, equals + 1, err);
    if (rc == 0)
        rc = setting_list_take(list, &item, err);
    setting_release(&item);
    free(key);
    return rc;
}
