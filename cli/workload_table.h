/* What the controller does for each workload: one row each. worker/worker_main.c has the function that ranks run;
 * run/workload_kind.h has the properties that all programs use. */
#ifndef CLI_WORKLOAD_TABLE_H
#define CLI_WORKLOAD_TABLE_H

#include <stdbool.h>

#include "cli/plan/workload.h"
#include "core/buf.h"
#include "db/history.h"

struct workload_row {
    const char *name; /* the value of workload= */
    /* Computes what is known before the run. */
    int (*plan)(struct workload *self, const struct experiment *experiment, struct cb_err *err);
    /* The first line above the results, after the run's id; `workload` is NULL if it is not (or no longer) known. */
    void (*heading)(const struct experiment *experiment, const struct workload *workload, const char *host,
                    struct buf *out);
    /* Prints the measurements; NULL if the workload has none. */
    int (*report)(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err);
    bool needs_store, has_model;
};

/* Never NULL: the workload of another release is treated as one that saves and loads. */
const struct workload_row *workload_row_named(const char *name);
const struct workload_row *workload_row_of(const struct experiment *experiment);

#endif
