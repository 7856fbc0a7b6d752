/* Communication between ranks: bounded waits, agreements, and dispatch to MPI or TCP. */
#include "comm/comm.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/comm_internal.h"
#include "core/alloc.h"
#include "core/clock.h"

/* Waits poll continuously at first (a barrier of ranks that arrive together takes microseconds), then sleep between
 * polls, so that a waiting rank leaves its core to others. */
#define SPIN_NS (20 * NS_PER_US)
#define SLEEP_NS (50 * NS_PER_US)
/* A twin waits in the background of a computation, and each poll interrupts that. */
#define PATIENT_SLEEP_NS NS_PER_MS
#define REASON_NS (10 * NS_PER_S) /* ranks that have agreed come at once */
#define BROADCAST_CHUNK_BYTES (UINT64_C(256) * 1024 * 1024)

void vote_combine(struct vote *to, const struct vote *from)
{
    if (from->failed_rank < to->failed_rank) {
        to->failed_rank = from->failed_rank;
        to->failed_code = from->failed_code;
    }
    to->failed_count += from->failed_count;
    to->sum += from->sum;
    to->min = from->min < to->min ? from->min : to->min;
    to->max = from->max > to->max ? from->max : to->max;
    to->word |= from->word;
}

int comm_twin(struct comm *self, struct comm **twin, struct cb_err *err)
{
    return self->ops->split(self, 0, true, twin, err);
}

int comm_part(struct comm *self, uint32_t color, struct comm **part, struct cb_err *err)
{
    return self->ops->split(self, color, false, part, err);
}

void comm_free(struct comm *self)
{
    if (self &&
        (comm_can_end(self) ||
         self->ops->frees_broken)) /* if not, buffers are still in use, and MPI would wait for ranks that never come */
        self->ops->free(self);
}

bool comm_can_end(const struct comm *self)
{
    return !self->state->broken && !self->state->given_up;
}

void comm_give_up(struct comm *self)
{
    self->state->broken = true;
}

void comm_abandon_messages(struct comm *self)
{
    self->state->given_up = true;
}

uint32_t comm_rank(const struct comm *self)
{
    return self->rank;
}

uint32_t comm_size(const struct comm *self)
{
    return self->size;
}

uint32_t comm_local_rank(const struct comm *self)
{
    return self->local_rank;
}

uint32_t comm_local_size(const struct comm *self)
{
    return self->local_size;
}

uint32_t comm_fullest_node(const struct comm *self)
{
    return self->fullest_node;
}

const char *comm_library(const struct comm *self)
{
    return self->library;
}

void comm_watch(struct comm *self, comm_check_fn check, const void *context)
{
    self->check = check;
    self->check_context = context;
}

void comm_interrupt(struct comm *self)
{
    self->interrupted = true;
}

int comm_check(const struct comm *self, struct cb_err *err)
{
    if (self->interrupted)
        return cb_fail(err, CB_ERR_ABORTED, "the run ended before it was done");
    return self->check ? self->check(self->check_context, err) : 0;
}

static void pause_between_tests(const struct comm *self, uint64_t waited_ns)
{
    if (waited_ns < SPIN_NS)
        return;
    struct timespec pause = {.tv_nsec = self->twin ? PATIENT_SLEEP_NS : SLEEP_NS};
    nanosleep(&pause, NULL);
}

/* Waits for a collective; `code` is the result of starting it. */
static int wait_for(struct comm *self, int code, struct comm_message *message, const char *what, uint64_t deadline_ns,
                    struct cb_err *err)
{
    uint64_t start_ns = clock_monotonic_ns();
    bool done = false;
    while (!code) {
        code = self->ops->test(self, message, &done, err);
        if (!code && done)
            return 0;
        uint64_t now_ns = clock_monotonic_ns();
        if (!code)
            code = comm_check(self, err);
        if (!code && now_ns > deadline_ns)
            code = cb_fail(err, CB_ERR_TIMEOUT, "%s: another rank did not come within %.1f s", what,
                           (double)(now_ns - start_ns) / (double)NS_PER_S);
        if (!code)
            pause_between_tests(self, now_ns - start_ns);
    }
    self->state->broken = true; /* also if it did not start: the others wait for this rank */
    return code;
}

static int refuse_broken(const struct comm *self, const char *what, struct cb_err *err)
{
    return self->state->broken ? cb_fail(err, CB_ERR_ABORTED, "%s: an earlier collective did not end", what) : 0;
}

int comm_barrier(struct comm *self, uint64_t deadline_ns, struct cb_err *err)
{
    struct comm_message message;
    int rc = refuse_broken(self, "barrier", err);
    return rc ? rc
              : wait_for(self, self->ops->start_barrier(self, &message, err), &message, "barrier", deadline_ns, err);
}

static int agree_within(struct comm *self, bool local, int code, uint64_t number, uint64_t *word, uint64_t deadline_ns,
                        struct agreement *agreement, struct cb_err *err)
{
    struct comm_message message;
    int rc = refuse_broken(self, "agreement", err);
    if (rc)
        return rc;
    assert(code <= 0);
    self->mine = (struct vote){
        .failed_rank = code ? self->rank : UINT64_MAX,
        .failed_code = (uint64_t)-code,
        .failed_count = code ? 1 : 0,
        .sum = number,
        .min = number,
        .max = number,
        .word = self->rank == 0 ? *word : 0,
    };
    rc = self->ops->start_agree(self, local, &self->mine, &self->all, &message, err);
    rc = wait_for(self, rc, &message, "agreement", deadline_ns, err);
    if (rc)
        return rc;
    *agreement = (struct agreement){
        .code = -(int)self->all.failed_code,
        .failed_rank = self->all.failed_count ? (uint32_t)self->all.failed_rank : 0,
        .failed_count = (uint32_t)self->all.failed_count,
        .sum = self->all.sum,
        .min = self->all.min,
        .max = self->all.max,
    };
    *word = self->all.word;
    return 0;
}

int comm_agree(struct comm *self, int code, uint64_t number, uint64_t deadline_ns, struct agreement *agreement,
               struct cb_err *err)
{
    uint64_t unused = 0;
    return agree_within(self, false, code, number, &unused, deadline_ns, agreement, err);
}

int comm_agree_and_share(struct comm *self, int code, uint64_t number, uint64_t *word, uint64_t deadline_ns,
                         struct agreement *agreement, struct cb_err *err)
{
    return agree_within(self, false, code, number, word, deadline_ns, agreement, err);
}

int comm_agree_local(struct comm *self, int code, uint64_t number, uint64_t deadline_ns, struct agreement *agreement,
                     struct cb_err *err)
{
    assert(!self->twin);
    uint64_t unused = 0;
    return agree_within(self, true, code, number, &unused, deadline_ns, agreement, err);
}

void comm_share_reason(struct comm *self, const struct agreement *agreement, const char *mine, uint64_t deadline_ns,
                       char reason[COMM_REASON_BYTES])
{
    struct comm_message message;
    struct cb_err unused;
    char own[COMM_REASON_BYTES] = "";
    uint64_t least_ns = clock_monotonic_ns() + REASON_NS;
    reason[0] = '\0';
    if (!self->ops->start_share_text || refuse_broken(self, "reason", &unused))
        return;
    if (agreement->failed_rank == self->rank)
        snprintf(own, sizeof own, "%s", mine);
    int rc = self->ops->start_share_text(self, own, self->reason, &message, &unused);
    rc = wait_for(self, rc, &message, "reason", deadline_ns > least_ns ? deadline_ns : least_ns, &unused);
    if (!rc)
        snprintf(reason, COMM_REASON_BYTES, "%.*s", COMM_REASON_BYTES - 1, self->reason);
}

/* Broadcasts one chunk through a buffer, which is leaked if the broadcast does not end. */
static int broadcast_chunk(struct comm *self, char *bytes, size_t len, uint64_t deadline_ns, struct cb_err *err)
{
    struct comm_message message;
    char *copy = malloc(len);
    if (!copy) {
        comm_give_up(self); /* the others wait for this rank */
        return alloc_fail(err, "for a broadcast of %zu bytes", len);
    }
    memcpy(copy, bytes, len);
    int rc = self->ops->start_broadcast(self, copy, len, &message, err);
    rc = wait_for(self, rc, &message, "broadcast", deadline_ns, err);
    if (rc)
        return rc; /* the copy stays: see above */
    memcpy(bytes, copy, len);
    free(copy);
    return 0;
}

int comm_broadcast(struct comm *self, void *bytes, uint64_t len, uint64_t deadline_ns, struct cb_err *err)
{
    int rc = refuse_broken(self, "broadcast", err);
    for (uint64_t done = 0; !rc && done < len;) {
        uint64_t chunk = len - done < BROADCAST_CHUNK_BYTES ? len - done : BROADCAST_CHUNK_BYTES;
        rc = broadcast_chunk(self, (char *)bytes + done, (size_t)chunk, deadline_ns, err);
        done += chunk;
    }
    return rc;
}

int comm_sum(struct comm *self, double *numbers, uint32_t count, uint64_t deadline_ns, struct cb_err *err)
{
    struct comm_message message;
    assert(count <= COMM_MOST_SUMS);
    int rc = refuse_broken(self, "sum", err);
    if (rc)
        return rc;
    double *all =
        calloc((size_t)count * (self->size + 1), sizeof *all); /* not on the stack: a sum that hangs still uses it */
    if (!all) {
        comm_give_up(self); /* the others wait for this rank */
        return alloc_fail(err, "for the sums of %u ranks", self->size);
    }
    double *mine = all + (size_t)count * self->size;
    memcpy(mine, numbers, count * sizeof *mine);
    rc = self->ops->start_all_gather(self, mine, all, count * sizeof *mine / sizeof(uint32_t), &message, err);
    rc = wait_for(self, rc, &message, "sum", deadline_ns, err);
    if (rc)
        return rc; /* `all` is not freed: it may still be in use */
    for (uint32_t i = 0; i < count; i++) {
        numbers[i] = 0;
        for (uint32_t rank = 0; rank < self->size; rank++)
            numbers[i] += all[(size_t)rank * count + i];
    }
    free(all);
    return 0;
}

int comm_send(struct comm *self, const void *bytes, uint64_t len, uint32_t to, uint32_t tag,
              struct comm_message *message, struct cb_err *err)
{
    assert(len <= COMM_MESSAGE_MAX_BYTES && tag < COMM_TAGS && to < self->size);
    return self->ops->send(self, bytes, len, to, tag, message, err);
}

int comm_receive(struct comm *self, void *bytes, uint64_t len, uint32_t from, uint32_t tag,
                 struct comm_message *message, struct cb_err *err)
{
    assert(len <= COMM_MESSAGE_MAX_BYTES && tag < COMM_TAGS && from < self->size);
    return self->ops->receive(self, bytes, len, from, tag, message, err);
}

int comm_message_test(struct comm *self, struct comm_message *message, bool *done, struct cb_err *err)
{
    return self->ops->test(self, message, done, err);
}

int comm_start_all_gather(struct comm *self, const void *mine, void *all, uint64_t values, struct comm_message *message,
                          struct cb_err *err)
{
    assert(values <= COMM_MOST_VALUES);
    return self->ops->start_all_gather(self, mine, all, values, message, err);
}

int comm_start_reduce_scatter(struct comm *self, const float *all, float *mine, uint64_t values,
                              struct comm_message *message, struct cb_err *err)
{
    assert(values <= COMM_MOST_VALUES);
    return self->ops->start_reduce_scatter(self, all, mine, values, message, err);
}

int comm_start_all_reduce(struct comm *self, const float *mine, float *sum, uint64_t values,
                          struct comm_message *message, struct cb_err *err)
{
    assert(values <= COMM_MOST_VALUES);
    return self->ops->start_all_reduce(self, mine, sum, values, message, err);
}
