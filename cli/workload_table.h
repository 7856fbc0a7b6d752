/* What the controller does for each workload: one row each. What its ranks run stands in worker/worker_main.c, what
 * everybody may ask of it in run/workload_kind.h. */
#ifndef CLI_WORKLOAD_TABLE_H
#define CLI_WORKLOAD_TABLE_H

#include <stdbool.h>

#include "cli/plan/workload.h"
#include "core/buf.h"
#include "db/history.h"

struct workload_row {
    const char *name; /* the value of workload= */
    /* Fills what is known before the run. */
    int (*plan)(struct workload *self, const struct experiment *experiment, struct cb_err *err);
    /* The first line above the results, after the run's id; `workload` is NULL if it is not known (any more). */
    void (*heading)(const struct experiment *experiment, const struct workload *workload, const char *host,
                    struct buf *out);
    /* What was measured; NULL where nothing is. */
    int (*report)(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err);
    bool needs_store, has_model;
};

/* Never NULL: a workload of another release is taken for one that saves and loads. */
const struct workload_row *workload_row_named(const char *name);
const struct workload_row *workload_row_of(const struct experiment *experiment);

#endif
