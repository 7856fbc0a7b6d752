/* The lines above the results of a run: run, model and ranks; store; plan. */
#ifndef CLI_REPORT_REPORT_HEADING_H
#define CLI_REPORT_REPORT_HEADING_H

#include <stdbool.h>

#include "cli/plan/workload.h"
#include "core/buf.h"
#include "run/experiment.h"

/* `workload` is NULL if it is not (or no longer) known. `is_here`: the store belongs to this machine, not to a site. */
void report_write_heading(const char *run, const struct experiment *experiment, const struct workload *workload,
                          bool is_here, bool colour, struct buf *out);

/* For the rows of cli/workload_table.h. */
void heading_of_state(const struct experiment *experiment, const struct workload *workload, const char *host,
                      struct buf *out);
void heading_of_training(const struct experiment *experiment, const struct workload *workload, const char *host,
                         struct buf *out);
void heading_of_suite(const struct experiment *experiment, const struct workload *workload, const char *host,
                      struct buf *out);
void heading_of_verification(const struct experiment *experiment, const struct workload *workload, const char *host,
                             struct buf *out);
void heading_of_waiting(const struct experiment *experiment, const struct workload *workload, const char *host,
                        struct buf *out);
void heading_of_watching(const struct experiment *experiment, const struct workload *workload, const char *host,
                         struct buf *out);

#endif
