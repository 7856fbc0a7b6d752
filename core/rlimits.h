/* Failures caused by a limit of this user or machine: which limit, its value, and how to raise it. */
#ifndef CORE_RLIMITS_H
#define CORE_RLIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

/* Explains a pthread_create() that failed with `sys_errno`; `what` is "thread 3 of 8 for psync". CB_ERR_LIMIT, which is
 * not a failure of the benchmark. */
int rlimits_fail_thread(int sys_errno, const char *what, struct cb_err *err) CB_MUST_CHECK;

/* Limits this process to mapping no more than the free memory, so that an allocation that does not fit fails with a
 * message instead of an OOM kill. For a program with a single task; children inherit the limit. *before is for
 * rlimits_release_memory. */
struct rlimits_memory {
    uint64_t available; /* the limit set; 0: free memory is unknown and no limit was set */
    uint64_t before;
    bool is_set;
};
void rlimits_bound_memory(struct rlimits_memory *self);
void rlimits_release_memory(const struct rlimits_memory *self);

/* Checks that this process may map this many more bytes (`ulimit -v`), which `who` ("rank 3") needs; CB_ERR_LIMIT with
 * both numbers. */
int rlimits_check_map(uint64_t bytes, const char *who, struct cb_err *err) CB_MUST_CHECK;

#endif
