/* A power cut: records what is certainly on the disk, and at the N-th change puts a folder into a state that a disk may
 * have after a power cut. Private to the fault store; only for folders of a file system.
 *
 * PATH.powercut, beside the folder PATH, is shared by all processes that cut the power of PATH while they have it open.
 * It contains what each synced folder contained, and what each file contained when it was last synced. At the cut the
 * folder is replaced by another, made from both: entries and sectors that were not synced are kept or lost, at
 * random. */
#ifndef STORE_FAULT_POWER_CUT_H
#define STORE_FAULT_POWER_CUT_H

#include <stdint.h>

#include "core/err.h"
#include "store/backend.h"

struct power_cut;

/* The first process that opens the folder treats everything in it as durable. */
int power_cut_open(const char *path, uint64_t at, uint64_t seed, struct power_cut **cut,
                   struct cb_err *err) CB_MUST_CHECK;
void power_cut_close(struct power_cut *self);

/* Counts a change that begins. The `at`-th change of all processes cuts the power: it kills this process, and each
 * later change kills the process that makes it. */
void power_cut_count(struct power_cut *self);

/* Records the file or folder, which is durable now; for the store at `path`. Thread-safe. */
struct disk_watch *power_cut_watch(struct power_cut *self);

#endif
