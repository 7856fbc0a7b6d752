/* Results of the cluster suite by node: the outlier, how far it is off, and the figures of each pair of nodes. */
#ifndef CLI_REPORT_SUITE_NODES_H
#define CLI_REPORT_SUITE_NODES_H

#include "core/json.h"
#include "db/history.h"

struct suite_nodes {
    size_t count;
    char **names;        /* by node, in order of the lowest rank; owned */
    uint32_t *first;     /* lowest rank of each */
    double *values;      /* a row a metric, a value a node: medians over repetitions, NAN where none */
    double *latency_s;   /* count x count, NAN where not measured; symmetric */
    double *bytes_per_s; /* likewise */
    double *gpu_latency_s, *gpu_bytes_per_s; /* the same between the first GPUs of two nodes */
};

/* Whether every rank measures the metric on a GPU of its own. */
bool suite_is_of_gpus(enum metric_id metric);

/* One metric over the nodes. */
struct suite_spread {
    double median, worst;
    size_t worst_node;
    double z; /* stats_robust_z of the worst node */
};

/* Latency or bandwidth over the pairs of nodes. */
struct suite_pair_spread {
    double median, worst;
    size_t a, b; /* the worst pair */
    double z;    /* stats_robust_z of the worst pair */
};

/* Loads facts and samples of the run. count is 0 if the run is not of a suite. Call suite_nodes_release in any case. */
int suite_nodes_load(struct suite_nodes *self, struct history *history, const struct run_info *run,
                     struct cb_err *err) CB_MUST_CHECK;
/* The GPUs that a run measured, listed like nodes under the name "GPU PCI of NODE". Each has its own values of
 * METRIC_GROUP_SUITE_GPU, from the rank that measured it. There are no pairs; count is 0 if no GPU was measured. Call
 * suite_nodes_release after success and failure. */
int suite_gpus_load(struct suite_nodes *self, struct history *history, const struct run_info *run,
                    struct cb_err *err) CB_MUST_CHECK;
void suite_nodes_release(struct suite_nodes *self);
/* Returns false if fewer than two nodes have a value. The worst node deviates most in the bad direction. */
bool suite_nodes_spread(const struct suite_nodes *self, enum metric_id metric, struct suite_spread *spread);

/* The same for pairs of nodes: latency or bandwidth, METRIC_NET_… or METRIC_GPU_NET_…. */
bool suite_nodes_pair_spread(const struct suite_nodes *self, enum metric_id metric, struct suite_pair_spread *spread);

int suite_nodes_write(const struct suite_nodes *self, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
/* A table of the values of each GPU; writes nothing if there are fewer than two. */
int suite_gpus_write(const struct suite_nodes *self, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
/* "gpus": {"names", name:{"values","median","worst","z"}} */
void suite_gpus_write_json(const struct suite_nodes *self, struct json_writer *json);
/* "nodes": {"names","metrics":{name:{"values","median","worst","z"}},
 * "pairs":{"latency_s","bytes_per_s","gpu_latency_s","gpu_bytes_per_s"},
 * "worst_pairs":{name:{"nodes","value","median","z"}}} */
void suite_nodes_write_json(const struct suite_nodes *self, struct json_writer *json);

#endif
