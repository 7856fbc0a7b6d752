#include "worker/paced_reader.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/rlimits.h"

#define POLL_BATCH 64
#define SLICE_NS (20 * NS_PER_MS) /* the longest wait before the request to stop is seen */
#define DRAIN_NS (2 * NS_PER_S)   /* for what is in flight at the end; again as long after a cancel */
#define BEGIN_NS (60 * NS_PER_S)  /* for the thread to request its first block */

struct paced_reader {
    struct paced_reader_setup setup;
    struct store_object *object;
    pthread_t thread;
    _Atomic bool stop, has_begun;
    _Atomic uint64_t read_bytes;
    uint64_t start_ns, bytes, at; /* `at`: the offset of the next block */
    /* Of the thread while it runs: */
    uint64_t requested_bytes;
    uint32_t *free_slots; /* blocks of the memory that no request uses; owned */
    uint32_t free_count;
    bool drops_cache, is_stuck;
    struct cb_err failure; /* code 0: none */
};

int paced_reader_new(const struct paced_reader_setup *setup, struct paced_reader **reader, struct cb_err *err)
{
    const struct store_capabilities *capabilities = store_capabilities(setup->store);
    struct paced_reader *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "to read a dataset");
    self->setup = *setup;
    if (self->setup.depth > capabilities->max_depth)
        self->setup.depth = capabilities->max_depth;
    self->drops_cache = capabilities->page_cache && !capabilities->direct;
    self->free_count = self->setup.depth;
    self->free_slots = calloc(self->setup.depth, sizeof *self->free_slots);
    if (!self->free_slots) {
        free(self);
        return alloc_fail(err, "to read a dataset");
    }
    for (uint32_t i = 0; i < self->free_count; i++)
        self->free_slots[i] = i;
    *reader = self;
    return 0;
}

void paced_reader_free(struct paced_reader *self)
{
    if (!self)
        return;
    free(self->free_slots);
    free(self);
}

/* When the next block is due. */
static uint64_t due_ns(const struct paced_reader *self)
{
    return self->start_ns +
           (uint64_t)((double)self->requested_bytes / (double)self->setup.bytes_per_s * (double)NS_PER_S);
}

static int request_next(struct paced_reader *self, struct cb_err *err)
{
    uint32_t slot = self->free_slots[self->free_count - 1];
    struct iovec segment = {.iov_base = (char *)self->setup.memory + slot * self->setup.block_bytes,
                            .iov_len = self->setup.block_bytes};
    struct store_request request = {.kind = STORE_READ,
                                    .object = self->object,
                                    .offset = self->at,
                                    .segments = &segment,
                                    .segment_count = 1,
                                    .memory = MEMORY_HOST,
                                    .user = slot};
    double unused;
    int rc = 0;
    if (self->at == 0 && self->requested_bytes > 0 &&
        self->drops_cache) /* else it would come from this machine's memory */
        rc = store_drop_cache(self->setup.store, store_object_name(self->object), &unused, err);
    if (!rc)
        rc = store_submit(self->setup.store, &request, 1, err);
    if (rc)
        return rc;
    self->free_count--;
    self->requested_bytes += self->setup.block_bytes;
    self->at = self->at + self->setup.block_bytes < self->bytes ? self->at + self->setup.block_bytes : 0;
    return 0;
}

/* Waits until a monotonic time for completions. Counts them, unless the reading has ended. */
static int reap(struct paced_reader *self, uint64_t until_ns, bool has_ended, struct cb_err *err)
{
    struct store_completion completions[POLL_BATCH];
    size_t count = 0;
    int rc = store_poll(self->setup.store, completions, POLL_BATCH, until_ns, &count, err);
    for (size_t i = 0; i < count; i++) {
        self->free_slots[self->free_count++] = (uint32_t)completions[i].user;
        if (has_ended || rc)
            continue;
        if (completions[i].code)
            rc = store_completion_error(self->setup.store, &completions[i], err);
        else
            atomic_fetch_add_explicit(&self->read_bytes, completions[i].bytes, memory_order_relaxed);
    }
    return rc;
}

static void drain(struct paced_reader *self)
{
    struct cb_err unused;
    for (int round = 0; round < 2; round++) {
        uint64_t until_ns = clock_monotonic_ns() + DRAIN_NS;
        while (store_in_flight(self->setup.store) > 0 && clock_monotonic_ns() < until_ns)
            if (reap(self, until_ns, true, &unused))
                break;
        if (round == 0 && store_in_flight(self->setup.store) > 0)
            store_cancel(self->setup.store);
    }
    self->is_stuck = store_in_flight(self->setup.store) > 0;
}

static void *read_on(void *context)
{
    struct paced_reader *self = context;
    int rc = 0;
    while (!rc && !atomic_load(&self->stop)) {
        uint64_t now_ns = clock_monotonic_ns(), until_ns = now_ns + SLICE_NS;
        while (!rc && self->free_count > 0 && due_ns(self) <= now_ns)
            rc = request_next(self, &self->failure);
        atomic_store(&self->has_begun, true);
        if (self->free_count > 0 && due_ns(self) < until_ns)
            until_ns = due_ns(self);
        if (!rc && store_in_flight(self->setup.store) > 0)
            rc = reap(self, until_ns, false, &self->failure);
        else if (!rc && until_ns > now_ns)
            clock_sleep_ns(until_ns - now_ns);
    }
    if (rc)
        store_cancel(self->setup.store);
    drain(self);
    return NULL;
}

static void wait_for_first(struct paced_reader *self)
{
    while (!atomic_load(&self->has_begun) && clock_monotonic_ns() < self->start_ns + BEGIN_NS)
        clock_sleep_ns(NS_PER_MS / 10);
}

int paced_reader_start(struct paced_reader *self, const char *name, uint64_t bytes, struct cb_err *err)
{
    uint64_t length;
    if (self->is_stuck)
        return cb_fail(err, CB_ERR_TIMEOUT, "%s: reads beside an earlier load are still stuck in the store", name);
    int rc = store_open_read(self->setup.store, name, &self->object, &length, err);
    if (rc)
        return rc;
    self->failure.code = 0;
    self->bytes = bytes;
    self->at = self->at < bytes ? self->at : 0;
    self->requested_bytes = 0;
    atomic_store(&self->read_bytes, 0);
    atomic_store(&self->stop, false);
    atomic_store(&self->has_begun, false);
    self->start_ns = clock_monotonic_ns();
    int failed = pthread_create(&self->thread, NULL, read_on, self);
    if (failed) {
        store_close(self->setup.store, self->object);
        self->object = NULL;
        return rlimits_fail_thread(failed, "a reader of the dataset", err);
    }
    wait_for_first(self);
    return 0;
}

uint64_t paced_reader_progress(const struct paced_reader *self, uint64_t *elapsed_ns)
{
    uint64_t bytes = atomic_load_explicit(&self->read_bytes, memory_order_relaxed);
    *elapsed_ns = clock_monotonic_ns() - self->start_ns;
    return bytes;
}

int paced_reader_stop(struct paced_reader *self, struct cb_err *err)
{
    atomic_store(&self->stop, true);
    pthread_join(self->thread, NULL);
    if (!self->is_stuck)
        store_close(self->setup.store, self->object);
    self->object = NULL;
    if (self->failure.code && err)
        *err = self->failure;
    return self->failure.code;
}

bool paced_reader_is_stuck(const struct paced_reader *self)
{
    return self->is_stuck;
}
