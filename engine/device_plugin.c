/* Loads and checks the CUDA plugin, and opens the device of a rank. */
#include "engine/device_plugin.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/units.h"
#include "engine/affinity.h"
#include "engine/gpu_place.h"
#include "engine/near_adapter.h"
#include "run/cuda_plugin.h"

int device_plugin_check(const struct device_plugin_ops *ops, const char *path, struct cb_err *err)
{
    if (ops->version != DEVICE_PLUGIN_VERSION || ops->device_version != DEVICE_VERSION)
        return cb_fail(err, CB_ERR_UNSUPPORTED,
                       "%s is of another version (%" PRIu32 ".%" PRIu32 ", this program needs %d.%d): build both from "
                       "the same source",
                       path, ops->version, ops->device_version, DEVICE_PLUGIN_VERSION, DEVICE_VERSION);
    if (!ops->built || !ops->count || !ops->identify || !ops->locate || !ops->open || !ops->describe || !ops->measure ||
        !ops->open_math || !ops->open_gemm || !ops->queue_gemm || !ops->check_gemm || !ops->close_gemm ||
        !ops->start_activity || !ops->stop_activity || !ops->comm || !ops->comm->make_id || !ops->comm->join ||
        !ops->comm->queue || !ops->comm->copy || !ops->comm->record || !ops->comm->mark || !ops->comm->hold_device ||
        !ops->comm->poll || !ops->comm->wait || !ops->comm->abort || !ops->comm->close)
        return cb_fail(err, CB_ERR_UNSUPPORTED, "%s lacks functions: build it anew", path);
    return 0;
}

int device_plugin_open(struct device_plugin *self, struct cb_err *err)
{
    *self = (struct device_plugin){0};
    int rc = cuda_plugin_find(self->path, sizeof self->path, err);
    if (rc)
        return rc;
    self->library = dlopen(self->path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!self->library)
        return cb_fail(
            err, CB_ERR_UNSUPPORTED,
            "the CUDA plugin cannot be loaded (%s): it needs the libraries of NCCL and cuBLAS (of the system, "
            "or pip install nvidia-nccl-cu13 nvidia-cublas, and LD_LIBRARY_PATH)",
            dlerror());
    self->ops = dlsym(self->library, DEVICE_PLUGIN_SYMBOL);
    rc = self->ops ? device_plugin_check(self->ops, self->path, err)
                   : cb_fail(err, CB_ERR_UNSUPPORTED, "%s is no plugin of ckptbench: it has no %s", self->path,
                             DEVICE_PLUGIN_SYMBOL);
    if (rc)
        device_plugin_close(self);
    return rc;
}

void device_plugin_close(struct device_plugin *self)
{
    if (self->library)
        dlclose(self->library);
    *self = (struct device_plugin){0};
}

/* The index of a rank's device among the visible ones. */
static int choose_device(const struct device_plugin *self, uint32_t local_rank, uint32_t *index, struct cb_err *err)
{
    uint32_t count = 0;
    int rc = self->ops->count(&count, err);
    if (rc)
        return rc;
    if (count == 0) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        return cb_fail(err, CB_ERR_UNSUPPORTED, "no GPU that this process may use (CUDA_VISIBLE_DEVICES%s%s)",
                       visible ? "=" : " is not set", visible ? visible : "");
    }
    *index = local_rank % count;
    return 0;
}

int device_plugin_identify(const struct device_plugin *self, uint32_t local_rank, unsigned char id[DEVICE_ID_BYTES],
                           struct cb_err *err)
{
    uint32_t index = 0;
    int rc = choose_device(self, local_rank, &index, err);
    return rc ? rc : self->ops->identify(index, id, err);
}

/* The rank's number on its machine, by the launcher that started it. */
static uint32_t launched_local_rank(void)
{
    static const char *const variables[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID",
                                            "SLURM_LOCALID"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *text = getenv(variables[i]);
        if (text && *text)
            return (uint32_t)strtoul(text, NULL, 10);
    }
    return 0;
}

void device_plugin_set_adapters(const char *sysfs, char *text, size_t room)
{
    struct device_plugin plugin;
    struct cb_err unused; /* who needs the device later says what is wrong with it */
    char pci[DEVICE_PCI_BYTES];
    uint32_t index = 0, local_rank = launched_local_rank();
    *text = '\0';
    if (device_plugin_open(&plugin, &unused))
        return;
    if (choose_device(&plugin, local_rank, &index, &unused) == 0 && plugin.ops->locate(index, pci, &unused) == 0)
        near_adapter_set(sysfs, pci, local_rank, text, room);
    device_plugin_close(&plugin);
}

int device_plugin_open_device(const struct device_plugin *self, uint32_t local_rank, struct device **device,
                              struct device_info *info, struct cb_err *err)
{
    uint32_t index = 0;
    struct device *opened = NULL;
    int rc = choose_device(self, local_rank, &index, err);
    if (!rc)
        rc = self->ops->open(index, &opened, err);
    if (rc)
        return rc;
    if (opened->ops->version != DEVICE_VERSION || !opened->ops->follow || !opened->ops->set || !opened->ops->fill ||
        !opened->ops->check || !opened->ops->begin_marks || !opened->ops->mark || !opened->ops->mark_ns)
        rc = cb_fail(err, CB_ERR_UNSUPPORTED, "%s opened a device that lacks functions: build it anew", self->path);
    if (!rc)
        rc = self->ops->describe(opened, info, err);
    if (rc)
        device_close(opened);
    else
        *device = opened;
    return rc;
}

int device_plugin_open_math(const struct device_plugin *self, struct device *device, struct device_math **math,
                            struct cb_err *err)
{
    struct device_math *opened = NULL;
    int rc = self->ops->open_math(device, &opened, err);
    if (rc)
        return rc;
    if (device_math_is_whole(opened->ops)) {
        *math = opened;
        return 0;
    }
    if (opened->ops->close)
        opened->ops->close(opened);
    return cb_fail(err, CB_ERR_UNSUPPORTED, "%s lacks what training needs, or has it of another version: build it anew",
                   self->path);
}

static int list_device(const struct device_plugin *self, uint32_t index, struct buf *out, struct cb_err *err)
{
    struct device *device = NULL;
    struct device_info info;
    char all[32], left[32];
    int rc = device_plugin_open_device(self, index, &device, &info, err);
    if (rc)
        return rc;
    buf_printf(out, "%s, %s, %s of %s free, compute capability %" PRIu32 ".%" PRIu32 ", %s\n", info.name, info.pci,
               units_format_bytes((double)info.free_bytes, left), units_format_bytes((double)info.memory_bytes, all),
               info.capability_major, info.capability_minor, info.versions);
    device_close(device);
    return 0;
}

int device_plugin_list(struct buf *out, struct cb_err *err)
{
    struct device_plugin plugin;
    uint32_t count = 0;
    int rc = device_plugin_open(&plugin, err);
    if (!rc)
        rc = plugin.ops->count(&count, err);
    if (!rc && count == 0)
        rc = cb_fail(err, CB_ERR_UNSUPPORTED, "no GPU that this process may use (%s)", plugin.ops->built);
    for (uint32_t i = 0; i < count && !rc; i++)
        rc = list_device(&plugin, i, out, err);
    device_plugin_close(&plugin);
    return rc;
}

int device_plugin_open_own(struct device_plugin *self, struct comm *comm, struct status_page *page,
                           struct device **device, struct device_info *info, struct cb_err *err)
{
    int rc = device_plugin_open(self, err);
    if (!rc)
        rc = device_plugin_open_device(self, comm_local_rank(comm), device, info, err);
    if (rc)
        return cb_context(err, "device=cuda");
    device_info_note(info, page);
    return 0;
}

void device_info_note(const struct device_info *info, struct status_page *page)
{
    char text[512];
    snprintf(text, sizeof text, "%s, %s (number %" PRIu32 "); %s", info->name, info->pci, info->index, info->versions);
    status_page_add_fact(page, "device", text);
}

/* *near: whether all ranks of this machine know the cores near their devices; if not, all are bound to shares. */
static int find_place(struct comm *comm, const char *sysfs, const struct device_info *info, struct status_page *page,
                      uint64_t deadline_ns, struct gpu_place *place, bool *near, struct cb_err *err)
{
    struct agreement unknown;
    cpu_set_t cores;
    struct cb_err why;
    char where[256];
    bool is_known = gpu_place_read(sysfs, info->pci, place, &why) == 0;
    if (is_known)
        gpu_place_describe(place, where, sizeof where);
    status_page_add_fact(page, "device.place", is_known ? where : why.message);
    is_known = is_known && place->cores[0] && gpu_place_parse_cores(place->cores, &cores, &why) == 0;
    int rc = comm_agree_local(comm, 0, is_known ? 0 : 1, deadline_ns, &unknown, err);
    *near = !rc && unknown.max == 0;
    return rc;
}

int device_place_apply(struct comm *comm, const char *sysfs, const struct device_info *info, bool pin,
                       struct status_page *page, uint64_t deadline_ns, struct cb_err *err)
{
    char text[1024] = "";
    struct gpu_place place;
    bool near = false;
    int rc = info ? find_place(comm, sysfs, info, page, deadline_ns, &place, &near, err) : 0;
    if (!rc)
        rc = affinity_apply(comm, pin, near ? place.cores : NULL, near ? info->pci : NULL, deadline_ns, text,
                            sizeof text, err);
    if (!rc)
        status_page_add_fact(page, "affinity", text);
    return rc;
}
