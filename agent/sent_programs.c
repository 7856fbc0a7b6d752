/* The programs that were sent to this node. */
#include "agent/sent_programs.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/process.h"
#include "run/cuda_plugin.h"
#include "run/run_folder.h"

const char *const sent_programs[SENT_PROGRAMS] = {"ckptbench-agent", "ckptbench-worker", CUDA_PLUGIN_FILE};

void sent_programs_remove_own(void)
{
    char folder[PATH_MAX], path[PATH_MAX + 64];
    process_folder(folder);
    const char *name = strrchr(folder, '/');
    if (!name || strncmp(name + 1, SENT_FOLDER, strlen(SENT_FOLDER)) != 0)
        return;
    for (size_t i = 0; i < SENT_PROGRAMS; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, sent_programs[i]);
        unlink(path);
    }
    rmdir(folder);
}
