/* For tests: a device whose copies happen late, out of order and in pieces, so that whoever does not wait
 * for them is found out. Nothing is copied before somebody looks. Its own memory is at addresses that this
 * program may neither read nor write (only the device knows where the bytes are), so that whoever touches
 * it ends with a signal. */
#ifndef TESTS_FAKE_DEVICE_H
#define TESTS_FAKE_DEVICE_H

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/clock.h"
#include "engine/device.h"

#define FAKE_MAX_COPIES 65536
#define FAKE_MAX_MEMORIES 16
#define FAKE_MAX_MARKS 4096

/* Memory of the device: `bytes` at `address`, which is closed; what is there lies at `bytes_at`. */
struct fake_memory {
    char *address, *bytes_at;
    uint64_t bytes;
};

struct fake_copy {
    struct device_copy copy;
    uint64_t event; /* the first one behind it */
    bool done;
};

struct fake_talk;
struct fake_math;

struct fake_device {
    struct device base;
    struct fake_copy copies[FAKE_MAX_COPIES];
    size_t count;
    uint64_t recorded, done;
    uint32_t random;
    uint32_t number;  /* a test's own */
    unsigned looks;   /* an event is not done before somebody has looked so often */
    unsigned looked;  /* at the oldest event that is not done */
    unsigned fail_at; /* this event fails; 0: none */
    uint64_t waits;
    uint64_t talk_waits,
        talk_awaited;               /* events of the talk with others that somebody looked at, and the last of them */
    uint64_t marks[FAKE_MAX_MARKS]; /* when; 0: not yet */
    uint64_t mark_count;
    int64_t allocations; /* not released */
    struct fake_memory memories[FAKE_MAX_MEMORIES];
    uint64_t copied;     /* copies made */
    uint64_t corrupt_at; /* the copy with this number has one bit wrong; 0: none */
    uint64_t bytes_to_host, bytes_to_device;
    uint64_t most_pinned_bytes; /* the largest piece of pinned memory */
    struct fake_talk *talk;     /* fake_comm.h: what it has been given to do with others; owned */
    uint64_t fail_talk_at;      /* this event of that fails; 0: none */
    struct fake_math *math;     /* fake_math.h: what it computes with; closed by whoever opened it */
    /* Between the two: does what is queued up to an event, as far as that does not wait for others; and lets what is
     * queued later wait for the talk. */
    bool (*talk_until)(struct fake_device *self, uint64_t event);
    bool (*math_until)(struct fake_device *self, uint64_t event);
    void (*hold)(struct fake_device *self, uint64_t event);
};

static inline uint32_t fake_random(struct fake_device *self)
{
    self->random = self->random * 1664525u + 1013904223u;
    return self->random >> 8;
}

/* Where the bytes of an address are: of the device's own memory elsewhere. */
static inline void *fake_where(const struct fake_device *self, const void *address, uint64_t bytes)
{
    for (size_t i = 0; i < FAKE_MAX_MEMORIES; i++) {
        const struct fake_memory *memory = &self->memories[i];
        const char *at = address;
        if (!memory->address || at < memory->address || at >= memory->address + memory->bytes)
            continue;
        assert(at + bytes <= memory->address + memory->bytes);
        return memory->bytes_at + (at - memory->address);
    }
    return (void *)(uintptr_t)address;
}

static inline int fake_allocate_own(struct fake_device *self, uint64_t bytes, void **memory, struct cb_err *err)
{
    for (size_t i = 0; i < FAKE_MAX_MEMORIES; i++) {
        struct fake_memory *own = &self->memories[i];
        if (own->address)
            continue;
        uint64_t mapped = (bytes + 4095) / 4096 * 4096;
        char *address = mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        char *bytes_at = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert(address != MAP_FAILED && bytes_at != MAP_FAILED);
        *own = (struct fake_memory){.address = address, .bytes_at = bytes_at, .bytes = mapped};
        *memory = address;
        self->allocations++;
        return 0;
    }
    return cb_fail(err, CB_ERR_MEMORY, "the fake device has %d pieces of memory", FAKE_MAX_MEMORIES);
}

static inline int fake_allocate(struct device *device, enum memory_kind kind, uint64_t bytes, void **memory,
                                struct cb_err *err)
{
    if (kind == MEMORY_DEVICE)
        return fake_allocate_own((struct fake_device *)device, bytes, memory, err);
    *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!*memory)
        return cb_fail(err, CB_ERR_MEMORY, "no memory");
    struct fake_device *self = (struct fake_device *)device;
    self->allocations++;
    self->most_pinned_bytes = bytes > self->most_pinned_bytes ? bytes : self->most_pinned_bytes;
    memset(*memory, 0xEE, bytes);
    return 0;
}

static inline void fake_release(struct device *device, enum memory_kind kind, void *memory, uint64_t bytes)
{
    struct fake_device *self = (struct fake_device *)device;
    (void)bytes;
    self->allocations -= memory ? 1 : 0;
    if (kind != MEMORY_DEVICE) {
        free(memory);
        return;
    }
    for (size_t i = 0; i < FAKE_MAX_MEMORIES && memory; i++) {
        struct fake_memory *own = &self->memories[i];
        if (own->address != memory)
            continue;
        munmap(own->address, own->bytes);
        munmap(own->bytes_at, own->bytes);
        *own = (struct fake_memory){0};
    }
}

static inline void fake_perform(struct fake_device *self, struct fake_copy *copy)
{
    const struct device_copy *what = &copy->copy;
    for (uint64_t row = 0; row < what->rows && what->row_bytes > 0; row++) {
        char *to = fake_where(self, (char *)what->to + row * what->to_stride, what->row_bytes);
        memcpy(to, fake_where(self, (const char *)what->from + row * what->from_stride, what->row_bytes),
               what->row_bytes);
        if (row == 0 && ++self->copied == self->corrupt_at)
            to[what->row_bytes / 2] ^= 4;
    }
    copy->done = true;
}

/* Copies what lies before an event, in any order. */
static inline void fake_catch_up(struct fake_device *self, uint64_t event)
{
    for (size_t left = self->count; left > 0;) {
        size_t kept = 0;
        for (size_t i = 0; i < left; i++) {
            struct fake_copy *copy = &self->copies[i];
            if (copy->event <= event && fake_random(self) % 2)
                fake_perform(self, copy);
            else
                self->copies[kept++] = *copy;
        }
        bool waiting = false;
        for (size_t i = 0; i < kept; i++)
            waiting = waiting || self->copies[i].event <= event;
        self->count = left = kept;
        if (!waiting)
            break;
    }
    self->done = event < self->recorded ? event : self->recorded;
    self->looked = 0;
}

static inline int fake_queue(struct device *device, enum device_direction direction, const struct device_copy *copies,
                             size_t count, struct cb_err *err)
{
    struct fake_device *self = (struct fake_device *)device;
    for (size_t i = 0; i < count; i++) {
        *(direction == DEVICE_TO_HOST ? &self->bytes_to_host : &self->bytes_to_device) +=
            copies[i].row_bytes * copies[i].rows;
        if (self->count == FAKE_MAX_COPIES)
            return cb_fail(err, CB_ERR_INTERNAL, "the fake device has room for %d copies", FAKE_MAX_COPIES);
        self->copies[self->count++] = (struct fake_copy){.copy = copies[i], .event = self->recorded + 1};
    }
    /* A few at once: a real one does not wait for the event either. */
    for (size_t i = 0; i < self->count; i++) {
        if (fake_random(self) % 8 == 0) {
            fake_perform(self, &self->copies[i]);
            self->copies[i] = self->copies[--self->count];
        }
    }
    return 0;
}

static inline int fake_record(struct device *device, uint64_t *event, struct cb_err *err)
{
    (void)err;
    *event = ++((struct fake_device *)device)->recorded;
    return 0;
}

static inline int fake_poll(struct device *device, uint64_t event, bool *done, struct cb_err *err)
{
    struct fake_device *self = (struct fake_device *)device;
    if (self->fail_at && event >= self->fail_at)
        return cb_fail(err, CB_ERR_SYSTEM, "the fake device lost a copy");
    if (event > self->done && ++self->looked >= self->looks)
        fake_catch_up(self, event);
    *done = event <= self->done;
    return 0;
}

static inline int fake_wait(struct device *device, uint64_t event, uint64_t deadline_ns, struct cb_err *err)
{
    bool done = false;
    ((struct fake_device *)device)->waits++;
    while (!done) {
        int rc = fake_poll(device, event, &done, err);
        if (!rc && !done && clock_monotonic_ns() > deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "the fake device is late");
        if (rc)
            return rc;
    }
    return 0;
}

/* --- marks --- */

static inline int fake_begin_marks(struct device *device, struct cb_err *err)
{
    (void)err;
    ((struct fake_device *)device)->mark_count = 0;
    ((struct fake_device *)device)->waits++;
    return 0;
}

/* A new one, whose moment comes later. */
static inline uint64_t fake_new_mark(struct fake_device *self)
{
    assert(self->mark_count < FAKE_MAX_MARKS);
    self->marks[self->mark_count] = 0;
    return self->mark_count++;
}

static inline void fake_pass_mark(struct fake_device *self, uint64_t mark)
{
    self->marks[mark] = clock_monotonic_ns();
}

/* Copies come in any order, so any moment from now on is one before which they may have come. */
static inline int fake_mark(struct device *device, uint64_t *mark, struct cb_err *err)
{
    struct fake_device *self = (struct fake_device *)device;
    (void)err;
    *mark = fake_new_mark(self);
    fake_catch_up(self, self->recorded);
    fake_pass_mark(self, *mark);
    return 0;
}

static inline int fake_mark_ns(struct device *device, uint64_t mark, uint64_t *ns, struct cb_err *err)
{
    struct fake_device *self = (struct fake_device *)device;
    assert(mark < self->mark_count);
    *ns = self->marks[mark];
    return *ns ? 0 : cb_fail(err, CB_ERR_ABORTED, "the fake device has not come to a mark");
}

/* --- what the device does in its own memory: after all that was queued --- */

static inline int fake_set(struct device *device, void *memory, unsigned char byte, uint64_t bytes, struct cb_err *err)
{
    struct fake_device *self = (struct fake_device *)device;
    (void)err;
    fake_catch_up(self, self->recorded + 1);
    memset(fake_where(self, memory, bytes), byte, bytes);
    return 0;
}

static inline int fake_fill(struct device *device, const struct device_values *values, void *memory, struct cb_err *err)
{
    struct fake_device *self = (struct fake_device *)device;
    (void)err;
    fake_catch_up(self, self->recorded + 1);
    uint64_t bytes = region_elements(&values->region) * dtype_bytes(values->source.dtype);
    payload_fill_region(&values->source, values->shape, &values->region, fake_where(self, memory, bytes));
    return 0;
}

static inline int fake_check(struct device *device, const struct device_values *values, const void *memory,
                             struct device_difference *difference, struct cb_err *err)
{
    struct fake_device *self = (struct fake_device *)device;
    (void)err;
    fake_catch_up(self, self->recorded + 1);
    uint64_t bytes = region_elements(&values->region) * dtype_bytes(values->source.dtype);
    *difference = (struct device_difference){0};
    if (!payload_check_region(&values->source, values->shape, &values->region, fake_where(self, memory, bytes),
                              &difference->first))
        difference->wrong = 1;
    return 0;
}

static inline void fake_close(struct device *device)
{
    free(((struct fake_device *)device)->talk);
    free(device);
}

/* Nobody queues anything elsewhere. */
static inline int fake_follow(struct device *device, void *stream, struct cb_err *err)
{
    (void)device, (void)stream, (void)err;
    return 0;
}

static const struct device_ops fake_ops = {
    .version = DEVICE_VERSION,
    .name = "fake",
    .allocate = fake_allocate,
    .release = fake_release,
    .copy = fake_queue,
    .follow = fake_follow,
    .record = fake_record,
    .poll = fake_poll,
    .wait = fake_wait,
    .begin_marks = fake_begin_marks,
    .mark = fake_mark,
    .mark_ns = fake_mark_ns,
    .set = fake_set,
    .fill = fake_fill,
    .check = fake_check,
    .close = fake_close,
};

static inline struct fake_device *fake_device_new(uint32_t seed, unsigned looks)
{
    struct fake_device *self = calloc(1, sizeof *self);
    if (self) {
        self->base.ops = &fake_ops;
        self->random = seed;
        self->looks = looks;
    }
    return self;
}

#endif
