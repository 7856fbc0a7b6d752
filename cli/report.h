/* How one run looks: the lines before it, the table after it, and its JSON. Shared by run and show. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <stdbool.h>

#include "cli/workload.h"
#include "core/buf.h"
#include "core/err.h"
#include "core/experiment.h"
#include "core/json.h"
#include "db/history.h"

/* Run, model, ranks; store; plan. `workload` may be NULL where it is not known (any more). */
void report_write_heading(const char *run, const struct experiment *experiment, const struct workload *workload,
                          bool colour, struct buf *out);

/* The table of operations, what was verified, what was suspicious, and where it ended. */
int report_write_results(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

/* {"run","state","outcome","experiment","labels","metrics","limits","states","slowest_rank","verified","message"} */
void report_write_json(const struct run_info *info, struct json_writer *writer);
/* The same without its braces, for documents that hold more. */
void report_write_members(const struct run_info *info, struct json_writer *writer);

/* "save_s", or "load.io_s" for what several operations have. */
char *report_metric_name(enum operation op, enum metric_id metric, char name[64]);

/* A figure in the unit of its metric, for people. */
char *report_format_value(enum metric_id metric, double value, char text[32]);

/* {key: value} of every key: numbers and booleans as such, all else as its canonical text. */
void report_write_experiment_json(const struct experiment *experiment, struct json_writer *writer);

/* NULL where the run has no such metric. */
const struct summary *report_find_metric(const struct run_info *info, enum operation op, enum metric_id metric);

#endif
