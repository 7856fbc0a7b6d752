/* load.exchange=auto: in the first load every rank reads all it needs. Then a few messages measure the speed between
 * ranks, and later loads are split if that should be faster. Outside of the timed part. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/units.h"
#include "engine/load/load_stages.h"

#define PROBE_BYTES (UINT64_C(4) << 20)
#define PROBE_ROUNDS 8
/* Minimum expected speed-up for choosing split, since it is more complex. */
#define WORTHWHILE 0.9

/* The first load, summed over all ranks. */
struct measured {
    uint64_t moved, needed, longest_ns; /* bytes read from the store; bytes needed; the slowest rank's time */
    uint64_t once;                      /* bytes of the whole state, each counted once */
    double messages_per_s;              /* bytes that a rank sends and receives simultaneously */
};

static int wait_for(struct comm *comm, struct comm_message *message, uint64_t deadline_ns, struct cb_err *err)
{
    bool done = false;
    int rc = 0;
    while (!rc && !done) {
        rc = comm_message_test(comm, message, &done, err);
        if (!rc && !done)
            rc = comm_check(comm, err);
        if (!rc && !done && clock_monotonic_ns() > deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "the messages that measure how fast ranks talk did not end in time");
    }
    return rc;
}

/* Every rank sends to the next one simultaneously. */
static int exchange_rounds(struct comm *comm, char *memory, uint64_t deadline_ns, uint64_t *took_ns, struct cb_err *err)
{
    uint32_t rank = comm_rank(comm), size = comm_size(comm);
    uint64_t start_ns = clock_monotonic_ns();
    int rc = 0;
    for (int i = 0; i < PROBE_ROUNDS && !rc; i++) {
        struct comm_message in, out;
        rc = comm_receive(comm, memory + PROBE_BYTES, PROBE_BYTES, (rank + size - 1) % size, 0, &in, err);
        if (!rc)
            rc = comm_send(comm, memory, PROBE_BYTES, (rank + 1) % size, 0, &out, err);
        if (!rc)
            rc = wait_for(comm, &in, deadline_ns, err);
        if (!rc)
            rc = wait_for(comm, &out, deadline_ns, err);
    }
    *took_ns = clock_monotonic_ns() - start_ns;
    return rc;
}

static int measure_messages(struct native_operation *operation, struct measured *measured, struct cb_err *err)
{
    struct comm *comm = operation->engine->setup.comm;
    struct agreement agreement;
    uint64_t took_ns = 0;
    char *memory = malloc(2 * PROBE_BYTES);
    int rc = memory ? 0 : alloc_fail(err, "to measure how fast ranks talk");
    if (memory)
        memset(memory, 1, 2 * PROBE_BYTES);
    rc = native_agree(operation, rc, 0, &agreement, err);
    if (!rc) {
        rc = exchange_rounds(comm, memory, operation->options->deadline_ns, &took_ns, err);
        if (rc) {
            comm_abandon_messages(comm); /* leaked on purpose: it may still be written to */
            memory = NULL;
        }
        rc = native_agree(operation, rc, took_ns, &agreement, err);
    }
    free(memory);
    if (!rc)
        measured->messages_per_s =
            (double)(PROBE_BYTES * PROBE_ROUNDS) / ((double)(agreement.max ? agreement.max : 1) / 1e9);
    return rc;
}

static int sum_up(struct native_operation *operation, struct measured *measured, struct cb_err *err)
{
    struct agreement moved, needed, took;
    const struct timeline *timeline = &operation->timeline;
    int rc = native_agree(operation, 0, operation->counts.bytes, &moved, err);
    if (!rc)
        rc = native_agree(operation, 0, operation->bytes_needed, &needed, err);
    if (!rc)
        rc = native_agree(operation, 0, timeline->own_ns, &took, err);
    if (!rc)
        *measured = (struct measured){moved.sum, needed.sum, took.max, layout_total_bytes(operation->state->layout), 0};
    return rc;
}

/* The expected time of a split load: the longer of reading everything once at the measured rate, and receiving the
 * rest, since both happen at the same time. */
static double promise(const struct measured *measured, uint32_t ranks)
{
    double all_s = (double)measured->longest_ns / 1e9;
    double read_s = all_s * (double)measured->once / (double)measured->moved;
    uint64_t received = measured->needed > measured->once ? (measured->needed - measured->once) / ranks : 0;
    double talk_s = (double)received / measured->messages_per_s;
    return (read_s > talk_s ? read_s : talk_s) / all_s;
}

static void explain(struct native_load *self, const struct measured *measured, double share)
{
    char text[512], read[32], rate[32], talk[32], once[32];
    double seconds = (double)measured->longest_ns / 1e9;
    snprintf(
        text, sizeof text,
        "%s: the first load read %s at %s, of a state of %s; ranks exchange %s each: split would take %.2f of that",
        self->plan.mode == LOAD_SPLIT ? "split" : "off", units_format_bytes((double)measured->moved, read),
        units_format_rate((double)measured->moved / seconds, rate), units_format_bytes((double)measured->once, once),
        units_format_rate(measured->messages_per_s, talk), share);
    status_page_add_fact(self->operation->engine->setup.page, "load.exchange", text);
}

int native_load_choose(struct native_load *self, struct cb_err *err)
{
    struct native_operation *operation = self->operation;
    uint32_t ranks = layout_world_size(operation->state->layout);
    struct measured measured = {0};
    self->plan.chooses = false;
    if (comm_size(operation->engine->setup.comm) < 2)
        return 0;
    int rc = sum_up(operation, &measured, err);
    if (!rc)
        rc = measure_messages(operation, &measured, err);
    if (rc)
        return rc;
    if (measured.moved == 0 || measured.longest_ns == 0)
        return 0;
    double share = promise(&measured, ranks);
    self->plan.mode = share < WORTHWHILE ? LOAD_SPLIT : LOAD_ALONE;
    explain(self, &measured, share);
    return 0;
}
