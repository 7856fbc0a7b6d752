/* Compares the nodes or GPUs of a suite's run with their earlier runs of the same experiment, and lists the outliers
 * of the run. */
#ifndef CLI_REPORT_SUITE_HISTORY_H
#define CLI_REPORT_SUITE_HISTORY_H

#include "cli/report/suite_nodes.h"

/* One metric: the node that deviates most from its usual value in the bad direction. */
struct suite_change {
    enum metric_id metric;
    size_t node;       /* or GPU */
    double now, usual; /* usual: median of its earlier runs */
    size_t n;          /* earlier runs with this metric */
    double z;          /* stats_robust_z of now */
};

struct suite_history {
    size_t runs;                  /* earlier runs considered: the newest, up to a limit */
    struct suite_change *changes; /* metrics with a node that has enough earlier runs, as in the catalogue; owned */
    size_t count;
};

/* Earlier runs have the same experiment hash and site, started before this one, and passed or were below
 * suite.fail_below. Nodes are matched by name. With `gpus`, `nodes` comes from suite_gpus_load and the metrics are
 * those of single GPUs. Call suite_history_release in any case. */
int suite_history_load(struct suite_history *self, struct history *history, const struct run_info *run,
                       const struct suite_nodes *nodes, bool gpus, struct cb_err *err) CB_MUST_CHECK;
void suite_history_release(struct suite_history *self);

int suite_history_write(const struct suite_history *self, const struct suite_nodes *nodes, bool colour, struct buf *out,
                        struct cb_err *err) CB_MUST_CHECK;
/* KEY: {"runs","metrics":{name:{"node","value","usual","n","z"}}} */
void suite_history_write_json(const struct suite_history *self, const char *key, const struct suite_nodes *nodes,
                              struct json_writer *json);

/* A line for each outlier of a suite's run: among its nodes, among its pairs of nodes, and against its history.
 * Writes nothing for other workloads. */
int suite_outliers_write(struct history *history, const struct run_info *run, struct buf *out,
                         struct cb_err *err) CB_MUST_CHECK;

#endif
