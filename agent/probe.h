/* Fingerprint of this machine: fingerprint.json, and the block device of the store.
 *
 * Contains only what stays the same between runs on an unchanged machine, since runs are compared under equal
 * fingerprints. Unknown values are null. */
#ifndef AGENT_PROBE_H
#define AGENT_PROBE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"

/* Path of the store on this machine: inside "fault:SPEC:", the nearest existing folder. False if the store has none
 * (null:, URLs). `path` holds PATH_MAX bytes. */
bool probe_store_path(const char *store, char *path);

/* Name in /sys/class/block of the disk that holds `path`; "" if there is none. */
void probe_disk(const char *path, char *name, size_t name_bytes);

/* The mount in /proc/self/mountinfo that holds `path`: the last with the longest mount point. */
struct mount {
    char place[512], type[64], source[512], options[1024];
};
bool probe_parse_mount(const char *mountinfo, const char *path, struct mount *mount);

/* Writes fingerprint.json in a thread of its own, so that ranks start meanwhile. */
struct probe;
int probe_start(const char *attempt_path, const char *store, struct probe **probe, struct cb_err *err) CB_MUST_CHECK;
bool probe_is_done(struct probe *probe); /* true for NULL */
/* Waits until the deadline at most: a file system that hangs must not delay the seal of an attempt. At the deadline
 * the thread is left running; otherwise the probe is freed. */
int probe_finish(struct probe *probe, unsigned long long deadline_ns, struct cb_err *err) CB_MUST_CHECK;

#endif
