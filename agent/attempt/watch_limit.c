/* Raw writes and reads of several files at once, by one thread with all their requests in flight. */
#include "agent/attempt/watch_limit.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/foreground.h"
#include "core/stats.h"
#include "core/units.h"
#include "setup/open_store.h"

#define ROUNDS 3
#define ROUNDS_NS (4 * NS_PER_S)     /* after this no further round begins */
#define DEADLINE_NS (120 * NS_PER_S) /* of one direction of a round */
#define SLICE_NS (100 * NS_PER_MS)   /* until requests to end are looked for */
#define LEAVE_NS (5 * NS_PER_S)      /* for requests in flight after a failure */
#define FILES_MOST 16
#define BYTES_MOST (UINT64_C(4) << 30) /* of all files */
#define SCRATCH_BYTES (UINT64_C(64) << 20)
#define PAGE_BYTES 4096
#define POLL_BATCH 64
#define FACT "watch.limit"
#define FOLDER_START ".ckptbench-limit-" /* of the folder of files; the run follows */

struct limit {
    struct store *store;
    char *memory; /* owned */
    char folder[RUN_ID_BYTES + 32];
    uint32_t files, depth; /* requests in flight of all files */
    uint64_t bytes, block; /* of a file, of a request */
    int requests;          /* foreground_requests() at the start */
    struct store_object *objects[FILES_MOST];
    double write_rates[ROUNDS], read_rates[ROUNDS];
    size_t writes, reads;
};

static void name_file(const struct limit *self, uint32_t file, char name[128])
{
    snprintf(name, 128, "%s/%" PRIu32, self->folder, file);
}

static int open_files(struct limit *self, enum store_request_kind kind, struct cb_err *err)
{
    char name[128];
    uint64_t length;
    double unused;
    int rc = 0;
    for (uint32_t i = 0; i < self->files && !rc; i++) {
        name_file(self, i, name);
        if (kind == STORE_WRITE)
            rc = store_create(self->store, name, self->bytes, &self->objects[i], err);
        else {
            rc = store_drop_cache(self->store, name, &unused, err);
            if (!rc)
                rc = store_open_read(self->store, name, &self->objects[i], &length, err);
        }
    }
    return rc;
}

/* Leaves files open whose requests are stuck. */
static void close_files(struct limit *self)
{
    for (uint32_t i = 0; i < self->files; i++)
        if (self->objects[i] && store_in_flight(self->store) == 0) {
            store_close(self->store, self->objects[i]);
            self->objects[i] = NULL;
        }
}

/* Waits until at most `left` requests are in flight. */
static int drain(struct limit *self, size_t left, uint64_t deadline_ns, struct cb_err *err)
{
    struct store_completion done[POLL_BATCH];
    int rc = 0;
    while (!rc && store_in_flight(self->store) > left) {
        size_t count = 0;
        rc = store_poll(self->store, done, POLL_BATCH, clock_monotonic_ns() + SLICE_NS, &count, err);
        for (size_t i = 0; i < count && !rc; i++)
            if (done[i].code)
                rc = store_completion_error(self->store, &done[i], err);
        if (!rc && foreground_requests() > self->requests)
            rc = cb_fail(err, CB_ERR_ABORTED, "stopped on request");
        if (!rc && clock_monotonic_ns() > deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "the storage did not answer in time");
    }
    return rc;
}

static int submit(struct limit *self, enum store_request_kind kind, uint32_t file, uint64_t offset, struct cb_err *err)
{
    uint64_t slots = SCRATCH_BYTES / self->block, slot = (offset / self->block + file) % slots;
    struct iovec segment = {.iov_base = self->memory + slot * self->block,
                            .iov_len = self->bytes - offset < self->block ? self->bytes - offset : self->block};
    const struct store_request request = {.kind = kind,
                                          .object = self->objects[file],
                                          .offset = offset,
                                          .segments = &segment,
                                          .segment_count = kind == STORE_FINISH ? 0 : 1,
                                          .memory = MEMORY_HOST};
    return store_submit(self->store, &request, 1, err);
}

/* One direction of a round; *rate is in bytes per second. */
static int move(struct limit *self, enum store_request_kind kind, double *rate, struct cb_err *err)
{
    uint64_t start_ns = clock_monotonic_ns(), deadline_ns = start_ns + DEADLINE_NS;
    int rc = open_files(self, kind, err);
    start_ns = kind == STORE_READ ? clock_monotonic_ns() : start_ns; /* dropping the cache is not part of it */
    for (uint64_t offset = 0; offset < self->bytes && !rc; offset += self->block)
        for (uint32_t file = 0; file < self->files && !rc; file++) {
            rc = drain(self, self->depth - 1, deadline_ns, err);
            if (!rc)
                rc = submit(self, kind, file, offset, err);
        }
    if (!rc)
        rc = drain(self, 0, deadline_ns, err);
    for (uint32_t file = 0; file < self->files && !rc && kind == STORE_WRITE; file++)
        rc = submit(self, STORE_FINISH, file, 0, err);
    if (!rc)
        rc = drain(self, 0, deadline_ns, err);
    if (rc) {
        store_cancel(self->store);
        self->requests = INT32_MAX; /* asked already */
        (void)!drain(self, 0, clock_monotonic_ns() + LEAVE_NS, NULL);
    }
    *rate = (double)(self->bytes * self->files) / ((double)(clock_monotonic_ns() - start_ns) / (double)NS_PER_S);
    close_files(self);
    return rc;
}

static int remove_files(struct limit *self, struct cb_err *err)
{
    char name[128];
    int rc = 0;
    for (uint32_t i = 0; i < self->files; i++) {
        name_file(self, i, name);
        int failed = store_remove(self->store, name, rc ? NULL : err);
        rc = rc || failed == CB_ERR_NOT_FOUND ? rc : failed;
    }
    int failed = store_remove_folder(self->store, self->folder, rc ? NULL : err);
    return rc || failed == CB_ERR_NOT_FOUND ? rc : failed;
}

static int run_rounds(struct limit *self, bool loads, struct cb_err *err)
{
    uint64_t end_ns = clock_monotonic_ns() + ROUNDS_NS;
    int rc = 0;
    for (uint32_t round = 0; round < ROUNDS && !rc && (round == 0 || clock_monotonic_ns() < end_ns); round++) {
        rc = move(self, STORE_WRITE, &self->write_rates[round], err);
        self->writes += rc ? 0 : 1;
        if (!rc && loads)
            rc = move(self, STORE_READ, &self->read_rates[round], err);
        self->reads += rc || !loads ? 0 : 1;
        int removed = store_in_flight(self->store) == 0 ? remove_files(self, rc ? NULL : err) : 0;
        rc = rc ? rc : removed;
    }
    return rc;
}

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static int open_place(struct limit *self, const struct attempt *attempt, const struct watch_summary *summary,
                      struct cb_err *err)
{
    struct store_options options;
    struct s3_options s3;
    uint64_t free_bytes = 0, bytes = summary->bytes < (double)BYTES_MOST ? (uint64_t)summary->bytes : BYTES_MOST;
    if (*summary->place != '/' || strchr(summary->place, '+'))
        return cb_fail(err, CB_ERR_UNSUPPORTED, "%.256s is no folder in which it could be measured", summary->place);
    self->files = summary->writers < FILES_MOST ? summary->writers : FILES_MOST;
    self->bytes = round_up(bytes / self->files + 1, PAGE_BYTES);
    self->block = experiment_u64(attempt->experiment, OPT_IO_BLOCK);
    int rc = store_options_read(attempt->experiment, 0, &s3, &options, err);
    self->depth = options.depth * self->files;
    options.depth = self->depth;
    if (!rc)
        rc = store_open(summary->place, &options, &self->store, err);
    if (!rc)
        rc = store_free_bytes(self->store, &free_bytes, err);
    if (!rc && free_bytes / 2 < self->bytes * self->files)
        rc = cb_fail(err, CB_ERR_NO_SPACE, "%.256s has little free space", summary->place);
    if (rc)
        return rc;
    uint32_t most = store_capabilities(self->store)->max_depth;
    self->depth = self->depth < most ? self->depth : most;
    self->memory = aligned_alloc(PAGE_BYTES, SCRATCH_BYTES);
    if (!self->memory)
        return alloc_fail(err, "for the raw limit");
    memset(self->memory, 0x5A, SCRATCH_BYTES);
    return 0;
}

static double median(const double *values, size_t n)
{
    struct summary summary;
    stats_summarize(values, n, &summary);
    return summary.median;
}

void watch_limit_measure(struct attempt *attempt, const struct watch_summary *summary)
{
    struct limit limit = {.requests = foreground_requests()};
    struct status_page *page = attempt->pages.page[0];
    char text[600], each[32];
    struct cb_err err;
    int rc = 0;
    if (!(summary->bytes > 0) || summary->writers == 0)
        return; /* nothing was saved in a way that is seen */
    if (summary->has_several_hosts)
        rc = cb_fail(&err, CB_ERR_UNSUPPORTED, "the command ran on several machines, and this is one of them");
    if (!rc)
        rc = open_place(&limit, attempt, summary, &err);
    snprintf(limit.folder, sizeof limit.folder, FOLDER_START "%s", attempt->run);
    if (!rc)
        rc = run_rounds(&limit, summary->loads > 0, &err);
    bool is_stuck = limit.store && store_in_flight(limit.store) > 0;
    if (limit.writes > 0 && !rc) {
        page->run_values[METRIC_BASELINE_WRITE_BYTES_PER_S] = median(limit.write_rates, limit.writes);
        if (limit.reads > 0)
            page->run_values[METRIC_BASELINE_READ_BYTES_PER_S] = median(limit.read_rates, limit.reads);
        snprintf(text, sizeof text, "measured after the command with %u file%s of %s in the same place", limit.files,
                 units_plural(limit.files), units_format_bytes((double)limit.bytes, each));
    } else
        snprintf(text, sizeof text, "not measured: %.500s", err.message);
    status_page_add_fact(page, FACT, text);
    if (is_stuck)
        return; /* the store still uses the memory, and this process ends soon */
    store_free(limit.store);
    free(limit.memory);
}

/* Its files have numbers as names. A symbolic link in the place of the folder is not followed. */
static void remove_folder(int place_fd, const char *name)
{
    int fd = openat(place_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    for (unsigned i = 0; i < FILES_MOST; i++) {
        char file[16];
        snprintf(file, sizeof file, "%u", i);
        (void)unlinkat(fd, file, 0);
    }
    close(fd);
    (void)unlinkat(place_fd, name, AT_REMOVEDIR);
}

void watch_limit_remove_left(const struct attempt *attempt, const struct watch_summary *summary)
{
    char name[sizeof((struct limit *)NULL)->folder];
    int fd = *summary->place == '/' ? open(summary->place, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    snprintf(name, sizeof name, FOLDER_START "%s", attempt->run);
    remove_folder(fd, name);
    close(fd);
}
