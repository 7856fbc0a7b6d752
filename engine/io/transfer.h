/* Runs a schedule against a store: keeps `depth` requests in flight, opens each file before its first
 * request and closes (and for writes finishes) it after its last.
 *
 * What the bytes mean is the caller's: `prepare` composes a request just before it is submitted,
 * `complete` takes it apart. Allocates only in transfer_new and transfer_reserve; the run itself does
 * not allocate, log or lock. Watches the deadline, the stop request and the agent while it waits. */
#ifndef ENGINE_IO_TRANSFER_H
#define ENGINE_IO_TRANSFER_H

#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"
#include "core/histogram.h"
#include "engine/io/io_schedule.h"
#include "engine/timeline.h"
#include "store/store.h"

struct transfer_ops {
    /* Opens or creates file number `file` of the schedule; *length is its length. */
    int (*open)(void *context, uint32_t file, struct store_object **object, uint64_t *length, struct cb_err *err);
    /* All three may be NULL. `ready`: whether request `number` may start; while it may not and nothing is
     * in flight, the run sleeps in it until `until_ns`. `place`: its memory, where that is not the
     * transfer's own staging. `written`: a write has ended well, and its memory may be used again. */
    int (*ready)(void *context, size_t number, uint64_t until_ns, bool *ready, struct cb_err *err);
    char *(*place)(void *context, size_t number);
    void (*written)(void *context, size_t number);
    /* Writes: fills staging (byte x of the file at staging + x - offset). NULL for reads. */
    int (*prepare)(void *context, const struct io_request *request, char *staging, struct cb_err *err);
    /* `available` is the file offset up to which the request's bytes are there, less than its parts
     * need where the file is too short, request->offset where nothing came; `why` then says why. A
     * failure ends the run; returning 0 goes on. For writes it is called for failures alone. */
    int (*complete)(void *context, const struct io_request *request, const char *staging, uint64_t available,
                    const struct cb_err *why, struct cb_err *err);
    /* Something else to do while requests are in flight; NULL: nothing. True: it wants to be called again soon. */
    bool (*meanwhile)(void *context);
};

struct transfer_counts {
    uint64_t requests, errors, bytes;
};

struct transfer;

struct transfer_setup {
    struct store *store;
    struct comm *comm;
    struct status_page *page;
    bool async; /* shown there as the asynchronous part */
    uint32_t depth;
};
int transfer_new(const struct transfer_setup *setup, struct transfer **transfer, struct cb_err *err) CB_MUST_CHECK;
void transfer_free(struct transfer *transfer);

/* Room for a schedule's files and for `staging_bytes` a request; keeps what it has if that is enough. */
int transfer_reserve(struct transfer *transfer, uint32_t files, uint64_t staging_bytes,
                     struct cb_err *err) CB_MUST_CHECK;

struct transfer_run {
    const struct io_schedule *schedule;
    const struct transfer_ops *ops;
    void *context;
    bool write;
    struct timeline *timeline;
    struct histogram *latency; /* NULL: not recorded */
    uint64_t deadline_ns;
};
/* On a failure everything in flight has been cancelled and has ended, or transfer_is_stuck. */
int transfer_run(struct transfer *transfer, const struct transfer_run *run, struct transfer_counts *counts,
                 struct cb_err *err) CB_MUST_CHECK;
/* True once requests were given up on while in flight: their memory must stay, and the transfer
 * refuses to run again. */
bool transfer_is_stuck(const struct transfer *transfer);

#endif
