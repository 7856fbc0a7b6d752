/* The store: sequential and random access by one node and by all nodes, and metadata operations. Uses the same store
 * code as checkpoints, so that a slow result here predicts a slow checkpoint. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/agree.h"
#include "core/clock.h"
#include "engine/huge_memory.h"
#include "setup/open_store.h"
#include "suite/suite.h"

#define PAGE_BYTES 4096
#define RANDOM_NS (NS_PER_S / 4) /* time per queue depth */
#define NAMES 200                /* small files created, looked up and removed */
#define POLL_SLICE_NS (100 * NS_PER_MS)
#define PLACE_BYTES (FOLDER_NAME_BYTES + 64)

struct slot {
    char *memory; /* one block */
    uint64_t offset;
    uint32_t file;
};

/* One pass over some files: sequential through the files in turn, or random until the time is over. */
struct pass {
    struct suite *suite;
    struct store *store;
    enum store_request_kind kind;
    struct store_object *objects[SUITE_FILES_MOST];
    uint64_t next[SUITE_FILES_MOST]; /* offset of the next block */
    uint32_t owner;                  /* rank that wrote, or writes, the files */
    uint32_t file_count, turn, depth, in_flight;
    uint64_t file_bytes, block, requests;
    bool random;
    uint64_t random_state, end_ns;
    struct histogram latency;
    struct slot slots[SUITE_DEPTH_MOST];
    uint32_t free_slots[SUITE_DEPTH_MOST], free_count;
    char *memory; /* of all slots; owned */
};

/* Whole pages, as O_DIRECT requires. */
uint64_t suite_file_bytes(const struct experiment *experiment)
{
    return experiment_u64(experiment, OPT_SUITE_FILE_BYTES) / PAGE_BYTES * PAGE_BYTES;
}

uint32_t suite_workers(const struct experiment *experiment)
{
    return (uint32_t)experiment_u64(experiment, OPT_SUITE_STORAGE_WORKERS);
}

/* A header at the start of every page of a file identifies the file and the offset. */
static uint64_t tag_of(uint32_t owner, uint32_t file, uint64_t offset)
{
    return (offset + 1) * UINT64_C(0x9E3779B97F4A7C15) + (uint64_t)owner * SUITE_FILES_MOST + file;
}

static void tag_block(const struct pass *pass, const struct slot *slot, uint64_t length)
{
    for (uint64_t i = 0; i + sizeof(uint64_t) <= length; i += PAGE_BYTES) {
        uint64_t tag = tag_of(pass->owner, slot->file, slot->offset + i);
        memcpy(slot->memory + i, &tag, sizeof tag);
    }
}

static bool is_tagged(const struct pass *pass, const struct slot *slot, uint64_t length)
{
    for (uint64_t i = 0; i + sizeof(uint64_t) <= length; i += PAGE_BYTES) {
        uint64_t tag;
        memcpy(&tag, slot->memory + i, sizeof tag);
        if (tag != tag_of(pass->owner, slot->file, slot->offset + i))
            return false;
    }
    return true;
}

/* The next position to read or write; false if there is none. */
static bool choose_place(struct pass *self, struct slot *slot)
{
    if (self->random) {
        self->random_state = self->random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        slot->file = 0;
        slot->offset = (self->random_state >> 33) % (self->file_bytes / self->block) * self->block;
        return clock_monotonic_ns() < self->end_ns;
    }
    for (uint32_t tried = 0; tried < self->file_count; tried++) {
        uint32_t file = self->turn++ % self->file_count;
        if (self->next[file] >= self->file_bytes)
            continue;
        slot->file = file;
        slot->offset = self->next[file];
        self->next[file] += self->block;
        return true;
    }
    return false;
}

static uint64_t length_at(const struct pass *self, uint64_t offset)
{
    return self->file_bytes - offset < self->block ? self->file_bytes - offset : self->block;
}

/* Submits up to the queue depth. *more is false when nothing is left to submit. */
static int submit_some(struct pass *self, bool *more, struct cb_err *err)
{
    while (self->free_count > 0) {
        uint32_t index = self->free_slots[self->free_count - 1];
        struct slot *slot = &self->slots[index];
        *more = choose_place(self, slot);
        if (!*more)
            return 0;
        struct iovec segment = {.iov_base = slot->memory, .iov_len = length_at(self, slot->offset)};
        if (self->kind == STORE_WRITE)
            tag_block(self, slot, segment.iov_len);
        struct store_request request = {.kind = self->kind,
                                        .object = self->objects[slot->file],
                                        .offset = slot->offset,
                                        .segments = &segment,
                                        .segment_count = 1,
                                        .memory = MEMORY_HOST,
                                        .user = index};
        int rc = store_submit(self->store, &request, 1, err);
        if (rc)
            return rc;
        self->free_count--;
        self->in_flight++;
        self->requests++;
    }
    return 0;
}

static int complete(struct pass *self, const struct store_completion *completion, struct cb_err *err)
{
    self->in_flight--;
    if (completion->code)
        return store_completion_error(self->store, completion, err);
    if (completion->kind == STORE_FINISH)
        return 0;
    const struct slot *slot = &self->slots[completion->user];
    self->free_slots[self->free_count++] = (uint32_t)completion->user;
    histogram_record(&self->latency, completion->completed_ns - completion->submitted_ns);
    if (self->kind == STORE_READ && !is_tagged(self, slot, completion->bytes))
        return cb_fail(err, CB_ERR_CORRUPT, "%s at byte %" PRIu64 ": not what was written there",
                       store_object_name(completion->object), completion->offset);
    return 0;
}

/* Waits for at least one completion. */
static int reap(struct pass *self, uint64_t deadline_ns, struct cb_err *err)
{
    struct store_completion completions[SUITE_DEPTH_MOST];
    size_t count = 0;
    while (count == 0) {
        uint64_t now_ns = clock_monotonic_ns();
        int rc = store_poll(self->store, completions, SUITE_DEPTH_MOST, now_ns + POLL_SLICE_NS, &count, err);
        if (!rc && count == 0)
            rc = comm_check(self->suite->comm, err);
        if (!rc && count == 0 && now_ns > deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "the store answered no request in time");
        if (rc)
            return rc;
    }
    int rc = 0;
    for (size_t i = 0; i < count; i++) {
        struct cb_err later;
        int code = complete(self, &completions[i], rc ? &later : err);
        rc = rc ? rc : code;
    }
    atomic_store_explicit(&self->suite->page->progress_ns, clock_monotonic_ns(), memory_order_relaxed);
    return rc;
}

static int finish_files(struct pass *self, uint64_t deadline_ns, struct cb_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < self->file_count && !rc; i++) {
        struct store_request finish = {.kind = STORE_FINISH, .object = self->objects[i]};
        rc = store_submit(self->store, &finish, 1, err);
        if (!rc)
            self->in_flight++;
    }
    while (!rc && self->in_flight > 0)
        rc = reap(self, deadline_ns, err);
    return rc;
}

static int move_all(struct pass *self, uint64_t deadline_ns, struct cb_err *err)
{
    bool more = true;
    int rc = 0;
    while (!rc && (more || self->in_flight > 0)) {
        if (more)
            rc = submit_some(self, &more, err);
        if (!rc && self->in_flight > 0)
            rc = reap(self, deadline_ns, err);
    }
    return rc || self->kind == STORE_READ ? rc : finish_files(self, deadline_ns, err);
}

/* The block size of files that are written whole: one part, for stores that require parts. */
static uint64_t long_block(const struct suite *self, const struct store *store, uint64_t file_bytes)
{
    uint64_t part = store_part_bytes(store_capabilities(store), file_bytes);
    uint64_t block = part > 0 ? part : experiment_u64(self->experiment, OPT_IO_BLOCK);
    return block < file_bytes ? block : file_bytes;
}

static int pass_init(struct pass *self, struct suite *suite, struct store *store, uint64_t file_bytes, uint64_t block,
                     uint32_t depth, struct cb_err *err)
{
    uint32_t most = store_capabilities(store)->max_depth;
    void *memory;
    *self = (struct pass){.suite = suite, .store = store, .owner = comm_rank(suite->comm)};
    self->file_bytes = file_bytes;
    self->block = block;
    self->depth = depth > most ? most : depth;
    int rc = huge_memory_map(self->depth * self->block, &memory, err);
    if (rc)
        return rc;
    self->memory = memory;
    memset(self->memory, 0x5A, self->depth * self->block);
    for (uint32_t i = 0; i < self->depth; i++)
        self->slots[i].memory = self->memory + i * self->block;
    store_register(store, &(struct iovec){self->memory, self->depth * self->block}, 1);
    histogram_init(&self->latency);
    return 0;
}

/* Memory must not be freed while requests are in flight; memory that a stuck store still uses is leaked. */
static void pass_release(struct pass *self)
{
    uint64_t give_up_ns = clock_monotonic_ns() + NS_PER_S;
    if (self->in_flight > 0)
        store_cancel(self->store);
    while (self->in_flight > 0 && clock_monotonic_ns() < give_up_ns) {
        struct store_completion completions[SUITE_DEPTH_MOST];
        size_t count = 0;
        if (store_poll(self->store, completions, SUITE_DEPTH_MOST, give_up_ns, &count, NULL))
            return;
        self->in_flight -= (uint32_t)count;
    }
    if (self->in_flight == 0)
        huge_memory_unmap(self->memory, self->depth * self->block);
}

static void file_name(const struct suite *suite, const char *kind, uint32_t owner, uint32_t file,
                      char name[PLACE_BYTES])
{
    char scratch[FOLDER_NAME_BYTES];
    folder_scratch_name(&suite->folder, scratch);
    snprintf(name, PLACE_BYTES, "%s/%s-%u-%u", scratch, kind, owner, file);
}

static int open_files(struct pass *self, const char *kind, struct cb_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < self->file_count && !rc; i++) {
        char name[PLACE_BYTES];
        uint64_t length = 0;
        file_name(self->suite, kind, self->owner, i, name);
        rc = self->kind == STORE_WRITE ? store_create(self->store, name, self->file_bytes, &self->objects[i], err)
                                       : store_open_read(self->store, name, &self->objects[i], &length, err);
    }
    return rc;
}

static void close_files(struct pass *self)
{
    for (uint32_t i = 0; i < self->file_count && self->in_flight == 0; i++)
        if (self->objects[i])
            store_close(self->store, self->objects[i]);
}

/* Moves `file_count` files; *seconds from the first open until the last byte is durable. */
static int run_pass(struct pass *self, const char *kind, enum store_request_kind what, uint32_t file_count,
                    double *seconds, struct cb_err *err)
{
    self->kind = what;
    self->file_count = file_count;
    self->turn = 0;
    self->requests = 0;
    self->free_count = self->depth;
    memset(self->next, 0, sizeof self->next);
    memset(self->objects, 0, sizeof self->objects);
    for (uint32_t i = 0; i < self->depth; i++)
        self->free_slots[i] = i;
    uint64_t start_ns = clock_monotonic_ns();
    int rc = open_files(self, kind, err);
    if (!rc)
        rc = move_all(self, suite_deadline(self->suite), err);
    *seconds = (double)(clock_monotonic_ns() - start_ns) / 1e9;
    close_files(self);
    return rc;
}

/* The largest share of all ranks; NAN if any of them is unknown. */
static void note_resident(struct suite *self, double resident)
{
    if (isnan(resident) || resident > self->resident)
        self->resident = resident;
}

/* Drops a rank's files from the page cache, and measures the share that remains. */
static int make_cold(struct suite *self, const char *kind, uint32_t owner, uint32_t file_count, struct cb_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < file_count && !rc; i++) {
        char name[PLACE_BYTES];
        double resident = NAN;
        file_name(self, kind, owner, i, name);
        rc = store_drop_cache(self->folder.plain, name, &resident, err);
        if (!rc)
            note_resident(self, resident);
    }
    return rc;
}

static int remove_files(struct suite *self, const char *kind, uint32_t file_count, struct cb_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < file_count && !rc; i++) {
        char name[PLACE_BYTES];
        file_name(self, kind, comm_rank(self->comm), i, name);
        rc = store_remove(self->folder.plain, name, err);
    }
    return rc;
}

static uint32_t depth_of(const struct suite *self)
{
    uint64_t depth = experiment_u64(self->experiment, OPT_IO_DEPTH);
    return depth > SUITE_DEPTH_MOST ? SUITE_DEPTH_MOST : (uint32_t)depth;
}

/* Writes some files on one node, then reads them cold. No read rate if `read` is NULL. */
static int measure_files(struct suite *self, struct store *store, uint32_t file_count, uint32_t depth, double *write,
                         double *read, struct cb_err *err)
{
    struct pass pass;
    uint64_t bytes = suite_file_bytes(self->experiment);
    uint64_t each = bytes / file_count / PAGE_BYTES * PAGE_BYTES;
    double seconds;
    int rc = pass_init(&pass, self, store, each, long_block(self, store, each), depth, err);
    if (rc)
        return rc;
    rc = run_pass(&pass, "sequence", STORE_WRITE, file_count, &seconds, err);
    if (!rc)
        *write = (double)(each * file_count) / seconds;
    if (!rc && read)
        rc = make_cold(self, "sequence", pass.owner, file_count, err);
    if (!rc && read)
        rc = run_pass(&pass, "sequence", STORE_READ, file_count, &seconds, err);
    if (!rc && read)
        *read = (double)(each * file_count) / seconds;
    if (!rc)
        rc = remove_files(self, "sequence", file_count, err);
    pass_release(&pass);
    return rc;
}

static int read_randomly(struct suite *self, uint32_t depth, double *per_s, struct histogram *latency,
                         struct cb_err *err)
{
    struct pass pass;
    double seconds;
    uint64_t bytes = suite_file_bytes(self->experiment);
    int rc = pass_init(&pass, self, self->direct, bytes, PAGE_BYTES, depth, err);
    if (rc)
        return rc;
    pass.random = true;
    pass.random_state = clock_monotonic_ns();
    pass.end_ns = clock_monotonic_ns() + RANDOM_NS;
    rc = run_pass(&pass, "random", STORE_READ, 1, &seconds, err);
    if (!rc) {
        *per_s = (double)pass.requests / seconds;
        *latency = pass.latency;
    }
    pass_release(&pass);
    return rc;
}

static int measure_random(struct suite *self, struct sample *sample, struct cb_err *err)
{
    static const struct {
        uint32_t depth;
        enum metric_id rate, p50, p99;
    } depths[] = {{1, METRIC_STORAGE_READ_4K_DEPTH_1_PER_S, METRIC_STORAGE_READ_4K_P50_S, METRIC_STORAGE_READ_4K_P99_S},
                  {32, METRIC_STORAGE_READ_4K_DEPTH_32_PER_S, METRIC_STORAGE_READ_4K_DEPTH_32_P50_S,
                   METRIC_STORAGE_READ_4K_DEPTH_32_P99_S},
                  {64, METRIC_STORAGE_READ_4K_DEPTH_64_PER_S, METRIC_STORAGE_READ_4K_DEPTH_64_P50_S,
                   METRIC_STORAGE_READ_4K_DEPTH_64_P99_S}};
    struct pass pass;
    struct histogram latency;
    double seconds;
    uint64_t bytes = suite_file_bytes(self->experiment);
    int rc = pass_init(&pass, self, self->direct, bytes, long_block(self, self->direct, bytes), depth_of(self), err);
    if (rc)
        return rc;
    rc = run_pass(&pass, "random", STORE_WRITE, 1, &seconds, err);
    pass_release(&pass);
    for (size_t i = 0; i < sizeof depths / sizeof *depths && !rc; i++) {
        rc = make_cold(self, "random", comm_rank(self->comm), 1, err);
        if (!rc)
            rc = read_randomly(self, depths[i].depth, &sample->values[depths[i].rate], &latency, err);
        if (!rc) {
            sample->values[depths[i].p50] = (double)histogram_quantile(&latency, 0.5) / 1e9;
            sample->values[depths[i].p99] = (double)histogram_quantile(&latency, 0.99) / 1e9;
        }
    }
    return rc ? rc : remove_files(self, "random", 1, err);
}

static double rate_since(uint64_t start_ns)
{
    return NAMES / ((double)(clock_monotonic_ns() - start_ns) / 1e9);
}

static int measure_names(struct suite *self, struct sample *sample, struct cb_err *err)
{
    static const char content[] = "small";
    char name[PLACE_BYTES];
    uint64_t length;
    int rc = 0;
    uint64_t start_ns = clock_monotonic_ns();
    for (uint32_t i = 0; i < NAMES && !rc; i++) {
        file_name(self, "name", comm_rank(self->comm), i, name);
        rc = store_publish(self->folder.plain, name, content, sizeof content, err);
    }
    sample->values[METRIC_STORAGE_CREATES_PER_S] = rc ? NAN : rate_since(start_ns);
    start_ns = clock_monotonic_ns();
    for (uint32_t i = 0; i < NAMES && !rc; i++) {
        file_name(self, "name", comm_rank(self->comm), i, name);
        rc = store_stat(self->folder.plain, name, &length, err);
        if (!rc && length != sizeof content)
            rc = cb_fail(err, CB_ERR_CORRUPT, "%s has %" PRIu64 " bytes, %zu were written", name, length,
                         sizeof content);
    }
    sample->values[METRIC_STORAGE_STATS_PER_S] = rc ? NAN : rate_since(start_ns);
    start_ns = clock_monotonic_ns();
    for (uint32_t i = 0; i < NAMES && !rc; i++) {
        file_name(self, "name", comm_rank(self->comm), i, name);
        rc = store_remove(self->folder.plain, name, err);
    }
    sample->values[METRIC_STORAGE_DELETES_PER_S] = rc ? NAN : rate_since(start_ns);
    return rc;
}

/* Tests that run in one process of a node. */
static int measure_node(struct suite *self, struct sample *sample, struct cb_err *err)
{
    uint32_t workers = suite_workers(self->experiment);
    int rc = measure_files(self, self->direct, 1, depth_of(self), &sample->values[METRIC_STORAGE_WRITE_BYTES_PER_S],
                           &sample->values[METRIC_STORAGE_READ_BYTES_PER_S], err);
    if (!rc && self->buffered)
        rc = measure_files(self, self->buffered, 1, depth_of(self),
                           &sample->values[METRIC_STORAGE_BUFFERED_WRITE_BYTES_PER_S], NULL, err);
    if (!rc)
        rc = measure_files(self, self->direct, workers, workers,
                           &sample->values[METRIC_STORAGE_PARALLEL_WRITE_BYTES_PER_S],
                           &sample->values[METRIC_STORAGE_PARALLEL_READ_BYTES_PER_S], err);
    if (!rc)
        rc = measure_random(self, sample, err);
    return rc ? rc : measure_names(self, sample, err);
}

static int slowest_rate(struct suite *self, uint64_t bytes, double seconds, double *rate, struct cb_err *err)
{
    struct agreement slowest;
    int rc = agree_number(self->comm, 0, (uint64_t)(seconds * 1e9), suite_deadline(self), &slowest, err);
    if (!rc && slowest.max > 0)
        *rate = (double)bytes * comm_size(self->comm) / ((double)slowest.max / 1e9);
    return rc;
}

static int measure_aggregate(struct suite *self, struct sample *sample, struct cb_err *err)
{
    struct pass pass;
    uint64_t bytes = suite_file_bytes(self->experiment);
    double seconds = 0;
    int rc = pass_init(&pass, self, self->direct, bytes, long_block(self, self->direct, bytes), depth_of(self), err);
    rc = suite_join(self, rc, err);
    if (rc)
        return rc;
    rc = suite_join(self, run_pass(&pass, "aggregate", STORE_WRITE, 1, &seconds, err), err);
    if (!rc)
        rc = slowest_rate(self, bytes, seconds, &sample->values[METRIC_STORAGE_AGGREGATE_WRITE_BYTES_PER_S], err);
    if (!rc)
        rc = suite_join(self, make_cold(self, "aggregate", comm_rank(self->comm), 1, err), err);
    pass.owner = self->nodes.partner; /* on another node, if there is one */
    if (!rc)
        rc = suite_join(self, make_cold(self, "aggregate", pass.owner, 1, err), err);
    if (!rc)
        rc = suite_join(self, run_pass(&pass, "aggregate", STORE_READ, 1, &seconds, err), err);
    if (!rc)
        rc = slowest_rate(self, bytes, seconds, &sample->values[METRIC_STORAGE_AGGREGATE_READ_BYTES_PER_S], err);
    if (!rc)
        rc = suite_join(self, remove_files(self, "aggregate", 1, err), err);
    pass_release(&pass);
    return rc;
}

/* "suite.cold": the largest share of the files that was still in the page cache when they were read cold, on any
 * rank. */
static int note_coldness(struct suite *self, struct cb_err *err)
{
    struct agreement most;
    char text[96];
    uint64_t millionths = isnan(self->resident) ? UINT32_MAX : (uint64_t)(self->resident * 1e6);
    int rc = agree_number(self->comm, 0, millionths, suite_deadline(self), &most, err);
    if (rc || comm_rank(self->comm) > 0)
        return rc;
    snprintf(text, sizeof text, "at most %.2f %% of a file was in the page cache before it was read",
             (double)most.max / 1e4);
    status_page_add_fact(self->page, "suite.cold", most.max == UINT32_MAX ? "unknown" : text);
    return 0;
}

int suite_storage(struct suite *self, struct sample *sample, bool last, struct cb_err *err)
{
    if (last && !self->buffered)
        suite_skip(self, "storage.buffered", "the store has no page cache");
    int rc = self->nodes.local_rank == 0 ? measure_node(self, sample, err) : 0;
    rc = suite_join(self, rc, err);
    if (!rc)
        rc = measure_aggregate(self, sample, err);
    return rc || !last || !self->buffered ? rc : note_coldness(self, err);
}

static int open_direct(struct suite *self, enum store_direct direct, struct store **store, struct cb_err *err)
{
    return open_store_with(self->experiment, self->page, self->pages_folder, direct, SUITE_DEPTH_MOST, store, err);
}

int suite_storage_open(struct suite *self, struct cb_err *err)
{
    /* Room for every rank's aggregate file, and one more file per node for its first rank. */
    uint64_t bytes = suite_file_bytes(self->experiment), files = comm_size(self->comm);
    files += self->nodes.count;
    uint64_t needed = bytes > UINT64_MAX / files ? UINT64_MAX : bytes * files;
    const struct lease_owner owner = {.run = self->run,
                                      .run_folder = self->run_folder,
                                      .attempt = self->attempt,
                                      .one_machine = comm_local_size(self->comm) == comm_size(self->comm)};
    int rc = comm_rank(self->comm) == 0 ? folder_prepare(&self->folder, self->experiment, &owner, needed, err) : 0;
    rc = suite_join(self, rc, err);
    if (!rc)
        rc = folder_open(&self->folder, self->experiment, self->run, err);
    if (!rc)
        rc = open_direct(self, store_direct_of(self->experiment), &self->direct, err);
    if (!rc)
        rc = open_direct(self, STORE_DIRECT_NO, &self->buffered, err);
    if (!rc && !store_capabilities(self->buffered)->page_cache) {
        store_free(self->buffered);
        self->buffered = NULL;
    }
    return suite_join(self, rc, err);
}

int suite_storage_close(struct suite *self, struct cb_err *err)
{
    status_page_add_fact(self->page, "io.used", store_describe(self->direct)); /* with the registered buffers */
    char scratch[FOLDER_NAME_BYTES];
    int rc = 0;
    if (comm_rank(self->comm) == 0) {
        folder_scratch_name(&self->folder, scratch);
        rc = folder_remove(&self->folder, scratch, err);
        if (!rc)
            rc = folder_leave(&self->folder, err);
    }
    if (store_in_flight(self->direct) == 0)
        store_free(self->direct);
    if (self->buffered && store_in_flight(self->buffered) == 0)
        store_free(self->buffered);
    folder_release(&self->folder);
    return rc;
}
