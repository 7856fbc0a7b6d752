/* The newest figures as text for Prometheus: a gauge for each metric, a line for each experiment, store and site. */
#ifndef CLI_REPORT_PROMETHEUS_H
#define CLI_REPORT_PROMETHEUS_H

#include "db/history.h"

/* Appends the figures of the newest passed run of each experiment, store and site, among the runs that `words`
 * select. */
int prometheus_write(struct history *history, const char *const *words, size_t count, struct buf *out,
                     struct cb_err *err) CB_MUST_CHECK;

#endif
