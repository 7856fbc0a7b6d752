/* The folder in the store for a run's checkpoints: claiming it, naming checkpoints, removing them.
 *
 * Runs mark a store with FOLDER_MARKER. In it each run has its own folder (the suffix) with a claim (claim.h). Nothing
 * outside of such a folder is ever removed. For one rank; the caller informs the others. */
#ifndef SETUP_FOLDER_FOLDER_H
#define SETUP_FOLDER_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "run/experiment.h"
#include "setup/folder/lease.h"
#include "store/store.h"

#define FOLDER_MARKER ".ckptbench-store"
#define FOLDER_NAME_BYTES 1024

struct folder {
    struct lease *lease;            /* of rank 0, from folder_prepare; NULL on the others; owned */
    struct store *plain;            /* the same place without faults, buffered; owned */
    const char *path;               /* the store without injected faults; NULL: it keeps no data */
    char suffix[FOLDER_NAME_BYTES]; /* of the run, or of the checkpoint that ops=load names */
    char run[FOLDER_NAME_BYTES];
    bool reads_only; /* ops=load: no checkpoint is claimed or removed */
    bool ours;       /* ops=load: the store has our marker, so that a baseline may be written */
    bool overwrite;  /* folder=overwrite or rotate */
    uint32_t first;  /* folder=rotate: the slot of iteration 0, from folder_choose_slot */
};

/* Checks or makes the store's folder (its parent must exist) and claims the run's folder, with a lease that lasts until
 * folder_leave or folder_release. Fails if the store has less than `needed_bytes` free, and reports both numbers. For
 * rank 0. */
int folder_prepare(struct folder *self, const struct experiment *experiment, const struct lease_owner *owner,
                   uint64_t needed_bytes, struct cb_err *err) CB_MUST_CHECK;

/* Opens the prepared folder. For every rank. All fields of `self` are zero except those that folder_prepare set. */
int folder_open(struct folder *self, const struct experiment *experiment, const char *run,
                struct cb_err *err) CB_MUST_CHECK;
void folder_release(struct folder *self);

/* folder=rotate: a run begins with the slot without a complete checkpoint; if both are complete, with the older one, so
 * that the newest is only removed after the next save. For rank 0, before anything is written; rank 0 sends `first` to
 * the other ranks. */
int folder_choose_slot(struct folder *self, struct cb_err *err) CB_MUST_CHECK;

/* The folder into which iteration `iteration` saves. */
void folder_checkpoint_name(const struct folder *self, const struct experiment *experiment, uint32_t iteration,
                            char name[FOLDER_NAME_BYTES]);

/* ops=load: the checkpoint that the suffix names: that folder itself, or the newest checkpoint in it. */
int folder_find_checkpoint(const struct folder *self, char name[FOLDER_NAME_BYTES], struct cb_err *err) CB_MUST_CHECK;

/* A file that is in the folder while the run uses it: its claim or, with ops=load, one of the checkpoint; "" if there is
 * none. */
int folder_find_file(const struct folder *self, char name[PATH_MAX], struct cb_err *err) CB_MUST_CHECK;

/* Why a simultaneous take-over by another run might go unnoticed; NULL if it would be noticed. */
const char *folder_weakness(const struct folder *self);

/* Fails if another run has taken the folder over: lease_check of the struct folder `self`. Thread-safe. */
int folder_check_owner(void *self, struct cb_err *err) CB_MUST_CHECK;

/* Removes a checkpoint of this run: its commit marker first, then the rest. Succeeds if there is none. */
int folder_remove(const struct folder *self, const char *name, struct cb_err *err) CB_MUST_CHECK;

/* Removes the checkpoints of earlier attempts from this run's folder, and no other files. */
int folder_clear(const struct folder *self, struct cb_err *err) CB_MUST_CHECK;

/* The same, except `checkpoint` and its sibling of folder=rotate: for checkpoints of an earlier run with another
 * folder= setting. */
int folder_clear_others(const struct folder *self, const char *checkpoint, struct cb_err *err) CB_MUST_CHECK;

/* Runs store.record, if it is set, while the last checkpoint is in the folder. For rank 0. */
int folder_record(const struct folder *self, const struct experiment *experiment, const char *run_folder,
                  uint32_t attempt, struct cb_err *err) CB_MUST_CHECK;

/* A folder for raw files, used only by this run; folder_remove removes it. */
void folder_scratch_name(const struct folder *self, char name[FOLDER_NAME_BYTES]);

/* The run has ended well: removes its own folder if it contains no kept checkpoint, else releases the lease. */
int folder_leave(const struct folder *self, struct cb_err *err) CB_MUST_CHECK;

#endif
