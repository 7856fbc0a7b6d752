/* The state that a training keeps for its checkpoints; train/trainer.h has the functions. */
#ifndef TRAIN_TRAIN_CHECKPOINT_H
#define TRAIN_TRAIN_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/layout/layout.h"
#include "engine/engine.h"
#include "engine/state.h"
#include "setup/folder/folder.h"
#include "setup/gds.h"
#include "train/trainer.h"

#define TRAIN_COUNTERS 2 /* train.step, train.samples */
#define TRAIN_PENDING 10 /* save.inflight, one that is starting, and one spare */
#define TRAIN_KEPT 1024

/* A save whose sample belongs to the engine until it has ended. */
struct pending_save {
    struct sample sample;
    uint64_t start_ns;
};

struct train_checkpoint {
    struct experiment *experiment; /* including the keys that determine a training's layout */
    struct model *model;           /* with the counters as its last tensors */
    size_t parameters;             /* number of tensors before the counters */
    struct layout *layout;
    struct state state; /* memory of the trainer, and `position` */
    struct position position;
    struct folder folder;
    struct store *store, *async_store;
    struct gds gds;                             /* its files are the store's */
    struct trace_requests *trace, *async_trace; /* NULL without trace=full */
    struct comm *async_comm;
    struct device *device; /* staging device, if it has its own */
    struct engine *engine;
    bool async, resumes, resumed;
    uint64_t keep_last;
    uint32_t kept[TRAIN_KEPT + TRAIN_PENDING + 1]; /* steps of durable checkpoints, ascending */
    size_t kept_count;
    struct pending_save pending[TRAIN_PENDING]; /* a ring */
    uint32_t pending_first, pending_count;
    int64_t last_step;              /* last step saved or submitted; -1 if none */
    uint32_t failing, failing_step; /* failed saves not noted yet: how many, and the step of the first */
    uint32_t committed, failed, first_failed_step;
    char first_failure[1024];
    char owner[FOLDER_NAME_BYTES]; /* the run that saved here earlier; "" if unknown */
    uint64_t failed_at_wall_ns;    /* when the previous attempt ended; 0 if unknown */
    uint64_t reached_step;         /* steps that it had begun */
};

/* train/train_checkpoint_state.c: experiment, model, layout and state of this rank, in the trainer's own memory. */
int train_checkpoint_make_state(struct train_checkpoint *self, const struct trainer *trainer,
                                struct cb_err *err) CB_MUST_CHECK;

/* Copies the position to the memory that the engine saves, or back; on a device that is device memory. */
int train_checkpoint_move_position(struct train_checkpoint *self, const struct trainer *trainer,
                                   enum device_direction direction, struct cb_err *err) CB_MUST_CHECK;

/* Removes the checkpoint of a step, on rank 0. A failure only costs space. */
void train_checkpoint_clear(struct trainer *trainer, uint32_t step);

/* The run's id. Borrowed from the place. */
const char *train_checkpoint_run_name(const struct train_place *place);

#endif
