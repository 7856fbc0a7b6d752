/* The exchange of a load: one rank reads a block and sends it to all ranks that need it, while reading continues.
 *
 * Two implementations: messages between ranks (message_exchange.c) and broadcasts between devices (device_exchange.c).
 * Allocates only when it is created. The calls do not wait for other ranks except where noted, but every rank of the
 * layout must go through all stages, even if it could not read. One thread. */
#ifndef ENGINE_EXCHANGE_EXCHANGE_H
#define ENGINE_EXCHANGE_EXCHANGE_H

#include "ckpt/load/load_share.h"
#include "comm/comm.h"
#include "engine/device_groups.h"
#include "engine/engine.h"
#include "engine/pinned.h"

#define EXCHANGE_WINDOW 8 /* blocks open at a time */

struct exchange;

struct exchange_setup {
    struct comm *comm;
    const struct state *state;
    const struct load_share *share;
    uint32_t ranks; /* of the layout; rank r holds the state of holder (r + shift) % ranks */
    uint32_t shift;
    struct pinned *pinned; /* buffer that the caller reuses between exchanges; only for a state on a device */
};

/* The regions of tensors that this rank reads in a stage, and their destinations. Valid until the next stage. */
struct exchange_targets {
    const struct piece *pieces;
    void *const *memory;
    size_t count;
};

/* An exchange by messages between ranks, through host memory. */
int exchange_new(const struct exchange_setup *setup, struct exchange **exchange, struct cb_err *err) CB_MUST_CHECK;

struct device_exchange_setup {
    struct exchange_setup load; /* the state is on the device of `groups` */
    struct device_groups *groups;
    uint64_t deadline_ns;
};
/* An exchange from device to device. Joins those groups of the share that have no communicator yet; collective among all
 * ranks of the layout. CB_ERR_UNSUPPORTED if two ranks share a device. After a failure on any rank, all ranks must abort
 * their groups. */
int device_exchange_new(const struct device_exchange_setup *setup, struct exchange **exchange,
                        struct cb_err *err) CB_MUST_CHECK;
/* Leaks memory that messages or copies may still use after a failure. Accepts NULL. */
void exchange_free(struct exchange *exchange);

struct exchange_targets exchange_begin_stage(struct exchange *exchange, uint32_t stage);
/* Reports `bytes` more of a target as read: in place, or in copies to the device that are already queued. */
void exchange_landed(struct exchange *exchange, uint32_t target, uint64_t bytes);
/* Makes progress without waiting. True: call again soon. */
bool exchange_progress(struct exchange *exchange);
/* No more bytes will arrive in this stage. Blocks that are incomplete are sent as they are, so that no rank hangs. */
void exchange_reading_done(struct exchange *exchange);
/* Waits until all blocks of the stage have been sent and received. After a failure the exchange is unusable. */
int exchange_finish_stage(struct exchange *exchange, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
/* Cancels everything in flight, once no rank waits for this one any more. */
void exchange_give_up(struct exchange *exchange);
/* Bytes copied between state and buffers so far. */
uint64_t exchange_copied(const struct exchange *exchange);

#endif
