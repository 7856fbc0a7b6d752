/* Reads the fingerprint of a machine from /proc, /sys and hwloc. */
#include "agent/probe.h"

#include <dirent.h>
#include <errno.h>
#include <gnu/libc-version.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#ifdef HAVE_HWLOC
#include <hwloc.h>
#endif

#include "core/alloc.h"
#include "core/buf.h"
#include "core/child.h"
#include "core/clock.h"
#include "core/json.h"
#include "core/path.h"
#include "core/version.h"
#include "store/kind.h"

#define TEXT_MAX_BYTES (4 << 20)
#define TOOL_TIMEOUT_NS (5 * NS_PER_S)
#define POLL_NS (5 * NS_PER_MS)

/* The first line of a file; "" if it cannot be read. */
static void read_line(const char *path, char *line, size_t line_bytes)
{
    FILE *file = fopen(path, "re");
    line[0] = '\0';
    if (!file)
        return;
    if (fgets(line, (int)line_bytes, file))
        line[strcspn(line, "\n")] = '\0';
    else
        line[0] = '\0';
    fclose(file);
    for (size_t len = strlen(line); len > 0 && line[len - 1] == ' '; len--)
        line[len - 1] = '\0';
}

/* "a [b] c" is b: the kernel marks the active choice with brackets. */
static void read_chosen(const char *path, char *word, size_t word_bytes)
{
    read_line(path, word, word_bytes);
    char *open = strchr(word, '['), *close = strchr(word, ']');
    if (!open || !close || close < open)
        return;
    *close = '\0';
    memmove(word, open + 1, strlen(open + 1) + 1);
}

/* The value of the first line that starts with `key`, without `separator`, blanks and quotes. */
static void read_value(const char *path, const char *key, char separator, char *value, size_t value_bytes)
{
    char line[1024];
    value[0] = '\0';
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        char *place = strchr(line, separator);
        if (strncmp(line, key, strlen(key)) != 0 || !place)
            continue;
        place += 1 + strspn(place + 1, " \t\"");
        place[strcspn(place, "\"\n")] = '\0';
        snprintf(value, value_bytes, "%.*s", (int)value_bytes - 1, place);
        break;
    }
    if (file)
        fclose(file);
}

static void write_known(struct json_writer *json, const char *key, const char *text)
{
    json_member_text(json, key, *text ? text : NULL);
}

static void write_line(struct json_writer *json, const char *key, const char *path)
{
    char text[256];
    read_line(path, text, sizeof text);
    write_known(json, key, text);
}

bool probe_store_path(const char *store, char *path)
{
    struct store_uri uri = store_uri_of(store);
    if (!uri.kind->is_path || strlen(uri.inner) >= PATH_MAX - 2)
        return false;
    char own[PATH_MAX];
    snprintf(own, sizeof own, "%s%s", *uri.inner == '/' ? "" : "./", uri.inner);
    while (!realpath(own, path)) { /* the store's own folder may be created later */
        char *slash = strrchr(own, '/');
        if (!slash || slash == own)
            return realpath("/", path) != NULL;
        *slash = '\0';
    }
    return true;
}

static bool disk_folder(const char *path, char *folder)
{
    struct stat facts;
    char link[64];
    if (stat(path, &facts) < 0)
        return false;
    snprintf(link, sizeof link, "/sys/dev/block/%u:%u", major(facts.st_dev), minor(facts.st_dev));
    if (!realpath(link, folder))
        return false;
    char partition[PATH_MAX + 16];
    snprintf(partition, sizeof partition, "%s/partition", folder);
    char *slash = strrchr(folder, '/');
    if (access(partition, F_OK) == 0 && slash)
        *slash = '\0'; /* a partition: its disk is the parent folder */
    return true;
}

void probe_disk(const char *path, char *name, size_t name_bytes)
{
    char folder[PATH_MAX];
    name[0] = '\0';
    if (!disk_folder(path, folder))
        return;
    const char *slash = strrchr(folder, '/');
    snprintf(name, name_bytes, "%.*s", (int)name_bytes - 1, slash ? slash + 1 : folder);
}

static bool is_inside(const char *path, const char *place)
{
    size_t len = strlen(place);
    if (len == 1)
        return true; /* "/" */
    return strncmp(path, place, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

/* "36 35 98:0 /root /place rw,noatime shared:1 - ext3 /dev/root rw,errors=continue" */
bool probe_parse_mount(const char *mountinfo, const char *path, struct mount *mount)
{
    bool found = false;
    size_t longest = 0;
    for (const char *line = mountinfo; *line;) {
        size_t len = strcspn(line, "\n");
        char copy[4096], options[512], super[512];
        struct mount here;
        snprintf(copy, sizeof copy, "%.*s", (int)(len < sizeof copy ? len : sizeof copy - 1), line);
        line += len + (line[len] == '\n' ? 1 : 0);
        const char *rest = strstr(copy, " - ");
        if (!rest || sscanf(copy, "%*u %*u %*s %*s %511s %511s", here.place, options) != 2 ||
            sscanf(rest, " - %63s %511s %511s", here.type, here.source, super) != 3)
            continue;
        if (!is_inside(path, here.place) || strlen(here.place) < longest)
            continue;
        longest = strlen(here.place);
        snprintf(here.options, sizeof here.options, "%s,%s", options, super);
        *mount = here;
        found = true;
    }
    return found;
}

static void write_disk(struct json_writer *json, const char *path)
{
    char folder[PATH_MAX], file[PATH_MAX + 64], text[256], name[64];
    json_write_key(json, "device");
    if (!disk_folder(path, folder)) {
        json_write_null(json);
        return;
    }
    probe_disk(path, name, sizeof name);
    json_write_begin_object(json);
    write_known(json, "name", name);
    snprintf(file, sizeof file, "%s/device/model", folder);
    write_line(json, "model", file);
    snprintf(file, sizeof file, "%s/queue/rotational", folder);
    write_line(json, "rotational", file);
    snprintf(file, sizeof file, "%s/queue/scheduler", folder);
    read_chosen(file, text, sizeof text);
    write_known(json, "scheduler", text);
    snprintf(file, sizeof file, "%s/size", folder);
    read_line(file, text, sizeof text);
    json_member_u64(json, "bytes", strtoull(text, NULL, 10) * 512);
    json_write_end_object(json);
}

/* Runs a tool and writes the first line of its output, or null if it fails. */
static void write_tool(struct json_writer *json, const char *key, const char *const *argv)
{
    struct buf text;
    buf_init(&text, 65536);
    struct child_options options = {.argv = argv, .stdin_fd = -1};
    bool good = child_capture(&options, TOOL_TIMEOUT_NS, &text, NULL) == 0;
    if (good && text.len)
        text.data[strcspn(text.data, "\n")] = '\0';
    json_member_text(json, key, good ? text.data : NULL);
    buf_release(&text);
}

static void write_store(struct json_writer *json, const char *store)
{
    char path[PATH_MAX];
    struct buf text;
    struct mount mount;
    json_write_key(json, "store");
    const struct store_kind *kind = store_uri_of(store).kind;
    if (kind->keeps_data && !kind->is_path) {
        json_write_begin_object(json);
        json_member_text(json, "file_system", kind->name);
        json_write_end_object(json);
        return;
    }
    if (!probe_store_path(store, path)) {
        json_write_null(json);
        return;
    }
    buf_init(&text, TEXT_MAX_BYTES);
    json_write_begin_object(json);
    if (buf_read_file(&text, "/proc/self/mountinfo", NULL) == 0 && probe_parse_mount(text.data, path, &mount)) {
        write_known(json, "file_system", mount.type);
        write_known(json, "mount", mount.place);
        write_known(json, "source", mount.source);
        write_known(json, "mount_options", mount.options);
        if (strcmp(mount.type, "lustre") == 0)
            write_tool(json, "stripes", (const char *const[5]){"lfs", "getstripe", "-d", path, NULL});
    }
    write_disk(json, path);
    json_write_end_object(json);
    buf_release(&text);
}

static void write_topology(struct json_writer *json)
{
#ifdef HAVE_HWLOC
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) < 0)
        return;
    if (hwloc_topology_load(topology) == 0) {
        static const struct {
            hwloc_obj_type_t type;
            const char *key;
        } kinds[] = {{HWLOC_OBJ_PACKAGE, "packages"},
                     {HWLOC_OBJ_CORE, "cores"},
                     {HWLOC_OBJ_PU, "threads"},
                     {HWLOC_OBJ_NUMANODE, "numa_nodes"}};
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            json_member_i64(json, kinds[i].key, hwloc_get_nbobjs_by_type(topology, kinds[i].type));
        }
    }
    hwloc_topology_destroy(topology);
#else
    json_member_i64(json, "threads", sysconf(_SC_NPROCESSORS_ONLN));
    write_line(json, "numa_online", "/sys/devices/system/node/online");
#endif
}

static void write_cpu(struct json_writer *json)
{
    char text[256];
    json_write_key(json, "cpu");
    json_write_begin_object(json);
    read_value("/proc/cpuinfo", "model name", ':', text, sizeof text);
    write_known(json, "model", text);
    write_topology(json);
    write_line(json, "governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    json_write_end_object(json);
}

static void write_memory(struct json_writer *json)
{
    char text[256];
    struct rlimit limit;
    json_write_key(json, "memory");
    json_write_begin_object(json);
    read_value("/proc/meminfo", "MemTotal", ':', text, sizeof text);
    json_member_u64(json, "bytes", strtoull(text, NULL, 10) * 1024);
    if (getrlimit(RLIMIT_MEMLOCK, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
        json_member_text(json, "memlock_limit_bytes", "unlimited");
    else
        json_member_u64(json, "memlock_limit_bytes", limit.rlim_cur);
    read_chosen("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text);
    write_known(json, "transparent_hugepage", text);
    json_write_end_object(json);
}

static void write_system(struct json_writer *json)
{
    char text[256];
    struct utsname names;
    json_write_key(json, "system");
    json_write_begin_object(json);
    if (uname(&names) == 0) {
        write_known(json, "host", names.nodename);
        write_known(json, "kernel", names.release);
        write_known(json, "machine", names.machine);
    }
    read_value("/etc/os-release", "PRETTY_NAME", '=', text, sizeof text);
    write_known(json, "os", text);
    write_known(json, "libc", gnu_get_libc_version());
    write_line(json, "io_uring_disabled", "/proc/sys/kernel/io_uring_disabled");
    json_write_end_object(json);
}

static void write_programs(struct json_writer *json)
{
    json_write_key(json, "ckptbench");
    json_write_begin_object(json);
    write_known(json, "version", version_text());
    write_known(json, "commit", version_commit());
    json_write_end_object(json);
    write_tool(json, "mpi", (const char *const[3]){"mpirun", "--version", NULL});
#ifdef HAVE_HWLOC
    char version[32];
    unsigned number = hwloc_get_api_version();
    snprintf(version, sizeof version, "%u.%u.%u", number >> 16, number >> 8 & 255, number & 255);
    write_known(json, "hwloc", version);
#else
    write_known(json, "hwloc", "");
#endif
}

static int is_shown(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Ports of physical devices: virtual ports come and go with containers. */
static void write_ports(struct json_writer *json)
{
    struct dirent **entries;
    int count = scandir("/sys/class/net", &entries, is_shown, alphasort);
    json_write_key(json, "ports");
    json_write_begin_object(json);
    for (int i = 0; i < count; i++) {
        char path[PATH_MAX], text[64];
        snprintf(path, sizeof path, "/sys/class/net/%s/device", entries[i]->d_name);
        if (access(path, F_OK) == 0) {
            snprintf(path, sizeof path, "/sys/class/net/%s/speed", entries[i]->d_name);
            read_line(path, text, sizeof text);
            json_write_key(json, entries[i]->d_name);
            json_write_begin_object(json);
            if (*text && *text != '-')
                json_member_u64(json, "speed_mbit_per_s", strtoull(text, NULL, 10));
            else
                json_member_text(json, "speed_mbit_per_s", NULL);
            json_write_end_object(json);
        }
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    json_write_end_object(json);
}

static int write_fingerprint(const char *attempt_path, const char *store, struct cb_err *err)
{
    char path[PATH_MAX];
    if (path_format(path, sizeof path, err, "%s/fingerprint.json", attempt_path))
        return CB_ERR_USAGE;
    struct buf text;
    struct json_writer json;
    buf_init(&text, TEXT_MAX_BYTES);
    json_writer_init(&json, &text, 2);
    json_write_begin_object(&json);
    write_programs(&json);
    write_system(&json);
    write_cpu(&json);
    write_memory(&json);
    write_store(&json, store);
    write_ports(&json);
    json_write_end_object(&json);
    buf_append_char(&text, '\n');
    int rc = buf_write_file(&text, path, 0666, err);
    buf_release(&text);
    return rc;
}

struct probe {
    pthread_t thread;
    atomic_bool done;
    char *attempt_path, *store;
    int rc;
    struct cb_err err;
};

static void *run_probe(void *context)
{
    struct probe *self = context;
    self->rc = write_fingerprint(self->attempt_path, self->store, &self->err);
    atomic_store(&self->done, true);
    return NULL;
}

static void free_probe(struct probe *self)
{
    free(self->attempt_path);
    free(self->store);
    free(self);
}

int probe_start(const char *attempt_path, const char *store, struct probe **probe, struct cb_err *err)
{
    struct probe *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for the probe");
    self->attempt_path = strdup(attempt_path);
    self->store = strdup(store);
    int failure = self->attempt_path && self->store ? pthread_create(&self->thread, NULL, run_probe, self) : ENOMEM;
    if (failure) {
        free_probe(self);
        return cb_fail_errno(err, failure, "starting the probe");
    }
    *probe = self;
    return 0;
}

bool probe_is_done(struct probe *probe)
{
    return !probe || atomic_load(&probe->done);
}

int probe_finish(struct probe *probe, unsigned long long deadline_ns, struct cb_err *err)
{
    if (!probe)
        return 0;
    while (!atomic_load(&probe->done)) {
        if (clock_monotonic_ns() >= deadline_ns) {
            pthread_detach(probe->thread);
            return cb_fail(err, CB_ERR_TIMEOUT, "looking at this machine takes too long: does a file system hang?");
        }
        clock_sleep_ns(POLL_NS);
    }
    pthread_join(probe->thread, NULL);
    int rc = probe->rc;
    if (rc && err)
        *err = probe->err;
    free_probe(probe);
    return rc;
}
