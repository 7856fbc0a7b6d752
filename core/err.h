/* Errors: a code for the program, a message for the user.
 *
 * A fallible function returns 0 or one of the negative codes below, accepts a `struct cb_err *` as its last argument,
 * and leaves its outputs untouched on failure. The message says what happened, where, and what to do about it; callers
 * add context with cb_context(). `err` may be NULL if a caller needs only the code. Plain values, nothing to free.
 * Thread-safe on distinct objects. */
#ifndef CORE_ERR_H
#define CORE_ERR_H

#define CB_MUST_CHECK __attribute__((warn_unused_result))
#define CB_PRINTF(format_index, first_argument) __attribute__((format(printf, format_index, first_argument)))

enum cb_code {
    CB_OK = 0,
    CB_ERR_USAGE = -1,        /* the request is invalid */
    CB_ERR_SYSTEM = -2,       /* the operating system or a library failed; sys_errno has the reason */
    CB_ERR_FORMAT = -3,       /* input from outside is malformed */
    CB_ERR_NOT_FOUND = -4,    /* something named does not exist */
    CB_ERR_NO_SPACE = -5,     /* the store is full (ENOSPC, EDQUOT) */
    CB_ERR_TIMEOUT = -6,      /* a deadline has passed */
    CB_ERR_ABORTED = -7,      /* stopped on request, or because another rank failed */
    CB_ERR_CORRUPT = -8,      /* data read back is not what was written */
    CB_ERR_MEMORY = -9,       /* memory is short, or a stated limit was reached */
    CB_ERR_UNSUPPORTED = -10, /* not supported by this build or machine */
    CB_ERR_EXISTS = -11,      /* a target that must not exist, exists */
    CB_ERR_INTERNAL = -12,    /* a bug of ours */
    CB_ERR_BELOW = -13,       /* a measured value misses a required threshold */
    CB_ERR_LIMIT = -14,       /* a limit of this user or machine (core/rlimits.h), not a failure of the benchmark */
};

/* Exit codes of the programs, as in the man page. */
enum cb_exit {
    CB_EXIT_PASS = 0,
    CB_EXIT_INTERNAL = 1,
    CB_EXIT_USAGE = 2,
    CB_EXIT_BENCHMARK = 3,
    CB_EXIT_INFRASTRUCTURE = 4,
    CB_EXIT_REGRESSION = 5,
    CB_EXIT_INCONCLUSIVE = 6,
};

struct cb_err {
    int code;
    int sys_errno; /* 0 if no system call was involved */
    char message[1024];
};

/* Sets code and message and returns `code`. A message too long for the buffer is shortened. */
int cb_fail(struct cb_err *err, int code, const char *format, ...) CB_PRINTF(3, 4);

/* Like cb_fail, for a failed system call: appends ": " and the text of `sys_errno`; the code is CB_ERR_NO_SPACE for
 * ENOSPC and EDQUOT, CB_ERR_NOT_FOUND for ENOENT, CB_ERR_EXISTS for EEXIST, CB_ERR_MEMORY for ENOMEM, CB_ERR_TIMEOUT
 * for ETIMEDOUT, and CB_ERR_SYSTEM for all others. */
int cb_fail_errno(struct cb_err *err, int sys_errno, const char *format, ...) CB_PRINTF(3, 4);

/* Puts "TEXT: " in front of the message and returns the code unchanged; `err` must not be NULL. */
int cb_context(struct cb_err *err, const char *format, ...) CB_PRINTF(2, 3);

#ifdef __clang_analyzer__ /* for the static analyzer, which does not see across files: these never return 0 */
#define cb_fail(err, code, ...) (cb_fail(err, code, __VA_ARGS__), (code))
#define cb_fail_errno(err, sys_errno, ...) (cb_fail_errno(err, sys_errno, __VA_ARGS__), CB_ERR_SYSTEM)
#define cb_context(err, ...) (cb_context(err, __VA_ARGS__), CB_ERR_SYSTEM)
#endif

/* The exit code of a program that fails with this code. */
int cb_exit_code(int code);
/* The same outside a benchmark, where a full, damaged or malformed file is ours (home, history, output). */
int cb_exit_code_at_home(int code);

/* The name of a code in JSON and records ("no_space"). */
const char *cb_code_name(int code);

#endif
