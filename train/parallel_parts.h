/* The arrays and buffers of a rank, shared by parallel.c and parallel_memory.c. Private to them. */
#ifndef TRAIN_PARALLEL_PARTS_H
#define TRAIN_PARALLEL_PARTS_H

#include "train/device_stream.h"
#include "train/fsdp_units.h"
#include "train/parallel.h"

#define PARALLEL_SLOTS 2

/* A buffer for one gathered wrap. */
struct slot {
    float *memory;
    size_t wrap;     /* the wrap in it; SIZE_MAX if free */
    uint64_t ticket; /* ticket of the last work that uses it */
};

/* The state of a wrap's values during a step. */
struct wrap_use {
    float *whole;    /* NULL if not gathered */
    float *gradient; /* only while backward accumulates, else NULL */
    uint64_t ready;  /* ticket of its gather */
};

struct parallel {
    struct parallel_setup setup;
    const struct training *training; /* from the setup */
    struct fsdp_units wraps;
    uint32_t shard_index;
    bool gathers;                         /* wraps are gathered into slots, else used in place */
    bool scatters;                        /* gradients of a wrap are accumulated in slots */
    bool buckets;                         /* gradients are reduced in pieces of the whole array, into `sums` */
    bool sends_bf16;                      /* parameters are packed to two bytes before they are gathered */
    struct stream_group shards, replicas; /* ranks that share the state; ranks with the same share of it */
    struct stream *stream;                /* NULL if there is nothing to communicate or copy, or on a device */
    struct device_stream *device_stream;  /* on a device; NULL if there is nothing to communicate */
    float *arrays[PARALLEL_ARRAYS];       /* wraps.share elements each; moments may be NULL */
    float *sums;
    float *staged_up, *staged_down; /* a share on the device, with CPU offload */
    struct slot slots[PARALLEL_SLOTS], root;
    struct slot gradient_slots[PARALLEL_SLOTS], root_gradient;
    uint32_t next_gradient_slot, gathered, most_gathered;
    uint64_t whole_values, most_whole_values; /* gathered wraps now, and the peak of this step */
    float *packed, *packed_share;             /* a wrap and this rank's part of it in bf16, as sent */
    size_t packed_wrap;                       /* on a device: the wrap to unpack when it is used; SIZE_MAX if none */
    struct wrap_use *in_use;                  /* per wrap */
    uint64_t last_ticket, awaited_ticket;     /* added; and needed by what the device computes */
    uint32_t *uses_left;                      /* per unit, in the current backward pass */
    uint64_t bucket_end;                      /* this element and all after it are being reduced */
    void *memory;                             /* of all arrays and buffers, on the device if there is one */
    uint64_t bytes;
    bool on_device;            /* a device computes */
    struct device_math *math;  /* from the setup */
    struct device_math *owner; /* of the device that has the arrays; NULL if they are in host memory */
    void *pinned;              /* on the host, with a device: host_sum, and with CPU offload the arrays */
    uint64_t pinned_bytes;
    float *packed_here;            /* with CPU offload: this rank's weights in bf16, see parallel_packed_here */
    int64_t *counters;             /* on the device */
    double *device_sum, *host_sum; /* of squares: on the device, and in pinned host memory */
};

/* Derives from the training what is gathered, reduced and sent, and how. */
void parallel_set_mode(struct parallel *self, const struct training *training, bool on_device);

/* A wrap's part of packed_here; and fills all of it from the weights. */
float *parallel_packed_here(const struct parallel *self, size_t wrap);
void parallel_pack_here(struct parallel *self);

/* Allocates all arrays and buffers of self->wraps, zeroed. Call parallel_unmap also after a failure. */
int parallel_map(struct parallel *self, struct cb_err *err) CB_MUST_CHECK;
void parallel_unmap(struct parallel *self);

/* This rank's share of the gradients, summed over all ranks. */
const float *parallel_summed_gradients(const struct parallel *self);

/* On a device: copies elements [first, first + count) of a unit to its weights; the second returns the sum of squares
 * of the gradients. */
int parallel_device_init(struct parallel *self, size_t unit, uint64_t first, uint64_t count, float *weights,
                         uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
int parallel_device_sum_of_squares(struct parallel *self, double *sum, uint64_t deadline_ns,
                                   struct cb_err *err) CB_MUST_CHECK;

#endif
