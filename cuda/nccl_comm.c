/* NCCL behind the plugin's table: non-blocking communicators, so that a missing rank makes the others fail at their
 * deadline. All operations of a device are queued on one stream, the lane `talk`.
 *
 * A call on such a communicator may continue after it returns. Until NCCL reports that it has settled, its work may not
 * be on the stream yet, and nothing else may be queued. */
#include <nccl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "cuda/cuda.h"

/* Measured collectives take fractions of a millisecond, which a sleep would distort. */
#define SPIN_NS (2 * NS_PER_MS)
/* Time for a clean finalisation before it becomes an abort. */
#define CLOSE_NS (3 * NS_PER_S)

struct device_comm {
    struct cuda_device *device;
    ncclComm_t comm; /* NULL once aborted */
    uint32_t size;
};

_Static_assert(sizeof(ncclUniqueId) == DEVICE_COMM_ID_BYTES, "the table's id has room for NCCL's");

/* Done, or in progress. */
static bool is_well(ncclResult_t code)
{
    return code == ncclSuccess || code == ncclInProgress;
}

/* `comm` may be NULL. NCCL's last error text says more than its code. */
static int check(ncclResult_t code, ncclComm_t comm, struct cb_err *err, const char *doing)
{
    if (is_well(code))
        return 0;
    const char *words = ncclGetLastError(comm);
    return cb_fail(err, code == ncclInvalidUsage ? CB_ERR_UNSUPPORTED : CB_ERR_SYSTEM, "NCCL, %s: %s%s%.300s", doing,
                   ncclGetErrorString(code), words && *words ? "; " : "", words ? words : "");
}

static int check_alive(const struct device_comm *self, struct cb_err *err)
{
    return self->comm ? cuda_use(self->device, err)
                      : cb_fail(err, CB_ERR_ABORTED, "NCCL: the communicator was aborted");
}

/* Waits until NCCL's asynchronous calls have settled, and what they queue is on the stream. */
static int settle(struct device_comm *self, uint64_t deadline_ns, struct cb_err *err)
{
    uint64_t start_ns = clock_monotonic_ns();
    for (;;) {
        ncclResult_t state = ncclSuccess;
        int rc = check(ncclCommGetAsyncError(self->comm, &state), self->comm, err, "asking for its state");
        if (!rc)
            rc = check(state, self->comm, err, "working");
        if (rc || state == ncclSuccess)
            return rc;
        if (clock_monotonic_ns() >= deadline_ns)
            return cb_fail(err, CB_ERR_TIMEOUT, "NCCL: not all ranks came in time");
        cuda_pause(start_ns, SPIN_NS);
    }
}

/* --- creating and ending --- */

static int comm_make_id(char id[DEVICE_COMM_ID_BYTES], struct cb_err *err)
{
    ncclUniqueId made;
    int rc = check(ncclGetUniqueId(&made), NULL, err, "making the id of a communicator");
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
    ncclComm_t comm = self->comm;
    if (comm && (check_alive(self, &unheard) || check(ncclCommFinalize(comm), comm, &unheard, "ending") ||
                 settle(self, clock_monotonic_ns() + CLOSE_NS, &unheard)))
        comm_abort(self);
    if (self->comm)
        (void)ncclCommDestroy(self->comm);
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
    self->size = size;
    int rc = cuda_use(self->device, err);
    if (!rc)
        rc = check(ncclCommInitRankConfig(&self->comm, (int)size, unique, (int)rank, &config), NULL, err,
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

/* --- queued operations --- */

/* Makes the lane `talk` wait for everything queued on `work` so far. */
static int follow(const struct cuda_device *device, struct cb_err *err)
{
    int rc = cuda_check(cudaEventRecord(device->fence, device->work.stream), err, "recording an event");
    return rc ? rc : cuda_check(cudaStreamWaitEvent(device->talk.stream, device->fence, 0), err, "ordering streams");
}

/* Sends `bytes` to each of `count` ranks from `first` on, and receives as much. */
static ncclResult_t exchange(const struct device_comm *self, const char *from, char *to, uint64_t bytes, uint32_t first,
                             uint32_t count)
{
    cudaStream_t stream = self->device->talk.stream;
    ncclResult_t code = ncclGroupStart();
    for (uint32_t i = 0; i < count && is_well(code); i++) {
        int peer = (int)(first + i);
        code = ncclSend(from + i * bytes, bytes, ncclUint8, peer, self->comm, stream);
        if (is_well(code))
            code = ncclRecv(to + i * bytes, bytes, ncclUint8, peer, self->comm, stream);
    }
    ncclResult_t ended = ncclGroupEnd();
    return is_well(code) ? ended : code;
}

static ncclResult_t start(const struct device_comm *self, enum device_collective kind, const void *from, void *to,
                          uint64_t bytes, uint32_t peer)
{
    cudaStream_t stream = self->device->talk.stream;
    size_t floats = bytes / sizeof(float);
    switch (kind) {
    case DEVICE_ALL_REDUCE:
        return ncclAllReduce(from, to, floats, ncclFloat32, ncclSum, self->comm, stream);
    case DEVICE_ALL_GATHER:
        return ncclAllGather(from, to, bytes, ncclUint8, self->comm, stream);
    case DEVICE_REDUCE_SCATTER:
        return ncclReduceScatter(from, to, floats, ncclFloat32, ncclSum, self->comm, stream);
    case DEVICE_BROADCAST:
        return ncclBroadcast(from, to, bytes, ncclUint8, (int)peer, self->comm, stream);
    case DEVICE_ALL_TO_ALL:
        return exchange(self, from, to, bytes, 0, self->size);
    case DEVICE_EXCHANGE:
        return exchange(self, from, to, bytes, peer, 1);
    }
    return ncclInvalidArgument;
}

static int comm_queue(struct device_comm *self, enum device_collective kind, const void *from, void *to, uint64_t bytes,
                      uint32_t peer, uint64_t deadline_ns, struct cb_err *err)
{
    static const char *const doing[] = {"all-reduce", "all-gather", "reduce-scatter",
                                        "broadcast",  "all-to-all", "exchange"};
    int rc = check_alive(self, err);
    if (!rc)
        rc = follow(self->device, err);
    if (!rc)
        rc = check(start(self, kind, from, to, bytes, peer), self->comm, err, doing[kind]);
    return rc ? rc : settle(self, deadline_ns, err);
}

static int comm_copy(struct device_comm *self, enum device_direction direction, const struct device_copy *copies,
                     size_t count, struct cb_err *err)
{
    int rc = check_alive(self, err);
    if (!rc)
        rc = follow(self->device, err);
    for (size_t i = 0; i < count && !rc; i++)
        rc = cuda_check(cuda_queue_copy(self->device->talk.stream, direction, &copies[i]), err,
                        cuda_copy_names[direction]);
    return rc;
}

/* --- completion --- */

static int comm_record(struct device_comm *self, uint64_t *event, struct cb_err *err)
{
    int rc = check_alive(self, err);
    return rc ? rc : cuda_lane_record(&self->device->talk, event, err);
}

static int comm_mark(struct device_comm *self, uint64_t *mark, struct cb_err *err)
{
    int rc = check_alive(self, err);
    if (!rc)
        rc = follow(self->device, err);
    return rc ? rc : cuda_mark(self->device, self->device->talk.stream, mark, err);
}

/* An event that its slot no longer has is done (cuda_lane_record). */
static int comm_hold_device(struct device_comm *self, uint64_t event, struct cb_err *err)
{
    const struct cuda_lane *talk = &self->device->talk;
    int rc = check_alive(self, err);
    if (rc || event <= talk->done)
        return rc;
    return cuda_check(cudaStreamWaitEvent(self->device->work.stream, talk->events[event % CUDA_EVENTS], 0), err,
                      "ordering streams");
}

/* The failure of another rank is reported by NCCL, not by the stream. */
static int comm_poll(struct device_comm *self, uint64_t event, bool *done, struct cb_err *err)
{
    ncclResult_t state = ncclSuccess;
    int rc = check_alive(self, err);
    if (!rc)
        rc = check(ncclCommGetAsyncError(self->comm, &state), self->comm, err, "asking for its state");
    if (!rc)
        rc = check(state, self->comm, err, "working");
    return rc ? rc : cuda_lane_poll(&self->device->talk, event, done, err);
}

static int comm_wait(struct device_comm *self, uint64_t deadline_ns, struct cb_err *err)
{
    uint64_t start_ns = clock_monotonic_ns(), event = 0;
    bool done = false;
    int rc = comm_record(self, &event, err);
    while (!rc) {
        rc = comm_poll(self, event, &done, err);
        if (rc || done)
            return rc;
        if (clock_monotonic_ns() >= deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "NCCL: not all ranks came in time");
        cuda_pause(start_ns, SPIN_NS);
    }
    return rc;
}

const struct device_comm_ops cuda_comm_ops = {
    .make_id = comm_make_id,
    .join = comm_join,
    .queue = comm_queue,
    .copy = comm_copy,
    .record = comm_record,
    .mark = comm_mark,
    .hold_device = comm_hold_device,
    .poll = comm_poll,
    .wait = comm_wait,
    .abort = comm_abort,
    .close = comm_close,
};
