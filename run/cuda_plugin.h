/* Where the CUDA plugin of this build is (engine/device_plugin.h says what it is). Only looks whether the file is
 * there, so that programs that must not load it can say so. */
#ifndef RUN_CUDA_PLUGIN_H
#define RUN_CUDA_PLUGIN_H

#include <stddef.h>

#include "core/err.h"

#define CUDA_PLUGIN_FILE "ckptbench-cuda.so"
#define CUDA_PLUGIN_VARIABLE "CKPTBENCH_CUDA_PLUGIN"

/* What the environment variable names, else beside this program, else in lib/ckptbench of the prefix.
 * CB_ERR_NOT_FOUND, with what to do, where there is none. */
int cuda_plugin_find(char *path, size_t room, struct cb_err *err) CB_MUST_CHECK;

#endif
