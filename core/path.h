/* Builds paths and file names in a buffer of the caller's, with one error message if they do not fit. Includes
 * <limits.h> for PATH_MAX. */
#ifndef CORE_PATH_H
#define CORE_PATH_H

#include <limits.h>
#include <stddef.h>

#include "core/err.h"

/* Writes the path into `path` of `capacity` bytes. CB_ERR_USAGE if it does not fit, with the start and the length of
 * the path. Thread-safe. */
int path_format(char *path, size_t capacity, struct cb_err *err, const char *format, ...) CB_PRINTF(4, 5) CB_MUST_CHECK;

#endif
