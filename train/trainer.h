/* Inside the training workload: what train*.c share.
 *
 * train.c             from keys to a trainer, and the order of steps and checkpoints
 * train_step.c        one step, and one look at the validation samples
 * train_checkpoint.c  the state as the engine sees it; saving and resuming
 * train_device.c      the device that it computes on
 * memory_stages.c     what memory is held at the stages of a training */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include <stdbool.h>
#include <stdint.h>

#include "setup/training.h"
#include "train/data.h"
#include "train/memory_stages.h"
#include "train/parallel.h"
#include "train/train.h"
#include "train/train_device.h"

struct train_checkpoint;

/* Where a training is: what a checkpoint holds beside weights and moments. */
struct position {
    int64_t step;    /* the next one, from 0 */
    int64_t samples; /* of all ranks, taken in so far */
};

/* How fast steps go. */
struct step_pace {
    uint64_t steps, spent_ns;
};

struct trainer {
    struct train_place place;
    struct comm *comm;        /* place's */
    struct status_page *page; /* place's */
    uint32_t rank;
    struct model *described; /* names and shapes, in fp32 */
    struct training training;
    struct train_setup setup;
    struct train_model *model;
    struct train_data *data; /* NULL for the linear stack */
    struct optimizer optimizer;
    struct schedule schedule;
    double clip, learning_rate; /* the last step's */
    uint64_t epochs, validate_every, trace_steps;
    struct device *device;   /* NULL without CPU offload */
    struct train_device own; /* with device=cuda */
    struct trace trace;
    struct parallel *parallel;
    struct memory_stages memory;
    uint32_t *tokens, *targets; /* of a batch of this rank */
    float *input;               /* of the linear stack */
    double peak_flops;          /* of this rank: its matrix products alone, measured before */
    uint64_t op_timeout_ns;
    struct position position;
    uint64_t first_step;                 /* of this attempt */
    bool broken;                         /* the present step has come to no number, on some rank */
    struct train_checkpoint *checkpoint; /* NULL without checkpoints */
    struct step_pace alone, beside;      /* measured steps: without and with a save behind them */
    uint64_t began_ns;                   /* the first measured step */
    struct stream_counts exchanged;      /* until the last step */
};

uint64_t trainer_deadline(const struct trainer *self);
/* Ends a phase: see together(). */
int trainer_join(struct trainer *self, int code, struct cb_err *err) CB_MUST_CHECK;

/* One step, as a sample; position moves on. CB_ERR_BELOW on ranks whose loss is no number. */
int trainer_step(struct trainer *self, struct cb_err *err) CB_MUST_CHECK;
/* Values that do not change from step to step: the linear stack's input. */
void trainer_fill_input(struct trainer *self);

/* --- train_checkpoint.c --- */

/* The store, the engine, and the state they see. Collective. */
int checkpoint_open(struct trainer *trainer, struct cb_err *err) CB_MUST_CHECK;
/* train.resume=latest: loads the newest checkpoint, if there is one, and sets trainer->position. */
int checkpoint_resume(struct trainer *trainer, struct cb_err *err) CB_MUST_CHECK;
/* A save of the position as it is; returns after the stall. A store that is full or fails ends the save, not the
 * training: that is noted, and told by checkpoint_finish. */
int checkpoint_save(struct trainer *trainer, struct cb_err *err) CB_MUST_CHECK;
/* Publishes what has ended meanwhile; between steps. */
void checkpoint_settle(struct trainer *trainer);
/* A save of the last position, unless it is saved; waits for all; with keep=false removes them. Fails where one of this
 * run's did. */
int checkpoint_finish(struct trainer *trainer, struct cb_err *err) CB_MUST_CHECK;
/* After a step whose loss or gradients are no numbers, instead of checkpoint_finish: a checkpoint of its weights is none to go
 * on from where there is one before it. Returns `code`, and says in `err` which one is left. Collective. */
int checkpoint_leave_broken(struct trainer *trainer, int code, struct cb_err *err) CB_MUST_CHECK;
bool checkpoint_is_saving(const struct trainer *trainer); /* behind the steps */
/* After the first step of a resumed training. */
void checkpoint_note_recovery(struct trainer *trainer);
void checkpoint_add_facts(struct trainer *trainer);
/* False where the store is stuck: then nothing may be freed. */
bool checkpoint_close(struct trainer *trainer) CB_MUST_CHECK;

#endif
