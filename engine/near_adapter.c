/* Chooses adapters from /sys (engine/gpu_place.h), and passes them on in the environment. */
#include "engine/near_adapter.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gpu_place.h"

#define UCX_VARIABLE "UCX_NET_DEVICES"
#define UCX_TRANSPORTS "UCX_TLS" /* some have no adapters: then UCX finds nothing behind ours */
#define NCCL_VARIABLE "NCCL_IB_HCA"

/* Whether a configuration file has a line "NAME=…"; the environment would override it. */
static bool file_sets(const char *path, const char *name)
{
    char line[4096];
    bool found = false;
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        const char *at = line + strspn(line, " \t");
        at = strncmp(at, name, strlen(name)) == 0 ? at + strlen(name) : "";
        found = at[strspn(at, " \t")] == '=';
    }
    if (file)
        fclose(file);
    return found;
}

/* Who has set a variable already, in `who`; false if nobody has. `files` ends with NULL; an empty name is no file. */
static bool is_set(const char *variable, const char *const files[], char *who, size_t room)
{
    const char *value = getenv(variable);
    if (value) {
        snprintf(who, room, "%s=%.100s is set", variable, value);
        return true;
    }
    for (; *files; files++) {
        if (**files && file_sets(*files, variable)) {
            snprintf(who, room, "%.200s sets %s", *files, variable);
            return true;
        }
    }
    return false;
}

static bool ucx_is_set(char *who, size_t room)
{
    char own[PATH_MAX] = "", home[PATH_MAX] = "";
    const char *folder = getenv("UCX_CONFIG_DIR"), *user = getenv("HOME");
    if (folder)
        snprintf(own, sizeof own, "%s/ucx.conf", folder);
    if (user)
        snprintf(home, sizeof home, "%s/ucx.conf", user);
    const char *const files[] = {"./ucx.conf", own, home, "/etc/ucx/ucx.conf", NULL}; /* each overrides the next */
    return is_set(UCX_VARIABLE, files, who, room) || is_set(UCX_TRANSPORTS, files, who, room);
}

static bool nccl_is_set(char *who, size_t room)
{
    char home[PATH_MAX] = "";
    const char *own = getenv("NCCL_CONF_FILE"), *user = getenv("HOME");
    if (user)
        snprintf(home, sizeof home, "%s/.nccl.conf", user);
    return is_set(NCCL_VARIABLE, (const char *const[]){own && *own ? own : home, "/etc/nccl.conf", NULL}, who, room);
}

/* Why the near adapters say nothing, or NULL. */
static const char *nothing_to_choose(const struct gpu_adapters *adapters)
{
    return adapters->count == 0        ? "no InfiniBand or RoCE adapter is active"
           : adapters->near_count == 0 ? "where the GPU is in this machine is unknown"
           : adapters->near_count == adapters->count
               ? adapters->count == 1 ? "there is one adapter" : "all adapters are equally near"
               : NULL;
}

static void set_for_mpi(const char *sysfs, const char *pci, uint32_t local_rank, char *text, size_t room)
{
    struct gpu_adapters adapters;
    char value[64] = "", who[512];
    gpu_adapters_find(sysfs, pci, &adapters);
    const char *why = ucx_is_set(who, sizeof who) ? who : nothing_to_choose(&adapters);
    if (!why) {
        size_t turn = local_rank % adapters.near_count;
        for (size_t i = 0; i < adapters.count; i++)
            if (adapters.all[i].near && turn-- == 0)
                snprintf(value, sizeof value, "%s:%u", adapters.all[i].name, adapters.all[i].port);
        if (setenv(UCX_VARIABLE, value, 0))
            why = "no memory";
    }
    if (why)
        snprintf(text, room, "MPI left alone (%s)", why);
    else
        snprintf(text, room, "MPI over UCX: %s", value);
}

static void set_for_nccl(const char *sysfs, char *text, size_t room)
{
    struct gpu_adapters adapters;
    char value[GPU_MOST_ADAPTERS * (sizeof adapters.all[0].name + 1) + 1] = "=",
                                                                       who[512]; /* "=": exactly these names */
    gpu_adapters_find(sysfs, NULL, &adapters);
    const char *why = nccl_is_set(who, sizeof who) ? who : nothing_to_choose(&adapters);
    for (size_t i = 0, len = 1; i < adapters.count && !why; i++)
        if (adapters.all[i].near)
            len += (size_t)snprintf(value + len, sizeof value - len, "%s%s", len > 1 ? "," : "", adapters.all[i].name);
    if (!why && setenv(NCCL_VARIABLE, value, 0))
        why = "no memory";
    if (why)
        snprintf(text, room, "NCCL left alone (%s)", why);
    else
        snprintf(text, room, "NCCL: %s", value + 1);
}

void near_adapter_set(const char *sysfs, const char *pci, uint32_t local_rank, char *text, size_t room)
{
    char mpi[NEAR_ADAPTER_BYTES / 2 - 32], nccl[NEAR_ADAPTER_BYTES + 32];
    set_for_mpi(sysfs, pci, local_rank, mpi, sizeof mpi);
    set_for_nccl(sysfs, nccl, sizeof nccl);
    snprintf(text, room, "%s; %s", mpi, nccl);
}
