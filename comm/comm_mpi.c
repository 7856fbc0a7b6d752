/* comm/comm.h over MPI.
 *
 * Every collective is non-blocking. Buffers of a collective that never finished stay allocated, because MPI may still write
 * to them. After the start no call waits inside MPI, so with one lock around each call a twin's thread needs only
 * MPI_THREAD_SERIALIZED. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_fence.h"
#include "comm/comm_internal.h"
#include "core/alloc.h"
#include "core/rank_placement.h"

#define VOTE_NUMBERS (sizeof(struct vote) / sizeof(uint64_t))

struct shared {
    struct comm_state state;
    pthread_mutex_t lock; /* around every call of MPI */
    int provided;         /* level of thread support that MPI provides */
};

struct mpi_comm {
    struct comm base;
    struct shared *shared; /* owned by the first communicator, borrowed by its twins */
    MPI_Comm world, local; /* all ranks; those on this machine (a twin has none) */
    MPI_Op combine;
    MPI_Datatype vote_type;
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
};

static struct mpi_comm *cast(struct comm *comm)
{
    return (struct mpi_comm *)comm;
}

static void combine_votes(void *in, void *in_out, int *count, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < *count; i++)
        vote_combine((struct vote *)in_out + i, (const struct vote *)in + i);
}

static int fail_mpi(int mpi_code, const char *what, struct cb_err *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(mpi_code, text, &length);
    return cb_fail(err, CB_ERR_SYSTEM, "%s: %s", what, text);
}

/* "Open MPI v4.1.4, package: …" and "MPICH Version: 4.0\nMPICH Release …" become one short line. */
static void read_library(struct mpi_comm *self)
{
    int length = 0;
    if (MPI_Get_library_version(self->library, &length) != MPI_SUCCESS)
        snprintf(self->library, sizeof self->library, "unknown MPI");
    self->library[strcspn(self->library, ",\n")] = '\0';
}

/* Without a launcher Open MPI would start a daemon for spawning, which we never do. */
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

/* The communicator of the ranks of one node; returns an MPI code. */
static int split_machines(struct mpi_comm *self, uint32_t nodes)
{
    uint32_t rank = self->base.rank, size = self->base.size;
    if (nodes == 0 || nodes > size)
        return MPI_Comm_split_type(self->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &self->local);
    self->base.fullest_node = rank_placement_first_rank(size, nodes, 1);
    return MPI_Comm_split(self->world, (int)rank_placement_node_of(size, nodes, rank), (int)rank, &self->local);
}

static int start_mpi(struct mpi_comm *self, uint32_t nodes, struct cb_err *err)
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
    read_place(self->world, &self->base.rank, &self->base.size);
    self->base.fullest_node = self->base.size;
    read_library(self);
    rc = MPI_Type_contiguous(VOTE_NUMBERS, MPI_UINT64_T, &self->vote_type);
    if (rc == MPI_SUCCESS)
        rc = MPI_Type_commit(&self->vote_type);
    if (rc == MPI_SUCCESS)
        rc = MPI_Op_create(combine_votes, 1, &self->combine);
    if (rc == MPI_SUCCESS)
        rc = split_machines(self, nodes);
    if (rc == MPI_SUCCESS)
        read_place(self->local, &self->base.local_rank, &self->base.local_size);
    return rc == MPI_SUCCESS ? 0 : fail_mpi(rc, "MPI cannot make the agreement's reduction", err);
}

static void enter(struct mpi_comm *self)
{
    pthread_mutex_lock(&self->shared->lock);
}

/* Unlocks, and turns the result of the MPI call and its request into a message. */
static int leave(struct mpi_comm *self, int mpi, MPI_Request request, struct comm_message *message, const char *what,
                 struct cb_err *err)
{
    pthread_mutex_unlock(&self->shared->lock);
    if (mpi != MPI_SUCCESS)
        return fail_mpi(mpi, what, err);
    message->handle = 0;
    memcpy(&message->handle, &request, sizeof request);
    return 0;
}
_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a message's handle holds a request");

static int mpi_start_barrier(struct comm *comm, struct comm_message *message, struct cb_err *err)
{
    struct mpi_comm *self = cast(comm);
    MPI_Request request;
    enter(self);
    int mpi = MPI_Ibarrier(self->world, &request);
    return leave(self, mpi, request, message, "barrier", err);
}

static int mpi_start_agree(struct comm *comm, bool local, const struct vote *mine, struct vote *all,
                           struct comm_message *message, struct cb_err *err)
{
    struct mpi_comm *self = cast(comm);
    MPI_Request request;
    enter(self);
    int mpi = MPI_Iallreduce(mine, all, 1, self->vote_type, self->combine, local ? self->local : self->world, &request);
    return leave(self, mpi, request, message, "agreement", err);
}

static int mpi_start_broadcast(struct comm *comm, void *bytes, size_t len, struct comm_message *message,
                               struct cb_err *err)
{
    struct mpi_comm *self = cast(comm);
    MPI_Request request;
    enter(self);
    int mpi = MPI_Ibcast(bytes, (int)len, MPI_BYTE, 0, self->world, &request);
    return leave(self, mpi, request, message, "broadcast", err);
}

/* MPI keeps messages and collectives of a communicator apart. */
static int mpi_send(struct comm *comm, const void *bytes, uint64_t len, uint32_t to, uint32_t tag,
                    struct comm_message *message, struct cb_err *err)
{
    struct mpi_comm *self = cast(comm);
    MPI_Request request;
    enter(self);
    int mpi = MPI_Isend(bytes, (int)len, MPI_BYTE, (int)to, (int)tag, self->world, &request);
    return leave(self, mpi, request, message, "sending to another rank", err);
}

static int mpi_receive(struct comm *comm, void *bytes, uint64_t len, uint32_t from, uint32_t tag,
                       struct comm_message *message, struct cb_err *err)
{
    struct mpi_comm *self = cast(comm);
    MPI_Request request;
    enter(self);
    int mpi = MPI_Irecv(bytes, (int)len, MPI_BYTE, (int)from, (int)tag, self->world, &request);
    return leave(self, mpi, request, message, "receiving from another rank", err);
}

static int mpi_test(struct comm *comm, struct comm_message *message, bool *done, struct cb_err *err)
{
    struct mpi_comm *self = cast(comm);
    MPI_Request request;
    int flag = 0;
    memcpy(&request, &message->handle, sizeof request);
    enter(self);
    int mpi = MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
    *done = flag != 0;
    return leave(self, mpi, request, message, "a message between ranks", err);
}

static int mpi_start_all_gather(struct comm *comm, const void *mine, void *all, uint64_t values,
                                struct comm_message *message, struct cb_err *err)
{
    struct mpi_comm *self = cast(comm);
    MPI_Request request;
    enter(self);
    int mpi = MPI_Iallgather(mine, (int)values, MPI_UINT32_T, all, (int)values, MPI_UINT32_T, self->world, &request);
    return leave(self, mpi, request, message, "gathering from all ranks", err);
}

static int mpi_start_reduce_scatter(struct comm *comm, const float *all, float *mine, uint64_t values,
                                    struct comm_message *message, struct cb_err *err)
{
    struct mpi_comm *self = cast(comm);
    MPI_Request request;
    enter(self);
    int mpi = MPI_Ireduce_scatter_block(all, mine, (int)values, MPI_FLOAT, MPI_SUM, self->world, &request);
    return leave(self, mpi, request, message, "adding up and sharing out over all ranks", err);
}

static int mpi_start_all_reduce(struct comm *comm, const float *mine, float *sum, uint64_t values,
                                struct comm_message *message, struct cb_err *err)
{
    struct mpi_comm *self = cast(comm);
    MPI_Request request;
    const void *from = mine == sum ? MPI_IN_PLACE : mine;
    enter(self);
    int mpi = MPI_Iallreduce(from, sum, (int)values, MPI_FLOAT, MPI_SUM, self->world, &request);
    return leave(self, mpi, request, message, "adding up over all ranks", err);
}

static int mpi_split(struct comm *comm, uint32_t color, bool copy_of_all, struct comm **part, struct cb_err *err)
{
    struct mpi_comm *self = cast(comm);
    if (self->shared->provided < MPI_THREAD_SERIALIZED)
        return cb_fail(err, CB_ERR_UNSUPPORTED, "%s lets one thread alone talk (no MPI_THREAD_SERIALIZED)",
                       self->library);
    struct mpi_comm *made = malloc(sizeof *made);
    if (!made)
        return alloc_fail(err, "for the communicator");
    *made = *self;
    made->base.twin = true;
    made->base.library = made->library;
    made->local = MPI_COMM_NULL;
    int mpi = copy_of_all ? MPI_Comm_dup(self->world, &made->world)
                          : MPI_Comm_split(self->world, (int)color, (int)comm->rank, &made->world);
    if (mpi != MPI_SUCCESS) {
        free(made);
        return fail_mpi(mpi, "MPI cannot divide the communicator", err);
    }
    read_place(made->world, &made->base.rank, &made->base.size);
    *part = &made->base;
    return 0;
}

static void mpi_free(struct comm *comm)
{
    struct mpi_comm *self = cast(comm);
    if (comm->twin) {
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

static const struct comm_ops mpi_ops = {.start_barrier = mpi_start_barrier,
                                        .start_agree = mpi_start_agree,
                                        .start_broadcast = mpi_start_broadcast,
                                        .start_all_gather = mpi_start_all_gather,
                                        .start_reduce_scatter = mpi_start_reduce_scatter,
                                        .start_all_reduce = mpi_start_all_reduce,
                                        .send = mpi_send,
                                        .receive = mpi_receive,
                                        .test = mpi_test,
                                        .split = mpi_split,
                                        .free = mpi_free};

int comm_new(uint32_t nodes, struct comm **comm, struct cb_err *err)
{
    struct mpi_comm *self = calloc(1, sizeof *self);
    struct shared *shared = calloc(1, sizeof *shared);
    int rc = self && shared ? 0 : alloc_fail(err, "for the communicator");
    if (!rc) {
        pthread_mutex_init(&shared->lock, NULL);
        self->shared = shared;
        self->base.ops = &mpi_ops;
        self->base.state = &shared->state;
        self->base.library = self->library;
        rc = start_mpi(self, nodes, err);
    }
    if (rc) {
        free(shared);
        free(self);
        return rc;
    }
    *comm = &self->base;
    return 0;
}
