/* The nodes of a run, as rendezvous.json of its last attempt has them. */
#ifndef CLI_REPORT_RUN_NODES_H
#define CLI_REPORT_RUN_NODES_H

#include <stdbool.h>

#include "core/json.h"
#include "db/history.h"

/* A table with a line a node; *written is false, and nothing else happens, where the run had one node. */
int run_nodes_write(const struct run_info *run, bool colour, bool *written, struct buf *out,
                    struct cb_err *err) CB_MUST_CHECK;

/* Member "rendezvous": the file, null where there is none. */
void run_nodes_write_json(const struct run_info *run, struct json_writer *json);

#endif
