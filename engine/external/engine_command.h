/* engine=command: expands the command line and parses the command's report. Pure functions. */
#ifndef ENGINE_EXTERNAL_ENGINE_COMMAND_H
#define ENGINE_EXTERNAL_ENGINE_COMMAND_H

#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"
#include "run/status_page.h"

struct command_value {
    const char *name, *text;
};

/* Replaces each {name} by its value, quoted for the shell; other braces stay. */
int command_expand(const char *template, const struct command_value *values, size_t count, struct buf *out,
                   struct cb_err *err) CB_MUST_CHECK;

/* Reads {"metrics": {name: value}} from the last line of the output, if it is a JSON object. A name that is not a metric of
 * an operation is an error. */
int command_take_report(const char *output, size_t len, struct sample *sample, struct cb_err *err) CB_MUST_CHECK;

#endif
