/* How the results of one run look, for run and show: the table and the lines below it. What stands above is in
 * cli/report_heading.h, the same as JSON in cli/report_json.h. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <stdbool.h>

#include "core/buf.h"
#include "core/err.h"
#include "db/history.h"

/* The table of operations, what was verified, what was suspicious, and where it ended. */
int report_write_results(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

/* A figure in the unit of its metric, for people. */
char *report_format_value(enum metric_id metric, double value, char text[32]);

/* Of a metric of iterations or runs, which belongs to one operation: where the history put it does not matter. NaN
 * where the run has none. */
double report_median(const struct run_info *info, enum metric_id metric);

/* What people call a state of an operation: "read", not "io". */
const char *report_state_name(enum rank_state state, enum operation op);

#endif
