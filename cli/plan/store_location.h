/* Where a store lies: file system, device, free space, and what O_DIRECT asks for there. */
#ifndef CLI_PLAN_STORE_LOCATION_H
#define CLI_PLAN_STORE_LOCATION_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "run/experiment.h"

struct store_location {
    bool is_path;                                              /* false for null: and s3: */
    char path[4096];                                           /* the folder of a posix store, also inside fault: */
    char existing[4096];                                       /* itself, or the nearest folder above that exists */
    char filesystem[64];                                       /* "ext4" */
    char device[256];                                          /* "/dev/nvme0n1p1", "server:/export" */
    uint64_t free_bytes;                                       /* for the user who asks */
    uint32_t direct_offset_alignment, direct_memory_alignment; /* 0: no O_DIRECT, or the kernel does not tell */
    bool direct_works;                                         /* a probe opened a file with O_DIRECT there */
    bool writable;
};

/* `store` as the key has it. Probes with an unnamed temporary file; nothing is left behind. */
int store_location_find(const char *store, struct store_location *place, struct cb_err *err) CB_MUST_CHECK;

/* Space for the user who asks where `path` lies, or would; UNSUPPORTED where the file system counts none. */
int store_location_free_bytes(const char *path, uint64_t *bytes) CB_MUST_CHECK;

/* Makes the path in the store key absolute, also inside fault:SPEC:STORE: the ranks have another
 * working folder. A path model is made absolute, too. */
int store_location_freeze(struct experiment *experiment, struct cb_err *err) CB_MUST_CHECK;

/* What can be told of a frozen store before a rank starts: faults that do not exist, a path that is no folder, may not
 * be written to (SYSTEM), or whose parent is missing (NOT_FOUND: an unmounted file system), a load from null: or from a
 * folder that is not there. */
int store_location_check(const struct experiment *experiment, struct cb_err *err) CB_MUST_CHECK;

/* A path as people write it: "~/x" for what lies under HOME. `text` holds `bytes`; returns it. */
char *store_location_shorten(const char *path, char *text, size_t bytes);

#endif
