/* The exchange of a load: blocks that one rank reads travel to all that need them, while the reading goes on.
 *
 * A block goes from its reader to the first rank of each class and from rank to rank along the class, in
 * messages; a few blocks are open at a time, taken up in the order of ckpt/load/load_share.h, and so no rank
 * waits for one that waits for it. A block that is one contiguous range for all is sent from and received into the
 * state itself; others pass through buffers. A state on a device is neither read into nor received into: all
 * blocks are in transit in pinned memory (share_options.all_in_transit), and what this rank needs of them is copied to
 * the device from there. Memory: EXCHANGE_WINDOW blocks, and what is in transit.
 * Allocates only in exchange_new. Not collective but in effect: every rank of the layout must go through
 * all stages, also one that could not read. One thread. */
#ifndef ENGINE_EXCHANGE_EXCHANGE_H
#define ENGINE_EXCHANGE_EXCHANGE_H

#include "engine/exchange/exchange_window.h"

struct exchange;

int exchange_new(const struct exchange_setup *setup, struct exchange **exchange, struct cb_err *err) CB_MUST_CHECK;
/* Memory of messages that never ended stays. */
void exchange_free(struct exchange *exchange);

struct exchange_targets exchange_begin_stage(struct exchange *exchange, uint32_t stage);
/* So many more bytes of a target are in place. */
void exchange_landed(struct exchange *exchange, uint32_t target, uint64_t bytes);
/* Moves on what can be moved on, without waiting. True: call again soon. */
bool exchange_progress(struct exchange *exchange);
/* Nothing more will land in this stage: what has not is sent as it is, so that no rank waits for it. */
void exchange_reading_done(struct exchange *exchange);
/* Waits until all blocks of the stage have come and gone. After a failure the exchange is over. */
int exchange_finish_stage(struct exchange *exchange, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
/* Bytes copied between state and buffers so far. */
uint64_t exchange_copied(const struct exchange *exchange);

#endif
