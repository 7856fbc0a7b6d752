/* Builds paths and file names in a buffer of the caller's, with one error message if they do not fit, and creates
 * folders. Includes <limits.h> for PATH_MAX. */
#ifndef CORE_PATH_H
#define CORE_PATH_H

#include <limits.h>
#include <stddef.h>

#include "core/err.h"

/* Writes the path into `path` of `capacity` bytes. CB_ERR_USAGE if it does not fit, with the start and the length of
 * the path. Thread-safe. */
int path_format(char *path, size_t capacity, struct cb_err *err, const char *format, ...) CB_PRINTF(4, 5) CB_MUST_CHECK;

/* Creates the missing folders before each slash of `path`: for "a/b" only "a", for "a/b/" both. */
int path_make_folders(const char *path, unsigned mode, struct cb_err *err) CB_MUST_CHECK;

#endif
