/* Errors as the library's callers see them. */
#ifndef LIB_ERRORS_H
#define LIB_ERRORS_H

#include <stdio.h>

#include "core/err.h"
#include "core/utf8.h"
#include "include/ckptbench.h"

/* Passes on the failure `rc` with its reason, unless `error` is NULL, as one line without control characters, which a path
 * or a reason of another rank may have. Returns the code for the caller. */
static inline int errors_report(int rc, const struct cb_err *err, struct ckptbench_error *error)
{
    int code = rc < CKPTBENCH_INTERNAL ? CKPTBENCH_SYSTEM : rc; /* limits of the user or machine */
    if (code && error) {
        error->code = code;
        snprintf(error->text, sizeof error->text, "%s", err->message);
        utf8_hide_controls(error->text, "");
    }
    return code;
}

#endif
