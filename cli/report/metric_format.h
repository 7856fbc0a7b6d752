/* Figures of a run as tables and JSON show them. */
#ifndef CLI_REPORT_METRIC_FORMAT_H
#define CLI_REPORT_METRIC_FORMAT_H

#include "db/history.h"

/* "save_s", or "load.io_s" for what several operations have. */
char *figures_name(enum operation op, enum metric_id metric, char name[64]);

/* Rates of the suite that print in 1000s: of networks and GPUs, as that field has them, and of all that is no bytes.
 * False, and `text` untouched, for all other metrics. */
bool figures_format_decimal(enum metric_id metric, double value, char text[32]);

/* In the unit of its metric. */
char *figures_format(enum metric_id metric, double value, char text[32]);

/* Of a metric of iterations or runs, which belongs to one operation: where the history put it does not matter. NaN
 * where the run has none. */
double figures_median(const struct run_info *info, enum metric_id metric);

/* "rank 3, +1.6 %: fsync"; without a reason where none is known, "-" where no rank is. */
char *figures_slowest(const struct run_info *info, enum operation op, char text[64]);

/* What people call a state of an operation: "read", not "io". */
const char *figures_state_name(enum rank_state state, enum operation op);

#endif
