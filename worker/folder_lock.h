/* One run at a time in a run's folder of the store: a lock file with the run, the host and the process.
 *
 * Held by flock(2) where the file system has it, so that it goes with its process; where it has not, a
 * lock whose process on this host is dead is taken over, and one of another host is believed. For rank 0. */
#ifndef WORKER_FOLDER_LOCK_H
#define WORKER_FOLDER_LOCK_H

#include "core/err.h"

#define FOLDER_LOCK ".ckptbench-lock"

struct folder_lock {
    char *path; /* NULL where none is held; owned */
    int fd;
};

/* CB_ERR_EXISTS names who holds it. `self` must be zero. */
int folder_lock_take(struct folder_lock *self, const char *folder, const char *run, struct cb_err *err) CB_MUST_CHECK;
/* Removes the file, if it is still ours. */
void folder_lock_release(struct folder_lock *self);

#endif
