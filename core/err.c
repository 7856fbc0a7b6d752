/* Fills struct cb_err. */
#include "core/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ERRNO_BYTES 128

/* A code's name, and the exit code of a program that fails with it. */
static const struct {
    const char *name;
    enum cb_exit exit;
} codes[] = {
    [-CB_OK] = {"ok", CB_EXIT_PASS},
    [-CB_ERR_USAGE] = {"usage", CB_EXIT_USAGE},
    [-CB_ERR_SYSTEM] = {"system", CB_EXIT_INFRASTRUCTURE},
    [-CB_ERR_FORMAT] = {"format", CB_EXIT_BENCHMARK},
    [-CB_ERR_NOT_FOUND] = {"not_found", CB_EXIT_USAGE},
    [-CB_ERR_NO_SPACE] = {"no_space", CB_EXIT_BENCHMARK},
    [-CB_ERR_TIMEOUT] = {"timeout", CB_EXIT_INFRASTRUCTURE},
    [-CB_ERR_ABORTED] = {"aborted", CB_EXIT_INFRASTRUCTURE},
    [-CB_ERR_CORRUPT] = {"corrupt", CB_EXIT_BENCHMARK},
    [-CB_ERR_MEMORY] = {"memory", CB_EXIT_INFRASTRUCTURE},
    [-CB_ERR_UNSUPPORTED] = {"unsupported", CB_EXIT_USAGE},
    [-CB_ERR_EXISTS] = {"exists", CB_EXIT_USAGE},
    [-CB_ERR_INTERNAL] = {"internal", CB_EXIT_INTERNAL},
    [-CB_ERR_BELOW] = {"below", CB_EXIT_BENCHMARK},
    [-CB_ERR_LIMIT] = {"limit", CB_EXIT_INFRASTRUCTURE},
};

/* A message that is too long loses its middle: the user's value is at the front and the reason at the end. */
static void copy_shortened(char *message, size_t bytes, const char *text)
{
    static const char gap[] = " ... ";
    size_t len = strlen(text);
    if (len < bytes) {
        memcpy(message, text, len + 1);
        return;
    }
    size_t head = bytes / 3, tail = bytes - head - sizeof gap;
    while (head > 0 && (text[head] & 0xC0) == 0x80) /* inside a character */
        head--;
    const char *end = text + len - tail;
    while ((*end & 0xC0) == 0x80)
        end++;
    snprintf(message, bytes, "%.*s%s%s", (int)head, text, gap, end);
}

static void format_message(char *message, size_t bytes, const char *format, va_list arguments)
{
    char *text;
    if (vasprintf(&text, format, arguments) < 0) {
        copy_shortened(message, bytes, format); /* out of memory: keep what we have */
        return;
    }
    copy_shortened(message, bytes, text);
    free(text);
}

int(cb_fail)(struct cb_err *err, int code, const char *format, ...)
{
    if (err) {
        va_list arguments;
        va_start(arguments, format);
        err->code = code;
        err->sys_errno = 0;
        format_message(err->message, sizeof err->message, format, arguments);
        va_end(arguments);
    }
    return code;
}

static int code_of_errno(int sys_errno)
{
    switch (sys_errno) {
    case ENOSPC:
    case EDQUOT:
        return CB_ERR_NO_SPACE;
    case ENOENT:
        return CB_ERR_NOT_FOUND;
    case EEXIST:
        return CB_ERR_EXISTS;
    case ENOMEM:
        return CB_ERR_MEMORY;
    case ETIMEDOUT:
        return CB_ERR_TIMEOUT;
    default:
        return CB_ERR_SYSTEM;
    }
}

int(cb_fail_errno)(struct cb_err *err, int sys_errno, const char *format, ...)
{
    int code = code_of_errno(sys_errno);
    if (err) {
        va_list arguments;
        va_start(arguments, format);
        err->code = code;
        err->sys_errno = sys_errno;
        format_message(err->message, sizeof err->message - ERRNO_BYTES, format, arguments);
        va_end(arguments);
        char text[ERRNO_BYTES - 2];
        size_t used = strlen(err->message);
        snprintf(err->message + used, sizeof err->message - used, ": %s", strerror_r(sys_errno, text, sizeof text));
    }
    return code;
}

int(cb_context)(struct cb_err *err, const char *format, ...)
{
    char context[sizeof err->message], whole[2 * sizeof err->message];
    va_list arguments;
    va_start(arguments, format);
    format_message(context, sizeof context, format, arguments);
    va_end(arguments);
    snprintf(whole, sizeof whole, "%s: %s", context, err->message);
    copy_shortened(err->message, sizeof err->message, whole);
    return err->code;
}

static size_t row_of(int code)
{
    size_t row = (size_t)-code;
    return row < sizeof codes / sizeof *codes ? row : -CB_ERR_INTERNAL;
}

int cb_exit_code(int code)
{
    return codes[row_of(code)].exit;
}

int cb_exit_code_at_home(int code)
{
    int exit_code = cb_exit_code(code);
    return exit_code == CB_EXIT_BENCHMARK ? CB_EXIT_INFRASTRUCTURE : exit_code;
}

const char *cb_code_name(int code)
{
    return codes[row_of(code)].name;
}
