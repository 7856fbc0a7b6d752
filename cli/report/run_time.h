/* A run over time for `show --time` and `show --ranks`: bytes and requests of every rank in time buckets, from the
 * records, and the activity of the nodes, from their host.json. */
#ifndef CLI_REPORT_RUN_TIME_H
#define CLI_REPORT_RUN_TIME_H

#include "cli/report/blocks.h"
#include "core/buf.h"
#include "core/err.h"
#include "core/json.h"
#include "db/history.h"

/* Appends a line for each kind of request and for each counter of a node, drawn over time; or a line that says that the
 * run has none. Fails if the records are missing. */
int run_time_write(const struct run_info *run, const struct blocks *blocks, bool colour, struct buf *out,
                   struct cb_err *err) CB_MUST_CHECK;
/* Appends a heat map of saves and one of loads: a line for each rank, or for a few ranks together; nothing if the run
 * has no requests. */
int run_time_write_ranks(const struct run_info *run, const struct blocks *blocks, bool colour, struct buf *out,
                         struct cb_err *err) CB_MUST_CHECK;
/* Appends the member "time", with a line for each rank; if there are more than `most_lines` (0: any number), a line has
 * the sums of several ranks in a row, and "ranks" says of how many. */
int run_time_write_json(const struct run_info *run, uint64_t most_lines, struct json_writer *json,
                        struct cb_err *err) CB_MUST_CHECK;

#endif
