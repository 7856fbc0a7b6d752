/* Messages on stderr: set up once by main, one write per line. */
#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/utf8.h"

/* Set in main before any thread starts, read-only afterwards. */
static const char *log_program = "ckptbench";
static enum log_level log_current = LOG_NORMAL;

void log_init(const char *program, enum log_level level)
{
    log_program = program;
    log_current = level;
}

static void log_line(const char *format, va_list arguments)
{
    char line[2048], shown[sizeof line * UTF8_ESCAPED_MAX];
    vsnprintf(line, sizeof line, format, arguments);
    size_t len = utf8_escape(line, strlen(line), NULL, shown); /* messages quote files and commands */
    fprintf(stderr, "%s: %.*s\n", log_program, (int)len, shown);
}

#define LOG_FUNCTION(name, wanted)                                                                                     \
    void name(const char *format, ...)                                                                                 \
    {                                                                                                                  \
        if (log_current < (wanted))                                                                                    \
            return;                                                                                                    \
        va_list arguments;                                                                                             \
        va_start(arguments, format);                                                                                   \
        log_line(format, arguments);                                                                                   \
        va_end(arguments);                                                                                             \
    }

LOG_FUNCTION(log_error, LOG_QUIET)
LOG_FUNCTION(log_info, LOG_NORMAL)
LOG_FUNCTION(log_verbose, LOG_VERBOSE)
