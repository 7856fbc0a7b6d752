/* The option table: every key an experiment can have, one row each, in run/options.def.
 *
 * Flags, YAML keys, key=value words, --help, `ckptbench options`, the man page, shell completion, validation and the
 * stored columns are all generated from these rows. Checks of keys against each other (does dp x tp x pp equal
 * ranks?) are in run/experiment.h, setup/ and ckpt/layout/layout.h. Read-only data. */
#ifndef RUN_OPTIONS_H
#define RUN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

enum option_type {
    OPTION_BOOL,
    OPTION_U64,
    OPTION_BYTES,    /* bytes */
    OPTION_DURATION, /* nanoseconds */
    OPTION_RATE,     /* bytes per second */
    OPTION_DOUBLE,
    OPTION_ENUM, /* one of `choices` */
    OPTION_TEXT, /* free text: `help` describes it and its user checks it */
};

/* What a key affects. Only identity keys are part of the experiment's hash. */
enum option_class { OPTION_IDENTITY, OPTION_PLACE, OPTION_EXECUTION, OPTION_COSMETIC };

enum option_id {
#define OPTION(id, name, type, class, fallback, min, max, choices, unit, help) OPT_##id,
#include "run/options.def"
#undef OPTION
    OPTION_COUNT
};

struct option {
    const char *name;
    enum option_type type;
    enum option_class class;
    const char *fallback; /* the default, as a user would write it */
    uint64_t min, max;    /* inclusive; a max of 0 means no upper limit */
    const char *choices;  /* "a|b|c" for OPTION_ENUM, else "" */
    const char *unit;     /* "" if it has none */
    const char *help;     /* one sentence */
};

/* One parsed value. `text` is canonical: parsing it gives the same value again. */
struct option_value {
    char *text; /* owned */
    union {
        bool boolean;
        uint64_t u64;
        double number;
        unsigned choice; /* index into choices */
    };
};

const struct option *option_row(enum option_id id);

/* Finds a key by its exact name; NOT_FOUND suggests the nearest one ("did you mean"). */
int option_find(const char *name, enum option_id *id, struct cb_err *err) CB_MUST_CHECK;

/* Parses and range-checks; `value->text` is allocated and owned by the caller (option_value_release). */
int option_parse(enum option_id id, const char *text, struct option_value *value, struct cb_err *err) CB_MUST_CHECK;
void option_value_release(struct option_value *value);

/* Checks any text: UTF-8 of bounded length. Error messages start with `name`. */
int option_check_text(const char *name, const char *text, struct cb_err *err) CB_MUST_CHECK;

const char *option_type_name(enum option_type type);
const char *option_class_name(enum option_class class);

#endif
