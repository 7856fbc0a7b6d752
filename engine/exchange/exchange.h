/* The exchange of a load: blocks that one rank reads travel to all that need them, while the reading goes on.
 *
 * There are two ways: messages between ranks (message_exchange.c) and broadcasts between devices (device_exchange.c).
 * Allocates only when it is made. Not collective but in effect: every rank of the layout must go through all stages,
 * also one that could not read. One thread. */
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
    uint32_t ranks; /* of the layout; rank r has the state of holder (r + shift) % ranks */
    uint32_t shift;
    struct pinned *pinned; /* kept by the caller from one exchange to the next; used where the state is on a device */
};

/* What this rank reads in a stage: regions of tensors and where they go. Valid until the next stage. */
struct exchange_targets {
    const struct piece *pieces;
    void *const *memory;
    size_t count;
};

/* By messages, through memory of this machine. */
int exchange_new(const struct exchange_setup *setup, struct exchange **exchange, struct cb_err *err) CB_MUST_CHECK;

struct device_exchange_setup {
    struct exchange_setup load; /* its state is on the device of `talk`, and its share not all in transit */
    struct device_groups *talk;
    uint64_t deadline_ns;
};
/* From device to device. Joins the groups of the share that are not yet; every rank of the layout must come, also one
 * that could not read. CB_ERR_UNSUPPORTED where two ranks have one device. After a failure on any rank all must abort
 * their talk. */
int device_exchange_new(const struct device_exchange_setup *setup, struct exchange **exchange,
                        struct cb_err *err) CB_MUST_CHECK;
/* Memory that messages or copies may still use after a failure stays. NULL is fine. */
void exchange_free(struct exchange *exchange);

struct exchange_targets exchange_begin_stage(struct exchange *exchange, uint32_t stage);
/* So many more bytes of a target are in place, or on their way there by copies to a device that have been queued. */
void exchange_landed(struct exchange *exchange, uint32_t target, uint64_t bytes);
/* Moves on what can be moved on, without waiting. True: call again soon. */
bool exchange_progress(struct exchange *exchange);
/* Nothing more will land in this stage: what has not is sent as it is, so that no rank waits for it. */
void exchange_reading_done(struct exchange *exchange);
/* Waits until all blocks of the stage have come and gone. After a failure the exchange is over. */
int exchange_finish_stage(struct exchange *exchange, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
/* Nobody waits for this rank any longer: ends what is under way. */
void exchange_give_up(struct exchange *exchange);
/* Bytes copied between state and buffers so far. */
uint64_t exchange_copied(const struct exchange *exchange);

#endif
