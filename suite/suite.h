/* The cluster suite: what nodes, links, disks and memory of this allocation can do, before anything is
 * trained on them. One process a core (or device); each repetition measures everything once and is one
 * sample, so that spread, comparison and history work as they do for checkpoints. Collective.
 *
 * A test that cannot run here leaves its metrics absent and says why in a fact "suite.skipped.NAME".
 * What has more than one figure a repetition (sizes, pairs of nodes) goes into facts, too. */
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
#include "engine/folder/folder.h"
#include "run/experiment.h"
#include "run/status_page.h"
#include "suite/tournament.h"

#define SUITE_FILES_MOST 64 /* of suite.storage_workers */
#define SUITE_DEPTH_MOST 64
#define SUITE_NODE_GEMM_SIZE 2048 /* beside the others of the node: rank's matrices must fit together */

#define SUITE_NO_GPU UINT32_MAX

/* The device that this rank measures: one rank does for each, however many share it. */
struct suite_gpu {
    bool is_here, can_talk; /* devices are measured, and NCCL joins them: the same on all ranks */
    struct device_plugin plugin;
    struct device *device;     /* NULL where another rank measures it, or there is none */
    struct device_comm *comm;  /* with a device, where they can talk */
    uint32_t rank, size;       /* of this one among those that are measured */
    uint32_t *first_of_node;   /* the lowest of them on each node; SUITE_NO_GPU */
    uint64_t collective_bytes; /* the most that is sent, the whole of it */
    bool has_near;
    cpu_set_t near; /* cores near the device that this rank may use */
};

struct suite {
    struct comm *comm;        /* borrowed */
    struct status_page *page; /* borrowed */
    const struct experiment *experiment;
    const char *pages_folder; /* node-local; borrowed */
    cpu_set_t allowed;        /* cores, before ranks took their shares */
    char run[FOLDER_NAME_BYTES];
    struct nodes nodes;
    struct blas blas;
    bool has_blas;
    struct folder folder;            /* with section storage alone: */
    struct store *direct, *buffered; /* owned; the second is NULL where the store has no page cache */
    double resident;                 /* the largest part of a file that stayed in the page cache; NAN: unknown */
    struct suite_gpu gpu;            /* with section gpu alone */
    uint64_t section_timeout_ns;
};

/* All repetitions of the sections that the experiment names. */
int suite_run(struct comm *comm, struct status_page *page, const struct experiment *experiment,
              const char *pages_folder, const char *run_folder, struct cb_err *err) CB_MUST_CHECK;

/* Sections: each measures once and fills its metrics of the sample. `last` is the last repetition: facts
 * are written then. */
int suite_net(struct suite *self, struct sample *sample, bool last, struct cb_err *err) CB_MUST_CHECK;
int suite_storage(struct suite *self, struct sample *sample, bool last, struct cb_err *err) CB_MUST_CHECK;
int suite_cpu(struct suite *self, struct sample *sample, bool last, struct cb_err *err) CB_MUST_CHECK;
int suite_memory(struct suite *self, struct sample *sample, bool last, struct cb_err *err) CB_MUST_CHECK;
int suite_gpu(struct suite *self, struct sample *sample, bool last, struct cb_err *err) CB_MUST_CHECK;

/* suite/suite_thresholds.c: CB_ERR_BELOW, on all ranks, where a median does not reach suite.fail_below. */
int suite_judge(struct suite *self, struct cb_err *err) CB_MUST_CHECK;

/* suite/storage.c: the place in the store, before and after all repetitions. */
int suite_storage_open(struct suite *self, struct cb_err *err) CB_MUST_CHECK;
int suite_storage_close(struct suite *self, struct cb_err *err) CB_MUST_CHECK;

/* suite/gpu.c: the devices of all ranks, or none and why, before and after all repetitions. */
int suite_gpu_open(struct suite *self, struct cb_err *err) CB_MUST_CHECK;
void suite_gpu_close(struct suite *self);

/* suite/gpu_collectives.c: NCCL between the devices; on all ranks, also those without one. */
int suite_gpu_collectives(struct suite *self, struct sample *sample, bool last, struct cb_err *err) CB_MUST_CHECK;

/* suite/curve.c: a collective over sizes, from 8 bytes (of each rank, where each has a share) up to `largest`, as the fact
 * "suite.curve.NAME" of rank 0: "bytes:seconds:algorithm bandwidth:bus bandwidth ...". */
struct suite_curve {
    const char *name;
    enum collective kind; /* for sizes and the factor of the bus bandwidth */
    uint32_t ranks;
    uint64_t largest;
    int (*measure)(struct suite *self, void *context, uint64_t bytes, double *seconds, struct cb_err *err);
    void *context;
};
int suite_curve_write(struct suite *self, const struct suite_curve *curve, struct cb_err *err) CB_MUST_CHECK;

/* suite/latency.c: half a round trip with `peer`, which makes the same call; median and 99th percentile. */
int suite_ping_pong(struct suite *self, uint32_t peer, uint64_t bytes, uint32_t rounds, double *median_s, double *p99_s,
                    struct cb_err *err) CB_MUST_CHECK;
/* The same over sizes, of several peers by turns: means of the medians, and the worst percentiles. */
#define SUITE_LATENCY_SIZES 8
struct suite_latencies {
    double median_s[SUITE_LATENCY_SIZES], p99_s[SUITE_LATENCY_SIZES];
    uint32_t peers;
};
int suite_latencies_measure(struct suite *self, uint32_t peer, struct suite_latencies *all,
                            struct cb_err *err) CB_MUST_CHECK;
/* The fact "suite.KIND.NODE" = "bytes:median:p99 ..."; nothing where there was no peer. */
void suite_latencies_note(struct suite *self, const char *kind, const struct suite_latencies *all);

/* suite/section.c: whether suite.only names the section; and whether the store is one for it, too. */
bool suite_names(const struct experiment *experiment, const char *section);
bool suite_wants(const struct experiment *experiment, const char *section);

/* suite/memory_needs.c: CB_ERR_MEMORY, on all ranks, where a machine has less than its ranks will take. Collective. */
int suite_check_memory(struct suite *self, struct cb_err *err) CB_MUST_CHECK;

/* suite/storage.c: of one file, or of all of a node's together. */
uint64_t suite_file_bytes(const struct experiment *experiment);
/* Files that one node writes and reads at once. */
uint32_t suite_workers(const struct experiment *experiment);

/* suite/suite_memory.c: one of the three arrays of STREAM. */
uint64_t suite_array_bytes(const struct suite *self);

/* A deadline for the next step. */
uint64_t suite_deadline(const struct suite *self);
/* Ends a step: see together(). */
int suite_join(struct suite *self, int code, struct cb_err *err) CB_MUST_CHECK;
/* Sum of a value over the ranks of this node; the same on all of them. Values below 2^63. */
int suite_sum_of_node(struct suite *self, double value, double *sum, struct cb_err *err) CB_MUST_CHECK;
/* "suite.skipped.WHAT" = why; on rank 0, once. */
void suite_skip(struct suite *self, const char *what, const char *why);

#endif
