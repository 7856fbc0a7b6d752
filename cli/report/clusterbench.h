/* Writes a suite's run in the file format of the earlier cluster benchmark: one YAML document with that benchmark's
 * section and row names, and values separate from units; null for what was not measured. */
#ifndef CLI_REPORT_CLUSTERBENCH_H
#define CLI_REPORT_CLUSTERBENCH_H

#include "core/buf.h"
#include "db/history.h"

/* Receives a document: of the run (rank -1), or of one rank. */
typedef int (*clusterbench_fn)(void *context, long rank, const struct buf *document, struct cb_err *err);

/* With `per_rank`, also a document for each rank: with its own values, and with those that the first rank of its node
 * measured for the node. */
int clusterbench_each(struct history *history, const struct run_info *run, bool per_rank, clusterbench_fn take,
                      void *context, struct cb_err *err) CB_MUST_CHECK;

#endif
