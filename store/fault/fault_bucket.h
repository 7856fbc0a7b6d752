/* A bandwidth that several processes of a machine share. Private to store/fault/fault*.c.
 *
 * One word of shared memory says until when the link is taken; a reservation moves it on. */
#ifndef STORE_FAULT_FAULT_BUCKET_H
#define STORE_FAULT_FAULT_BUCKET_H

#include <stdint.h>

#include "core/err.h"

struct fault_bucket;

/* With a folder, the one of all processes that give the same; with NULL, a private one. Its file there
 * goes with the folder, whoever was killed. */
int fault_bucket_new(const char *folder, uint64_t bytes_per_s, struct fault_bucket **bucket,
                     struct cb_err *err) CB_MUST_CHECK;
void fault_bucket_free(struct fault_bucket *self);

/* Takes the link for `bytes`; returns the monotonic time at which they are through. No lock, no call. */
uint64_t fault_bucket_reserve(struct fault_bucket *self, uint64_t bytes, uint64_t now_ns);

#endif
