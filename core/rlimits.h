/* Failures that come of a limit of this user or machine: which one it is, how high it stands, and what raises it. */
#ifndef CORE_RLIMITS_H
#define CORE_RLIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

/* That pthread_create() failed with `sys_errno` at "thread 3 of 8 for psync". CB_ERR_LIMIT, which is no failure of what
 * is measured. */
int limits_fail_thread(int sys_errno, const char *what, struct cb_err *err) CB_MUST_CHECK;

/* Lets this process map no more than is free: what does not fit then fails in words, and nobody is killed for it. For a
 * program that does one thing; children inherit it. *before is for limits_release_memory. */
struct limits_memory {
    uint64_t available; /* that it may map at most; 0: not known, nothing was set */
    uint64_t before;
    bool is_set;
};
void limits_bound_memory(struct limits_memory *self);
void limits_release_memory(const struct limits_memory *self);

/* Whether this process may map so many bytes more (`ulimit -v`), which "rank 3" needs; CB_ERR_LIMIT with the figures. */
int limits_check_map(uint64_t bytes, const char *who, struct cb_err *err) CB_MUST_CHECK;

#endif
