/* Finds in /sys which cores, NUMA node and network adapter a GPU is near. */
#include "engine/gpu_place.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The first line of a small file; "" if it cannot be read. */
static void read_line(const char *path, char *line, size_t room)
{
    FILE *file = fopen(path, "re");
    line[0] = '\0';
    if (!file)
        return;
    if (!fgets(line, (int)room, file))
        line[0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    fclose(file);
}

static int read_node(const char *device)
{
    char path[PATH_MAX], line[32];
    if (snprintf(path, sizeof path, "%s/numa_node", device) >= (int)sizeof path)
        return -1;
    read_line(path, line, sizeof line);
    return line[0] ? atoi(line) : -1;
}

/* The number of leading path components that two devices share, starting at the PCI root ("pci0000:3a"). */
static unsigned count_shared(const char *a, const char *b)
{
    const char *x = strstr(a, "/devices/"), *y = strstr(b, "/devices/");
    unsigned shared = 0;
    if (!x || !y)
        return 0;
    x += strlen("/devices/");
    y += strlen("/devices/");
    for (;;) {
        size_t len = strcspn(x, "/");
        if (len == 0 || len != strcspn(y, "/") || strncmp(x, y, len) != 0)
            return shared;
        shared++;
        if (!x[len] || !y[len])
            return shared;
        x += len + 1;
        y += len + 1;
    }
}

struct search {
    char gpu[PATH_MAX]; /* the device's folder, without links */
    struct gpu_place *place;
    bool found;
};

/* Nearer means more shared path components, then the same NUMA node, then the name, so that the result is
 * deterministic. */
static void consider(struct search *self, const char *name, const char *device)
{
    struct gpu_place *place = self->place;
    unsigned shared = count_shared(self->gpu, device);
    int node = read_node(device);
    bool same_node = node >= 0 && node == place->node;
    if (self->found) {
        if (shared != place->shared            ? shared < place->shared
            : same_node != place->is_same_node ? !same_node
                                               : strcmp(name, place->adapter) >= 0)
            return;
    }
    self->found = true;
    place->shared = shared;
    place->is_same_node = same_node;
    snprintf(place->adapter, sizeof place->adapter, "%.63s", name);
}

/* Adapters of one class that are hardware devices: no loopback, bridges or tunnels. */
static void look_at_class(struct search *self, const char *sysfs, const char *class)
{
    char folder[PATH_MAX], link[PATH_MAX], device[PATH_MAX];
    if (snprintf(folder, sizeof folder, "%s/class/%s", sysfs, class) >= (int)sizeof folder)
        return;
    DIR *listed = opendir(folder);
    if (!listed)
        return;
    for (struct dirent *entry = readdir(listed); entry; entry = readdir(listed)) {
        if (entry->d_name[0] == '.' ||
            snprintf(link, sizeof link, "%s/%s/device", folder, entry->d_name) >= (int)sizeof link)
            continue;
        if (realpath(link, device))
            consider(self, entry->d_name, device);
    }
    closedir(listed);
}

/* Finds the folder of a PCI device in /sys, with all links resolved. False if there is no such device. */
static bool find_device(const char *sysfs, const char *pci, char folder[PATH_MAX])
{
    char link[PATH_MAX], lower[64];
    snprintf(lower, sizeof lower, "%s", pci);
    for (char *c = lower; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return snprintf(link, sizeof link, "%s/bus/pci/devices/%s", sysfs, lower) < (int)sizeof link &&
           realpath(link, folder);
}

int gpu_place_read(const char *sysfs, const char *pci, struct gpu_place *place, struct cb_err *err)
{
    char path[PATH_MAX + 32];
    struct search search = {.place = place};
    *place = (struct gpu_place){.node = -1};
    if (!find_device(sysfs, pci, search.gpu))
        return cb_fail(err, CB_ERR_NOT_FOUND, "%s has no PCI device %s: where the GPU is in this machine is unknown",
                       sysfs, pci);
    place->node = read_node(search.gpu);
    snprintf(path, sizeof path, "%s/local_cpulist", search.gpu);
    read_line(path, place->cores, sizeof place->cores);
    look_at_class(&search, sysfs, "infiniband");
    if (!search.found)
        look_at_class(&search, sysfs, "net");
    return 0;
}

void gpu_place_describe(const struct gpu_place *place, char *text, size_t room)
{
    char node[32] = "NUMA node unknown", adapter[128] = "no network adapter";
    if (place->node >= 0)
        snprintf(node, sizeof node, "NUMA node %d", place->node);
    if (place->adapter[0])
        snprintf(adapter, sizeof adapter, "nearest adapter %s (%u bridges shared%s)", place->adapter, place->shared,
                 place->is_same_node ? ", same node" : "");
    snprintf(text, room, "%s, %s", node, adapter);
}

/* --- adapters that can be used --- */

/* The first active port of an InfiniBand or RoCE adapter; 0 if it has none. */
static uint32_t active_port(const char *sysfs, const char *adapter)
{
    char path[PATH_MAX], line[64];
    for (uint32_t port = 1; port < 256; port++) {
        if (snprintf(path, sizeof path, "%s/class/infiniband/%s/ports/%u/state", sysfs, adapter, port) >=
                (int)sizeof path ||
            access(path, R_OK) != 0)
            return 0;
        read_line(path, line, sizeof line);
        if (strstr(line, "ACTIVE")) /* "4: ACTIVE" */
            return port;
    }
    return 0;
}

static int compare_adapters(const void *a, const void *b)
{
    return strverscmp(a, b); /* the name is the first member: mlx5_2 before mlx5_10 */
}

static void list_adapters(const char *sysfs, struct gpu_adapters *adapters)
{
    char folder[PATH_MAX];
    *adapters = (struct gpu_adapters){0};
    if (snprintf(folder, sizeof folder, "%s/class/infiniband", sysfs) >= (int)sizeof folder)
        return;
    DIR *listed = opendir(folder);
    if (!listed)
        return;
    for (struct dirent *entry = readdir(listed); entry; entry = readdir(listed)) {
        uint32_t port = entry->d_name[0] == '.' ? 0 : active_port(sysfs, entry->d_name);
        if (port == 0 || adapters->count == GPU_MOST_ADAPTERS || strlen(entry->d_name) >= sizeof adapters->all[0].name)
            continue;
        snprintf(adapters->all[adapters->count].name, sizeof adapters->all[0].name, "%.31s", entry->d_name);
        adapters->all[adapters->count++].port = port;
    }
    closedir(listed);
    qsort(adapters->all, adapters->count, sizeof adapters->all[0], compare_adapters);
}

/* Marks the adapters that are near a GPU, whose folder in /sys is `gpu`. */
static void mark_near(const char *sysfs, const char *gpu, struct gpu_adapters *adapters)
{
    unsigned nearness[GPU_MOST_ADAPTERS], best = 0;
    int node = read_node(gpu);
    for (size_t i = 0; i < adapters->count; i++) {
        char link[PATH_MAX], device[PATH_MAX];
        nearness[i] = 0;
        if (snprintf(link, sizeof link, "%s/class/infiniband/%s/device", sysfs, adapters->all[i].name) >=
                (int)sizeof link ||
            !realpath(link, device))
            continue;
        nearness[i] = 2 + 2 * count_shared(gpu, device) + (node >= 0 && read_node(device) == node ? 1 : 0);
        best = nearness[i] > best ? nearness[i] : best;
    }
    for (size_t i = 0; i < adapters->count; i++) {
        bool adds = best > 0 && nearness[i] == best && !adapters->all[i].near;
        adapters->all[i].near = adapters->all[i].near || adds;
        adapters->near_count += adds ? 1 : 0;
    }
}

/* A device of NVIDIA that computes or shows: no switch and no bridge. */
static bool is_gpu(const char *device)
{
    char path[PATH_MAX + 16], vendor[32], class[32];
    snprintf(path, sizeof path, "%s/vendor", device);
    read_line(path, vendor, sizeof vendor);
    snprintf(path, sizeof path, "%s/class", device);
    read_line(path, class, sizeof class);
    return strcmp(vendor, "0x10de") == 0 && (strncmp(class, "0x0300", 6) == 0 || strncmp(class, "0x0302", 6) == 0);
}

static void mark_near_any(const char *sysfs, struct gpu_adapters *adapters)
{
    char folder[PATH_MAX], link[PATH_MAX], device[PATH_MAX];
    if (snprintf(folder, sizeof folder, "%s/bus/pci/devices", sysfs) >= (int)sizeof folder)
        return;
    DIR *listed = opendir(folder);
    if (!listed)
        return;
    for (struct dirent *entry = readdir(listed); entry; entry = readdir(listed)) {
        if (entry->d_name[0] != '.' && snprintf(link, sizeof link, "%s/%s", folder, entry->d_name) < (int)sizeof link &&
            realpath(link, device) && is_gpu(device))
            mark_near(sysfs, device, adapters);
    }
    closedir(listed);
}

void gpu_adapters_find(const char *sysfs, const char *pci, struct gpu_adapters *adapters)
{
    char gpu[PATH_MAX];
    list_adapters(sysfs, adapters);
    if (!pci)
        mark_near_any(sysfs, adapters);
    else if (find_device(sysfs, pci, gpu))
        mark_near(sysfs, gpu, adapters);
}

/* --- cores --- */

static bool read_number(const char **text, unsigned long *number)
{
    char *end;
    if (!isdigit((unsigned char)**text))
        return false;
    *number = strtoul(*text, &end, 10);
    *text = end;
    return *number < CPU_SETSIZE;
}

int gpu_place_parse_cores(const char *text, cpu_set_t *cores, struct cb_err *err)
{
    const char *at = text;
    cpu_set_t found;
    CPU_ZERO(&found);
    while (*at) {
        unsigned long first = 0, last;
        bool right = read_number(&at, &first);
        last = first;
        if (right && *at == '-') {
            at++;
            right = read_number(&at, &last) && last >= first;
        }
        if (!right || (*at && *at != ','))
            return cb_fail(err, CB_ERR_FORMAT, "\"%.100s\" is no list of cores", text);
        for (unsigned long core = first; core <= last; core++)
            CPU_SET(core, &found);
        at += *at == ',' ? 1 : 0;
    }
    *cores = found;
    return 0;
}
