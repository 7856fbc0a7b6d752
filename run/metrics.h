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
    STATE_BACKOFF,
    STATE_COUNT
};

enum metric_id {
#define METRIC(id, name, unit, direction, scope, operations, primary, group, over, shown, meaning) METRIC_##id,
#include "run/metrics.def"
#undef METRIC
    METRIC_COUNT
};

/* The sample metrics come first in the catalogue: 0 … METRIC_SAMPLE_COUNT-1. */
enum {
#define OF_SAMPLE 1
#define OF_ITERATION 0
#define OF_RUN 0
    METRIC_SAMPLE_COUNT =
#define METRIC(id, name, unit, direction, scope, operations, primary, group, over, shown, meaning) scope +
#include "run/metrics.def"
        0
#undef METRIC
#undef OF_SAMPLE
#undef OF_ITERATION
#undef OF_RUN
};

/* What a metric is about: where it is shown and how it is printed follow from it. */
enum metric_group {
    METRIC_GROUP_GENERAL,
    METRIC_GROUP_STATE,          /* time in a state of enum rank_state */
    METRIC_GROUP_SUITE_LINKS,    /* the suite: between nodes and ranks */
    METRIC_GROUP_SUITE_NODE,     /* its storage, cores and memory */
    METRIC_GROUP_SUITE_GPU,      /* each GPU by itself */
    METRIC_GROUP_SUITE_GPU_LINKS /* between GPUs */
};

/* How the values of the ranks of an iteration are combined. METRIC_OVER_ALL: a metric of iterations or runs, which has
 * a single value already. */
enum metric_over { METRIC_OVER_ALL, METRIC_OVER_MAX, METRIC_OVER_MEAN, METRIC_OVER_SUM };

/* Where a metric is shown without being requested; `show --json`, history and compare have all of them. */
enum metric_shown {
    METRIC_SHOWN_ASKED,  /* only on request, or as part of a report's text */
    METRIC_SHOWN_REPORT, /* as a row of its own in the report of a run */
    METRIC_SHOWN_LIST,   /* as a column of `list`, and in the report's text */
    METRIC_SHOWN_BOTH
};

struct metric {
    const char *name;
    const char *unit; /* "s", "bytes", "bytes/s", "ratio", "count", "requests/s" */
    enum metric_direction direction;
    enum metric_scope scope;
    unsigned operations; /* operations that have the metric, as bits: 1 << enum operation; 0 for metrics of a run */
    enum metric_group group;
    enum metric_over over;
    enum metric_shown shown;
    bool primary; /* compared under Holm's correction; the others are exploratory */
    const char *meaning;
};

const struct metric *metric_row(enum metric_id id);
bool metric_is_of_suite(enum metric_id id);
bool metric_has_operation(enum metric_id id, enum operation op);
bool metric_in_report(enum metric_id id); /* has a row of its own there */
bool metric_in_list(enum metric_id id);   /* has a column there */
/* The time in a state. */
enum metric_id metric_of_state(enum rank_state state);
bool metric_find(const char *name, enum metric_id *id);
const char *operation_name(enum operation op); /* "save", … */
bool operation_find(const char *name, enum operation *op);
const char *
rank_state_name(enum rank_state state); /* "plan", …; "io" prints as write or read, depending on the operation */
bool rank_state_find(const char *name, enum rank_state *state);

#endif
