/* The keys of a handle: those of the option table that apply to saves and loads of a program. */
#ifndef LIB_KEYS_H
#define LIB_KEYS_H

#include "core/err.h"
#include "run/experiment.h"

/* Reads "key=value" words. *record, which belongs to the word, is the value of "record=", or NULL. CB_ERR_USAGE for a key
 * that has no meaning here; *experiment then has the other words, or is NULL if memory is short. */
int keys_read(const char *const *words, size_t count, struct experiment **experiment, const char **record,
              struct cb_err *err) CB_MUST_CHECK;

#endif
