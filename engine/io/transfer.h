/* Runs an I/O schedule against a store: keeps `depth` requests in flight, opens each file before its first request, and
 * closes it (finishes it, if written) after its last.
 *
 * The caller's `prepare` composes a request right before it is submitted, `complete` processes it. Allocates only in
 * transfer_new and transfer_reserve; running does not allocate, log or lock. While it waits it checks the deadline and
 * comm_check. */
#ifndef ENGINE_IO_TRANSFER_H
#define ENGINE_IO_TRANSFER_H

#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"
#include "engine/io/io_schedule.h"
#include "engine/timeline.h"
#include "store/store.h"

struct transfer_ops {
    /* Opens or creates file number `file` of the schedule and sets *length to its length. */
    int (*open)(void *context, uint32_t file, struct store_object **object, uint64_t *length, struct cb_err *err);
    /* These three may be NULL. `ready` sets whether request `number` may start; if nothing is in flight it may sleep until
     * `until_ns`. `place` returns the request's memory, if that is not the transfer's staging. `written` reports that a
     * write has succeeded and its memory may be reused. */
    int (*ready)(void *context, size_t number, uint64_t until_ns, bool *ready, struct cb_err *err);
    char *(*place)(void *context, size_t number);
    void (*written)(void *context, size_t number);
    /* Fills staging before a write; byte x of the file is at staging + x - offset. NULL for reads. */
    int (*prepare)(void *context, const struct io_request *request, char *staging, struct cb_err *err);
    /* `available` is the file offset up to which bytes were read. It is less than the parts need if the file is too
     * short, and request->offset if the request failed; `why` then has the reason. If `complete` fails, the run ends.
     * For writes it is called only for failed requests. */
    int (*complete)(void *context, const struct io_request *request, const char *staging, uint64_t available,
                    const struct cb_err *why, struct cb_err *err);
    /* Other work while requests are in flight; may be NULL. True: call again soon. */
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
    bool async; /* an asynchronous save, which has its own fields on the page */
    uint32_t depth;
};
int transfer_new(const struct transfer_setup *setup, struct transfer **transfer, struct cb_err *err) CB_MUST_CHECK;
void transfer_free(struct transfer *transfer);

/* Allocates for the schedule's files and `staging_bytes` for each request; does nothing if it has enough. */
int transfer_reserve(struct transfer *transfer, uint32_t files, uint64_t staging_bytes,
                     struct cb_err *err) CB_MUST_CHECK;

struct transfer_run {
    const struct io_schedule *schedule;
    const struct transfer_ops *ops;
    void *context;
    bool write;
    struct timeline *timeline;
    bool warmup; /* latencies are not recorded */
    uint32_t iteration;
    uint64_t deadline_ns;
};
/* After a failure all requests in flight have been cancelled and have ended, or transfer_is_stuck returns true. */
int transfer_run(struct transfer *transfer, const struct transfer_run *run, struct transfer_counts *counts,
                 struct cb_err *err) CB_MUST_CHECK;
/* Whether requests were abandoned in flight: their memory must not be freed, and the transfer cannot run again. */
bool transfer_is_stuck(const struct transfer *transfer);

#endif
