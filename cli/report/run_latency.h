/* Latencies of a run's requests for `show --latency`: percentiles, a histogram and the slowest requests of each
 * operation, from the records in the run's folder. */
#ifndef CLI_REPORT_RUN_LATENCY_H
#define CLI_REPORT_RUN_LATENCY_H

#include "core/buf.h"
#include "core/err.h"
#include "core/json.h"
#include "db/history.h"

/* Appends the tables, or a line if the run made no requests. Fails if the records are missing. */
int run_latency_write(const struct run_info *run, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
/* Appends the member "latency". */
int run_latency_write_json(const struct run_info *run, struct json_writer *json, struct cb_err *err) CB_MUST_CHECK;

#endif
