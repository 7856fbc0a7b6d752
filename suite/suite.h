/* The cluster suite: measures the performance of nodes, links, disks and memory of this allocation before training on
 * them. One process per core (or device); each repetition measures everything once and is one sample, so that spread,
 * comparison and history work as for checkpoints. Collective.
 *
 * A test that cannot run here leaves its metrics absent and reports the reason in a fact "suite.skipped.NAME". Results
 * with several values per repetition (sizes, pairs of nodes) are facts, too. */
#ifndef SUITE_SUITE_H
#define SUITE_SUITE_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "comm/comm_measure.h"
#include "core/blas.h"
#include "core/err.h"
#include "engine/device_plugin.h"
#include "run/experiment.h"
#include "run/status_page.h"
#include "setup/folder/folder.h"
#include "suite/tournament.h"

#define SUITE_FILES_MOST 64 /* limit of suite.storage_workers */
#define SUITE_DEPTH_MOST 64
#define SUITE_NODE_GEMM_SIZE 2048 /* shared with the other ranks of the node, whose matrices must all fit */

#define SUITE_NO_GPU UINT32_MAX

/* The device that this rank measures; of ranks that share a device only one measures it. */
struct suite_gpu {
    bool is_here, can_talk; /* devices are measured, and NCCL connects them: the same on all ranks */
    struct device_plugin plugin;
    struct device *device;     /* NULL if another rank measures it, or there is no device */
    struct device_comm *comm;  /* with a device, if NCCL works */
    uint32_t rank, size;       /* index of this rank among those with a device */
    uint32_t *first_of_node;   /* lowest rank with a device on each node; SUITE_NO_GPU */
    uint64_t collective_bytes; /* size of the largest message over all ranks */
    bool has_near;
    cpu_set_t near; /* cores near the device that this rank may use */
};

struct suite {
    struct comm *comm;        /* borrowed */
    struct status_page *page; /* borrowed */
    const struct experiment *experiment;
    const char *pages_folder; /* node-local; borrowed */
    cpu_set_t allowed;        /* cores, before ranks were bound to their shares */
    char run[FOLDER_NAME_BYTES];
    const char *run_folder; /* borrowed */
    uint32_t attempt;
    struct nodes nodes;
    struct blas blas;
    bool has_blas;
    struct folder folder;            /* only with section storage: */
    struct store *direct, *buffered; /* owned; the second is NULL if the store has no page cache */
    double resident;                 /* the largest share of a file that stayed in the page cache; NAN: unknown */
    struct suite_gpu gpu;            /* only with section gpu */
    uint64_t section_timeout_ns;
};

/* Runs all repetitions of the sections that the experiment names. */
int suite_run(struct comm *comm, struct status_page *page, const struct experiment *experiment,
              const char *pages_folder, const char *run_folder, uint32_t attempt, struct cb_err *err) CB_MUST_CHECK;

/* Sections: each measures once and fills its metrics of the sample. `last` is the last repetition, which also writes
 * the facts. */
int suite_net(struct suite *self, struct sample *sample, bool last, struct cb_err *err) CB_MUST_CHECK;
int suite_storage(struct suite *self, struct sample *sample, bool last, struct cb_err *err) CB_MUST_CHECK;
int suite_cpu(struct suite *self, struct sample *sample, bool last, struct cb_err *err) CB_MUST_CHECK;
int suite_memory(struct suite *self, struct sample *sample, bool last, struct cb_err *err) CB_MUST_CHECK;
int suite_gpu(struct suite *self, struct sample *sample, bool last, struct cb_err *err) CB_MUST_CHECK;

/* suite/suite_thresholds.c: CB_ERR_BELOW, on all ranks, if a median does not meet suite.fail_below. */
int suite_judge(struct suite *self, struct cb_err *err) CB_MUST_CHECK;

/* Opens and removes the folder in the store, before and after all repetitions. */
int suite_storage_open(struct suite *self, struct cb_err *err) CB_MUST_CHECK;
int suite_storage_close(struct suite *self, struct cb_err *err) CB_MUST_CHECK;

/* Opens and closes the devices of all ranks, before and after all repetitions; if there is no device, keeps the
 * reason. */
int suite_gpu_open(struct suite *self, struct cb_err *err) CB_MUST_CHECK;
void suite_gpu_close(struct suite *self);

/* NCCL between the devices, alone and beside matrix products; called by all ranks, also those without a device. */
int suite_gpu_collectives(struct suite *self, struct sample *sample, bool last, struct cb_err *err) CB_MUST_CHECK;
/* *all: whether every rank succeeded. If not, reports the test `what` (NULL: reports nothing) as skipped, with this rank's
 * reason or the number of a rank that failed. Collective. */
int suite_gpu_everybody(struct suite *self, int code, const struct cb_err *why, const char *what, bool *all,
                        struct cb_err *err) CB_MUST_CHECK;

/* Measures a collective from 8 bytes (per rank, if each has a share) up to `largest`, as the fact "suite.curve.NAME"
 * of rank 0: "bytes:seconds:algorithm bandwidth:bus bandwidth ...". */
struct suite_curve {
    const char *name;
    enum collective kind; /* for sizes and the bus bandwidth factor */
    uint32_t ranks;
    uint64_t largest;
    int (*measure)(struct suite *self, void *context, uint64_t bytes, double *seconds, struct cb_err *err);
    void *context;
};
int suite_curve_write(struct suite *self, const struct suite_curve *curve, struct cb_err *err) CB_MUST_CHECK;

/* Between two ranks: half a round trip, its 99th percentile, bandwidth. */
struct suite_link {
    double latency_s, p99_s, bytes_per_s;
};

/* Pairs of ranks of different nodes, one round at a time, so that no node is in two pairs at once. */
struct suite_pairs {
    const char *fact;             /* "pair": each pair is the fact "suite.pair.A.B" of one of its ranks */
    const uint32_t *rank_of_node; /* the rank that represents the node; SUITE_NO_GPU if there is none */
    bool plays;                   /* this rank represents its node */
    int (*measure)(struct suite *self, void *context, uint32_t peer, struct suite_link *link, struct cb_err *err);
    void *context;
};
/* *mean is over *met pairs of this rank; its p99_s is the worst of them. */
int suite_pairs_measure(struct suite *self, const struct suite_pairs *pairs, bool last, struct suite_link *mean,
                        uint32_t *met, struct cb_err *err) CB_MUST_CHECK;

/* Whether suite.only includes the section, and for storage whether the store keeps data. */
bool suite_names(const struct experiment *experiment, const char *section);
bool suite_wants(const struct experiment *experiment, const char *section);

/* Size of one file, or of all files of a node. */
uint64_t suite_file_bytes(const struct experiment *experiment);
/* Number of files that one node writes and reads at once. */
uint32_t suite_workers(const struct experiment *experiment);

/* suite/suite_memory.c: one of the three arrays of STREAM. */
uint64_t suite_array_bytes(const struct suite *self);

/* The deadline of the next step. */
uint64_t suite_deadline(const struct suite *self);
/* Ends a step: see comm/agree.h. */
int suite_join(struct suite *self, int code, struct cb_err *err) CB_MUST_CHECK;
/* Sum of a value over the ranks of this node; every rank of it gets the same. Values must be below 2^63. */
int suite_sum_of_node(struct suite *self, double value, double *sum, struct cb_err *err) CB_MUST_CHECK;
/* Writes "suite.skipped.WHAT" = why; on rank 0, once. */
void suite_skip(struct suite *self, const char *what, const char *why);

#endif
