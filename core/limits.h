/* Failures that come of a limit of this user or machine: which one it is, how high it stands, and what raises it. */
#ifndef CORE_LIMITS_H
#define CORE_LIMITS_H

#include <stdint.h>

#include "core/err.h"

/* That pthread_create() failed with `sys_errno` at "thread 3 of 8 for psync". CB_ERR_LIMIT, which is no failure of what
 * is measured. */
int limits_fail_thread(int sys_errno, const char *what, struct cb_err *err) CB_MUST_CHECK;

/* Whether this process may map so many bytes more (`ulimit -v`), which "rank 3" needs; CB_ERR_LIMIT with the figures. */
int limits_check_map(uint64_t bytes, const char *who, struct cb_err *err) CB_MUST_CHECK;

#endif
