/* Paths and names of files put together in a buffer of the caller's, with one sentence for those that do not fit. Includes
 * <limits.h> for PATH_MAX. */
#ifndef CORE_PATH_H
#define CORE_PATH_H

#include <limits.h>
#include <stddef.h>

#include "core/err.h"

/* Writes the path into `path` of `capacity` bytes. CB_ERR_USAGE when it does not fit, with the start of the path and how
 * long it is. Thread-safe. */
int path_format(char *path, size_t capacity, struct cb_err *err, const char *format, ...) CB_PRINTF(4, 5) CB_MUST_CHECK;

#endif
