/* The engine without a kernel queue and without threads: the caller's own thread runs the requests, in order.
 *
 * For tools that wait for each request anyway. A second thread would cost them context switches, about eight futex
 * calls a request (converting a checkpoint of 242 MiB in 1,885 reads: 262 futex calls instead of 14,931, and 7 % less
 * CPU). And for ranks with one core and files in memory (docs/performance.md, "Loads of files in memory"). A write runs when it is submitted, while its bytes are still in the cache;
 * a read runs when its completion is fetched, one at a time, right before its bytes are used. */

#include "core/alloc.h"
#include "store/posix/posix.h"

/* Slots in order; holds `depth` of them. */
struct line {
    uint32_t *slots;
    uint32_t head, count;
};

/* A slot in flight is in one of: `reads`, `finished`. */
struct in_caller {
    struct posix_engine base;
    struct posix_request *requests;
    uint32_t depth;
    bool durable;
    struct line reads, finished;
};

static struct in_caller *in_caller_of(struct posix_engine *engine)
{
    return (struct in_caller *)engine;
}

static void line_push(struct line *line, uint32_t depth, uint32_t slot)
{
    line->slots[(line->head + line->count++) % depth] = slot;
}

static uint32_t line_pop(struct line *line, uint32_t depth)
{
    uint32_t slot = line->slots[line->head];
    line->head = (line->head + 1) % depth;
    line->count--;
    return slot;
}

static void in_caller_free(struct posix_engine *engine)
{
    struct in_caller *self = in_caller_of(engine);
    free(self->reads.slots);
    free(self->finished.slots);
    free(self);
}

/* Requests run inside the call, so the kernel holds no memory between calls. */
static int in_caller_register(struct posix_engine *engine, const struct iovec *regions, uint32_t count,
                              char reason[160])
{
    (void)engine, (void)regions, (void)count;
    reason[0] = 0;
    return -1;
}

static void run_request(struct in_caller *self, uint32_t slot)
{
    struct posix_request *request = &self->requests[slot];
    while (posix_request_advance(request, posix_step_run(&request->step), false))
        ;
    line_push(&self->finished, self->depth, slot);
}

static int in_caller_submit(struct posix_engine *engine, const struct backend_request *requests, size_t count,
                            struct cb_err *err)
{
    (void)err;
    struct in_caller *self = in_caller_of(engine);
    for (size_t i = 0; i < count; i++) {
        uint32_t slot = requests[i].slot;
        if (!posix_request_begin(&self->requests[slot], &requests[i], self->durable))
            line_push(&self->finished, self->depth, slot);
        else if (requests[i].kind == STORE_READ)
            line_push(&self->reads, self->depth, slot);
        else
            run_request(self, slot);
    }
    return 0;
}

static int in_caller_poll(struct posix_engine *engine, struct backend_completion *completions, size_t capacity,
                          uint64_t deadline_ns, size_t *count, struct cb_err *err)
{
    (void)deadline_ns, (void)err;
    struct in_caller *self = in_caller_of(engine);
    size_t got = 0;
    if (self->finished.count == 0 && self->reads.count > 0)
        run_request(self, line_pop(&self->reads, self->depth));
    while (got < capacity && self->finished.count > 0) {
        uint32_t slot = line_pop(&self->finished, self->depth);
        posix_request_complete(&self->requests[slot], slot, &completions[got++]);
    }
    *count = got;
    return 0;
}

static void in_caller_cancel(struct posix_engine *engine)
{
    struct in_caller *self = in_caller_of(engine);
    while (self->reads.count > 0) {
        uint32_t slot = line_pop(&self->reads, self->depth);
        posix_request_fail(&self->requests[slot], CB_ERR_ABORTED, 0);
        line_push(&self->finished, self->depth, slot);
    }
}

static const struct posix_engine_ops in_caller_ops = {
    .free = in_caller_free,
    .register_memory = in_caller_register,
    .submit = in_caller_submit,
    .poll = in_caller_poll,
    .cancel = in_caller_cancel,
};

int in_caller_new(const struct posix_engine_setup *setup, struct posix_engine **engine, struct cb_err *err)
{
    struct in_caller *self = calloc(1, sizeof(*self));
    if (!self)
        return alloc_fail(err, "for %u requests in flight", setup->depth);
    self->base.ops = &in_caller_ops;
    self->requests = setup->requests;
    self->depth = setup->depth;
    self->durable = setup->durable;
    self->reads.slots = calloc(setup->depth, sizeof(uint32_t));
    self->finished.slots = calloc(setup->depth, sizeof(uint32_t));
    if (!self->reads.slots || !self->finished.slots) {
        in_caller_free(&self->base);
        return alloc_fail(err, "for %u requests in flight", setup->depth);
    }
    *engine = &self->base;
    return 0;
}
