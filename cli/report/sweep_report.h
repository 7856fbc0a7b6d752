/* A table of the runs of a sweep: one line for each combination of the varied keys, best first. Reads the history. */
#ifndef CLI_REPORT_SWEEP_REPORT_H
#define CLI_REPORT_SWEEP_REPORT_H

#include <stdbool.h>

#include "cli/report/sweep_axes.h"
#include "core/buf.h"
#include "core/err.h"
#include "core/json.h"
#include "db/history.h"

/* A primary metric that some run of the sweep has. */
struct sweep_column {
    enum operation op;
    enum metric_id metric;
};

/* One combination: its runs are adjacent, ordered by block. */
struct sweep_row {
    size_t first, count, passed;
    struct summary *values; /* by column, over the medians of passed runs; n is 0 if no run has the metric; owned */
    double (*ci)[2];        /* by column, 95 % interval of the median; NAN if there are too few runs; owned */
    double rank;            /* sort key from the leading column's median: less is better; NAN if there is none */
};

struct sweep_report {
    char sweep[64];
    struct run_info **runs; /* by combination, then block; owned */
    size_t count, passed;
    const struct experiment **experiments; /* of the runs */
    struct sweep_axes axes;
    struct sweep_column *columns;
    size_t column_count, leading; /* leading: index of the column that orders the rows */
    struct sweep_row *rows;       /* best first */
    size_t row_count;
};

/* Whether `word` names a sweep; otherwise it may name a run. */
int sweep_report_is_sweep(struct history *history, const char *word, bool *is, struct cb_err *err) CB_MUST_CHECK;

/* Call sweep_report_release in any case. */
int sweep_report_load(struct sweep_report *self, struct history *history, const char *sweep,
                      struct cb_err *err) CB_MUST_CHECK;
void sweep_report_release(struct sweep_report *self);

int sweep_report_write(const struct sweep_report *self, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
/* "sweep","varied":[key],"best_first_by": name or null,"combinations":[{"combination","values":{key:text},"n",
 * "metrics":{name:{"unit","n","median","ci":[low,high],"min","max"}},"runs":[{"run","block","state","outcome","message"}]}] */
void sweep_report_write_members(const struct sweep_report *self, struct json_writer *json);

#endif
