/* The nodes of a run, from rendezvous.json of its last attempt. */
#ifndef CLI_REPORT_RUN_NODES_H
#define CLI_REPORT_RUN_NODES_H

#include <stdbool.h>

#include "core/json.h"
#include "db/history.h"

/* A node and the ranks on it. */
struct run_node {
    char *name; /* owned */
    uint32_t first_rank, ranks;
};
/* All nodes in the order of their ranks; without rendezvous.json one node, by the name that rank 0 reported. */
int run_nodes_load(const struct run_info *run, struct run_node **nodes, size_t *count,
                   struct cb_err *err) CB_MUST_CHECK;
void run_nodes_free(struct run_node *nodes, size_t count);

/* A table with a line for each node. If the run had a single node, writes nothing and sets *written to false. */
int run_nodes_write(const struct run_info *run, bool colour, bool *written, struct buf *out,
                    struct cb_err *err) CB_MUST_CHECK;

/* Member "rendezvous": the file, or null if there is none. */
void run_nodes_write_json(const struct run_info *run, struct json_writer *json);

#endif
