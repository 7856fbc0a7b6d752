/* How much memory this machine has available. */
#ifndef CORE_MEMORY_H
#define CORE_MEMORY_H

#include <stdint.h>

#include "core/err.h"

/* MemAvailable, or less if our control groups (v2 or v1) leave less. */
int memory_available(uint64_t *bytes, struct cb_err *err) CB_MUST_CHECK;

/* Bytes of address space that this process has mapped; fails if the kernel does not report it. */
int memory_mapped(uint64_t *bytes) CB_MUST_CHECK;

/* Bytes that this process may still map (RLIMIT_AS, `ulimit -v`); UINT64_MAX if unlimited. */
uint64_t memory_left_to_map(void);

/* Number of OOM kills since this kernel booted, in any control group; 0 if the kernel does not report it. */
uint64_t memory_oom_kills(void);

/* Reads the line "NAME:   123 kB" of a meminfo text; returns bytes. */
int memory_parse_meminfo(const char *text, const char *name, uint64_t *bytes, struct cb_err *err) CB_MUST_CHECK;

#endif
