/* Formats figures of a run for tables and JSON. */
#ifndef CLI_REPORT_METRIC_FORMAT_H
#define CLI_REPORT_METRIC_FORMAT_H

#include "db/history.h"

/* "save_s", or "load.io_s" if several operations have the metric. */
char *metric_full_name(enum operation op, enum metric_id metric, char name[64]);

/* Formats rates of the suite that use decimal prefixes: of networks and GPUs, as is usual in that field, and rates
 * that do not count bytes. Returns false and leaves `text` unchanged for other metrics. */
bool metric_format_decimal(enum metric_id metric, double value, char text[32]);

/* In the unit of the metric. */
char *metric_format(enum metric_id metric, double value, char text[32]);

/* Median of a metric of iterations or runs that belongs to one operation, whichever operation the history filed it
 * under. NAN if the run has none. */
double metric_median(const struct run_info *info, enum metric_id metric);

/* "rank 3, +1.6 %: fsync"; without a reason if none is known; "-" if no rank is known. */
char *metric_slowest(const struct run_info *info, enum operation op, char text[64]);

/* The name of a state that people use for an operation: "read", not "io". */
const char *metric_state_name(enum rank_state state, enum operation op);

#endif
