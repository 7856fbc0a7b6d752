/* How much memory this machine can still give us. */
#ifndef CORE_MEMORY_H
#define CORE_MEMORY_H

#include <stdint.h>

#include "core/err.h"

/* MemAvailable, or what our control groups (v2 or v1) leave where that is less. */
int memory_available(uint64_t *bytes, struct cb_err *err) CB_MUST_CHECK;

/* The line "NAME:   123 kB" of a meminfo text, in bytes. */
int memory_parse_meminfo(const char *text, const char *name, uint64_t *bytes, struct cb_err *err) CB_MUST_CHECK;

#endif
