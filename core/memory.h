/* How much memory this machine can still give us. */
#ifndef CORE_MEMORY_H
#define CORE_MEMORY_H

#include <stdint.h>

#include "core/err.h"

/* MemAvailable, or what our control groups (v2 or v1) leave where that is less. */
int memory_available(uint64_t *bytes, struct cb_err *err) CB_MUST_CHECK;

/* Bytes of address space that this process has mapped; fails where the kernel does not tell. */
int memory_mapped(uint64_t *bytes) CB_MUST_CHECK;

/* Bytes that this process may still map (RLIMIT_AS, `ulimit -v`); UINT64_MAX without such a limit. */
uint64_t memory_left_to_map(void);

/* Processes that the kernel has killed for want of memory since it was started, in any control group; 0 where it does not
 * tell. */
uint64_t memory_oom_kills(void);

/* The line "NAME:   123 kB" of a meminfo text, in bytes. */
int memory_parse_meminfo(const char *text, const char *name, uint64_t *bytes, struct cb_err *err) CB_MUST_CHECK;

#endif
