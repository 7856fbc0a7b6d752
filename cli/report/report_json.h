/* A run as JSON, for run, show and export. */
#ifndef CLI_REPORT_REPORT_JSON_H
#define CLI_REPORT_REPORT_JSON_H

#include "core/json.h"
#include "db/history.h"

/* {"run","sweep","state","outcome","message","folder","experiment","labels","metrics","limits","states","slowest_rank",
 * "verified"} */
void report_write_json(const struct run_info *info, struct json_writer *writer);
/* The same members without braces, for a larger document. */
void report_write_members(const struct run_info *info, struct json_writer *writer);

#endif
