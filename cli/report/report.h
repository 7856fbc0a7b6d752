/* Prints the results of one run, for run and show: the table and the lines below it. The lines above it are printed
 * by cli/report/report_heading.h, JSON by cli/report/report_json.h. */
#ifndef CLI_REPORT_REPORT_H
#define CLI_REPORT_REPORT_H

#include <stdbool.h>

#include "core/buf.h"
#include "core/err.h"
#include "db/history.h"

/* The table of operations, the verification, suspicious results, and the place where the run ended. */
int report_write_results(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

/* For the rows of cli/workload_table.h. */
int report_checkpoints(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
int report_training(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
int report_suite(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
int report_verification(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

#endif
