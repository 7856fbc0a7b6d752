/* Files to and from GPU memory with cuFile (GPUDirect Storage), store/device_files.h. libcufile is loaded at run time: no
 * program and no plugin links it.
 *
 * cuFile's compatibility mode copies through host memory without saying so. It is turned off, so that what cannot be direct
 * fails. The declarations are those of cuFile's public interface that are used here. */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda.h"

#define FORCE_VARIABLE "CUFILE_FORCE_COMPAT_MODE"
#define FIRST_ERROR 5000 /* of cuFile's own codes */
#define HANDLE_IS_FD 1   /* CU_FILE_HANDLE_TYPE_OPAQUE_FD */
#define ALLOWS_COMPAT 2u /* 1 << CU_FILE_ALLOW_COMPAT_MODE, in control_flags */
/* CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, CUFILE_PARAM_FORCE_COMPAT_MODE */
#define ALLOW_PARAMETER 1
#define FORCE_PARAMETER 2
#define MOST_REGIONS 8

struct cufile_error {
    int code;      /* 0, or from 5000 */
    int cuda_code; /* of the CUDA driver */
};

struct cufile_descriptor {
    int type;
    union {
        int fd;
        void *handle;
    } file;
    const void *operations; /* of file systems in user space */
};

struct cufile_properties {
    unsigned major, minor; /* of nvidia-fs; 0 if it is not loaded */
    size_t poll_bytes, most_direct_kib;
    unsigned status_flags, control_flags;
    unsigned features, most_cache_kib, buffer_cache_kib, most_pinned_kib, most_batch, batch_timeout_ms;
    unsigned room[32]; /* later versions may fill in more */
};

struct cufile_calls {
    struct cufile_error (*driver_open)(void);
    struct cufile_error (*driver_close)(void);
    struct cufile_error (*get_properties)(struct cufile_properties *properties);
    struct cufile_error (*handle_register)(void **handle, struct cufile_descriptor *descriptor);
    void (*handle_deregister)(void *handle);
    struct cufile_error (*buffer_register)(const void *memory, size_t bytes, int flags);
    struct cufile_error (*buffer_deregister)(const void *memory);
    ssize_t (*read)(void *handle, void *base, size_t bytes, off_t file_offset, off_t base_offset);
    ssize_t (*write)(void *handle, const void *base, size_t bytes, off_t file_offset, off_t base_offset);
    struct cufile_error (*set_bool)(int parameter, bool value); /* NULL in older releases */
};

struct cufile {
    struct device_files base;
    const struct cuda_device *device;
    struct cufile_calls calls;
    struct region_of_memory {
        char *memory;
        uint64_t bytes;
    } regions[MOST_REGIONS]; /* that are registered */
    size_t region_count;
    unsigned major, minor;
    char unregistered[128]; /* why some memory is not registered */
    char description[256];
};

static struct cufile *cufile_of(struct device_files *files)
{
    return (struct cufile *)files;
}

static const struct {
    int code;
    const char *name;
} errors[] = {
    {5001, "the nvidia-fs driver is not initialised"},
    {5004, "nvidia-fs is of another version"},
    {5007, "this machine is not supported"},
    {5008, "the file system does not support it"},
    {5009, "the GPU does not support it"},
    {5010, "nvidia-fs failed"},
    {5011, "the CUDA driver failed"},
    {5013, "the memory is not the GPU's"},
    {5014, "the memory is not all the GPU's"},
    {5016, "more than the GPU memory that may be pinned"},
    {5018, "not a regular file"},
    {5019, "the file is open in a wrong way"},
    {5020, "the file is not open with O_DIRECT"},
    {5022, "a wrong value"},
    {5025, "not permitted"},
    {5029, "nvidia-fs does not know the GPU"},
    {5030, "an internal error"},
    {5033, "nvidia-fs could not be set up"},
    {5034, "it is disabled for this file"},
    {5036, "the GPU's memory could not be pinned"},
    {5044, "a transfer failed"},
    {5049, "it needs its compatibility mode, which is off"},
};

static const char *name_of(int code)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code)
            return errors[i].name;
    return "an error of cuFile";
}

static int check(struct cufile_error error, struct cb_err *err, const char *doing)
{
    if (error.code == 0)
        return 0;
    if (error.cuda_code)
        return cb_fail(err, CB_ERR_UNSUPPORTED, "cuFile, %s: %s (%d, CUDA driver %d)", doing, name_of(error.code),
                       error.code, error.cuda_code);
    return cb_fail(err, CB_ERR_UNSUPPORTED, "cuFile, %s: %s (%d)", doing, name_of(error.code), error.code);
}

/* --- files --- */

static const char *files_describe(struct device_files *files)
{
    struct cufile *self = cufile_of(files);
    char driver[64] = "without nvidia-fs", memory[192] = "";
    if (self->major > 0)
        snprintf(driver, sizeof driver, "nvidia-fs %u.%u", self->major, self->minor);
    if (*self->unregistered)
        snprintf(memory, sizeof memory, ", memory not registered: %s", self->unregistered);
    else if (self->region_count > 0)
        snprintf(memory, sizeof memory, ", registered memory");
    snprintf(self->description, sizeof self->description, "%s%s, no compatibility mode", driver, memory);
    return self->description;
}

static int files_open(struct device_files *files, int fd, void **file, struct cb_err *err)
{
    struct cufile *self = cufile_of(files);
    struct cufile_descriptor descriptor = {.type = HANDLE_IS_FD, .file.fd = fd};
    int rc = cuda_use(self->device, err);
    return rc ? rc : check(self->calls.handle_register(file, &descriptor), err, "registering a file");
}

static void files_close(struct device_files *files, void *file)
{
    cufile_of(files)->calls.handle_deregister(file);
}

/* cuFile knows registered memory by its first byte. */
static char *base_of(const struct cufile *self, const void *memory)
{
    char *at = (char *)(uintptr_t)memory;
    for (size_t i = 0; i < self->region_count; i++)
        if (at >= self->regions[i].memory && at < self->regions[i].memory + self->regions[i].bytes)
            return self->regions[i].memory;
    return at;
}

static int64_t result_of(ssize_t moved)
{
    if (moved == -1)
        return errno > 0 ? -errno : -EIO;
    return moved < 0 && moved > -FIRST_ERROR ? -EIO : moved;
}

/* Any thread: the device must be current in it. */
static int use_in_thread(const struct cufile *self)
{
    struct cb_err unused;
    return cuda_use(self->device, &unused) ? -ENODEV : 0;
}

static int64_t files_read(struct device_files *files, void *file, void *memory, uint64_t bytes, uint64_t offset)
{
    const struct cufile *self = cufile_of(files);
    char *base = base_of(self, memory);
    int rc = use_in_thread(self);
    errno = 0;
    return rc ? rc : result_of(self->calls.read(file, base, bytes, (off_t)offset, (char *)memory - base));
}

static int64_t files_write(struct device_files *files, void *file, const void *memory, uint64_t bytes, uint64_t offset)
{
    const struct cufile *self = cufile_of(files);
    const char *base = base_of(self, memory);
    int rc = use_in_thread(self);
    errno = 0;
    return rc ? rc : result_of(self->calls.write(file, base, bytes, (off_t)offset, (const char *)memory - base));
}

static const char *files_explain(int64_t result)
{
    return name_of((int)-result);
}

static void files_add_memory(struct device_files *files, void *memory, uint64_t bytes)
{
    struct cufile *self = cufile_of(files);
    struct cb_err why;
    int rc = cuda_use(self->device, &why);
    if (!rc && self->region_count == MOST_REGIONS)
        rc = cb_fail(&why, CB_ERR_UNSUPPORTED, "more than %d regions", MOST_REGIONS);
    if (!rc)
        rc = check(self->calls.buffer_register(memory, bytes, 0), &why, "registering memory");
    if (rc)
        snprintf(self->unregistered, sizeof self->unregistered, "%.127s", why.message);
    else
        self->regions[self->region_count++] = (struct region_of_memory){memory, bytes};
}

static void files_end(struct device_files *files)
{
    struct cufile *self = cufile_of(files);
    struct cb_err unused;
    (void)!cuda_use(self->device, &unused);
    for (size_t i = 0; i < self->region_count; i++)
        (void)self->calls.buffer_deregister(self->regions[i].memory);
    (void)self->calls.driver_close();
    free(self);
}

static const struct device_files_ops cufile_ops = {
    .describe = files_describe,
    .open = files_open,
    .close = files_close,
    .read = files_read,
    .write = files_write,
    .explain = files_explain,
    .add_memory = files_add_memory,
    .end = files_end,
};

/* --- the library --- */

static int find_call(void *library, const char *name, void *call, struct cb_err *err)
{
    void *found = dlsym(library, name);
    if (!found)
        return cb_fail(err, CB_ERR_UNSUPPORTED, "libcufile has no %s: it is too old", name);
    memcpy(call, &found, sizeof found);
    return 0;
}

static int load(struct cufile_calls *calls, struct cb_err *err)
{
    const struct {
        const char *name;
        void *call;
    } wanted[] = {
        {"cuFileDriverOpen", &calls->driver_open},
        {"cuFileDriverClose", &calls->driver_close},
        {"cuFileDriverGetProperties", &calls->get_properties},
        {"cuFileHandleRegister", &calls->handle_register},
        {"cuFileHandleDeregister", &calls->handle_deregister},
        {"cuFileBufRegister", &calls->buffer_register},
        {"cuFileBufDeregister", &calls->buffer_deregister},
        {"cuFileRead", &calls->read},
        {"cuFileWrite", &calls->write},
    };
    void *library = dlopen("libcufile.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library)
        return cb_fail(err, CB_ERR_UNSUPPORTED, "libcufile cannot be loaded: %s", dlerror());
    struct cb_err unused;
    int rc = 0;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && !rc; i++)
        rc = find_call(library, wanted[i].name, wanted[i].call, err);
    (void)!find_call(library, "cuFileSetParameterBool", &calls->set_bool, &unused);
    (void)!find_call(library, "cuFileDriverClose_v2", &calls->driver_close, &unused); /* what its header means by it */
    return rc;
}

/* cuFile may use its compatibility mode unless a call or its configuration file forbids that. */
static int forbid_compatibility(const struct cufile_calls *calls, struct cb_err *err)
{
    const char *forced = getenv(FORCE_VARIABLE);
    if (forced && strcmp(forced, "false") != 0 && strcmp(forced, "0") != 0)
        return cb_fail(err, CB_ERR_UNSUPPORTED, FORCE_VARIABLE "=%.16s makes cuFile copy through host memory: unset it",
                       forced);
    if (!calls->set_bool)
        return 0;
    int rc = check(calls->set_bool(ALLOW_PARAMETER, false), err, "turning its compatibility mode off");
    return rc ? rc : check(calls->set_bool(FORCE_PARAMETER, false), err, "turning its compatibility mode off");
}

static int start(struct cufile *self, struct cb_err *err)
{
    struct cufile_properties properties = {0};
    int rc = check(self->calls.driver_open(), err, "opening its driver");
    if (rc)
        return rc;
    rc = check(self->calls.get_properties(&properties), err, "asking for its properties");
    if (!rc && properties.control_flags & ALLOWS_COMPAT)
        rc = cb_fail(err, CB_ERR_UNSUPPORTED,
                     "cuFile allows its compatibility mode, which copies through host memory: set allow_compat_mode to "
                     "false in cufile.json");
    if (rc)
        (void)self->calls.driver_close();
    self->major = properties.major;
    self->minor = properties.minor;
    return rc;
}

int cuda_open_files(struct device *device, struct device_files **files, struct cb_err *err)
{
    struct cufile *self = calloc(1, sizeof *self);
    if (!self)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for cuFile");
    self->base.ops = &cufile_ops;
    self->device = (const struct cuda_device *)device;
    int rc = cuda_use(self->device, err);
    if (!rc)
        rc = load(&self->calls, err);
    if (!rc)
        rc = forbid_compatibility(&self->calls, err);
    if (!rc)
        rc = start(self, err);
    if (rc)
        free(self);
    else
        *files = &self->base;
    return rc;
}
