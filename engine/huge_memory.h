/* Host memory for copies and O_DIRECT: aligned to huge pages, backed by them if the machine has some, and already touched
 * so that its first use causes no page faults. Thread-safe. */
#ifndef ENGINE_HUGE_MEMORY_H
#define ENGINE_HUGE_MEMORY_H

#include <stdint.h>

#include "core/err.h"

int huge_memory_map(uint64_t bytes, void **memory, struct cb_err *err) CB_MUST_CHECK;
void huge_memory_unmap(void *memory, uint64_t bytes); /* accepts NULL */

#endif
