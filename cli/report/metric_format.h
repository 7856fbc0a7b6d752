/* Formats the metrics of a run for tables and JSON. */
#ifndef CLI_REPORT_METRIC_FORMAT_H
#define CLI_REPORT_METRIC_FORMAT_H

#include "db/history.h"

/* "save_s", or "load.io_s" if several operations have the metric. */
char *metric_full_name(enum operation op, enum metric_id metric, char name[64]);

/* In the unit of the metric. */
char *metric_format(enum metric_id metric, double value, char text[32]);

/* A value with its unit for people: "0.803 s", "2.03 GiB/s", "1.62 GiB", "0.97"; "-" for NAN. */
char *figure_text(enum metric_id metric, double value, char text[32]);
/* The same without the unit if the metric's name contains it (seconds). */
char *figure_short_text(enum metric_id metric, double value, char text[32]);

/* The median of a metric of iterations or of the run, for metrics that only one operation has. NAN if the run has no
 * value. */
double metric_median(const struct run_info *info, enum metric_id metric);

/* "rank 3, +11.6 %: fsync"; without a reason if it is unknown; "-" if the rank is unknown. */
char *metric_slowest(const struct run_info *info, enum operation op, char text[64]);

/* The usual name of a state in an operation: "read", not "io". */
const char *metric_state_name(enum rank_state state, enum operation op);

#endif
