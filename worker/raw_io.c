/* Raw I/O: writes and reads a file through the store. */
#include "worker/raw_io.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "comm/agree.h"
#include "core/clock.h"
#include "engine/store_metrics.h"
#include "engine/timeline.h"
#include "worker/load_shift.h"

#define POLL_BATCH 64
/* The longest wait for completions before stop requests are checked again. */
#define POLL_SLICE_NS (100 * NS_PER_MS)
#define NAME_BYTES 1024
/* Extra time for the last agreement, so that the others hear of a rank whose store passed the deadline. */
#define AGREE_GRACE_NS (10 * NS_PER_S)
/* Limit of memory segments in one part of an object, since a part can be longer than the memory. */
#define MAX_PIECES 64

struct transfer {
    struct raw *raw;
    struct timeline timeline;
    struct store_object *object;
    const char *name;
    enum store_request_kind kind;
    bool warmup;
    uint32_t iteration;
    enum operation op;
    uint64_t submitted_bytes, done_bytes, requests, errors, deadline_ns;
    uint32_t in_flight;
};

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

void raw_init(struct raw *self, const struct experiment *experiment, struct comm *comm, struct status_page *page,
              struct store *store, void *memory, uint64_t memory_bytes, uint64_t bytes)
{
    const struct store_capabilities *capabilities = store_capabilities(store);
    uint64_t alignment = capabilities->offset_alignment > 1 ? capabilities->offset_alignment : 1;
    if (capabilities->length_alignment > alignment)
        alignment = capabilities->length_alignment;
    uint64_t part = capabilities->part_bytes, block = experiment_u64(experiment, OPT_IO_BLOCK);
    if (part > 0 && bytes / MAX_PIECES >= memory_bytes)
        bytes = MAX_PIECES * memory_bytes; /* a part must not need more segments */
    part = store_part_bytes(capabilities, bytes);
    *self = (struct raw){
        .comm = comm,
        .page = page,
        .store = store,
        .memory = memory,
        .memory_bytes = memory_bytes,
        .bytes = round_up(bytes ? bytes : 1, alignment),
        .block = part > 0 ? part : (block < memory_bytes ? block : memory_bytes) / alignment * alignment,
        .depth = (uint32_t)experiment_u64(experiment, OPT_IO_DEPTH),
        .shift = load_shift(experiment, comm),
    };
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* The memory of a block; blocks cycle through the available memory. */
static uint32_t take_memory(const struct raw *raw, uint64_t offset, uint64_t length, struct iovec *segments)
{
    uint64_t slots = raw->memory_bytes / raw->block, at = slots > 0 ? offset / raw->block % slots * raw->block : 0;
    uint32_t count = 0;
    while (length > 0) {
        uint64_t piece = raw->memory_bytes - at < length ? raw->memory_bytes - at : length;
        segments[count++] = (struct iovec){.iov_base = raw->memory + at, .iov_len = piece};
        length -= piece;
        at = 0;
    }
    return count;
}

/* Advances to the next block. */
static int submit_next(struct transfer *self, struct cb_err *err)
{
    struct raw *raw = self->raw;
    uint64_t offset = self->submitted_bytes;
    uint64_t length = raw->bytes - offset < raw->block ? raw->bytes - offset : raw->block;
    struct iovec segments[MAX_PIECES + 2];
    struct store_request request = {.kind = self->kind,
                                    .object = self->object,
                                    .offset = offset,
                                    .segments = segments,
                                    .segment_count = take_memory(raw, offset, length, segments),
                                    .memory = MEMORY_HOST,
                                    .user = offset};
    int rc = store_submit(raw->store, &request, 1, err);
    if (rc)
        return rc;
    self->submitted_bytes += length;
    self->in_flight++;
    self->requests++;
    return 0;
}

static int fail_completion(const struct transfer *self, const struct store_completion *completion, struct cb_err *err)
{
    const char *what = completion->user == UINT64_MAX ? "finishing" : self->kind == STORE_WRITE ? "writing" : "reading";
    uint64_t offset = completion->user == UINT64_MAX ? self->raw->bytes : completion->user;
    if (completion->sys_errno)
        return cb_fail_errno(err, completion->sys_errno, "%s %s at byte %" PRIu64, what, self->name, offset);
    if (completion->detail)
        return cb_fail(err, completion->code, "%s %s at byte %" PRIu64 ": %s", what, self->name, offset,
                       completion->detail);
    return cb_fail(err, completion->code, "%s %s at byte %" PRIu64 ": %s after %" PRIu64 " bytes", what, self->name,
                   offset, cb_code_name(completion->code), completion->bytes);
}

/* Waits for some completions and counts them. */
static int reap(struct transfer *self, struct cb_err *err)
{
    struct store_completion completions[POLL_BATCH];
    size_t count = 0;
    while (count == 0) {
        uint64_t now_ns = clock_monotonic_ns();
        uint64_t slice_ns = now_ns + POLL_SLICE_NS < self->deadline_ns ? now_ns + POLL_SLICE_NS : self->deadline_ns;
        int rc = store_poll(self->raw->store, completions, POLL_BATCH, slice_ns, &count, err);
        if (!rc && count == 0)
            rc = comm_check(self->raw->comm, err);
        if (!rc && count == 0 && now_ns > self->deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "%s: the store answered no request in time", self->name);
        if (rc)
            return rc;
    }
    int rc = 0;
    for (size_t i = 0; i < count; i++) {
        self->in_flight--;
        self->done_bytes += completions[i].bytes;
        self->errors += completions[i].code != 0;
        if (!self->raw->unseen)
            store_metrics_record(self->raw->page, self->op, self->warmup || completions[i].user == UINT64_MAX,
                                 self->iteration, &completions[i]);
        if (completions[i].code && !rc)
            rc = fail_completion(self, &completions[i], err);
    }
    atomic_store_explicit(&self->raw->page->bytes_done, self->done_bytes, memory_order_relaxed);
    atomic_store_explicit(&self->raw->page->progress_ns, clock_monotonic_ns(), memory_order_relaxed);
    return rc;
}

static int move_all(struct transfer *self, struct cb_err *err)
{
    struct raw *raw = self->raw;
    int rc = 0;
    while (!rc && (self->submitted_bytes < raw->bytes || self->in_flight > 0)) {
        while (!rc && self->submitted_bytes < raw->bytes && self->in_flight < raw->depth)
            rc = submit_next(self, err);
        if (!rc)
            rc = reap(self, err);
    }
    if (rc || self->kind == STORE_READ)
        return rc;
    timeline_enter(&self->timeline, STATE_FSYNC);
    struct store_request finish = {.kind = STORE_FINISH, .object = self->object, .user = UINT64_MAX};
    rc = store_submit(raw->store, &finish, 1, err);
    if (rc)
        return rc;
    self->in_flight++;
    return reap(self, err);
}

/* Cancels the requests in flight after a failure. Before freeing the memory, its owner calls store_in_flight: a store
 * that hangs still uses it. */
static void abandon(struct transfer *self)
{
    store_cancel(self->raw->store);
    uint64_t give_up_ns = clock_monotonic_ns() + NS_PER_S;
    while (store_in_flight(self->raw->store) > 0 && clock_monotonic_ns() < give_up_ns) {
        struct store_completion completions[POLL_BATCH];
        size_t count = 0;
        if (store_poll(self->raw->store, completions, POLL_BATCH, give_up_ns, &count, NULL))
            return;
    }
}

static int open_object(struct transfer *self, struct cb_err *err)
{
    struct raw *raw = self->raw;
    if (self->kind == STORE_WRITE)
        return store_create(raw->store, self->name, raw->bytes, &self->object, err);
    uint64_t length = 0;
    int rc = store_open_read(raw->store, self->name, &self->object, &length, err);
    if (!rc && length < raw->bytes)
        rc = cb_fail(err, CB_ERR_CORRUPT, "%s has %" PRIu64 " bytes, %" PRIu64 " were written", self->name, length,
                     raw->bytes);
    return rc;
}

static void fill_sample(const struct transfer *self, double cpu_s, struct sample *sample)
{
    timeline_fill(&self->timeline, sample);
    sample->values[METRIC_BYTES_NEEDED] = (double)self->raw->bytes;
    sample->values[METRIC_BYTES_MOVED] = (double)self->done_bytes;
    sample->values[METRIC_BYTES_COPIED] = 0;
    sample->values[METRIC_REQUESTS] = (double)self->requests;
    sample->values[METRIC_RETRIES] = 0;
    sample->values[METRIC_ERRORS] = (double)self->errors;
    if (store_in_flight(self->raw->store) == 0)
        store_metrics_fill(self->raw->store, sample, self->raw->page);
    sample->values[METRIC_CPU_S] = cpu_s;
}

static int transfer_run(struct raw *raw, const char *folder, uint32_t owner, enum store_request_kind kind,
                        struct sample *sample, uint64_t deadline_ns, struct cb_err *err)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s/rank-%u", folder, owner);
    struct transfer transfer = {.raw = raw,
                                .name = name,
                                .kind = kind,
                                .op = (enum operation)sample->op,
                                .iteration = sample->iteration,
                                .warmup = (sample->flags & SAMPLE_WARMUP) != 0,
                                .deadline_ns = deadline_ns};
    int rc =
        store_in_flight(raw->store) == 0
            ? 0
            : cb_fail(err, CB_ERR_ABORTED, "%s: requests of an earlier operation are still stuck in the store", name);
    rc = agree(raw->comm, rc, deadline_ns, err);
    if (rc)
        return rc;
    atomic_store_explicit(&raw->page->bytes_done, 0, memory_order_relaxed);
    atomic_store_explicit(&raw->page->bytes_total, raw->bytes, memory_order_relaxed);
    store_metrics_begin(raw->store);
    double cpu_s = cpu_seconds();
    timeline_start(&transfer.timeline, raw->page, transfer.op, STATE_IO);
    timeline_watch_backoff(&transfer.timeline, raw->store);
    rc = open_object(&transfer, err);
    if (!rc)
        rc = move_all(&transfer, err);
    if (rc)
        abandon(&transfer);
    timeline_own_done(&transfer.timeline);
    timeline_enter(&transfer.timeline, STATE_WAIT);
    rc = agree(raw->comm, rc, deadline_ns + AGREE_GRACE_NS, err);
    timeline_stop(&transfer.timeline);
    if (transfer.object && store_in_flight(raw->store) == 0)
        store_close(raw->store, transfer.object);
    fill_sample(&transfer, cpu_seconds() - cpu_s, sample);
    return rc;
}

int raw_write(struct raw *self, const char *folder, struct sample *sample, uint64_t deadline_ns, struct cb_err *err)
{
    return transfer_run(self, folder, comm_rank(self->comm), STORE_WRITE, sample, deadline_ns, err);
}

int raw_read(struct raw *self, const char *folder, struct sample *sample, uint64_t deadline_ns, struct cb_err *err)
{
    uint32_t owner = (comm_rank(self->comm) + self->shift) % comm_size(self->comm);
    return transfer_run(self, folder, owner, STORE_READ, sample, deadline_ns, err);
}
