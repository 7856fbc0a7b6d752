/* Writes a suite's run in the file format of the earlier cluster benchmark: one YAML document with that benchmark's
 * section and row names, and values separate from units; null for what was not measured. */
#ifndef CLI_REPORT_CLUSTERBENCH_H
#define CLI_REPORT_CLUSTERBENCH_H

#include "db/history.h"

/* With `per_rank`, appends a document for each rank with its own values. */
int clusterbench_write(struct history *history, const struct run_info *run, bool per_rank, struct buf *out,
                       struct cb_err *err) CB_MUST_CHECK;

#endif
