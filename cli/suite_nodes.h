/* The cluster suite node by node: which one is the outlier, by how much, and what each pair of nodes did. */
#ifndef CLI_SUITE_NODES_H
#define CLI_SUITE_NODES_H

#include "core/json.h"
#include "db/history.h"

struct suite_nodes {
    size_t count;
    char **names;        /* by node, in order of the lowest rank; owned */
    uint32_t *first;     /* lowest rank of each */
    double *values;      /* METRIC_SUITE_FIRST … LAST, a value a node: medians over repetitions, NAN where none */
    double *latency_s;   /* count x count, NAN where not measured; symmetric */
    double *bytes_per_s; /* likewise */
};

/* One metric over the nodes. */
struct suite_spread {
    double median, worst;
    size_t worst_node;
    double
        z; /* of the worst: 0.6745 (x - median) / MAD (Iglewicz & Hoaglin, 1993); NAN below 4 nodes or without spread */
};

/* From the run's facts and samples. count is 0 where the run is of no suite. suite_nodes_release in any case. */
int suite_nodes_load(struct suite_nodes *self, struct history *history, const struct run_info *run,
                     struct cb_err *err) CB_MUST_CHECK;
void suite_nodes_release(struct suite_nodes *self);
/* False where fewer than two nodes have a value. The worst is the one that is furthest to the bad side. */
bool suite_nodes_spread(const struct suite_nodes *self, enum metric_id metric, struct suite_spread *spread);

int suite_nodes_write(const struct suite_nodes *self, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
/* "nodes": {"names","metrics":{name:{"values","median","worst","z"}},"pairs":{"latency_s","bytes_per_s"}} */
void suite_nodes_write_json(const struct suite_nodes *self, struct json_writer *json);

#endif
