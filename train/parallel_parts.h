/* What parallel.c, parallel_memory.c and parallel_device.c share: a rank's arrays and buffers, and who uses which. Private to
 * them. */
#ifndef TRAIN_PARALLEL_PARTS_H
#define TRAIN_PARALLEL_PARTS_H

#include "train/fsdp_units.h"
#include "train/parallel.h"

#define PARALLEL_SLOTS 2

/* A buffer for one whole wrap at a time. */
struct slot {
    float *memory;
    size_t wrap;     /* which has it; SIZE_MAX where free */
    uint64_t ticket; /* of the work that fills or reads it last */
};

struct parallel {
    struct parallel_setup setup;
    const struct training *training; /* setup's */
    struct wraps wraps;
    uint32_t shard_index, replicas;
    bool gathers;                           /* wraps are used from slots, else where they lie */
    bool scatters;                          /* gradients of a wrap are made in slots */
    bool buckets;                           /* gradients are added up in pieces of the whole array, into `sums` */
    struct comm *shard_comm, *replica_comm; /* of the stream; NULL where they have one rank */
    struct stream *stream;                  /* NULL where nothing is exchanged or copied */
    float *arrays[PARALLEL_ARRAYS];         /* wraps.share elements each; moments may be NULL */
    float *sums;
    float *staged_up, *staged_down; /* a share on the device, with CPU offload */
    struct slot slots[PARALLEL_SLOTS], root;
    struct slot gradient_slots[PARALLEL_SLOTS], root_gradient;
    uint32_t next_gradient_slot, gathered, most_gathered;
    uint64_t whole_values, most_whole_values; /* in slots now, and at most since the step began */
    float *packed, *packed_share;             /* a wrap and this rank's part of it in bf16, as they are sent */
    float **whole;                            /* of each wrap; NULL where not gathered */
    float **gradient;                         /* of each wrap, while backward adds to it */
    uint64_t *ready;                          /* ticket of each wrap's gather */
    uint64_t last_ticket;
    uint32_t *uses_left; /* of each unit, in the backward pass under way */
    uint64_t bucket_end; /* elements of the arrays from here on are being added up */
    uint64_t bytes;
    struct device_math *math; /* setup's */
    struct parallel_device_memory on_device;
    double *device_sum, *host_sum; /* of squares: there, and in pinned memory here */
};

/* From the training alone: whether wraps are used from slots, gradients made in slots or added up in buckets, and whether
 * parameters are sent in bf16. */
bool parallel_uses_slots(const struct training *training);
bool parallel_uses_gradient_slots(const struct training *training);
bool parallel_uses_buckets(const struct training *training);
bool parallel_sends_bf16(const struct training *training);

/* All arrays and buffers of self->wraps, zeroed. After a failure, too, parallel_unmap gives back what there is. */
int parallel_map(struct parallel *self, struct cb_err *err) CB_MUST_CHECK;
void parallel_unmap(struct parallel *self);

/* parallel_device.c, where self->math is: memory; the first weights; zeros; the sum of a gradient's squares. */
int parallel_device_map(struct parallel *self, struct cb_err *err) CB_MUST_CHECK;
void parallel_device_unmap(struct parallel *self);
/* Elements [first, first + count) of a unit, to where their weights are. */
int parallel_device_init(struct parallel *self, size_t unit, uint64_t first, uint64_t count, float *weights,
                         uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
int parallel_device_zero(struct parallel *self, struct cb_err *err) CB_MUST_CHECK;
int parallel_device_sum_of_squares(struct parallel *self, double *sum, uint64_t deadline_ns,
                                   struct cb_err *err) CB_MUST_CHECK;

#endif
