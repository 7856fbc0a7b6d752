/* Raw writes and reads of several files at once, by one thread with all their requests in flight. */
#include "agent/attempt/watch_limit.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/foreground.h"
#include "core/process.h"
#include "core/stats.h"
#include "core/units.h"
#include "setup/open_store.h"
#include "store/kind.h"

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

struct limit {
    struct store *store; /* NULL: nothing is measured */
    char *memory;        /* owned */
    const char *folder;
    uint32_t files, depth; /* requests in flight of all files */
    uint64_t bytes, block; /* of a file, of a request */
    int requests;          /* foreground_requests() at the start */
    struct store_object *objects[FILES_MOST];
    const struct limit_meeting *meeting;
    const struct limit_look *look;
};

static bool is_stuck(const struct limit *self)
{
    return self->store && store_in_flight(self->store) > 0;
}

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
        if (self->objects[i] && !is_stuck(self)) {
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
        if (!rc && self->look)
            rc = self->look->look(self->look->context, err);
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

/* One direction of a round. Does nothing if the meeting ends the rounds. */
static int move(struct limit *self, enum store_request_kind kind, bool *goes_on, double *seconds, struct cb_err *err)
{
    int rc = kind == STORE_READ ? open_files(self, kind, err) : 0; /* dropping the cache is not part of the time */
    if (!rc && self->meeting)
        rc = self->meeting->meet(self->meeting->context, goes_on, err);
    uint64_t start_ns = clock_monotonic_ns(), deadline_ns = start_ns + DEADLINE_NS;
    if (rc || !*goes_on || self->files == 0) {
        close_files(self);
        return rc;
    }
    if (kind == STORE_WRITE)
        rc = open_files(self, kind, err);
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
        self->look = NULL;
        (void)!drain(self, 0, clock_monotonic_ns() + LEAVE_NS, NULL);
    }
    *seconds = (double)(clock_monotonic_ns() - start_ns) / (double)NS_PER_S;
    close_files(self);
    return rc;
}

static int remove_files(struct limit *self, struct cb_err *err)
{
    char name[128];
    int rc = 0;
    if (self->files == 0 || is_stuck(self))
        return 0;
    for (uint32_t i = 0; i < self->files; i++) {
        name_file(self, i, name);
        int failed = store_remove(self->store, name, rc ? NULL : err);
        rc = rc || failed == CB_ERR_NOT_FOUND ? rc : failed;
    }
    int failed = store_remove_folder(self->store, self->folder, rc ? NULL : err);
    return rc || failed == CB_ERR_NOT_FOUND ? rc : failed;
}

static int run_rounds(struct limit *self, bool loads, struct limit_result *result, struct cb_err *err)
{
    uint64_t end_ns = clock_monotonic_ns() + ROUNDS_NS;
    bool goes_on = true;
    int rc = 0;
    for (uint32_t round = 0; round < LIMIT_ROUNDS && goes_on && !rc; round++) {
        rc = move(self, STORE_WRITE, &goes_on, &result->write_s[round], err);
        result->writes += !rc && goes_on ? 1 : 0;
        if (!rc && goes_on && loads) {
            rc = move(self, STORE_READ, &goes_on, &result->read_s[round], err);
            result->reads += !rc && goes_on ? 1 : 0;
        }
        int removed = remove_files(self, rc ? NULL : err);
        rc = rc ? rc : removed;
        if (!self->meeting && clock_monotonic_ns() >= end_ns)
            break;
    }
    return rc;
}

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static int open_place(struct limit *self, const struct experiment *experiment, const struct limit_share *share,
                      struct cb_err *err)
{
    struct store_options options;
    struct s3_options s3;
    uint64_t free_bytes = 0, bytes = share->bytes < (double)BYTES_MOST ? (uint64_t)share->bytes : BYTES_MOST;
    if (*share->place != '/' || !store_uri_of(share->place).kind->is_path)
        return cb_fail(err, CB_ERR_UNSUPPORTED, "%.256s is no folder in which it could be measured", share->place);
    self->files = share->writers < FILES_MOST ? share->writers : FILES_MOST;
    self->bytes = round_up(bytes / self->files + 1, PAGE_BYTES);
    self->block = experiment_u64(experiment, OPT_IO_BLOCK);
    int rc = store_options_read(experiment, 0, &s3, &options, err);
    self->depth = options.depth * self->files;
    options.depth = self->depth;
    if (!rc)
        rc = store_open(share->place, &options, &self->store, err);
    if (!rc)
        rc = store_free_bytes(self->store, &free_bytes, err);
    if (!rc && free_bytes / 2 < self->bytes * self->files)
        rc = cb_fail(err, CB_ERR_NO_SPACE, "%.256s has little free space", share->place);
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

int watch_limit_run(const struct experiment *experiment, const char *folder, const struct limit_share *share,
                    const struct limit_meeting *meeting, const struct limit_look *look, struct limit_result *result,
                    struct cb_err *err)
{
    struct limit limit = {.requests = foreground_requests(), .folder = folder, .meeting = meeting, .look = look};
    *result = (struct limit_result){0};
    int rc = share->writers > 0 ? open_place(&limit, experiment, share, err) : 0;
    if (!rc)
        rc = run_rounds(&limit, share->loads, result, err);
    result->files = limit.files;
    result->bytes = limit.bytes;
    if (is_stuck(&limit))
        return rc; /* the store still uses the memory, and this process ends soon */
    store_free(limit.store);
    free(limit.memory);
    return rc;
}

int watch_limit_check(const struct watch_summary *summary, struct cb_err *err)
{
    if (!summary->lacks_ranks)
        return 0;
    return cb_fail(err, CB_ERR_UNSUPPORTED, "not every rank has reported what it wrote");
}

static double median(const double *values, size_t n)
{
    struct summary summary;
    stats_summarize(values, n, &summary);
    return summary.median;
}

/* Rates become the baseline of the run. */
static void publish(struct status_page *page, const double *writes, size_t write_count, const double *reads,
                    size_t read_count)
{
    page->run_values[METRIC_BASELINE_WRITE_BYTES_PER_S] = median(writes, write_count);
    if (read_count > 0)
        page->run_values[METRIC_BASELINE_READ_BYTES_PER_S] = median(reads, read_count);
}

static void add_reason(struct status_page *page, const char *why)
{
    char text[600];
    snprintf(text, sizeof text, "not measured: %.500s", why);
    status_page_add_fact(page, FACT, text);
}

/* Whether a limit has something to be compared with. If not, a fact says so if there were saves. */
static bool has_bytes(const struct watch_summary *summary, struct status_page *page)
{
    bool has = summary->bytes > 0 && summary->writers > 0;
    if (!has && summary->saves > 0)
        add_reason(page, isnan(summary->bytes) ? "what the last save wrote was not seen" : "nothing was saved");
    return has;
}

/* Whether this machine's limit would be that of all who saved. */
static int check_here(const struct watch_summary *summary, struct cb_err *err)
{
    char own[PROCESS_NODE_BYTES];
    process_node_name(own);
    if (summary->has_several_hosts)
        return cb_fail(
            err, CB_ERR_UNSUPPORTED,
            "the command ran on several machines, and this is one of them (tasks that join a run measure it, and "
            "commands in an allocation of Slurm)");
    if (strcmp(summary->shares[0].host, own) != 0)
        return cb_fail(err, CB_ERR_UNSUPPORTED, "the command ran on %.200s, and this is %s", summary->shares[0].host,
                       own);
    return 0;
}

void watch_limit_measure(struct attempt *attempt, const struct watch_summary *summary, const struct limit_look *look)
{
    struct limit_share share = {.bytes = summary->bytes, .writers = summary->writers, .loads = summary->loads > 0};
    struct limit_result result = {0};
    struct status_page *page = attempt->pages.page[0];
    char text[600], each[32], folder[RUN_ID_BYTES + 32];
    struct cb_err err;
    if (!has_bytes(summary, page))
        return;
    int rc = watch_limit_check(summary, &err);
    if (!rc)
        rc = check_here(summary, &err);
    snprintf(share.place, sizeof share.place, "%s", summary->place);
    snprintf(folder, sizeof folder, WATCH_LIMIT_FOLDER "%s", attempt->run);
    if (!rc)
        rc = watch_limit_run(attempt->experiment, folder, &share, NULL, look, &result, &err);
    if (rc || result.writes == 0) {
        add_reason(page, err.message);
        return;
    }
    double writes[LIMIT_ROUNDS], reads[LIMIT_ROUNDS], bytes = (double)result.bytes * result.files;
    for (uint32_t i = 0; i < LIMIT_ROUNDS; i++) {
        writes[i] = bytes / result.write_s[i];
        reads[i] = bytes / result.read_s[i];
    }
    publish(page, writes, result.writes, reads, result.reads);
    snprintf(text, sizeof text, "measured after the command with %u file%s of %s in the same place", result.files,
             units_plural(result.files), units_format_bytes((double)result.bytes, each));
    status_page_add_fact(page, FACT, text);
}

/* The rates of the rounds in which all nodes took part; returns how many there are. */
static size_t rates_of(const struct watch_limit *limit, const struct limit_round *rounds, double rates[LIMIT_ROUNDS])
{
    size_t count = 0;
    for (uint32_t i = 0; i < LIMIT_ROUNDS; i++)
        if (rounds[i].nodes == limit->nodes && rounds[i].slowest_s > 0)
            rates[count++] = rounds[i].bytes / rounds[i].slowest_s;
    return count;
}

void watch_limit_take(struct attempt *attempt, const struct watch_summary *summary)
{
    const struct watch_limit *limit = &summary->limit;
    struct status_page *page = attempt->pages.page[0];
    double writes[LIMIT_ROUNDS], reads[LIMIT_ROUNDS];
    size_t write_count = limit->nodes ? rates_of(limit, limit->writes, writes) : 0;
    char text[600], all[32];
    if (!has_bytes(summary, page))
        return;
    if (*limit->why || write_count == 0) {
        add_reason(page, *summary->failure ? summary->failure
                         : *limit->why     ? limit->why
                         : summary->tasks > 0 && summary->expected == 0
                             ? "how many tasks there are was not known (--tasks N)"
                             : "the tasks of the nodes did not measure together");
        return;
    }
    publish(page, writes, write_count, reads, rates_of(limit, limit->reads, reads));
    snprintf(text, sizeof text, "measured after the command by %u node%s, with %s in %u file%s in the same place",
             limit->nodes, limit->nodes == 1 ? "" : "s at the same time",
             units_format_bytes(limit->writes[0].bytes, all), limit->files, units_plural(limit->files));
    status_page_add_fact(page, FACT, text);
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

/* Of the run alone, or of one of several nodes: a number follows then. */
static bool is_folder_of(const char *name, const char *run)
{
    size_t start = strlen(WATCH_LIMIT_FOLDER), len = strlen(run);
    if (strncmp(name, WATCH_LIMIT_FOLDER, start) != 0 || strncmp(name + start, run, len) != 0)
        return false;
    const char *rest = name + start + len;
    return !*rest || (*rest == '@' && strspn(rest + 1, "0123456789") == strlen(rest + 1));
}

void watch_limit_remove_left(const struct attempt *attempt, const struct watch_summary *summary)
{
    DIR *entries = *summary->place == '/' ? opendir(summary->place) : NULL;
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        if (is_folder_of(entry->d_name, attempt->run))
            remove_folder(dirfd(entries), entry->d_name);
    if (entries)
        closedir(entries);
}
