/* Finds the CUDA plugin of this build (engine/device_plugin.h describes it). Only checks that the file exists, for
 * programs that report on the plugin but must not load it. */
#ifndef RUN_CUDA_PLUGIN_H
#define RUN_CUDA_PLUGIN_H

#include <stddef.h>

#include "core/err.h"

#define CUDA_PLUGIN_FILE "ckptbench-cuda.so"
#define CUDA_PLUGIN_VARIABLE "CKPTBENCH_CUDA_PLUGIN"

/* Searches the environment variable, the folder of this program, then lib/ckptbench of the prefix. CB_ERR_NOT_FOUND,
 * with advice, if it is in none of these places. */
int cuda_plugin_find(char *path, size_t room, struct cb_err *err) CB_MUST_CHECK;

#endif
