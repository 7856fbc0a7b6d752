/* Limits of address space and threads, and the messages about them. */
#include "core/rlimits.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "core/memory.h"
#include "core/units.h"

static uint64_t stack_bytes(void)
{
    pthread_attr_t attributes;
    size_t bytes = 0;
    if (pthread_attr_init(&attributes) == 0) {
        (void)pthread_attr_getstacksize(&attributes, &bytes);
        pthread_attr_destroy(&attributes);
    }
    return bytes;
}

/* Whether the stack of one more thread exceeds what this process may map. */
static bool describe_address_space(char text[256])
{
    struct rlimit limit;
    char most[32], left[32], stack[32];
    uint64_t left_bytes = memory_left_to_map();
    if (left_bytes == UINT64_MAX || left_bytes > 2 * stack_bytes() || getrlimit(RLIMIT_AS, &limit) != 0)
        return false;
    snprintf(
        text, 256,
        "a thread takes %s of address space, and the limit of %s (ulimit -v) leaves %s: raise it, or use fewer threads",
        units_format_bytes((double)stack_bytes(), stack), units_format_bytes((double)limit.rlim_cur, most),
        units_format_bytes((double)left_bytes, left));
    return true;
}

static void describe_processes(char text[256])
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        snprintf(text, 256,
                 "the limit of %" PRIu64 " processes and threads of this user (ulimit -u) or that of its control group "
                 "(pids.max) is reached: raise it, or use fewer ranks and threads",
                 (uint64_t)limit.rlim_cur);
    else
        snprintf(text, 256,
                 "a limit on threads is reached (kernel.threads-max, or pids.max of the control group): raise it, or "
                 "use fewer ranks and threads");
}

int rlimits_fail_thread(int sys_errno, const char *what, struct cb_err *err)
{
    char why[256], text[128];
    if (!describe_address_space(why))
        describe_processes(why);
    return cb_fail(err, CB_ERR_LIMIT, "%s could not be started (%s): %s", what,
                   strerror_r(sys_errno, text, sizeof text), why);
}

int rlimits_check_map(uint64_t bytes, const char *who, struct cb_err *err)
{
    struct rlimit limit;
    char need[32], most[32], left[32];
    uint64_t left_bytes = memory_left_to_map();
    if (bytes <= left_bytes || getrlimit(RLIMIT_AS, &limit) != 0)
        return 0;
    return cb_fail(err, CB_ERR_LIMIT,
                   "%s needs %s of memory, but its limit of %s (ulimit -v) leaves %s: raise it, or use a smaller model",
                   who, units_format_bytes((double)bytes, need), units_format_bytes((double)limit.rlim_cur, most),
                   units_format_bytes((double)left_bytes, left));
}

void rlimits_bound_memory(struct rlimits_memory *self)
{
    struct rlimit limit;
    uint64_t available, mapped;
    *self = (struct rlimits_memory){0};
    if (getrlimit(RLIMIT_AS, &limit) != 0 || memory_available(&available, NULL) || memory_mapped(&mapped))
        return;
    self->before = limit.rlim_cur;
    self->available = limit.rlim_cur > mapped ? limit.rlim_cur - mapped : 0;
    if (available >= self->available)
        return;
    self->available = available;
    limit.rlim_cur = mapped + available;
    self->is_set = setrlimit(RLIMIT_AS, &limit) == 0;
}

void rlimits_release_memory(const struct rlimits_memory *self)
{
    struct rlimit limit;
    if (!self->is_set || getrlimit(RLIMIT_AS, &limit) != 0)
        return;
    limit.rlim_cur = self->before;
    (void)setrlimit(RLIMIT_AS, &limit);
}
