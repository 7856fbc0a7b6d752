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

int gpu_place_read(const char *sysfs, const char *pci, struct gpu_place *place, struct cb_err *err)
{
    char link[PATH_MAX], lower[64], path[PATH_MAX + 32];
    struct search search = {.place = place};
    *place = (struct gpu_place){.node = -1};
    snprintf(lower, sizeof lower, "%s", pci);
    for (char *c = lower; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    if (snprintf(link, sizeof link, "%s/bus/pci/devices/%s", sysfs, lower) >= (int)sizeof link ||
        !realpath(link, search.gpu))
        return cb_fail(err, CB_ERR_NOT_FOUND, "%s has no PCI device %s: where the GPU is in this machine is unknown",
                       sysfs, lower);
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
