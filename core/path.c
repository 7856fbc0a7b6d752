#include "core/path.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

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

int path_make_folders(const char *path, unsigned mode, struct cb_err *err)
{
    char own[PATH_MAX];
    if (path_format(own, sizeof own, err, "%s", path))
        return CB_ERR_USAGE;
    for (char *slash = strchr(own + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(own, (mode_t)mode) < 0 && errno != EEXIST)
            return cb_fail_errno(err, errno, "creating the folder %s", own);
        *slash = '/';
    }
    return 0;
}
