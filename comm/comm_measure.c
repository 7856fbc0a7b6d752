/* Timed messages over MPI. Buffers of a measurement that did not end stay allocated, since MPI may still write to
 * them. */
#include "comm/comm_measure.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"

#define TAG 71
#define ANSWER_TAG 72
/* Polls between checks of the deadline and the stop request, since a check costs as much as a message. */
#define SPINS_BETWEEN_LOOKS 1024
#define WINDOW_MOST 256

static const char *const names[COLLECTIVE_COUNT] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                                    "broadcast"};

const char *collective_name(enum collective kind)
{
    return names[kind];
}

double collective_bus_factor(enum collective kind, uint32_t ranks)
{
    double n = ranks;
    switch (kind) {
    case COLLECTIVE_ALL_REDUCE:
        return 2 * (n - 1) / n;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALL_TO_ALL:
        return (n - 1) / n;
    default:
        return 1;
    }
}

static bool is_shared_out(enum collective kind)
{
    return kind != COLLECTIVE_ALL_REDUCE && kind != COLLECTIVE_BROADCAST;
}

uint64_t collective_bytes(enum collective kind, uint64_t bytes, uint32_t ranks)
{
    uint64_t unit = is_shared_out(kind) ? sizeof(double) * (uint64_t)ranks : sizeof(double);
    return bytes < unit ? unit : bytes / unit * unit;
}

static int fail_mpi(struct comm *comm, const char *what, struct cb_err *err)
{
    comm_give_up(comm);
    return cb_fail(err, CB_ERR_SYSTEM, "%s: MPI failed", what);
}

/* Waits until all requests are done. */
static int spin(struct comm *comm, MPI_Request *requests, int count, const char *what, uint64_t deadline_ns,
                struct cb_err *err)
{
    for (;;) {
        for (unsigned i = 0; i < SPINS_BETWEEN_LOOKS; i++) {
            int done = 0;
            if (MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
                return fail_mpi(comm, what, err);
            if (done)
                return 0;
        }
        int rc = comm_check(comm, err);
        if (!rc && clock_monotonic_ns() > deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "%s: another rank did not answer in time", what);
        if (rc) {
            comm_give_up(comm);
            return rc;
        }
    }
}

static double seconds_since(uint64_t start_ns)
{
    return (double)(clock_monotonic_ns() - start_ns) / 1e9;
}

/* The content that the sender writes and the receiver checks; it depends on the message and the position. */
static void mark(unsigned char *bytes, uint64_t count, uint32_t message)
{
    for (uint64_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)(i * 7 + message * 31 + 1);
}

static bool is_marked(const unsigned char *bytes, uint64_t count, uint32_t message)
{
    for (uint64_t i = 0; i < count; i++)
        if (bytes[i] != (unsigned char)(i * 7 + message * 31 + 1))
            return false;
    return true;
}

static int round_trip(struct comm *comm, int peer, bool first, unsigned char *out, unsigned char *in, int bytes,
                      uint64_t deadline_ns, struct cb_err *err)
{
    MPI_Request request;
    for (int half = 0; half < 2; half++) {
        bool sends = first == (half == 0);
        int mpi = sends ? MPI_Isend(out, bytes, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, &request)
                        : MPI_Irecv(in, bytes, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, &request);
        if (mpi != MPI_SUCCESS)
            return fail_mpi(comm, "ping-pong", err);
        int rc = spin(comm, &request, 1, "ping-pong", deadline_ns, err);
        if (rc)
            return rc;
    }
    return 0;
}

int comm_measure_ping_pong(struct comm *comm, uint32_t peer, uint64_t bytes, uint32_t rounds, double *seconds,
                           bool *right, uint64_t deadline_ns, struct cb_err *err)
{
    bool first = comm_rank(comm) < peer;
    unsigned char *memory = calloc(2, bytes);
    if (!memory)
        return alloc_fail(err, "for messages of %llu bytes", (unsigned long long)bytes);
    mark(memory, bytes, 0);
    int rc = 0;
    for (uint32_t i = 0; i < rounds && !rc; i++) {
        uint64_t start_ns = clock_monotonic_ns();
        rc = round_trip(comm, (int)peer, first, memory, memory + bytes, (int)bytes, deadline_ns, err);
        seconds[i] = seconds_since(start_ns) / 2;
    }
    if (rc)
        return rc; // NOLINT(clang-analyzer-unix.Malloc): MPI may still hold the memory
    *right = is_marked(memory + bytes, bytes, 0);
    free(memory);
    return 0;
}

static int move_window(struct comm *comm, int peer, bool sends, unsigned char *memory, int bytes, uint32_t window,
                       uint64_t deadline_ns, struct cb_err *err)
{
    MPI_Request requests[WINDOW_MOST];
    char answer = 1;
    int mpi = MPI_SUCCESS;
    for (uint32_t i = 0; i < window && mpi == MPI_SUCCESS; i++) {
        unsigned char *place = memory + (size_t)(i % 2) * (size_t)bytes;
        mpi = sends ? MPI_Isend(place, bytes, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, &requests[i])
                    : MPI_Irecv(place, bytes, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, &requests[i]);
    }
    if (mpi != MPI_SUCCESS)
        return fail_mpi(comm, "a window of messages", err);
    int rc = spin(comm, requests, (int)window, "a window of messages", deadline_ns, err);
    if (rc)
        return rc;
    mpi = sends ? MPI_Irecv(&answer, 1, MPI_BYTE, peer, ANSWER_TAG, MPI_COMM_WORLD, requests)
                : MPI_Isend(&answer, 1, MPI_BYTE, peer, ANSWER_TAG, MPI_COMM_WORLD, requests);
    if (mpi != MPI_SUCCESS)
        return fail_mpi(comm, "a window of messages", err);
    return spin(comm, requests, 1, "a window of messages", deadline_ns, err);
}

int comm_measure_windows(struct comm *comm, uint32_t peer, bool sends, uint64_t bytes, uint32_t window, uint32_t rounds,
                         double *seconds, bool *right, uint64_t deadline_ns, struct cb_err *err)
{
    unsigned char *memory = calloc(2, bytes);
    if (!memory)
        return alloc_fail(err, "for messages of %llu bytes", (unsigned long long)bytes);
    if (window > WINDOW_MOST)
        window = WINDOW_MOST;
    for (uint32_t i = 0; i < 2 && sends; i++)
        mark(memory + i * bytes, bytes, i);
    int rc = 0;
    for (uint32_t i = 0; i < rounds && !rc; i++) {
        uint64_t start_ns = clock_monotonic_ns();
        rc = move_window(comm, (int)peer, sends, memory, (int)bytes, window, deadline_ns, err);
        seconds[i] = seconds_since(start_ns);
    }
    if (rc)
        return rc; // NOLINT(clang-analyzer-unix.Malloc): MPI may still hold the memory
    *right = is_marked(memory, bytes, 0) && (window < 2 || is_marked(memory + bytes, bytes, 1));
    free(memory);
    return 0;
}

/* Collectives use numbers whose correct result is known. */

struct exchange {
    enum collective kind;
    uint32_t rank, ranks;
    size_t in_count, out_count; /* doubles that a rank contributes, and receives */
    double *in, *out;
};

static double value_of(uint32_t rank, size_t index)
{
    return (double)(rank + 1) + (double)(index % 16);
}

static int exchange_init(struct exchange *self, const struct comm *comm, enum collective kind, uint64_t bytes,
                         struct cb_err *err)
{
    uint32_t ranks = comm_size(comm);
    size_t whole = collective_bytes(kind, bytes, ranks) / sizeof(double), share = whole / ranks;
    *self = (struct exchange){.kind = kind,
                              .rank = comm_rank(comm),
                              .ranks = ranks,
                              .in_count = kind == COLLECTIVE_ALL_GATHER ? share : whole,
                              .out_count = kind == COLLECTIVE_REDUCE_SCATTER ? share : whole};
    self->in = malloc(self->in_count * sizeof(double));
    self->out = malloc(self->out_count * sizeof(double));
    if (!self->in || !self->out) {
        free(self->in);
        free(self->out);
        return alloc_fail(err, "for an %s of %llu bytes", names[kind], (unsigned long long)bytes);
    }
    for (size_t i = 0; i < self->in_count; i++)
        self->in[i] = value_of(self->rank, i);
    for (size_t i = 0; i < self->out_count; i++)
        self->out[i] = kind == COLLECTIVE_BROADCAST && self->rank == 0 ? value_of(0, i) : 0;
    return 0;
}

static void exchange_free(struct exchange *self)
{
    free(self->in);
    free(self->out);
}

static int exchange_start(const struct exchange *self, MPI_Request *request)
{
    int share = (int)(self->in_count / self->ranks);
    switch (self->kind) {
    case COLLECTIVE_ALL_REDUCE:
        return MPI_Iallreduce(self->in, self->out, (int)self->in_count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, request);
    case COLLECTIVE_ALL_GATHER:
        return MPI_Iallgather(self->in, (int)self->in_count, MPI_DOUBLE, self->out, (int)self->in_count, MPI_DOUBLE,
                              MPI_COMM_WORLD, request);
    case COLLECTIVE_REDUCE_SCATTER:
        return MPI_Ireduce_scatter_block(self->in, self->out, share, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, request);
    case COLLECTIVE_ALL_TO_ALL:
        return MPI_Ialltoall(self->in, share, MPI_DOUBLE, self->out, share, MPI_DOUBLE, MPI_COMM_WORLD, request);
    default:
        return MPI_Ibcast(self->out, (int)self->out_count, MPI_DOUBLE, 0, MPI_COMM_WORLD, request);
    }
}

/* The correct value at `index` of the result. */
static double expected(const struct exchange *self, size_t index)
{
    size_t share = self->in_count / self->ranks;
    double n = self->ranks, sum_of_ranks = n * (n + 1) / 2;
    switch (self->kind) {
    case COLLECTIVE_ALL_REDUCE:
        return sum_of_ranks + n * (double)(index % 16);
    case COLLECTIVE_REDUCE_SCATTER:
        return sum_of_ranks + n * (double)((self->rank * share + index) % 16);
    case COLLECTIVE_ALL_GATHER:
        return value_of((uint32_t)(index / self->in_count), index % self->in_count);
    case COLLECTIVE_ALL_TO_ALL:
        return value_of((uint32_t)(index / share), self->rank * share + index % share);
    default:
        return value_of(0, index);
    }
}

static bool exchange_is_right(const struct exchange *self)
{
    for (size_t i = 0; i < self->out_count; i++)
        if (self->out[i] != expected(self, i))
            return false;
    return true;
}

static int run_batch(struct comm *comm, const struct exchange *exchange, uint32_t batch, double *seconds,
                     uint64_t deadline_ns, struct cb_err *err)
{
    MPI_Request request;
    int rc = comm_barrier(comm, deadline_ns, err);
    uint64_t start_ns = clock_monotonic_ns();
    for (uint32_t i = 0; i < batch && !rc; i++) {
        if (exchange_start(exchange, &request) != MPI_SUCCESS)
            return fail_mpi(comm, names[exchange->kind], err);
        rc = spin(comm, &request, 1, names[exchange->kind], deadline_ns, err);
    }
    *seconds = seconds_since(start_ns) / batch;
    return rc;
}

/* Replaces each duration by the slowest rank's. */
static int take_slowest(struct comm *comm, double *seconds, uint32_t count, uint64_t deadline_ns, struct cb_err *err)
{
    MPI_Request request;
    if (MPI_Iallreduce(MPI_IN_PLACE, seconds, (int)count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD, &request) != MPI_SUCCESS)
        return fail_mpi(comm, "comparing times", err);
    return spin(comm, &request, 1, "comparing times", deadline_ns, err);
}

int comm_measure_collective(struct comm *comm, enum collective kind, uint64_t bytes, uint32_t batch, uint32_t rounds,
                            double *seconds, bool *right, uint64_t deadline_ns, struct cb_err *err)
{
    struct exchange exchange;
    int rc = exchange_init(&exchange, comm, kind, bytes, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < rounds && !rc; i++)
        rc = run_batch(comm, &exchange, batch, &seconds[i], deadline_ns, err);
    if (!rc)
        rc = take_slowest(comm, seconds, rounds, deadline_ns, err);
    if (rc)
        return rc; // NOLINT(clang-analyzer-unix.Malloc): MPI may still write to it
    *right = exchange_is_right(&exchange);
    exchange_free(&exchange);
    return 0;
}

int comm_measure_overlap(struct comm *comm, uint64_t bytes, bool (*work)(void *context), void *context, double *both_s,
                         uint64_t deadline_ns, struct cb_err *err)
{
    struct exchange exchange;
    MPI_Request request;
    int rc = exchange_init(&exchange, comm, COLLECTIVE_ALL_REDUCE, bytes, err);
    if (rc)
        return rc;
    rc = comm_barrier(comm, deadline_ns, err);
    if (rc) {
        exchange_free(&exchange);
        return rc;
    }
    uint64_t start_ns = clock_monotonic_ns();
    if (exchange_start(&exchange, &request) != MPI_SUCCESS)
        return fail_mpi(comm, "all-reduce beside work", err);
    for (int done = 0; work(context);)
        if (!done && MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return fail_mpi(comm, "all-reduce beside work", err); // NOLINT(clang-analyzer-unix.Malloc): as below
    rc = spin(comm, &request, 1, "all-reduce beside work", deadline_ns, err);
    *both_s = seconds_since(start_ns);
    if (!rc)
        rc = take_slowest(comm, both_s, 1, deadline_ns, err);
    if (!rc)
        exchange_free(&exchange);
    return rc; // NOLINT(clang-analyzer-unix.Malloc): MPI may still write to it
}

int comm_all_gather(struct comm *comm, const void *mine, uint64_t bytes, void *all, uint64_t deadline_ns,
                    struct cb_err *err)
{
    MPI_Request request;
    char *copy = malloc(bytes * (1 + comm_size(comm)));
    if (!copy)
        return alloc_fail(err, "to gather %llu bytes a rank", (unsigned long long)bytes);
    memcpy(copy, mine, bytes);
    if (MPI_Iallgather(copy, (int)bytes, MPI_BYTE, copy + bytes, (int)bytes, MPI_BYTE, MPI_COMM_WORLD, &request) !=
        MPI_SUCCESS)
        return fail_mpi(comm, "gathering", err);
    int rc = spin(comm, &request, 1, "gathering", deadline_ns, err);
    if (rc)
        return rc;
    memcpy(all, copy + bytes, bytes * comm_size(comm));
    free(copy);
    return 0;
}
