/* How the results of one run look, for run and show: the table and the lines below it. What stands above is in
 * cli/report/report_heading.h, the same as JSON in cli/report/report_json.h. */
#ifndef CLI_REPORT_REPORT_H
#define CLI_REPORT_REPORT_H

#include <stdbool.h>

#include "core/buf.h"
#include "core/err.h"
#include "db/history.h"

/* The table of operations, what was verified, what was suspicious, and where it ended. */
int report_write_results(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

#endif
