/* Results of the cluster suite by node and by GPU: outliers among them and against their earlier runs of the same
 * experiment, and the figures of each pair of nodes. */
#ifndef CLI_REPORT_SUITE_REPORT_H
#define CLI_REPORT_SUITE_REPORT_H

#include "core/json.h"
#include "db/history.h"

/* Tables of nodes, pairs of nodes and GPUs, and of their history. `has_nodes`: the nodes were listed already, so it
 * prints nothing for a run of another workload. */
int suite_report_write(struct history *history, const struct run_info *run, bool has_nodes, bool colour,
                       struct buf *out, struct cb_err *err) CB_MUST_CHECK;
/* "nodes": {"names","metrics":{name:{"values","median","worst","z"}},
 * "pairs":{"latency_s","bytes_per_s","gpu_latency_s","gpu_bytes_per_s"},
 * "worst_pairs":{name:{"nodes","value","median","z"}}}, "gpus": {"names", name:{"values","median","worst","z"}},
 * "history" and "gpu_history": {"runs","metrics":{name:{"node","value","usual","n","z"}}} */
int suite_report_write_json(struct history *history, const struct run_info *run, struct json_writer *json,
                            struct cb_err *err) CB_MUST_CHECK;

/* A line for each outlier of a suite's run: among its nodes and GPUs, among its pairs of nodes, and against its
 * history. Writes nothing for other workloads. */
int suite_outliers_write(struct history *history, const struct run_info *run, struct buf *out,
                         struct cb_err *err) CB_MUST_CHECK;

/* Nodes that are outliers, or have a GPU that is one, in a primary metric: among the others of the run, or against
 * their earlier runs. A slow pair of nodes blames neither. Release also after a failure. */
struct bad_nodes {
    char **names;
    enum metric_id *metrics; /* for each node, the first metric in which it is an outlier */
    size_t count;
};
int suite_find_bad_nodes(struct history *history, const struct run_info *run, struct bad_nodes *found,
                         struct cb_err *err) CB_MUST_CHECK;
void bad_nodes_release(struct bad_nodes *self);

/* The median over the repetitions for each rank of a suite: medians[metric * ranks + rank], NAN if a rank did not
 * measure it. Owned by the caller. */
int suite_rank_medians(struct history *history, const struct run_info *run, double **medians,
                       struct cb_err *err) CB_MUST_CHECK;

#endif
