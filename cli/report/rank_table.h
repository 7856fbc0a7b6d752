/* Times and bytes of each rank and each node: medians over the measured iterations of a run in the history. */
#ifndef CLI_REPORT_RANK_TABLE_H
#define CLI_REPORT_RANK_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/report/run_nodes.h"
#include "core/json.h"
#include "db/history.h"

struct rank_table;

/* Loads the last attempt of a run. */
int rank_table_load(struct history *history, const struct run_info *run, struct rank_table **table,
                    struct cb_err *err) CB_MUST_CHECK;
void rank_table_free(struct rank_table *self);

/* Appends tables of saves and loads with a line for each rank; of many ranks only the slowest have a line, and one line
 * summarises the others. `every_state` adds the time in each state. Columns with which lines would have more than
 * `most_chars` characters are left out, and counted. */
int rank_table_write(const struct rank_table *self, bool every_state, size_t most_chars, bool colour, struct buf *out,
                     struct cb_err *err) CB_MUST_CHECK;
/* Appends member "ranks" with every rank. */
void rank_table_write_json(const struct rank_table *self, bool every_state, struct json_writer *json);

/* Appends a table with a line for each node and operation, the slowest node first: bytes moved by its ranks, time of
 * its slowest rank, and the rate. Of many nodes only the slowest are listed. Writes nothing if no operation has
 * samples. */
int rank_table_write_nodes(const struct rank_table *self, const struct run_node *nodes, size_t node_count, bool colour,
                           struct buf *out, struct cb_err *err) CB_MUST_CHECK;
/* Appends member "node_rates" with every node. */
int rank_table_write_nodes_json(const struct rank_table *self, const struct run_node *nodes, size_t node_count,
                                struct json_writer *json, struct cb_err *err) CB_MUST_CHECK;

#endif
