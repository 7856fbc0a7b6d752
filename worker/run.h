/* One rank's part in one attempt: prepare, iterate, verify, measure the limit, clean up. Collective. */
#ifndef WORKER_RUN_H
#define WORKER_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/layout/layout.h"
#include "ckpt/model/model.h"
#include "comm/comm.h"
#include "core/err.h"
#include "engine/device_plugin.h"
#include "engine/engine.h"
#include "engine/state.h"
#include "run/experiment.h"
#include "run/status_page.h"
#include "setup/folder/folder.h"
#include "store/store.h"
#include "worker/compute_gap.h"
#include "worker/verify_state.h"

#define RUN_PENDING 9 /* save.inflight and one more */

/* A save that went on behind; its sample is the engine's until it has ended. */
struct pending_save {
    struct sample sample;
    char checkpoint[FOLDER_NAME_BYTES];
    uint32_t iteration;
    double interference_fraction;
};

struct run {
    struct comm *comm;        /* borrowed */
    struct status_page *page; /* borrowed */
    const char *folder_path;  /* of the run; borrowed */
    char id[FOLDER_NAME_BYTES];
    uint32_t attempt;
    const char *pages_folder; /* node-local, shared by the ranks here; borrowed */
    struct experiment *experiment;
    struct model *model;
    struct layout_pair layouts; /* what it saves in and what it loads in */
    struct layout *layout;      /* the one it saves in; owned by `layouts` */
    struct folder folder;
    struct store *store;
    struct engine *engine; /* NULL with workload=raw */
    /* What saves use that go on behind; NULL without save.async. */
    struct comm *async_comm;
    struct store *async_store;
    struct device *device;       /* also where the state is on it */
    struct device_plugin plugin; /* with device=cuda */
    struct device_info device_info;
    bool on_device;
    struct pending_save *pending; /* RUN_PENDING of them, a ring */
    uint32_t pending_first, pending_count;
    struct compute_gap gap;
    uint64_t keep_last;
    struct payload_settings payload;
    enum verify_mode verify;
    bool saves, loads, raw, cold, keep, async;
    struct state own;     /* what this rank saves; without pieces where that is nothing */
    struct state shifted; /* what it loads, where that is not the same pieces */
    struct state *target; /* of loads: one of the two */
    uint64_t op_timeout_ns;
    uint32_t warmup, iterations;
    char checkpoint[FOLDER_NAME_BYTES]; /* the last one saved, or the one to load; "" before */
    uint32_t checkpoint_iteration;
    bool checkpoint_complete; /* its save ended well */
    uint64_t load_bytes;      /* read by all ranks in the last load */
};

/* Builds everything up to the first operation. Fails on all ranks together, with the reason on those
 * that have it. run_release in any case. */
int run_prepare(struct run *self, struct comm *comm, struct status_page *page, const char *pages_folder,
                const char *run_folder, uint32_t attempt, struct cb_err *err) CB_MUST_CHECK;
/* All operations, timed and untimed. */
int run_execute(struct run *self, struct cb_err *err) CB_MUST_CHECK;
/* What was really used, for the page; also after a failure. */
void run_add_facts(struct run *self);
/* After a failure: whether everything that was going on has ended, so that run_release may follow. */
bool run_stop(struct run *self) CB_MUST_CHECK;
void run_release(struct run *self);

/* Where experiment.yaml is: on several nodes the agents have brought it along, since the run folder may
 * be on another machine. One of its arguments. */
const char *run_experiment_folder(const char *pages_folder, const char *run_folder);

/* A deadline for the next step: timeout.op from now. */
uint64_t run_deadline(const struct run *self);
/* Ends a step: see agree(). */
int run_join(struct run *self, int code, struct cb_err *err) CB_MUST_CHECK;

/* worker/raw_baseline.c: the raw limit at the same place, after everything else. */
int run_baseline(struct run *self, struct cb_err *err) CB_MUST_CHECK;

#endif
