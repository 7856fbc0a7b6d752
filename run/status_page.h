/* The status page: a rank's report, in memory that outlives the rank.
 *
 * One file per rank in node-local memory, created and sized by the agent, mapped by both. The rank writes with plain
 * atomic stores (no system call in the timed path); the agent reads progress and heartbeats during the run and seals
 * the records from it, however the rank ended. A different layout is a clear error (magic, version, size). One writer
 * per field, as noted. */
#ifndef RUN_STATUS_PAGE_H
#define RUN_STATUS_PAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "core/histogram.h"
#include "core/slow_requests.h"
#include "core/time_buckets.h"
#include "run/metrics.h"

#define STATUS_PAGE_MAGIC UINT64_C(0x45474150434b4243) /* "CBKCPAGE" */
#define STATUS_PAGE_VERSION 6
#define STATUS_PAGE_TEXT_BYTES 16384

enum rank_phase { PHASE_STARTING, PHASE_READY, PHASE_RUNNING, PHASE_DONE, PHASE_FAILED };
enum stop_request { STOP_NONE, STOP_AFTER_ITERATION, STOP_NOW };

enum sample_flag {
    SAMPLE_WARMUP = 1,
    SAMPLE_SUSPECTED_CACHE = 2, /* a read faster than the device, or files still in the page cache */
    SAMPLE_COLDNESS_UNKNOWN = 4,
    SAMPLE_FAILED = 8,
};

/* What is counted over time: requests by kind, and the backoff of failed requests. */
enum { TIMED_BACKOFF = REQUEST_KINDS, TIMED_KINDS };
const char *timed_kind_name(uint32_t kind); /* "write", "read", "fsync", "backoff" */

/* One operation of one rank in one iteration. Related work outside the time of a save or load has samples of its own.
 * OP_VERIFY (verify_s, verified_bytes) is published on every rank after each load, and after all timing for checkpoints
 * that saves left in the store; SAMPLE_FAILED if bytes were wrong; there is no such sample with verify=none. OP_DELETE
 * (delete_s) is published on rank 0. The raw limit is an OP_BASELINE_WRITE and an OP_BASELINE_READ sample (op_s,
 * bytes_moved, requests). */
struct sample {
    uint32_t op;        /* enum operation */
    uint32_t iteration; /* from 0, including warm-up */
    uint32_t flags;
    uint32_t reserved;
    double values[METRIC_SAMPLE_COUNT]; /* NAN: absent */
};

struct status_page {
    uint64_t magic;
    uint32_t version, rank, world_size, sample_capacity;
    uint64_t size_bytes;
    uint64_t time_origin_ns; /* monotonic, by the clock of the rank's machine: when the attempt began */

    /* written by the agent */
    _Atomic uint64_t agent_heartbeat_ns; /* monotonic heartbeat; ranks leave when it stops */
    _Atomic uint32_t stop;               /* enum stop_request; also raised by the rank's own signal handler */

    /* written by the rank */
    _Atomic uint32_t pid, phase, op, state, iteration;
    _Atomic uint64_t progress_ns;             /* monotonic: last time a byte moved or the state changed */
    _Atomic uint64_t bytes_done, bytes_total; /* of the current operation */
    /* Of the asynchronous save, written by its thread: */
    _Atomic uint32_t behind_op, behind_state, behind_iteration;
    _Atomic uint64_t behind_bytes_done, behind_bytes_total;
    _Atomic uint64_t ready_ns;           /* monotonic: when MPI was up; 0 before */
    _Atomic uint64_t first_operation_ns; /* monotonic start of the first timed operation, 0 before */
    _Atomic uint32_t sample_count;       /* samples complete, in order */
    _Atomic uint32_t failure_code;       /* -enum cb_code of the first failure, 0 for none */
    _Atomic uint32_t failure_length, facts_length;
    _Atomic uint32_t passed_length;         /* bytes of `failures` about iterations that on_error=continue skipped */
    _Atomic uint32_t wrong_bytes;           /* number of failures with CB_ERR_CORRUPT, including forgiven ones */
    char failures[STATUS_PAGE_TEXT_BYTES];  /* one per line; "… and N more" at the end when full */
    char facts[STATUS_PAGE_TEXT_BYTES];     /* "key=value" lines: the settings and hardware in effect */
    double run_values[METRIC_COUNT];        /* run metrics that this rank knows; else NAN */
    struct histogram latency[OP_COUNT];     /* request latencies, excluding warm-up */
    struct histogram ttfb[OP_COUNT];        /* time to first byte of replies, if the store is a server */
    struct slow_requests slowest[OP_COUNT]; /* of the requests in `latency` */
    struct time_buckets over_time[OP_COUNT][TIMED_KINDS]; /* since time_origin_ns, including warm-up */
    struct sample samples[];                              /* sample_capacity of them */
};

uint64_t status_page_bytes(uint32_t sample_capacity);

/* Path of a rank's page: FOLDER/rank-N.page. Fails if it does not fit in `path`. */
int status_page_path(const char *folder, uint32_t rank, char *path, size_t path_bytes,
                     struct cb_err *err) CB_MUST_CHECK;

/* Number of samples that a rank of this experiment can have, for the capacity of its page. With a duration the number
 * of iterations is not known in advance; a rank ends normally when its page is full. */
uint32_t status_page_samples(uint64_t iterations, uint64_t warmup, bool has_duration);

/* Creates PATH (which must not exist, mode 0600) for one rank and maps it. Unmap with status_page_close. */
int status_page_create(const char *path, uint32_t rank, uint32_t world_size, uint32_t sample_capacity,
                       struct status_page **page, struct cb_err *err) CB_MUST_CHECK;
/* Initialises a copy of a new page in zeroed memory of status_page_bytes(). Latencies stay zero, which merges as
 * empty, so that the copy of an unused page takes little memory. */
void status_page_fill(struct status_page *page, uint32_t rank, uint32_t world_size, uint32_t sample_capacity);
/* Maps an existing page and checks it. */
int status_page_open(const char *path, struct status_page **page, struct cb_err *err) CB_MUST_CHECK;
void status_page_close(struct status_page *page);

/* For the rank, while it waits: 0, or CB_ERR_ABORTED if `page` requests an immediate stop, or if its agent has been
 * silent for ten seconds. Has the form of comm_check_fn. */
int status_page_check(const void *page, struct cb_err *err) CB_MUST_CHECK;

/* For the rank: enters an operation and a state. */
void status_page_enter(struct status_page *page, enum operation op, enum rank_state state, uint64_t now_ns);
/* The same for the asynchronous save. */
void status_page_enter_behind(struct status_page *page, enum operation op, enum rank_state state, uint64_t now_ns);
/* The next free sample with all values NAN, or NULL if the page is full; status_page_publish_sample makes it count. */
struct sample *status_page_begin_sample(struct status_page *page);
void status_page_publish_sample(struct status_page *page);
void status_page_add_failure(struct status_page *page, int code, const char *text);
/* Removes the failures so far, after the rank has recovered in another way. */
void status_page_forgive(struct status_page *page);
/* Continues after a failed iteration (on_error=continue): the rank no longer counts as failed, and the failures since
 * the last call are replaced by `text`, or removed if it is NULL. */
void status_page_pass_over(struct status_page *page, const char *text);
void status_page_add_fact(struct status_page *page, const char *key, const char *value);
#define STATUS_FACT_STOPPED "stopped"          /* source of the stop request, if it is not the agent */
#define STATUS_FACT_FAILED "iterations.failed" /* "3 of 20 iterations failed (15.0 %)", with on_error=continue */

#endif
