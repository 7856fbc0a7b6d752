/* A suite's run in the file format of the benchmark suite that came before: one YAML document with its
 * section and row names, values and units apart; what was not measured is null. */
#ifndef CLI_REPORT_CLUSTERBENCH_H
#define CLI_REPORT_CLUSTERBENCH_H

#include "db/history.h"

/* With `per_rank` one more document for each rank, with that rank's own values. */
int clusterbench_write(struct history *history, const struct run_info *run, bool per_rank, struct buf *out,
                       struct cb_err *err) CB_MUST_CHECK;

#endif
