/* Which cores a rank runs on. Collective among the ranks of a machine. */
#ifndef ENGINE_AFFINITY_H
#define ENGINE_AFFINITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"

/* Binds the rank to its cores. Without `cores`, the ranks of this machine divide the cores that all of them may use:
 * adjacent cores in rank order, at least one each; ranks share cores if there are fewer cores than ranks. With `cores`
 * ("0-15,32-47", near its device), binds to those that the rank may use; if it may use none, nothing changes. Keeps a
 * binding that the launcher has made. With `pin` false it changes nothing. Writes the resulting binding, such as "0-3 of
 * 0-7", to `text`, which names the device as `near`. */
int affinity_apply(struct comm *comm, bool pin, const char *cores, const char *near, uint64_t deadline_ns, char *text,
                   size_t text_bytes, struct cb_err *err) CB_MUST_CHECK;

/* The first core and the number of cores of share `index`, if `cores` are divided into `shares`. */
void affinity_share(uint32_t cores, uint32_t index, uint32_t shares, uint32_t *first, uint32_t *count);

#endif
