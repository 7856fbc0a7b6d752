/* A stream: collectives and copies that go on beside computing, one after the other, on a thread of their own.
 *
 * Work is done in the order in which it was added, so every rank must add the same collectives in the same order. What
 * a piece of work reads must be complete when it begins, and what it writes belongs to it until its ticket is done; a
 * later one may read what an earlier one wrote. Made once, nothing is allocated afterwards. Used from one
 * thread, beside its own. Knows nothing of models. */
#ifndef TRAIN_STREAM_H
#define TRAIN_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"
#include "engine/device.h"
#include "train/trace.h"

enum stream_kind {
    STREAM_GATHER,    /* `values` of every rank to all */
    STREAM_SCATTER,   /* comm_size x values are added up, `values` of them stay */
    STREAM_REDUCE,    /* `values` are added up; from may be to */
    STREAM_TO_DEVICE, /* `values` copied by the device */
    STREAM_TO_HOST,
    STREAM_ROUND,  /* `values` become what bf16 can hold; from may be to */
    STREAM_PACK,   /* the same in two bytes each: `to` has stream_packed(values) */
    STREAM_UNPACK, /* `values` of each rank of `comm`, packed one rank after the other, to all of them as floats */
};

struct stream_work {
    enum stream_kind kind;
    struct comm *comm; /* of collectives and STREAM_UNPACK; borrowed */
    const float *from;
    float *to;
    uint64_t values;
    uint32_t number; /* in the trace: what it is part of */
};

struct stream_counts {
    uint64_t gathers, scatters, reduces, copies;
    uint64_t bytes_sent;   /* that a rank must send at least: (n-1)/n of a gather or scatter, twice that of a reduce */
    uint64_t copied_bytes; /* to the device and back */
    uint64_t busy_ns;      /* in collectives */
};

struct stream;

/* Floats that so many bf16 values take. */
uint64_t stream_packed(uint64_t values);

/* `watch` says when to stop (comm_check); `device` may be NULL where nothing is copied. All borrowed. */
int stream_new(struct comm *watch, struct device *device, struct trace *trace, struct stream **stream,
               struct cb_err *err) CB_MUST_CHECK;
/* Ends the thread. False where it is stuck in a collective: then neither stream nor memory may be freed. */
bool stream_stop(struct stream *self) CB_MUST_CHECK;
void stream_free(struct stream *self); /* after stream_stop, or NULL */

/* Returns its ticket, from 1. At most STREAM_MOST pieces of work may be waiting. */
#define STREAM_MOST 1024
uint64_t stream_add(struct stream *self, const struct stream_work *work);
bool stream_is_done(struct stream *self, uint64_t ticket);
/* Until it and all before it are done; ticket 0 is. After a failure nothing more is done and every wait fails. */
int stream_wait(struct stream *self, uint64_t ticket, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
struct stream_counts stream_counts(struct stream *self); /* of what is done */

#endif
