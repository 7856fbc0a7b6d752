/* The option table: finding keys, parsing and printing values. */
#include "run/options.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/nearest_word.h"
#include "core/units.h"
#include "core/utf8.h"

#define TEXT_MAX_BYTES 65536

static const struct option option_table[OPTION_COUNT] = {
#define OPTION(id, name, type, class, fallback, min, max, choices, unit, help)                                         \
    {name, OPTION_##type, OPTION_##class, fallback, min, max, choices, unit, help},
#include "run/options.def"
#undef OPTION
};

const struct option *option_row(enum option_id id)
{
    return &option_table[id];
}

const char *option_type_name(enum option_type type)
{
    static const char *const names[] = {"bool", "integer", "size", "time", "rate", "number", "choice", "text"};
    return names[type];
}

const char *option_class_name(enum option_class class)
{
    static const char *const names[] = {"identity", "place", "execution", "cosmetic"};
    return names[class];
}

int option_find(const char *name, enum option_id *id, struct cb_err *err)
{
    const char *names[OPTION_COUNT];
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (strcmp(option_table[i].name, name) == 0) {
            *id = (enum option_id)i;
            return 0;
        }
        names[i] = option_table[i].name;
    }
    const char *nearest = nearest_word(name, names, OPTION_COUNT);
    if (nearest)
        return cb_fail(err, CB_ERR_NOT_FOUND, "unknown key '%s': did you mean '%s'?", name, nearest);
    return cb_fail(err, CB_ERR_NOT_FOUND, "unknown key '%s'; `ckptbench options` lists all", name);
}

/* Canonical text of a number of this type. */
static void print_number(enum option_type type, uint64_t number, char text[40])
{
    char printed[32];
    if (type == OPTION_DURATION)
        snprintf(text, 40, "%s", units_format_duration_exact(number, printed));
    else if (type == OPTION_BYTES || type == OPTION_RATE)
        snprintf(text, 40, "%s%s", units_format_bytes_exact(number, printed),
                 type == OPTION_RATE && number ? "/s" : "");
    else
        snprintf(text, 40, "%" PRIu64, number);
}

static int check_range(const struct option *row, const char *text, uint64_t number, struct cb_err *err)
{
    char min[40], max[40];
    if (number >= row->min && (row->max == 0 || number <= row->max))
        return 0;
    print_number(row->type, row->min, min);
    print_number(row->type, row->max, max);
    const char *space = *row->unit && row->type == OPTION_U64 ? " " : "";
    const char *unit = row->type == OPTION_U64 ? row->unit : "";
    if (row->max == 0)
        return cb_fail(err, CB_ERR_USAGE, "%s=%s: must be at least %s%s%s", row->name, text, min, space, unit);
    return cb_fail(err, CB_ERR_USAGE, "%s=%s: must be %s to %s%s%s", row->name, text, min, max, space, unit);
}

static int parse_number(const struct option *row, const char *text, uint64_t *number, struct cb_err *err)
{
    int rc = row->type == OPTION_BYTES      ? units_parse_bytes(text, number, err)
             : row->type == OPTION_RATE     ? units_parse_rate(text, number, err)
             : row->type == OPTION_DURATION ? units_parse_duration(text, number, err)
                                            : units_parse_u64(text, number, err);
    if (rc)
        return err ? cb_context(err, "%s", row->name) : rc;
    if (*number > INT64_MAX) /* larger numbers do not fit JSON and the history, so the run could not be read again */
        return cb_fail(err, CB_ERR_USAGE, "%s=%s: is too large: the limit is %" PRId64, row->name, text, INT64_MAX);
    return check_range(row, text, *number, err);
}

static int parse_choice(const struct option *row, const char *text, unsigned *choice, struct cb_err *err)
{
    char copy[256];
    const char *names[32];
    size_t count = 0;
    snprintf(copy, sizeof copy, "%s", row->choices);
    char *rest = copy;
    for (char *name; (name = strsep(&rest, "|"));) {
        if (strcmp(name, text) == 0) {
            *choice = (unsigned)count;
            return 0;
        }
        names[count++] = name;
    }
    const char *nearest = nearest_word(text, names, count);
    return cb_fail(err, CB_ERR_USAGE, "%s=%s: must be one of %s%s%s%s", row->name, text, row->choices,
                   nearest ? "; did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
}

int option_check_text(const char *name, const char *text, struct cb_err *err)
{
    if (strlen(text) > TEXT_MAX_BYTES)
        return cb_fail(err, CB_ERR_USAGE, "%s: a text of %zu bytes; the limit is %d", name, strlen(text),
                       TEXT_MAX_BYTES);
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        size_t len = utf8_length(at);
        if (len == 0)
            return cb_fail(err, CB_ERR_USAGE, "%s: byte %zu of the text is not UTF-8", name,
                           (size_t)((const char *)at - text) + 1);
        at += len;
    }
    return 0;
}

static int parse_double(const struct option *row, const char *text, double *number, struct cb_err *err)
{
    int rc = units_parse_double(text, number, err);
    if (rc)
        return err ? cb_context(err, "%s", row->name) : rc;
    if (*number >= (double)row->min && (row->max == 0 || *number <= (double)row->max))
        return 0;
    if (row->max == 0)
        return cb_fail(err, CB_ERR_USAGE, "%s=%s: must be at least %" PRIu64, row->name, text, row->min);
    return cb_fail(err, CB_ERR_USAGE, "%s=%s: must be %" PRIu64 " to %" PRIu64, row->name, text, row->min, row->max);
}

/* Parses everything but allocates nothing: `canonical` receives the canonical text if it differs from `text`. */
static int parse_value(const struct option *row, const char *text, struct option_value *value, char canonical[40],
                       struct cb_err *err)
{
    int rc, boolean = 0;
    switch (row->type) {
    case OPTION_BOOL:
        rc = units_parse_bool(text, &boolean, err);
        if (rc)
            return err ? cb_context(err, "%s", row->name) : rc;
        value->boolean = boolean;
        snprintf(canonical, 40, "%s", boolean ? "true" : "false");
        return 0;
    case OPTION_ENUM:
        return parse_choice(row, text, &value->choice, err);
    case OPTION_TEXT:
        return option_check_text(row->name, text, err);
    case OPTION_DOUBLE:
        rc = parse_double(row, text, &value->number, err);
        if (rc == 0)
            snprintf(canonical, 40, "%.17g", value->number);
        return rc;
    default:
        rc = parse_number(row, text, &value->u64, err);
        if (rc == 0)
            print_number(row->type, value->u64, canonical);
        return rc;
    }
}

int option_parse(enum option_id id, const char *text, struct option_value *value, struct cb_err *err)
{
    struct option_value parsed = {0};
    char canonical[40] = "";
    int rc = parse_value(option_row(id), text, &parsed, canonical, err);
    if (rc)
        return rc;
    parsed.text = strdup(*canonical ? canonical : text);
    if (!parsed.text)
        return alloc_fail(err, "for %s", option_row(id)->name);
    *value = parsed;
    return 0;
}

void option_value_release(struct option_value *value)
{
    free(value->text);
    *value = (struct option_value){0};
}
