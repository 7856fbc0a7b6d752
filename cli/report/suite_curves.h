/* Results of a suite's run by message size: collectives through MPI and NCCL, latencies between nodes and within
 * them. */
#ifndef CLI_REPORT_SUITE_CURVES_H
#define CLI_REPORT_SUITE_CURVES_H

#include "core/json.h"
#include "db/history.h"

/* Tables, each after an empty line; writes nothing if the run has none. */
int suite_curves_write(const struct run_info *run, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
/* "collectives": {name:[{"bytes","seconds","algorithm_bytes_per_s","bus_bytes_per_s"}]},
 * "latencies": {"between_nodes","within_nodes": {node:[{"bytes","median_s","p99_s"}]}} */
void suite_curves_write_json(const struct run_info *run, struct json_writer *json);

#endif
