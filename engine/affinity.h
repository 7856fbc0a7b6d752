/* Which cores a rank runs on. Collective among the ranks of a machine. */
#ifndef ENGINE_AFFINITY_H
#define ENGINE_AFFINITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"

/* Gives each rank of this machine its share of the cores that all of them may use: neighbours in
 * order, at least one each (ranks share cores where there are fewer). A binding that the launcher made
 * is left as it is. `pin` false only looks. Writes what holds, "0-3 of 0-7", to `text`. */
int affinity_apply(struct comm *comm, bool pin, uint64_t deadline_ns, char *text, size_t text_bytes,
                   struct cb_err *err) CB_MUST_CHECK;

/* With cores that are near something the rank works with ("0-15,32-47"; a GPU): the rank may run on all of those
 * that it may use at all; where that is none, or the launcher has bound it, nothing changes. `near` is what they are
 * near to, for the text. */
int affinity_apply_near(struct comm *comm, bool pin, const char *cores, const char *near, uint64_t deadline_ns,
                        char *text, size_t text_bytes, struct cb_err *err) CB_MUST_CHECK;

/* First core and count of share `index` of `shares` among `cores`. */
void affinity_share(uint32_t cores, uint32_t index, uint32_t shares, uint32_t *first, uint32_t *count);

#endif
