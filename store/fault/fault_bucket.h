/* A bandwidth shared by several processes of a machine. Private to the fault store.
 *
 * One word of shared memory holds the time until which the link is busy; a reservation advances it. */
#ifndef STORE_FAULT_FAULT_BUCKET_H
#define STORE_FAULT_FAULT_BUCKET_H

#include <stdint.h>

#include "core/err.h"

struct fault_bucket;

/* Processes that pass the same folder share the limit; NULL makes a private one. The file disappears with the folder,
 * whichever process is killed. */
int fault_bucket_new(const char *folder, uint64_t bytes_per_s, struct fault_bucket **bucket,
                     struct cb_err *err) CB_MUST_CHECK;
void fault_bucket_free(struct fault_bucket *self);

/* Reserves the link for `bytes`; returns the monotonic time at which they have passed. No lock, no system call. */
uint64_t fault_bucket_reserve(struct fault_bucket *self, uint64_t bytes, uint64_t now_ns);

#endif
