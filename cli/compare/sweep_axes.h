/* In which keys experiments differ, as far as they themselves tell: what a sweep varied, and what sets one line of a history
 * apart from the next. Pure. */
#ifndef CLI_COMPARE_SWEEP_AXES_H
#define CLI_COMPARE_SWEEP_AXES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"
#include "run/experiment.h"

struct varied {
    char **keys; /* options in the order of their table, then labels ("label.kind"); owned */
    size_t count;
};

/* Keys whose values follow from others that differ (dp where ranks and tp do) are left out. `identity`: only keys that
 * are part of an experiment's hash. varied_release also after a failure. */
int varied_find(struct varied *self, const struct experiment *const *experiments, size_t count, bool identity,
                struct cb_err *err) CB_MUST_CHECK;
/* The keys that somebody knows already. */
int varied_copy(struct varied *self, char *const *keys, size_t count, struct cb_err *err) CB_MUST_CHECK;
void varied_release(struct varied *self);

bool varied_has(const struct varied *self, const char *key);

/* Of a key or a label, canonical; "" for a label that is not there. Borrowed. */
const char *varied_value(const struct experiment *experiment, const char *key);

/* "io.depth=2 tp=1" */
void varied_describe(const struct varied *self, const struct experiment *experiment, struct buf *out);

/* How many different values the experiments have of a key. */
size_t varied_count_values(const struct experiment *const *experiments, size_t count, const char *key);

#endif
