/* The workloads: what the ranks of a run do. One row each; code asks for a property, never for a name.
 * worker/worker_main.c has the function of each workload. */
#ifndef RUN_WORKLOAD_KIND_H
#define RUN_WORKLOAD_KIND_H

#include <stdbool.h>

#include "run/experiment.h"

struct workload_kind {
    const char *name;         /* the value of workload= */
    bool has_ranks;           /* if false, it only holds its allocation and uses no store */
    bool has_layout;          /* lays out a model's state over the ranks, so its bytes are known in advance */
    bool uses_engine;         /* saves and loads checkpoints with the engine of engine= */
    bool trains;              /* trains a model; saves and resumes according to the train.* keys */
    bool measures_cluster;    /* runs the suite: nodes, links, storage, GPUs */
    bool inspects_checkpoint; /* reads a whole stored checkpoint once, and writes nothing */
    bool watches;             /* observes the checkpoints of a command, which starts the ranks */
    bool is_raw;              /* moves the bytes of a checkpoint, without its format */
};

const struct workload_kind *workload_kind_of(const struct experiment *experiment);
const struct workload_kind *workload_kind_named(const char *name);
/* Whether a run of this workload uses the key. Keys of the whole run (ranks, store, slurm.*) are used by all. */
bool workload_uses(const struct workload_kind *self, enum option_id id);
/* Whether a key has an effect with workload=watch: the command decides what is saved, where and how; keys of the run as a
 * whole remain. */
bool workload_watch_uses(enum option_id id);
/* Whether the key says anything about this run, and so is to be shown. A watched run has neither the store nor the ranks of
 * the defaults. */
bool workload_has_key(const struct experiment *experiment, enum option_id id);

#endif
