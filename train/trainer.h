/* Inside the training workload: what train*.c share.
 *
 * train.c             from keys to a trainer, and the order of steps and checkpoints
 * train_step.c        one step, and the validation loss
 * train_checkpoint*.c the state as the engine sees it; saving and resuming
 * memory_stages.c     what memory is held at the stages of a training */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device_plugin.h"
#include "setup/training.h"
#include "train/data.h"
#include "train/memory_stages.h"
#include "train/parallel.h"
#include "train/train.h"

struct train_checkpoint;

/* Position of a training: what a checkpoint contains besides weights and moments. */
struct position {
    int64_t step;    /* the next step, from 0 */
    int64_t samples; /* of all ranks, processed so far */
};

/* Rates of steps. */
struct step_rate {
    uint64_t steps, spent_ns;
};

struct trainer {
    struct train_place place;
    struct comm *comm;        /* borrowed from `place` */
    struct status_page *page; /* borrowed from `place` */
    uint32_t rank;
    struct model *described; /* names and shapes, in fp32 */
    struct training training;
    struct train_setup setup;
    struct train_model *model;
    struct train_data *data; /* NULL for the linear stack */
    struct optimizer optimizer;
    struct schedule schedule;
    double clip, learning_rate; /* of the previous step */
    uint64_t epochs, validate_every, trace_steps;
    struct device *device;       /* that copies, with CPU offload if host threads compute; else NULL */
    struct device_plugin plugin; /* with device=cuda: */
    struct device *gpu;          /* the device that computes, see setup.math; NULL: host threads */
    struct device_info gpu_info;
    struct trace trace;
    bool records_activity; /* the plugin does, for the trace */
    struct parallel *parallel;
    struct memory_stages memory;
    uint32_t *tokens, *targets; /* inputs of a batch of this rank */
    float *input;               /* of the linear stack */
    double peak_flops;          /* of this rank: speed of matrix products alone, measured before training */
    uint64_t op_timeout_ns;
    struct position position;
    uint64_t first_step;                 /* of this attempt */
    bool broken;                         /* the current step produced NaN or infinity, on some rank */
    struct train_checkpoint *checkpoint; /* NULL without checkpoints */
    struct step_rate alone, beside;      /* measured steps: without and with a concurrent save */
    uint64_t began_ns;                   /* start of the first measured step */
    struct stream_counts exchanged;      /* at the end of the last step */
};

uint64_t trainer_deadline(const struct trainer *self);
/* The device that has the state in its memory; NULL: it is in host memory. Call after parallel_new. */
struct device *trainer_state_device(const struct trainer *self);
/* Ends a phase: see comm/agree.h. */
int trainer_join(struct trainer *self, int code, struct cb_err *err) CB_MUST_CHECK;

/* Runs one step, as a sample; advances the position. CB_ERR_BELOW on ranks whose loss is NaN or infinite. */
int trainer_step(struct trainer *self, struct cb_err *err) CB_MUST_CHECK;
/* Fills the linear stack's input, which does not change between steps. */
void trainer_fill_input(struct trainer *self);

/* --- train/train_checkpoint.c --- */

/* Opens the store, the engine, and the state they see. Collective. */
int checkpoint_open(struct trainer *trainer, struct cb_err *err) CB_MUST_CHECK;
/* train.resume=latest: loads the newest checkpoint, if there is one, and sets trainer->position. */
int checkpoint_resume(struct trainer *trainer, struct cb_err *err) CB_MUST_CHECK;
/* Saves the current position; returns after the stall. A store that is full or fails ends the save, not the training:
 * the failure is recorded, and reported by checkpoint_finish. */
int checkpoint_save(struct trainer *trainer, struct cb_err *err) CB_MUST_CHECK;
/* Publishes saves that have ended meanwhile; call between steps. */
void checkpoint_settle(struct trainer *trainer);
/* Saves the last position unless it is saved already, and waits for all saves; with keep=false removes them. Fails if
 * any save of this run failed. */
int checkpoint_finish(struct trainer *trainer, struct cb_err *err) CB_MUST_CHECK;
/* Call instead of checkpoint_finish after a step with NaN or infinite loss or gradients: removes the checkpoint of
 * its weights if an earlier one exists to resume from. Returns `code`, and names the remaining one in `err`.
 * Collective. */
int checkpoint_leave_broken(struct trainer *trainer, int code, struct cb_err *err) CB_MUST_CHECK;
bool checkpoint_is_saving(const struct trainer *trainer); /* asynchronous */
/* Call after the first step of a resumed training. */
void checkpoint_note_recovery(struct trainer *trainer);
void checkpoint_add_facts(struct trainer *trainer);
/* False if the store is stuck: then nothing may be freed. */
bool checkpoint_close(struct trainer *trainer) CB_MUST_CHECK;

#endif
