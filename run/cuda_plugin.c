/* Finds the CUDA plugin's file. */
#include "run/cuda_plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/process.h"
#include "core/version.h"

int cuda_plugin_find(char *path, size_t room, struct cb_err *err)
{
    const char *named = getenv(CUDA_PLUGIN_VARIABLE);
    char folder[PATH_MAX], first[4096];
    if (named && named[0]) {
        snprintf(path, room, "%s", named);
        return access(path, R_OK) == 0
                   ? 0
                   : cb_fail(err, CB_ERR_NOT_FOUND,
                             "%.800s is not there, but " CUDA_PLUGIN_VARIABLE
                             " names it: unset it to use this build's own plugin, which `make cuda` makes",
                             named);
    }
    process_folder(folder);
    snprintf(path, room, "%s/" CUDA_PLUGIN_FILE, folder);
    if (access(path, R_OK) == 0)
        return 0;
    snprintf(first, sizeof first, "%s", path);
    snprintf(path, room, "%s/lib/ckptbench/" CUDA_PLUGIN_FILE, version_prefix());
    if (access(path, R_OK) == 0)
        return 0;
    return cb_fail(
        err, CB_ERR_NOT_FOUND,
        "%.900s is not there: this build has no CUDA plugin; build with nvcc in PATH or `make cuda`, or name "
        "one in " CUDA_PLUGIN_VARIABLE,
        first);
}
