/* Finds the CUDA plugin's file. */
#include "run/cuda_plugin.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/process.h"
#include "core/version.h"

/* The places to search, in turn: the environment variable, next to this program, the prefix. False at the end. */
static bool candidate(unsigned turn, char *path, size_t room)
{
    const char *named = getenv(CUDA_PLUGIN_VARIABLE);
    char folder[PATH_MAX];
    if (named && named[0]) {
        snprintf(path, room, "%s", named);
        return turn == 0;
    }
    if (turn == 0) {
        process_folder(folder);
        snprintf(path, room, "%s/" CUDA_PLUGIN_FILE, folder);
        return true;
    }
    snprintf(path, room, "%s/lib/ckptbench/" CUDA_PLUGIN_FILE, version_prefix());
    return turn == 1;
}

int cuda_plugin_find(char *path, size_t room, struct cb_err *err)
{
    char first[4096] = "";
    for (unsigned turn = 0; candidate(turn, path, room); turn++) {
        if (access(path, R_OK) == 0)
            return 0;
        if (turn == 0)
            snprintf(first, sizeof first, "%s", path);
    }
    const char *named = getenv(CUDA_PLUGIN_VARIABLE);
    if (named && named[0])
        return cb_fail(err, CB_ERR_NOT_FOUND,
                       "%.800s is not there, but " CUDA_PLUGIN_VARIABLE " names it: unset it to use this build's own "
                       "plugin, which `make cuda` makes",
                       named);
    return cb_fail(
        err, CB_ERR_NOT_FOUND,
        "%.900s is not there: this build has no CUDA plugin; build with nvcc in PATH or `make cuda`, or name "
        "one in " CUDA_PLUGIN_VARIABLE,
        first);
}
