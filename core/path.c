#include "core/path.h"

#include <stdarg.h>
#include <stdio.h>

int path_format(char *path, size_t capacity, struct cb_err *err, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int len = vsnprintf(path, capacity, format, arguments);
    va_end(arguments);
    if (len >= 0 && (size_t)len < capacity)
        return 0;
    return cb_fail(err, CB_ERR_USAGE, "the path %.200s… is too long (%d bytes, at most %zu)", path, len, capacity - 1);
}
