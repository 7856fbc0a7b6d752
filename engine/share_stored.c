/* Each block is broadcast after its length. A length of 0 ends it. */
#include "engine/share_stored.h"

static int send(struct comm *comm, const struct stored_checkpoint *checkpoint, uint64_t deadline_ns, struct cb_err *err)
{
    struct stored_sender sender = {.checkpoint = checkpoint};
    struct buf block;
    uint64_t len = 1;
    int code = 0, rc = 0;
    buf_init(&block, STORED_BLOCK_MOST_BYTES);
    while (!rc && len > 0) {
        buf_clear(&block);
        code = stored_block_write(&sender, &block, err);
        len = code ? 0 : block.len;
        rc = comm_broadcast(comm, &len, sizeof len, deadline_ns, err);
        if (!rc && len > 0)
            rc = comm_broadcast(comm, block.data, len, deadline_ns, err);
    }
    buf_release(&block);
    return rc ? rc : code;
}

static int receive(struct comm *comm, struct stored_receiver *receiver, uint64_t deadline_ns,
                   struct stored_checkpoint **checkpoint, struct cb_err *err)
{
    struct buf block;
    uint64_t len = 1;
    int code = 0, rc = 0;
    buf_init(&block, STORED_BLOCK_MOST_BYTES);
    while (!rc && len > 0) {
        rc = comm_broadcast(comm, &len, sizeof len, deadline_ns, err);
        if (rc || len == 0)
            break;
        buf_clear(&block);
        void *memory = buf_extend(&block, len);
        if (!memory) {
            comm_give_up(comm); /* the others cannot go on without this rank */
            rc = buf_check(&block, "a block of what the checkpoint has", err);
        } else
            rc = comm_broadcast(comm, memory, len, deadline_ns, err);
        if (!rc && !code)
            code = stored_block_read(receiver, memory, len, err);
    }
    buf_release(&block);
    if (rc || code)
        return rc ? rc : code;
    return stored_receiver_take(receiver, checkpoint, err);
}

int share_stored(struct comm *comm, stored_need_fn need, void *context, uint64_t deadline_ns,
                 struct stored_checkpoint **checkpoint, struct cb_err *err)
{
    struct stored_receiver receiver = {.need = need, .context = context};
    if (comm_size(comm) == 1)
        return 0;
    if (comm_rank(comm) == 0)
        return send(comm, *checkpoint, deadline_ns, err);
    int rc = receive(comm, &receiver, deadline_ns, checkpoint, err);
    stored_receiver_release(&receiver);
    return rc;
}
