/* One rank's part in one attempt: prepare, iterate, verify, measure the limit, clean up. Collective. */
#ifndef WORKER_RUN_H
#define WORKER_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/layout/layout.h"
#include "ckpt/model/model.h"
#include "comm/comm.h"
#include "core/buf.h"
#include "core/err.h"
#include "engine/device_plugin.h"
#include "engine/engine.h"
#include "engine/state.h"
#include "run/experiment.h"
#include "run/status_page.h"
#include "setup/folder/folder.h"
#include "setup/gds.h"
#include "store/store.h"
#include "worker/compute_gap.h"
#include "worker/verify_state.h"

#define RUN_PENDING 9 /* save.inflight and one more */

/* An asynchronous save; the engine uses its sample until the save has ended. */
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
    const char *pages_folder; /* node-local, shared by the ranks of this node; borrowed */
    struct experiment *experiment;
    struct model *model;
    struct layout_pair layouts; /* for saving and for loading */
    struct layout *layout;      /* for saving; owned by `layouts` */
    struct folder folder;
    struct store *store;
    struct engine *engine;    /* NULL with workload=raw */
    struct buf library_words; /* the engine's */
    /* For asynchronous saves; NULL without save.async. */
    struct comm *async_comm;
    struct store *async_store;
    struct trace_requests *trace, *async_trace; /* NULL without trace=full */
    struct device *device;                      /* also set if the state is in device memory */
    struct device_plugin plugin;                /* with device=cuda */
    struct device_info device_info;
    struct gds gds; /* its files are the store's */
    bool on_device;
    struct pending_save *pending; /* RUN_PENDING of them, a ring */
    uint32_t pending_first, pending_count;
    struct compute_gap gap;
    uint64_t keep_last;
    struct payload_settings payload;
    enum verify_mode verify;
    bool saves, loads, raw, cold, keep, async;
    struct state own;     /* pieces that this rank saves; empty if it saves nothing */
    struct state shifted; /* pieces that it loads, if they differ */
    struct state *target; /* the state for loads: one of the two above */
    uint64_t op_timeout_ns;
    uint32_t warmup, iterations;
    char checkpoint[FOLDER_NAME_BYTES]; /* the last one saved, or the one to load; "" if there is none yet */
    uint32_t checkpoint_iteration;
    bool checkpoint_complete;      /* the save of it succeeded */
    uint64_t load_bytes;           /* read by all ranks in the last load */
    struct dataset_reads *dataset; /* load.dataset; NULL until the first load */
    /* The scratch folder has files; those of load.evict and of load.dataset are complete. */
    bool has_scratch_files, has_evict_files, has_dataset_files;
    /* on_error=continue: iterations after the warm-up, how many of them failed, and this rank's first failure */
    uint32_t measured, failed, noted;
    bool spoiled; /* an iteration failed, and its load may have left poison in the state that saves use */
    struct cb_err first_failure;
};

/* Prepares everything for the first operation. If one rank fails, all ranks fail; ranks that failed have the reason.
 * Call run_release after success and failure. */
int run_prepare(struct run *self, struct comm *comm, struct status_page *page, const char *pages_folder,
                const char *run_folder, uint32_t attempt, struct cb_err *err) CB_MUST_CHECK;
/* Runs all operations, timed and untimed. */
int run_execute(struct run *self, struct cb_err *err) CB_MUST_CHECK;
/* Adds facts about the hardware and settings in use to the status page; also after a failure. */
void run_add_facts(struct run *self);
/* After a failure: aborts everything in flight. Returns whether all of it has ended, so that run_release may be
 * called. */
bool run_stop(struct run *self) CB_MUST_CHECK;
void run_release(struct run *self);

/* The folder of experiment.yaml, one of the arguments: on several nodes the agents copy it to the pages folder, since
 * the run folder may be on another machine. */
const char *run_experiment_folder(const char *pages_folder, const char *run_folder);

/* The deadline of the next step: timeout.op from now. */
uint64_t run_deadline(const struct run *self);
/* Agrees with the other ranks on a step's result: see agree(). */
int run_join(struct run *self, int code, struct cb_err *err) CB_MUST_CHECK;

/* worker/raw_baseline.c: measures the raw limit at the same place, after all operations. */
int run_baseline(struct run *self, struct cb_err *err) CB_MUST_CHECK;

#endif
