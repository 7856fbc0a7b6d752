/* Ranks talking to each other, on MPI: with comm_measure.c the only files that include mpi.h.
 *
 * Owns MPI's start and end and the memory of collectives under way. Every collective is started
 * non-blocking and tested until it is done, the deadline has passed, or the status page says to stop;
 * buffers of a collective that never finished stay allocated, because MPI may still write to them.
 * Once started, no call of MPI here waits inside MPI, so one lock around each lets a twin's thread talk beside the
 * first with no more than MPI_THREAD_SERIALIZED. Must not know what the ranks talk about. */
#include "comm/comm.h"

#include <assert.h>
#include <inttypes.h>
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "comm/comm_fence.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/rank_placement.h"

/* Waiting tests in a loop for the first moment (a barrier of ranks that arrive together takes
 * microseconds), then sleeps between tests, so that a waiting rank leaves its core to others. */
#define SPIN_NS (20 * NS_PER_US)
#define SLEEP_NS (50 * NS_PER_US)
/* A twin waits behind somebody's computing, which each look would interrupt. */
#define PATIENT_SLEEP_NS NS_PER_MS
#define BROADCAST_CHUNK_BYTES (UINT64_C(256) * 1024 * 1024)

/* What an agreement reduces: six numbers a rank, combined by combine_votes. */
struct vote {
    uint64_t failed_rank; /* UINT64_MAX where none failed */
    uint64_t failed_code; /* -code of that rank */
    uint64_t failed_count;
    uint64_t sum, min, max;
};
#define VOTE_NUMBERS (sizeof(struct vote) / sizeof(uint64_t))

/* What a communicator and its twins have in common. */
struct shared {
    pthread_mutex_t lock;  /* around every call of MPI */
    int provided;          /* level of threads that MPI gives */
    _Atomic bool broken;   /* a collective is stuck: nothing more works */
    _Atomic bool given_up; /* messages are stuck: collectives still work */
};

struct comm {
    struct shared *shared; /* owned by the first, borrowed by its twins */
    MPI_Comm world, local; /* all ranks; those on this machine (a twin has none) */
    MPI_Op combine;
    MPI_Datatype vote_type;
    uint32_t rank, size, local_rank, local_size;
    uint32_t nodes;      /* 0 where that is MPI's to know */
    comm_check_fn check; /* NULL until comm_watch */
    const void *check_context;
    bool twin;
    _Atomic bool interrupted;
    struct vote mine, all; /* here, not on the stack: they must outlive a stuck reduction */
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
};

static void combine_votes(void *in, void *in_out, int *count, MPI_Datatype *type)
{
    (void)type;
    const struct vote *from = in;
    struct vote *to = in_out;
    for (int i = 0; i < *count; i++) {
        if (from[i].failed_rank < to[i].failed_rank) {
            to[i].failed_rank = from[i].failed_rank;
            to[i].failed_code = from[i].failed_code;
        }
        to[i].failed_count += from[i].failed_count;
        to[i].sum += from[i].sum;
        to[i].min = from[i].min < to[i].min ? from[i].min : to[i].min;
        to[i].max = from[i].max > to[i].max ? from[i].max : to[i].max;
    }
}

static int fail_mpi(int mpi_code, const char *what, struct cb_err *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(mpi_code, text, &length);
    return cb_fail(err, CB_ERR_SYSTEM, "%s: %s", what, text);
}

/* "Open MPI v4.1.4, package: …" and "MPICH Version: 4.0\nMPICH Release …" become one short line. */
static void read_library(struct comm *self)
{
    int length = 0;
    if (MPI_Get_library_version(self->library, &length) != MPI_SUCCESS)
        snprintf(self->library, sizeof self->library, "unknown MPI");
    self->library[strcspn(self->library, ",\n")] = '\0';
}

/* Open MPI without a launcher would start a daemon of its own, for spawning that we never do. */
static void prepare_singleton(void)
{
    if (!getenv("OMPI_COMM_WORLD_SIZE") && !getenv("PMIX_RANK") && !getenv("PMI_RANK"))
        setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
}

static void read_place(MPI_Comm where, uint32_t *rank, uint32_t *size)
{
    int number = 0;
    MPI_Comm_rank(where, &number);
    *rank = (uint32_t)number;
    MPI_Comm_size(where, &number);
    *size = (uint32_t)number;
}

/* Ranks of one node; returns as MPI does. */
static int split_machines(struct comm *self, uint32_t nodes)
{
    self->nodes = nodes <= self->size ? nodes : 0;
    if (self->nodes == 0)
        return MPI_Comm_split_type(self->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &self->local);
    return MPI_Comm_split(self->world, (int)rank_placement_node_of(self->size, nodes, self->rank), (int)self->rank,
                          &self->local);
}

static int start_mpi(struct comm *self, uint32_t nodes, struct cb_err *err)
{
    prepare_singleton();
    int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &self->shared->provided);
    if (rc != MPI_SUCCESS)
        return fail_mpi(rc, "MPI did not start", err);
    int together = comm_fence_wait(err);
    if (together)
        return together;
    self->world = MPI_COMM_WORLD;
    MPI_Comm_set_errhandler(self->world, MPI_ERRORS_RETURN);
    read_place(self->world, &self->rank, &self->size);
    read_library(self);
    rc = MPI_Type_contiguous(VOTE_NUMBERS, MPI_UINT64_T, &self->vote_type);
    if (rc == MPI_SUCCESS)
        rc = MPI_Type_commit(&self->vote_type);
    if (rc == MPI_SUCCESS)
        rc = MPI_Op_create(combine_votes, 1, &self->combine);
    if (rc == MPI_SUCCESS)
        rc = split_machines(self, nodes);
    if (rc == MPI_SUCCESS)
        read_place(self->local, &self->local_rank, &self->local_size);
    return rc == MPI_SUCCESS ? 0 : fail_mpi(rc, "MPI cannot make the agreement's reduction", err);
}

int comm_new(uint32_t nodes, struct comm **comm, struct cb_err *err)
{
    struct comm *self = calloc(1, sizeof *self);
    struct shared *shared = calloc(1, sizeof *shared);
    int rc = self && shared ? 0 : alloc_fail(err, "for the communicator");
    if (!rc) {
        pthread_mutex_init(&shared->lock, NULL);
        self->shared = shared;
        rc = start_mpi(self, nodes, err);
    }
    if (rc) {
        free(shared);
        free(self);
        return rc;
    }
    *comm = self;
    return 0;
}

/* A twin without a communicator yet. */
static int make_twin(const struct comm *self, struct comm **twin, struct cb_err *err)
{
    if (self->shared->provided < MPI_THREAD_SERIALIZED)
        return cb_fail(err, CB_ERR_UNSUPPORTED, "%s lets one thread alone talk (no MPI_THREAD_SERIALIZED)",
                       self->library);
    struct comm *made = malloc(sizeof *made);
    if (!made)
        return alloc_fail(err, "for the communicator");
    *made = *self;
    made->twin = true;
    made->local = MPI_COMM_NULL;
    *twin = made;
    return 0;
}

int comm_twin(struct comm *self, struct comm **twin, struct cb_err *err)
{
    struct comm *made = NULL;
    int rc = make_twin(self, &made, err);
    if (rc)
        return rc;
    int mpi = MPI_Comm_dup(self->world, &made->world);
    if (mpi != MPI_SUCCESS) {
        free(made);
        return fail_mpi(mpi, "MPI cannot double the communicator", err);
    }
    *twin = made;
    return 0;
}

int comm_part(struct comm *self, uint32_t color, struct comm **part, struct cb_err *err)
{
    struct comm *made = NULL;
    int rc = make_twin(self, &made, err);
    if (rc)
        return rc;
    int mpi = MPI_Comm_split(self->world, (int)color, (int)self->rank, &made->world);
    if (mpi != MPI_SUCCESS) {
        free(made);
        return fail_mpi(mpi, "MPI cannot divide the communicator", err);
    }
    read_place(made->world, &made->rank, &made->size);
    *part = made;
    return 0;
}

void comm_free(struct comm *self)
{
    if (!self)
        return;
    if (!comm_can_end(self))
        return; /* MPI still holds our buffers, and MPI_Finalize would wait for ranks that do not come */
    if (self->twin) {
        MPI_Comm_free(&self->world);
        free(self);
        return;
    }
    MPI_Comm_free(&self->local);
    MPI_Op_free(&self->combine);
    MPI_Type_free(&self->vote_type);
    MPI_Finalize();
    pthread_mutex_destroy(&self->shared->lock);
    free(self->shared);
    free(self);
}

bool comm_can_end(const struct comm *self)
{
    return !self->shared->broken && !self->shared->given_up;
}

void comm_give_up(struct comm *self)
{
    self->shared->broken = true;
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
    return self->nodes ? rank_placement_first_rank(self->size, self->nodes, 1) : self->size;
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

static void enter(struct comm *self)
{
    pthread_mutex_lock(&self->shared->lock);
}

/* Passes on what the call of MPI returned. */
static int leave(struct comm *self, int mpi)
{
    pthread_mutex_unlock(&self->shared->lock);
    return mpi;
}

static int wait_for(struct comm *self, MPI_Request *request, const char *what, uint64_t deadline_ns, struct cb_err *err)
{
    uint64_t start_ns = clock_monotonic_ns();
    for (;;) {
        int done = 0;
        enter(self);
        int rc = leave(self, MPI_Test(request, &done, MPI_STATUS_IGNORE));
        if (rc != MPI_SUCCESS) {
            self->shared->broken = true;
            return fail_mpi(rc, what, err);
        }
        if (done)
            return 0;
        uint64_t now_ns = clock_monotonic_ns();
        int code = comm_check(self, err);
        if (!code && now_ns > deadline_ns)
            code = cb_fail(err, CB_ERR_TIMEOUT, "%s: another rank did not come within %.1f s", what,
                           (double)(now_ns - start_ns) / (double)NS_PER_S);
        if (code) {
            self->shared->broken = true;
            return code;
        }
        pause_between_tests(self, now_ns - start_ns);
    }
}

static int refuse_broken(const struct comm *self, const char *what, struct cb_err *err)
{
    return self->shared->broken ? cb_fail(err, CB_ERR_ABORTED, "%s: an earlier collective did not end", what) : 0;
}

int comm_barrier(struct comm *self, uint64_t deadline_ns, struct cb_err *err)
{
    int rc = refuse_broken(self, "barrier", err);
    if (rc)
        return rc;
    MPI_Request request;
    enter(self);
    int mpi = leave(self, MPI_Ibarrier(self->world, &request));
    return mpi == MPI_SUCCESS ? wait_for(self, &request, "barrier", deadline_ns, err) : fail_mpi(mpi, "barrier", err);
}

static int agree_within(struct comm *self, MPI_Comm where, int code, uint64_t number, uint64_t deadline_ns,
                        struct agreement *agreement, struct cb_err *err)
{
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
    };
    MPI_Request request;
    enter(self);
    int mpi = leave(self, MPI_Iallreduce(&self->mine, &self->all, 1, self->vote_type, self->combine, where, &request));
    if (mpi != MPI_SUCCESS)
        return fail_mpi(mpi, "agreement", err);
    rc = wait_for(self, &request, "agreement", deadline_ns, err);
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
    return 0;
}

int comm_agree(struct comm *self, int code, uint64_t number, uint64_t deadline_ns, struct agreement *agreement,
               struct cb_err *err)
{
    return agree_within(self, self->world, code, number, deadline_ns, agreement, err);
}

int comm_agree_local(struct comm *self, int code, uint64_t number, uint64_t deadline_ns, struct agreement *agreement,
                     struct cb_err *err)
{
    assert(!self->twin);
    return agree_within(self, self->local, code, number, deadline_ns, agreement, err);
}

/* One chunk, through memory of ours: MPI may touch it after we gave up on it. */
static int broadcast_chunk(struct comm *self, char *bytes, size_t len, uint64_t deadline_ns, struct cb_err *err)
{
    char *copy = malloc(len);
    if (!copy)
        return alloc_fail(err, "for a broadcast of %zu bytes", len);
    memcpy(copy, bytes, len);
    MPI_Request request;
    enter(self);
    int mpi = leave(self, MPI_Ibcast(copy, (int)len, MPI_BYTE, 0, self->world, &request));
    int rc =
        mpi == MPI_SUCCESS ? wait_for(self, &request, "broadcast", deadline_ns, err) : fail_mpi(mpi, "broadcast", err);
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

/* --- messages: those of a communicator never meet its collectives --- */

_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a message's handle holds a request");

static int start_message(struct comm_message *message, int mpi, MPI_Request request, const char *what,
                         struct cb_err *err)
{
    if (mpi != MPI_SUCCESS)
        return fail_mpi(mpi, what, err);
    message->handle = 0;
    memcpy(&message->handle, &request, sizeof request);
    return 0;
}

int comm_send(struct comm *self, const void *bytes, uint64_t len, uint32_t to, uint32_t tag,
              struct comm_message *message, struct cb_err *err)
{
    MPI_Request request;
    assert(len <= COMM_MESSAGE_MAX_BYTES && tag < COMM_TAGS && to < self->size);
    enter(self);
    int mpi = leave(self, MPI_Isend(bytes, (int)len, MPI_BYTE, (int)to, (int)tag, self->world, &request));
    return start_message(message, mpi, request, "sending to another rank", err);
}

int comm_receive(struct comm *self, void *bytes, uint64_t len, uint32_t from, uint32_t tag,
                 struct comm_message *message, struct cb_err *err)
{
    MPI_Request request;
    assert(len <= COMM_MESSAGE_MAX_BYTES && tag < COMM_TAGS && from < self->size);
    enter(self);
    int mpi = leave(self, MPI_Irecv(bytes, (int)len, MPI_BYTE, (int)from, (int)tag, self->world, &request));
    return start_message(message, mpi, request, "receiving from another rank", err);
}

int comm_message_test(struct comm *self, struct comm_message *message, bool *done, struct cb_err *err)
{
    MPI_Request request;
    int flag = 0;
    memcpy(&request, &message->handle, sizeof request);
    enter(self);
    int mpi = leave(self, MPI_Test(&request, &flag, MPI_STATUS_IGNORE));
    *done = flag != 0;
    return start_message(message, mpi, request, "a message between ranks", err);
}

/* --- collectives that go on --- */

int comm_start_all_gather(struct comm *self, const void *mine, void *all, uint64_t values, struct comm_message *message,
                          struct cb_err *err)
{
    MPI_Request request;
    assert(values <= COMM_MOST_VALUES);
    enter(self);
    int mpi = leave(
        self, MPI_Iallgather(mine, (int)values, MPI_UINT32_T, all, (int)values, MPI_UINT32_T, self->world, &request));
    return start_message(message, mpi, request, "gathering from all ranks", err);
}

int comm_start_reduce_scatter(struct comm *self, const float *all, float *mine, uint64_t values,
                              struct comm_message *message, struct cb_err *err)
{
    MPI_Request request;
    assert(values <= COMM_MOST_VALUES);
    enter(self);
    int mpi = leave(self, MPI_Ireduce_scatter_block(all, mine, (int)values, MPI_FLOAT, MPI_SUM, self->world, &request));
    return start_message(message, mpi, request, "adding up and sharing out over all ranks", err);
}

int comm_start_all_reduce(struct comm *self, const float *mine, float *sum, uint64_t values,
                          struct comm_message *message, struct cb_err *err)
{
    MPI_Request request;
    assert(values <= COMM_MOST_VALUES);
    const void *from = mine == sum ? MPI_IN_PLACE : mine;
    enter(self);
    int mpi = leave(self, MPI_Iallreduce(from, sum, (int)values, MPI_FLOAT, MPI_SUM, self->world, &request));
    return start_message(message, mpi, request, "adding up over all ranks", err);
}

int comm_sum(struct comm *self, double *numbers, uint32_t count, uint64_t deadline_ns, struct cb_err *err)
{
    assert(count <= COMM_MOST_SUMS);
    int rc = refuse_broken(self, "sum", err);
    if (rc)
        return rc;
    double *all = calloc((size_t)count * (self->size + 1), sizeof *all); /* ours: it must outlive what gets stuck */
    if (!all)
        return alloc_fail(err, "for the sums of %u ranks", self->size);
    double *mine = all + (size_t)count * self->size;
    memcpy(mine, numbers, count * sizeof *mine);
    MPI_Request request;
    enter(self);
    int mpi =
        leave(self, MPI_Iallgather(mine, (int)count, MPI_DOUBLE, all, (int)count, MPI_DOUBLE, self->world, &request));
    rc = mpi == MPI_SUCCESS ? wait_for(self, &request, "sum", deadline_ns, err) : fail_mpi(mpi, "sum", err);
    if (rc)
        return rc; /* `all` stays: MPI may still write to it */
    for (uint32_t i = 0; i < count; i++) {
        numbers[i] = 0;
        for (uint32_t rank = 0; rank < self->size; rank++)
            numbers[i] += all[(size_t)rank * count + i];
    }
    free(all);
    return 0;
}

void comm_abandon_messages(struct comm *self)
{
    self->shared->given_up = true;
}
