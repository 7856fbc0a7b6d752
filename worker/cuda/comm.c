/* NCCL behind the plugin's table: a communicator that never blocks, so that a rank which does not come ends the
 * others at their deadline. Knows NCCL; not what is sent. */
#include <nccl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "worker/cuda/cuda.h"

#define SLEEP_NS (20 * NS_PER_US)
/* How long a clean end may take before it is made an abort. */
#define CLOSE_NS (10 * NS_PER_S)

struct device_comm {
    struct cuda_device *device;
    ncclComm_t comm; /* NULL once aborted */
    cudaStream_t stream;
    cudaEvent_t event;
};

_Static_assert(sizeof(ncclUniqueId) == DEVICE_COMM_ID_BYTES, "the table's id has room for NCCL's");

static int check(ncclResult_t code, struct cb_err *err, const char *doing)
{
    if (code == ncclSuccess || code == ncclInProgress)
        return 0;
    return cb_fail(err, code == ncclInvalidUsage ? CB_ERR_UNSUPPORTED : CB_ERR_SYSTEM, "NCCL, %s: %s", doing,
                   ncclGetErrorString(code));
}

/* Until what NCCL does behind the calls is done. */
static int settle(struct device_comm *self, uint64_t deadline_ns, struct cb_err *err)
{
    struct timespec pause = {.tv_nsec = SLEEP_NS};
    for (;;) {
        ncclResult_t state = ncclSuccess;
        int rc = self->comm ? check(ncclCommGetAsyncError(self->comm, &state), err, "asking for its state")
                            : cb_fail(err, CB_ERR_ABORTED, "NCCL: the communicator was aborted");
        if (!rc)
            rc = check(state, err, "working");
        if (rc || state == ncclSuccess)
            return rc;
        if (clock_monotonic_ns() >= deadline_ns)
            return cb_fail(err, CB_ERR_TIMEOUT, "NCCL: not all ranks came in time");
        nanosleep(&pause, NULL);
    }
}

static int comm_make_id(char id[DEVICE_COMM_ID_BYTES], struct cb_err *err)
{
    ncclUniqueId made;
    int rc = check(ncclGetUniqueId(&made), err, "making the id of a communicator");
    if (!rc)
        memcpy(id, &made, sizeof made);
    return rc;
}

static void comm_abort(struct device_comm *self)
{
    if (self->comm)
        (void)ncclCommAbort(self->comm);
    self->comm = NULL;
}

static void comm_close(struct device_comm *self)
{
    struct cb_err unheard;
    if (self->comm && (check(ncclCommFinalize(self->comm), &unheard, "ending") ||
                       settle(self, clock_monotonic_ns() + CLOSE_NS, &unheard)))
        comm_abort(self);
    if (self->comm)
        (void)ncclCommDestroy(self->comm);
    if (self->event)
        (void)cudaEventDestroy(self->event);
    if (self->stream)
        (void)cudaStreamDestroy(self->stream);
    free(self);
}

static int comm_join(struct device *device, const char id[DEVICE_COMM_ID_BYTES], uint32_t rank, uint32_t size,
                     uint64_t deadline_ns, struct device_comm **comm, struct cb_err *err)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId unique;
    struct device_comm *self = calloc(1, sizeof *self);
    if (!self)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for a communicator");
    config.blocking = 0;
    memcpy(&unique, id, sizeof unique);
    self->device = (struct cuda_device *)device;
    int rc = cuda_use(self->device, err);
    if (!rc)
        rc = cuda_check(cudaStreamCreateWithFlags(&self->stream, cudaStreamNonBlocking), err, "making a stream");
    if (!rc)
        rc = cuda_check(cudaEventCreateWithFlags(&self->event, cudaEventDisableTiming), err, "making an event");
    if (!rc)
        rc = check(ncclCommInitRankConfig(&self->comm, (int)size, unique, (int)rank, &config), err,
                   "joining (two ranks on one GPU are refused)");
    if (!rc)
        rc = settle(self, deadline_ns, err);
    if (rc) {
        comm_abort(self);
        comm_close(self);
        return rc;
    }
    *comm = self;
    return 0;
}

static int comm_begin(struct device_comm *self, struct cb_err *err)
{
    int rc = cuda_use(self->device, err);
    return rc ? rc : check(ncclGroupStart(), err, "beginning a group");
}

static int comm_end(struct device_comm *self, struct cb_err *err)
{
    (void)self;
    return check(ncclGroupEnd(), err, "ending a group");
}

static int comm_queue(struct device_comm *self, enum device_collective kind, const void *from, void *to, uint64_t bytes,
                      uint32_t peer, struct cb_err *err)
{
    size_t floats = bytes / sizeof(float);
    if (!self->comm)
        return cb_fail(err, CB_ERR_ABORTED, "NCCL: the communicator was aborted");
    int rc = cuda_use(self->device, err);
    if (rc)
        return rc;
    switch (kind) {
    case DEVICE_ALL_REDUCE:
        return check(ncclAllReduce(from, to, floats, ncclFloat32, ncclSum, self->comm, self->stream), err,
                     "all-reduce");
    case DEVICE_ALL_GATHER:
        return check(ncclAllGather(from, to, bytes, ncclUint8, self->comm, self->stream), err, "all-gather");
    case DEVICE_REDUCE_SCATTER:
        return check(ncclReduceScatter(from, to, floats, ncclFloat32, ncclSum, self->comm, self->stream), err,
                     "reduce-scatter");
    case DEVICE_BROADCAST:
        return check(ncclBroadcast(from, to, bytes, ncclUint8, (int)peer, self->comm, self->stream), err, "broadcast");
    case DEVICE_SEND:
        return check(ncclSend(from, bytes, ncclUint8, (int)peer, self->comm, self->stream), err, "sending");
    case DEVICE_RECEIVE:
        return check(ncclRecv(to, bytes, ncclUint8, (int)peer, self->comm, self->stream), err, "receiving");
    }
    return cb_fail(err, CB_ERR_INTERNAL, "no collective has number %d", (int)kind);
}

static int comm_wait(struct device_comm *self, uint64_t deadline_ns, struct cb_err *err)
{
    struct timespec pause = {.tv_nsec = SLEEP_NS};
    int rc = settle(self, deadline_ns, err);
    if (!rc)
        rc = cuda_use(self->device, err);
    if (!rc)
        rc = cuda_check(cudaEventRecord(self->event, self->stream), err, "recording an event");
    while (!rc) {
        cudaError_t code = cudaEventQuery(self->event);
        if (code != cudaErrorNotReady)
            return cuda_check(code, err, "waiting for NCCL");
        rc = settle(self, deadline_ns, err);
        if (!rc && clock_monotonic_ns() >= deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "NCCL: not all ranks came in time");
        nanosleep(&pause, NULL);
    }
    return rc;
}

const struct device_comm_ops cuda_comm_ops = {
    .make_id = comm_make_id,
    .join = comm_join,
    .begin = comm_begin,
    .queue = comm_queue,
    .end = comm_end,
    .wait = comm_wait,
    .abort = comm_abort,
    .close = comm_close,
};
