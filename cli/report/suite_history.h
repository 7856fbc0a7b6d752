/* A run of the cluster suite against what its nodes, or its GPUs, did in earlier runs of the same experiment, and the outliers of the run
 * in words. Knows the history's figures; runs nothing. */
#ifndef CLI_REPORT_SUITE_HISTORY_H
#define CLI_REPORT_SUITE_HISTORY_H

#include "cli/report/suite_nodes.h"

/* One metric: the node that is furthest to the bad side of what it usually does. */
struct suite_change {
    enum metric_id metric;
    size_t node;       /* or GPU */
    double now, usual; /* usual: the median of its earlier runs */
    size_t n;          /* earlier runs that have it */
    double z;          /* stats_robust_z of now */
};

struct suite_history {
    size_t runs; /* earlier ones that were looked at: the newest of them, up to a limit */
    struct suite_change
        *changes; /* metrics with a node that has enough earlier runs, in the catalogue's order; owned */
    size_t count;
};

/* Earlier: of the same experiment (hash) and site, begun before this one, passed or below suite.fail_below; a node is
 * compared with the node of its name. With `gpus` the nodes are those of suite_gpus_load, and the metrics those that each GPU has
 * of its own. suite_history_release in any case. */
int suite_history_load(struct suite_history *self, struct history *history, const struct run_info *run,
                       const struct suite_nodes *nodes, bool gpus, struct cb_err *err) CB_MUST_CHECK;
void suite_history_release(struct suite_history *self);

int suite_history_write(const struct suite_history *self, const struct suite_nodes *nodes, bool colour, struct buf *out,
                        struct cb_err *err) CB_MUST_CHECK;
/* KEY: {"runs","metrics":{name:{"node","value","usual","n","z"}}} */
void suite_history_write_json(const struct suite_history *self, const char *key, const struct suite_nodes *nodes,
                              struct json_writer *json);

/* A line for each outlier of a suite's run: among its nodes, its pairs of nodes, and against its history. Nothing for a run
 * of another workload. */
int suite_outliers_write(struct history *history, const struct run_info *run, struct buf *out,
                         struct cb_err *err) CB_MUST_CHECK;

#endif
