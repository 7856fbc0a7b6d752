/* A stream: collectives and copies that run concurrently with computation, in order, on a thread of their own.
 *
 * Work is executed in the order in which it was added, so every rank must add the same collectives in the same order.
 * The input of a piece of work must be complete when it starts, and its output must not be touched until its ticket
 * is done; later work may read what earlier work wrote. Nothing is allocated after creation. Used from one thread,
 * besides its own. */
#ifndef TRAIN_STREAM_H
#define TRAIN_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"
#include "engine/device.h"
#include "train/trace.h"

enum stream_kind {
    STREAM_GATHER,    /* gathers `values` from every rank to all */
    STREAM_SCATTER,   /* reduces ranks x values, of which each rank keeps `values` */
    STREAM_REDUCE,    /* sums `values` over ranks; `from` may equal `to` */
    STREAM_TO_DEVICE, /* the device copies `values` */
    STREAM_TO_HOST,
    STREAM_ROUND,  /* rounds `values` to bf16; `from` may equal `to` */
    STREAM_PACK,   /* the same in two bytes each: `to` has stream_packed(values) */
    STREAM_UNPACK, /* expands `values` of each rank of the group, packed rank after rank, to floats */
};

/* Ranks that exchange with each other, by a communicator of the host or of a device. */
struct stream_group {
    uint32_t ranks;
    struct comm *comm;
    struct device_comm *device_comm;
};

struct stream_work {
    enum stream_kind kind;
    const struct stream_group *group; /* borrowed; only collectives and STREAM_UNPACK use it */
    const float *from;
    float *to;
    uint64_t values;
    uint32_t number; /* shown after the name in the trace */
};

struct stream_counts {
    uint64_t gathers, scatters, reduces, copies;
    uint64_t bytes_sent;   /* bytes sent by a rank, at least: (n-1)/n of a gather or scatter, twice that of a reduce */
    uint64_t copied_bytes; /* to the device and back */
    uint64_t busy_ns;      /* in collectives */
};

struct stream;

/* Number of floats that this many bf16 values occupy. */
uint64_t stream_packed(uint64_t values);

/* `watch` returns when to stop (comm_check); `device` may be NULL if nothing is copied. All borrowed. */
int stream_new(struct comm *watch, struct device *device, struct trace *trace, struct stream **stream,
               struct cb_err *err) CB_MUST_CHECK;
/* Ends the thread and frees the stream. False if it is stuck in a collective: then it stays, and no memory may be freed. */
bool stream_stop(struct stream *self) CB_MUST_CHECK;

/* Returns the ticket of the work, counted from 1. At most STREAM_MOST pieces of work may be pending. */
#define STREAM_MOST 1024
uint64_t stream_add(struct stream *self, const struct stream_work *work);
bool stream_is_done(struct stream *self, uint64_t ticket);
/* Waits until the ticket and all before it are done; ticket 0 is always done. After a failure no further work is
 * executed and every wait fails. */
int stream_wait(struct stream *self, uint64_t ticket, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
struct stream_counts stream_counts(struct stream *self); /* of finished work */

/* Adds a piece of work to the counts, except for busy_ns, and to the trace, with its times or marks of a device. */
void stream_count(struct stream_counts *counts, const struct stream_work *work);
void stream_note(struct trace *trace, const struct stream_work *work, bool marked, uint64_t start, uint64_t end);

#endif
