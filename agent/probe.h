/* What this machine is: fingerprint.json, and the block device behind the store.
 *
 * Holds only what stays the same from run to run on an unchanged machine, since runs are compared
 * under equal fingerprints. What a machine does not tell is null. */
#ifndef AGENT_PROBE_H
#define AGENT_PROBE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"

/* Path of the store on this machine: inside of "fault:SPEC:", the nearest folder that exists. False
 * where the store has none (null:, URLs). `path` holds PATH_MAX bytes. */
bool probe_store_path(const char *store, char *path);

/* Name in /sys/class/block of the whole disk that holds `path`; "" where it is not on one. */
void probe_disk(const char *path, char *name, size_t name_bytes);

/* A mount as /proc/self/mountinfo has it: the last one whose place holds `path`. */
struct mount {
    char place[512], type[64], source[512], options[1024];
};
bool probe_parse_mount(const char *mountinfo, const char *path, struct mount *mount);

int probe_write(const char *attempt_path, const char *store, struct cb_err *err) CB_MUST_CHECK;

/* The same in a thread of its own, so that ranks start meanwhile. */
struct probe;
int probe_start(const char *attempt_path, const char *store, struct probe **probe, struct cb_err *err) CB_MUST_CHECK;
bool probe_is_done(struct probe *probe); /* true for NULL */
/* Waits until the deadline at most: a file system that hangs must not keep an attempt from its seal.
 * The thread is left behind then. Frees the probe otherwise. */
int probe_finish(struct probe *probe, unsigned long long deadline_ns, struct cb_err *err) CB_MUST_CHECK;

#endif
