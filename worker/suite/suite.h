/* The cluster suite: what nodes, links, disks and memory of this allocation can do, before anything is
 * trained on them. One process a core (or device); each repetition measures everything once and is one
 * sample, so that spread, comparison and history work as they do for checkpoints. Collective.
 *
 * A test that cannot run here leaves its metrics absent and says why in a fact "suite.skipped.NAME".
 * What has more than one figure a repetition (sizes, pairs of nodes) goes into facts, too. */
#ifndef WORKER_SUITE_SUITE_H
#define WORKER_SUITE_SUITE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "core/experiment.h"
#include "core/status_page.h"
#include "worker/blas.h"
#include "worker/comm.h"
#include "worker/device_plugin.h"
#include "worker/folder.h"
#include "worker/suite/nodes.h"

#define SUITE_FILES_AT_ONCE 16
#define SUITE_DEPTH_MOST 64
#define SUITE_NODE_GEMM_SIZE 2048 /* beside the others of the node: rank's matrices must fit together */

/* A rank's device; all of it zero where there is none. */
struct suite_gpu {
    struct device_plugin plugin;
    struct device *device;
    struct device_comm *comm;  /* NULL where NCCL cannot */
    uint64_t collective_bytes; /* of what is sent, the whole of it */
};

struct suite {
    struct comm *comm;        /* borrowed */
    struct status_page *page; /* borrowed */
    const struct experiment *experiment;
    const char *pages_folder; /* node-local; borrowed */
    char run[FOLDER_NAME_BYTES];
    struct nodes nodes;
    struct blas blas;
    bool has_blas;
    struct folder folder;            /* with section storage alone: */
    struct store *direct, *buffered; /* owned; the second is NULL where the store has no page cache */
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

/* suite/judge.c: CB_ERR_BELOW, on all ranks, where a median does not reach suite.fail_below. */
int suite_judge(struct suite *self, struct cb_err *err) CB_MUST_CHECK;

/* suite/storage.c: the place in the store, before and after all repetitions. */
int suite_storage_open(struct suite *self, struct cb_err *err) CB_MUST_CHECK;
int suite_storage_close(struct suite *self, struct cb_err *err) CB_MUST_CHECK;

/* suite/gpu.c: the devices of all ranks, or none and why, before and after all repetitions. */
int suite_gpu_open(struct suite *self, struct cb_err *err) CB_MUST_CHECK;
void suite_gpu_close(struct suite *self);

/* Whether suite.only names the section, and the store is one for it. */
bool suite_wants(const struct experiment *experiment, const char *section);

/* suite/memory_needs.c: CB_ERR_MEMORY, on all ranks, where a machine has less than its ranks will take. Collective. */
int suite_check_memory(struct suite *self, struct cb_err *err) CB_MUST_CHECK;

/* suite/storage.c: of one file, or of all of a node's together. */
uint64_t suite_file_bytes(const struct experiment *experiment);

/* suite/memory.c: one of the three arrays of STREAM. */
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
