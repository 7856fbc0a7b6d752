/* A stream on a device: collectives of device memory, and copies to and from pinned memory, which run concurrently with
 * the device's computation. Like train/stream.h, with two differences: work starts when everything queued on the device
 * before it is done, and usually only the device waits for a ticket, not the host.
 *
 * The first failure is kept: later work is not queued, and every hold and wait returns it. Used only from the device's
 * thread. */
#ifndef TRAIN_DEVICE_STREAM_H
#define TRAIN_DEVICE_STREAM_H

#include "engine/device_comm.h"
#include "train/stream.h"

struct device_stream_setup {
    struct comm *comm; /* all ranks; also says when to stop (comm_check). Borrowed, like all members */
    const struct device_comm_ops *ops;
    struct device *device;
    struct trace *trace;
    struct stream_group *shards, *replicas; /* their device_comm is set if they have several ranks */
    bool copies;                            /* the shards have a communicator even for one rank */
};

struct device_stream;

/* Joins the communicators. CB_ERR_UNSUPPORTED if two ranks share a device. Collective. */
int device_stream_new(const struct device_stream_setup *setup, uint64_t deadline_ns, struct device_stream **stream,
                      struct cb_err *err) CB_MUST_CHECK;
/* Aborts what has not ended. Accepts NULL. */
void device_stream_free(struct device_stream *self);

/* Deadline of work added from now on: if too much work is pending, adding waits. */
void device_stream_begin(struct device_stream *self, uint64_t deadline_ns);
/* Returns the ticket of the work: a collective, STREAM_TO_DEVICE or STREAM_TO_HOST. */
uint64_t device_stream_add(struct device_stream *self, const struct stream_work *work);
/* What is queued on the device from now on waits until the ticket and all before it are done. */
int device_stream_hold(struct device_stream *self, uint64_t ticket, struct cb_err *err) CB_MUST_CHECK;
/* The host waits until the ticket and all before it are done. */
int device_stream_wait(struct device_stream *self, uint64_t ticket, uint64_t deadline_ns,
                       struct cb_err *err) CB_MUST_CHECK;
struct stream_counts device_stream_counts(const struct device_stream *self); /* of added work, without busy_ns */

#endif
