/* Errors as the library's callers see them. */
#ifndef LIB_ERRORS_H
#define LIB_ERRORS_H

#include <stdio.h>

#include "core/err.h"
#include "include/ckptbench.h"

/* Passes on the failure `rc` with its reason, unless `error` is NULL. Returns the code for the caller. */
static inline int errors_report(int rc, const struct cb_err *err, struct ckptbench_error *error)
{
    int code = rc < CKPTBENCH_INTERNAL ? CKPTBENCH_SYSTEM : rc; /* limits of the user or machine */
    if (code && error) {
        error->code = code;
        snprintf(error->text, sizeof error->text, "%s", err->message);
    }
    return code;
}

#endif
