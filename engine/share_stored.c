/* Each block is broadcast after its length. A length of 0 ends it. */
#include "engine/share_stored.h"

#include "ckpt/stored/stored_blocks.h"

#define BROKEN_OFF UINT64_MAX /* as a length: rank 0 failed */

struct sharing {
    struct comm *comm;
    struct stored_receiver receiver;
    uint64_t deadline_ns;
    int own; /* a failure of this rank alone */
    struct cb_err own_failure;
    bool apart; /* the ranks cannot go on together */
};

static int broadcast(struct sharing *self, void *bytes, size_t len, struct cb_err *err)
{
    int rc = comm_broadcast(self->comm, bytes, len, self->deadline_ns, err);
    if (rc)
        comm_give_up(self->comm); /* the others cannot go on without this rank */
    self->apart |= rc != 0;
    return rc;
}

static void keep_block(struct sharing *self, const void *block, size_t len)
{
    if (!self->own)
        self->own = stored_block_read(&self->receiver, block, len, &self->own_failure);
}

static int send_block(void *context, const void *block, size_t len, struct cb_err *err)
{
    struct sharing *self = context;
    uint64_t bytes = len;
    int rc = broadcast(self, &bytes, sizeof bytes, err);
    if (!rc)
        rc = broadcast(self, (void *)block, len, err);
    if (!rc)
        keep_block(self, block, len);
    return rc;
}

static int send(struct sharing *self, struct metadata *metadata, struct cb_err *err)
{
    struct stored_sender sender = {.put = send_block, .context = self};
    struct cb_err unused;
    stored_sender_init(&sender);
    struct stored_sink sink = stored_sender_sink(&sender);
    int rc = metadata_pass(metadata, &sink, err);
    uint64_t last = rc ? BROKEN_OFF : 0;
    int told = self->apart ? 0 : broadcast(self, &last, sizeof last, rc ? &unused : err);
    rc = rc ? rc : told;
    stored_sender_release(&sender);
    return rc;
}

static int receive(struct sharing *self, bool *broken_off, struct cb_err *err)
{
    struct buf block;
    uint64_t len = 1;
    int rc = 0;
    buf_init(&block, STORED_BLOCK_MOST_BYTES);
    while (!rc) {
        rc = broadcast(self, &len, sizeof len, err);
        if (rc || len == 0 || len == BROKEN_OFF)
            break;
        buf_clear(&block);
        void *memory = buf_extend(&block, len);
        if (!memory) {
            comm_give_up(self->comm); /* the others cannot go on without this rank */
            rc = buf_check(&block, "a block of what the checkpoint has", err);
        } else
            rc = broadcast(self, memory, len, err);
        if (!rc)
            keep_block(self, memory, len);
    }
    *broken_off = len == BROKEN_OFF;
    buf_release(&block);
    return rc;
}

/* Of a single rank, which needs no blocks. */
static int read_alone(struct stored_collector *collector, struct metadata *metadata, struct cb_err *err)
{
    struct stored_sink sink = stored_collector_sink(collector);
    return metadata_pass(metadata, &sink, err);
}

int share_stored(struct comm *comm, struct metadata *metadata, stored_need_fn need, void *context, uint64_t deadline_ns,
                 struct stored_checkpoint **checkpoint, struct cb_err *err)
{
    struct sharing self = {.comm = comm, .deadline_ns = deadline_ns};
    struct stored_collector *collector = &self.receiver.collector;
    bool broken_off = false;
    int rc;
    *collector = (struct stored_collector){
        .name = comm_rank(comm) == 0 ? metadata->name : STORED_MARKER, .need = need, .context = context};
    *checkpoint = NULL;
    if (comm_size(comm) == 1)
        rc = read_alone(collector, metadata, err);
    else if (comm_rank(comm) == 0)
        rc = send(&self, metadata, err);
    else
        rc = receive(&self, &broken_off, err);
    if (!rc && self.own)
        rc = cb_fail(err, self.own, "%s", self.own_failure.message);
    if (!rc && !broken_off)
        rc = stored_collector_take(collector, checkpoint, err);
    stored_collector_release(collector);
    return rc;
}
