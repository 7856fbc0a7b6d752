/* Files that are not part of a checkpoint, which a run writes before its first load and reads around its loads:
 * load.evict and load.dataset. They are in the folder of the baseline, which is removed with them. */
#ifndef WORKER_SCRATCH_FILES_H
#define WORKER_SCRATCH_FILES_H

#include "worker/raw_io.h"
#include "worker/run.h"

/* Names the folder of a purpose ("evict"). */
void scratch_files_name(const struct run *run, const char *purpose, char name[FOLDER_NAME_BYTES + 32]);
/* Fails if the store's folder is not ours to write to; `key` is the key that asks for it. */
int scratch_files_check(const struct run *run, const char *key, struct cb_err *err) CB_MUST_CHECK;
/* Each rank writes its file. After a failure all scratch files are gone, so that a later try begins anew. Collective. */
int scratch_files_write(struct run *run, struct raw *raw, const char *folder, struct cb_err *err) CB_MUST_CHECK;
/* Removes the files after the last load. Collective. */
int scratch_files_finish(struct run *run, struct cb_err *err) CB_MUST_CHECK;
/* For a run or an iteration that failed: rank 0 removes the files if it can. Not collective. */
void scratch_files_abandon(struct run *run);

#endif
