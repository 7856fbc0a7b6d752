/* What each measured iteration of a run took, for `show --iterations`. */
#ifndef CLI_REPORT_RUN_ITERATIONS_H
#define CLI_REPORT_RUN_ITERATIONS_H

#include <stdbool.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/json.h"
#include "db/history.h"

/* Appends a table with a line for each operation and iteration. */
int run_iterations_write(struct history *history, const struct run_info *run, bool colour, struct buf *out,
                         struct cb_err *err) CB_MUST_CHECK;

/* Appends member "iterations": {"save.op_s":[value of each measured iteration],…}, every metric of every operation. */
void run_iterations_write_json(const struct run_info *run, struct json_writer *json);
/* Appends member "iteration_numbers": {"save":[number],…}: of a training the step after which a save began. A metric
 * that not every iteration has is a member of its own, as "step.validation_loss". */
int run_iterations_write_numbers_json(struct history *history, const struct run_info *run, struct json_writer *json,
                                      struct cb_err *err) CB_MUST_CHECK;

#endif
