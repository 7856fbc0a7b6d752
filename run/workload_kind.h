/* The workloads: what the ranks of a run do. One row each; code asks for a property, never for a name. What a rank runs
 * for each stands in worker/worker_main.c. */
#ifndef RUN_WORKLOAD_KIND_H
#define RUN_WORKLOAD_KIND_H

#include <stdbool.h>

#include "run/experiment.h"

struct workload_kind {
    const char *name;         /* the value of workload= */
    bool has_ranks;           /* else it only holds its allocation, and touches no store */
    bool has_layout;          /* a model's state is laid out over the ranks: its bytes are known before */
    bool uses_engine;         /* saves and loads checkpoints as engine= says */
    bool trains;              /* a model; saves and resumes as the train.* keys say */
    bool measures_cluster;    /* the suite: nodes, links, storage, GPUs */
    bool inspects_checkpoint; /* reads a whole stored checkpoint once, and writes nothing */
    bool is_raw;              /* moves the bytes of a checkpoint without its format */
};

const struct workload_kind *workload_kind_of(const struct experiment *experiment);
const struct workload_kind *workload_kind_named(const char *name);

#endif
