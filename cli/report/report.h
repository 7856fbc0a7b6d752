/* The results of one run: for people a table and the lines below it, and JSON. cli/report/report_heading.h prints the
 * lines above the table. */
#ifndef CLI_REPORT_REPORT_H
#define CLI_REPORT_REPORT_H

#include <stdbool.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/json.h"
#include "db/history.h"

/* The table of operations, the verification, suspicious results, and the place where the run ended. */
int report_write_results(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

/* {"run","sweep","state","outcome","message","folder","experiment","labels","metrics","limits","states","slowest_rank",
 * "verified"} */
void report_write_json(const struct run_info *info, struct json_writer *json);
/* The same members without braces, for a larger document. */
void report_write_members(const struct run_info *info, struct json_writer *json);

/* For the rows of cli/workload_table.h. */
int report_checkpoints(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
int report_training(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
int report_watch(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
int report_suite(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
int report_verification(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

#endif
