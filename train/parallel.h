/* Data parallelism: where parameters, gradients and moments of a model lie on each rank, and what ranks exchange when.
 *
 * FSDP: units of the model are put together to WRAPS (as the wrap policy says); a wrap is one flat buffer, padded to a
 * multiple of the ranks that shard it, of which each rank keeps one part. Before a wrap is used its parts are
 * gathered, afterwards the whole is given up; its gradients are added up and shared out (reduce-scatter). At most two
 * gathered wraps exist at a time beside the one that holds the model's root, which stays from its first use to its
 * last. With several groups that shard (hybrid) gradients are then added up over the groups.
 * DDP: all of it on every rank; gradients are added up in buckets while backward goes on.
 *
 * Exchange goes on beside computing, on a stream. Collective calls, from one thread.
 *
 * With a model on a device (one rank alone, and without CPU offload) all arrays and buffers lie in one piece of its memory;
 * there is no stream then, since the device does one thing after the other by itself. */
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

#define PARALLEL_BUCKET_BYTES (UINT64_C(25) * 1024 * 1024) /* of DDP's all-reduces, as PyTorch has it */

struct parallel_setup {
    const struct training *training;
    struct comm *comm;         /* borrowed, like all that follows */
    struct train_model *model; /* its units and stages; sets which parameters there are */
    struct trace *trace;
    struct device *device;    /* NULL without CPU offload */
    struct device_math *math; /* the model's; NULL: this machine computes */
    struct optimizer optimizer;
    uint64_t seed;
};

/* Arrays of a rank's share of the state, each as its wraps lie one after the other. */
enum parallel_array { PARALLEL_WEIGHTS, PARALLEL_EXP_AVG, PARALLEL_EXP_AVG_SQ, PARALLEL_GRADIENTS, PARALLEL_ARRAYS };

/* Where all of it lies on a device; `counters` is room for so many int64 that a checkpoint holds beside. */
#define PARALLEL_COUNTERS 2
struct parallel_device_memory {
    void *base; /* NULL without a device */
    uint64_t bytes;
    int64_t *counters;
};

struct parallel_figures {
    uint64_t wraps, parameters; /* of the model */
    uint64_t share;             /* elements of each array that this rank keeps, padding included */
    uint64_t bytes;             /* that this rank holds, buffers included */
    uint32_t most_gathered;     /* at a time, the root's wrap not counted */
    uint64_t gathered_bytes;    /* of the step before, the most at a time, the root's wrap counted */
};

struct parallel;

/* Bytes that parallel_new takes on each rank; a pure function. `moments` as optimizer_moments. */
uint64_t parallel_bytes(const struct training *training, const struct model *model, unsigned moments);

/* Allocates, fills the weights (train_model_init) and zeroes the rest. Collective. */
int parallel_new(const struct parallel_setup *setup, uint64_t deadline_ns, struct parallel **parallel,
                 struct cb_err *err) CB_MUST_CHECK;
/* After a failure: whether nothing of an exchange is under way, so that all may be freed. */
bool parallel_stop(struct parallel *self) CB_MUST_CHECK;
void parallel_free(struct parallel *self);

/* Between train_model_begin and here lies nothing: forward and backward over all stages, gradients complete and
 * added up over the ranks at the end. Waiting for others is STATE_EXCHANGE on `timeline`. */
int parallel_gradients(struct parallel *self, struct timeline *timeline, uint64_t deadline_ns,
                       struct cb_err *err) CB_MUST_CHECK;
/* Forward alone, for a validation loss. */
int parallel_forward(struct parallel *self, struct timeline *timeline, uint64_t deadline_ns,
                     struct cb_err *err) CB_MUST_CHECK;
/* `numbers[0]` becomes the norm of the mean gradient of all ranks, the others their sums over the ranks. */
int parallel_norm(struct parallel *self, struct timeline *timeline, double *numbers, uint32_t count,
                  uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
/* The optimizer on this rank's share, gradients times `scale`. `step` from 1. Only a device fails. */
int parallel_update(struct parallel *self, double learning_rate, double scale, uint64_t step, uint64_t deadline_ns,
                    struct cb_err *err) CB_MUST_CHECK;

/* Where a parameter's element (of the model's unit) lies in an array; NULL where another rank has it. */
float *parallel_place(const struct parallel *self, enum parallel_array array, size_t unit, uint64_t element);
/* Where a unit's element lies in its wrap, and how many elements that has without padding. */
void parallel_flat(const struct parallel *self, size_t unit, uint64_t element, uint64_t *begin, uint64_t *elements);
struct parallel_device_memory parallel_device_memory(const struct parallel *self);
struct parallel_figures parallel_figures(const struct parallel *self);
struct stream_counts parallel_counts(const struct parallel *self); /* of the exchange so far */

#endif
