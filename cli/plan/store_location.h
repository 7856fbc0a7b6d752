/* The location of a store: file system, device, free space, and the requirements of O_DIRECT. */
#ifndef CLI_PLAN_STORE_LOCATION_H
#define CLI_PLAN_STORE_LOCATION_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "run/experiment.h"
#include "store/kind.h"

struct store_location {
    bool is_path;                                              /* false for null: and s3: */
    char path[4096];                                           /* the folder of a posix store, also inside fault: */
    char existing[4096];                                       /* the folder, or its nearest existing parent */
    char filesystem[64];                                       /* "ext4" */
    char device[256];                                          /* "/dev/nvme0n1p1", "server:/export" */
    uint64_t free_bytes;                                       /* available to the current user */
    uint32_t direct_offset_alignment, direct_memory_alignment; /* 0: no O_DIRECT, or not reported by the kernel */
    bool direct_works;                                         /* a test file could be opened with O_DIRECT */
    bool writable;
};

/* `store` is the value of the key. Probes with an unnamed temporary file that leaves nothing behind. */
int store_location_find(const char *store, struct store_location *place, struct cb_err *err) CB_MUST_CHECK;

/* Bytes available to the current user at `path`, which need not exist yet. CB_ERR_UNSUPPORTED if the file system
 * does not count them. */
int store_location_free_bytes(const char *path, uint64_t *bytes) CB_MUST_CHECK;
/* Bytes available to a run in a store of folders. Ranks fill several mounts evenly, so it is the fullest one's times
 * their number. False if they cannot be counted, or the paths are relative. */
bool store_location_room(const struct store_uri *uri, uint64_t *bytes, char fullest[4096]);

/* Makes the path in the store key absolute, also inside fault:SPEC:STORE, because ranks have another working folder.
 * Does the same for the model if it is a path. */
int store_location_freeze(struct experiment *experiment, struct cb_err *err) CB_MUST_CHECK;

/* Checks a frozen store before a rank starts. Rejects unknown faults, a path that is no folder, is not writable
 * (CB_ERR_SYSTEM) or has no parent (CB_ERR_NOT_FOUND: an unmounted file system), and a load from null: or from a
 * missing folder. */
int store_location_check(const struct experiment *experiment, struct cb_err *err) CB_MUST_CHECK;

/* A path for people: "~/x" if it lies under HOME. `text` holds `bytes` bytes and is returned. */
char *store_location_shorten(const char *path, char *text, size_t bytes);

#endif
