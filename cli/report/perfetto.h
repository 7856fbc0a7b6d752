/* Traces of requests as Chrome trace events, which Perfetto and chrome://tracing show. */
#ifndef CLI_REPORT_PERFETTO_H
#define CLI_REPORT_PERFETTO_H

#include "cli/cli.h"
#include "db/history.h"

/* Prints {"traceEvents": […]} with a complete event for each request of the run's last attempt: a process for each
 * rank, and in it a thread for each request that was in flight at once. CB_ERR_NOT_FOUND if the run has no traces. */
int perfetto_write(struct cli *cli, const struct run_info *run, struct cb_err *err) CB_MUST_CHECK;

#endif
