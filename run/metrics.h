/* The metric catalogue: every figure this program stores, one row each, in run/metrics.def.
 *
 * A name never changes its meaning. Output, the history's schema and docs/metrics.md are generated from the rows.
 * Values are doubles; an absent value is NAN here, null in JSON and SQL, never 0. Read-only. */
#ifndef RUN_METRICS_H
#define RUN_METRICS_H

#include <stdbool.h>
#include <stddef.h>

enum metric_direction { METRIC_LOWER_IS_BETTER, METRIC_HIGHER_IS_BETTER, METRIC_NEUTRAL };

/* sample: one value per iteration, rank and operation, kept on the status page. iteration: derived over the ranks of
 * one iteration. run: one value per run. */
enum metric_scope { METRIC_OF_SAMPLE, METRIC_OF_ITERATION, METRIC_OF_RUN };

enum operation {
    OP_NONE,
    OP_SAVE,
    OP_LOAD,
    OP_VERIFY,
    OP_DELETE,
    OP_BASELINE_WRITE,
    OP_BASELINE_READ,
    OP_SUITE, /* a repetition of the cluster suite's tests */
    OP_STEP,  /* a training step */
    OP_COUNT
};

/* What a rank is blocked on. A rank is in exactly one state at a time, so the times sum to the operation's. */
enum rank_state {
    STATE_OTHER,
    STATE_PLAN,
    STATE_STAGE,
    STATE_SERIALIZE,
    STATE_IO,
    STATE_FSYNC,
    STATE_EXCHANGE,
    STATE_COMMIT,
    STATE_WAIT,
    STATE_COUNT
};

enum metric_id {
#define METRIC(id, name, unit, direction, scope, primary, meaning) METRIC_##id,
#include "run/metrics.def"
#undef METRIC
    METRIC_COUNT
};

/* The sample metrics come first in the catalogue: 0 … METRIC_SAMPLE_COUNT-1. */
#define METRIC_SAMPLE_COUNT (METRIC_SUITE_LAST + 1)
/* Those of the suite are the last ones of them. */
#define METRIC_SUITE_FIRST METRIC_NET_LATENCY_S
#define METRIC_SUITE_LAST METRIC_GPU_ALL_TO_ALL_BUS_BYTES_PER_S

/* Measured by every rank that has a GPU of its own. */
#define METRIC_SUITE_GPU_FIRST METRIC_GPU_COPY_BYTES_PER_S
#define METRIC_SUITE_GPU_LAST METRIC_GPU_LAUNCH_S

struct metric {
    const char *name;
    const char *unit; /* "s", "bytes", "bytes/s", "ratio", "count", "requests/s" */
    enum metric_direction direction;
    enum metric_scope scope;
    bool primary; /* compared under Holm's correction; the others are exploratory */
    const char *meaning;
};

const struct metric *metric_row(enum metric_id id);
bool metric_find(const char *name, enum metric_id *id);
const char *operation_name(enum operation op); /* "save", … */
bool operation_find(const char *name, enum operation *op);
const char *
rank_state_name(enum rank_state state); /* "plan", …; "io" prints as write or read, depending on the operation */
bool rank_state_find(const char *name, enum rank_state *state);

#endif
