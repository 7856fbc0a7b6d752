/* Moves bytes between files and the memory of a device without host memory in between: one vtable, implemented by the
 * device's plugin (cuda/cufile.c).
 *
 * Threads may read and write at once; everything else is for one thread, while nothing is being read or written. */
#ifndef STORE_DEVICE_FILES_H
#define STORE_DEVICE_FILES_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

#define DEVICE_FILES_LEAST_ERRNO (-4095) /* results below are codes of the library */

struct device_files; /* an implementation's struct begins with it */

struct device_files_ops {
    /* The library's name, version, and which memory it has been given, in one line; valid until the next call. */
    const char *(*describe)(struct device_files *self);
    /* `fd` is open with O_DIRECT, and stays open until `close`. Fails if its file system does not support this. */
    int (*open)(struct device_files *self, int fd, void **file, struct cb_err *err);
    void (*close)(struct device_files *self, void *file);
    /* These block. They return the bytes moved, which may be fewer, a negative errno, or a code that `explain` names.
     * Memory, offset and bytes are multiples of 4 KiB. */
    int64_t (*read)(struct device_files *self, void *file, void *memory, uint64_t bytes, uint64_t offset);
    int64_t (*write)(struct device_files *self, void *file, const void *memory, uint64_t bytes, uint64_t offset);
    const char *(*explain)(int64_t result);
    /* Prepares memory that will be used often, until `end`; `describe` reports a failure. */
    void (*add_memory)(struct device_files *self, void *memory, uint64_t bytes);
    /* Call before memory that was added is freed. */
    void (*end)(struct device_files *self);
};

struct device_files {
    const struct device_files_ops *ops;
};

#endif
