/* In which keys experiments differ, as far as they themselves tell: what a sweep varied, and what sets one line of a history
 * apart from the next. Pure. */
#ifndef CLI_COMPARE_SWEEP_AXES_H
#define CLI_COMPARE_SWEEP_AXES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"
#include "run/experiment.h"

struct sweep_axes {
    char **keys; /* options in the order of their table, then labels ("label.kind"); owned */
    size_t count;
};

/* Keys whose values follow from others that differ (dp where ranks and tp do) are left out. `identity`: only keys that
 * are part of an experiment's hash. varied_release also after a failure. */
int sweep_axes_find(struct sweep_axes *self, const struct experiment *const *experiments, size_t count, bool identity,
                    struct cb_err *err) CB_MUST_CHECK;
/* The keys that somebody knows already. */
int sweep_axes_copy(struct sweep_axes *self, char *const *keys, size_t count, struct cb_err *err) CB_MUST_CHECK;
void sweep_axes_release(struct sweep_axes *self);

bool sweep_axes_has(const struct sweep_axes *self, const char *key);

/* Of a key or a label, canonical; "" for a label that is not there. Borrowed. */
const char *sweep_axes_value(const struct experiment *experiment, const char *key);

/* "io.depth=2 tp=1" */
void sweep_axes_describe(const struct sweep_axes *self, const struct experiment *experiment, struct buf *out);

/* How many different values the experiments have of a key. */
size_t sweep_axes_count_values(const struct experiment *const *experiments, size_t count, const char *key);

#endif
