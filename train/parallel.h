/* Data parallelism: how parameters, gradients and moments of a model are distributed over ranks, and what ranks
 * exchange when.
 *
 * FSDP: units of the model are grouped into WRAPS (by the wrap policy). A wrap is one flat buffer, padded to a
 * multiple of the ranks that shard it, and each rank keeps one part. The parts are gathered before a wrap is used and
 * freed afterwards; its gradients are summed and sharded (reduce-scatter). At most two gathered wraps exist at a
 * time, besides the root's wrap, which stays gathered from its first use to its last. With several sharding groups
 * (hybrid) gradients are then also summed over the groups. DDP: every rank keeps everything; gradients are summed in
 * buckets during backward.
 *
 * Communication runs on a stream, concurrently with computation. Collective calls, from one thread.
 *
 * With a model on a device all arrays and buffers are one piece of device memory, and ranks exchange between their
 * devices (train/device_stream.h). With CPU offload the arrays are in pinned host memory, where the optimizer runs. */
#ifndef TRAIN_PARALLEL_H
#define TRAIN_PARALLEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"
#include "engine/device.h"
#include "engine/timeline.h"
#include "setup/training.h"
#include "train/optimizer.h"
#include "train/stream.h"
#include "train/trace.h"
#include "train/train_model.h"

#define PARALLEL_BUCKET_BYTES (UINT64_C(25) * 1024 * 1024) /* bucket of DDP's all-reduces, as in PyTorch */

struct parallel_setup {
    const struct training *training;
    struct comm *comm;         /* borrowed, like all members below */
    struct train_model *model; /* its units and stages; determines the parameters */
    struct trace *trace;
    struct device *device;                     /* that copies, with CPU offload if the host computes; else NULL */
    struct device_math *math;                  /* the model's; NULL: the host computes */
    const struct device_comm_ops *device_comm; /* of the device that computes */
    struct optimizer optimizer;
    uint64_t seed;
};

/* Arrays of a rank's share of the state, in the order of the wraps. */
enum parallel_array { PARALLEL_WEIGHTS, PARALLEL_EXP_AVG, PARALLEL_EXP_AVG_SQ, PARALLEL_GRADIENTS, PARALLEL_ARRAYS };

/* All arrays in one piece on a device; `counters` has room for this many int64, which a checkpoint also stores. */
#define PARALLEL_COUNTERS 2
struct parallel_device_memory {
    void *base; /* NULL if the arrays are in host memory */
    uint64_t bytes;
    int64_t *counters;
};

struct parallel_figures {
    uint64_t wraps, parameters; /* of the model */
    uint64_t share;             /* elements of each array that this rank keeps, including padding */
    uint64_t bytes;             /* held by this rank, including buffers; on a device and in pinned memory together */
    uint32_t most_gathered;     /* peak number of gathered wraps, without the root's */
    uint64_t gathered_bytes;    /* peak of the previous step, including the root's wrap */
};

struct parallel;

/* Bytes that parallel_new allocates on each rank, in the memory of a device if one computes; then *pinned is what it
 * allocates in pinned host memory. A pure function. `moments` as in optimizer_moments. */
uint64_t parallel_bytes(const struct training *training, const struct model *model, unsigned moments, bool on_device,
                        uint64_t *pinned);

/* Allocates, fills the weights (train_model_init) and zeroes the rest. Collective. */
int parallel_new(const struct parallel_setup *setup, uint64_t deadline_ns, struct parallel **parallel,
                 struct cb_err *err) CB_MUST_CHECK;
/* After a failure: whether all communication has ended, so that everything may be freed. */
bool parallel_stop(struct parallel *self) CB_MUST_CHECK;
void parallel_free(struct parallel *self);

/* Forward and backward over all stages; call right after train_model_begin. Gradients are then complete, summed over
 * the ranks. Time spent waiting for others is STATE_EXCHANGE on `timeline`. */
int parallel_gradients(struct parallel *self, struct timeline *timeline, uint64_t deadline_ns,
                       struct cb_err *err) CB_MUST_CHECK;
/* Forward only, for a validation loss. */
int parallel_forward(struct parallel *self, struct timeline *timeline, uint64_t deadline_ns,
                     struct cb_err *err) CB_MUST_CHECK;
/* `numbers[0]` becomes the norm of the mean gradient of all ranks, the others become their sums over the ranks. */
int parallel_norm(struct parallel *self, struct timeline *timeline, double *numbers, uint32_t count,
                  uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
/* Runs the optimizer on this rank's share, with gradients multiplied by `scale`. `step` counts from 1. Only a device
 * fails. */
int parallel_update(struct parallel *self, double learning_rate, double scale, uint64_t step, uint64_t deadline_ns,
                    struct cb_err *err) CB_MUST_CHECK;

/* Location in an array of an element of a parameter, counted in the model's unit; NULL if another rank has it. */
float *parallel_place(const struct parallel *self, enum parallel_array array, size_t unit, uint64_t element);
/* Location of a unit's element in its wrap, and the wrap's number of elements without padding. */
void parallel_flat(const struct parallel *self, size_t unit, uint64_t element, uint64_t *begin, uint64_t *elements);
struct parallel_device_memory parallel_device_memory(const struct parallel *self);
struct parallel_figures parallel_figures(const struct parallel *self);
struct stream_counts parallel_counts(const struct parallel *self); /* of all communication so far */

#endif
