/* The keys in which experiments differ: what a sweep varied, and what distinguishes the lines of a history. Does no
 * I/O. */
#ifndef CLI_REPORT_SWEEP_AXES_H
#define CLI_REPORT_SWEEP_AXES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"
#include "run/experiment.h"

struct sweep_axes {
    char **keys; /* options in the order of their table, then labels ("label.kind"); owned */
    size_t count;
};

/* Finds the keys whose values differ among the experiments whose workload uses them. Omits keys whose values follow
 * from other differing keys (dp from ranks and tp). `identity`: only keys that are part of an experiment's hash. Call
 * sweep_axes_release also after a failure. */
int sweep_axes_find(struct sweep_axes *self, const struct experiment *const *experiments, size_t count, bool identity,
                    struct cb_err *err) CB_MUST_CHECK;
/* Copies keys that are already known. */
int sweep_axes_copy(struct sweep_axes *self, char *const *keys, size_t count, struct cb_err *err) CB_MUST_CHECK;
void sweep_axes_release(struct sweep_axes *self);

bool sweep_axes_has(const struct sweep_axes *self, const char *key);

/* The canonical value of a key or a label; "" for a missing label. Borrowed. */
const char *sweep_axes_value(const struct experiment *experiment, const char *key);

/* "io.depth=2 tp=1"; without the keys that the experiment's workload does not use. */
void sweep_axes_describe(const struct sweep_axes *self, const struct experiment *experiment, struct buf *out);

/* Whether the experiments have several values of a key or a label. */
bool sweep_axes_differ(const struct experiment *const *experiments, size_t count, const char *key);
/* The number of different values that the experiments have for a key. */
size_t sweep_axes_count_values(const struct experiment *const *experiments, size_t count, const char *key);

#endif
