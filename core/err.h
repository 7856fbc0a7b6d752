/* Errors: a code for the program, a sentence for the user.
 *
 * A fallible function returns 0 or one of the negative codes below, takes a `struct cb_err *` as its
 * last argument, and leaves its outputs untouched on failure. The message says what happened, where,
 * and what to do about it; a caller adds what it knows with cb_context(). `err` may be NULL where a
 * caller needs only the code. Values; nothing to free. Thread-safe on distinct objects. */
#ifndef CORE_ERR_H
#define CORE_ERR_H

#define CB_MUST_CHECK __attribute__((warn_unused_result))
#define CB_PRINTF(format_index, first_argument) __attribute__((format(printf, format_index, first_argument)))

enum cb_code {
    CB_OK = 0,
    CB_ERR_USAGE = -1,        /* what the user asked for cannot be done as asked */
    CB_ERR_SYSTEM = -2,       /* the operating system or a library refused; sys_errno says why */
    CB_ERR_FORMAT = -3,       /* foreign bytes are not what they should be */
    CB_ERR_NOT_FOUND = -4,    /* something named does not exist */
    CB_ERR_NO_SPACE = -5,     /* the store is full (ENOSPC, EDQUOT) */
    CB_ERR_TIMEOUT = -6,      /* a deadline passed */
    CB_ERR_ABORTED = -7,      /* stopped on request, or because another rank failed */
    CB_ERR_CORRUPT = -8,      /* data read back is not what was written */
    CB_ERR_MEMORY = -9,       /* memory is short, or a stated bound was reached */
    CB_ERR_UNSUPPORTED = -10, /* this build or this machine cannot do it */
    CB_ERR_EXISTS = -11,      /* something is there that must not be */
    CB_ERR_INTERNAL = -12,    /* our own mistake */
    CB_ERR_BELOW = -13,       /* a figure does not reach what was asked of it */
    CB_ERR_LIMIT = -14,       /* a limit of this user or machine (core/rlimits.h), whatever is measured */
};

/* Exit codes of the programs; the tour and the man page list them. */
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
    int sys_errno; /* 0 where no system call was involved */
    char message[1024];
};

/* Sets code and message and returns `code`. A message too long for the buffer is cut. */
int cb_fail(struct cb_err *err, int code, const char *format, ...) CB_PRINTF(3, 4);

/* The same for a failed system call: appends ": " and the text of `sys_errno`; the code is
 * CB_ERR_NO_SPACE for ENOSPC and EDQUOT, CB_ERR_NOT_FOUND for ENOENT, CB_ERR_EXISTS for EEXIST,
 * CB_ERR_MEMORY for ENOMEM, CB_ERR_TIMEOUT for ETIMEDOUT, CB_ERR_SYSTEM for all else. */
int cb_fail_errno(struct cb_err *err, int sys_errno, const char *format, ...) CB_PRINTF(3, 4);

/* Puts "TEXT: " before the message and returns the code unchanged; `err` must not be NULL here. */
int cb_context(struct cb_err *err, const char *format, ...) CB_PRINTF(2, 3);

#ifdef __clang_analyzer__ /* what it cannot see across files: these never return 0 */
#define cb_fail(err, code, ...) (cb_fail(err, code, __VA_ARGS__), (code))
#define cb_fail_errno(err, sys_errno, ...) (cb_fail_errno(err, sys_errno, __VA_ARGS__), CB_ERR_SYSTEM)
#define cb_context(err, ...) (cb_context(err, __VA_ARGS__), CB_ERR_SYSTEM)
#endif

/* The exit code that a failure with this code ends a program with. */
int cb_exit_code(int code);
/* The same for a failure that is of no benchmark: what is full, damaged or malformed then is our home,
 * the history, or where the answer goes. */
int cb_exit_code_at_home(int code);

/* The name of a code in JSON and records ("no_space"); and back (CB_ERR_INTERNAL where unknown). */
const char *cb_code_name(int code);
int cb_code_from_name(const char *name);

#endif
