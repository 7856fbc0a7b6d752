/* What to change about a watched training's saves, from the figures of its run. */
#ifndef CLI_REPORT_ADVICE_H
#define CLI_REPORT_ADVICE_H

#include "core/json.h"
#include "db/history.h"

#define ADVICE_MOST 3

/* Up to ADVICE_MOST sentences, each with the figure that it follows from and the command that would prove it; what costs
 * the program most comes first. Only a run of workload=watch has any: CB_ERR_USAGE. */
int advice_write(const struct run_info *info, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
/* "advice": [{"seconds", "text", "command"}] */
int advice_write_json(const struct run_info *info, struct json_writer *json, struct cb_err *err) CB_MUST_CHECK;

#endif
