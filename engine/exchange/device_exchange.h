/* The exchange of a load whose state is on devices, from device to device: what one rank reads goes to its own device
 * and is broadcast from there to all that need it, while the reading goes on.
 *
 * The same stages and calls as engine/exchange/exchange.h has for this machine's memory. Blocks are queued in the order of
 * ckpt/load/load_share.h and in no other, so that no rank's device waits for one that waits for it; a few are under way at
 * a time. A block that is one contiguous range for all is read into, sent from and received into the state itself;
 * others pass through memory of the device, and those of several classes go to all ranks of the group as they are
 * stored, each of which takes its columns. Allocates only in device_exchange_new. One thread. */
#ifndef ENGINE_EXCHANGE_DEVICE_EXCHANGE_H
#define ENGINE_EXCHANGE_DEVICE_EXCHANGE_H

#include "engine/device_groups.h"
#include "engine/exchange/exchange_window.h"

struct device_exchange;

struct device_exchange_setup {
    struct exchange_setup load; /* its state is on the device of `talk`, and its share not all in transit */
    struct device_talk *talk;
    uint64_t deadline_ns;
};
/* Joins the groups of the share that are not yet; every rank of the layout must come, also one that could not read.
 * CB_ERR_UNSUPPORTED where two ranks have one device. After a failure on any rank all must abort their talk. */
int device_exchange_new(const struct device_exchange_setup *setup, struct device_exchange **exchange,
                        struct cb_err *err) CB_MUST_CHECK;
/* After a failure pinned memory stays. */
void device_exchange_free(struct device_exchange *exchange);

/* As exchange_…: */
struct exchange_targets device_exchange_begin_stage(struct device_exchange *exchange, uint32_t stage);
/* So many more bytes of a target are there, or on their way there by copies that have been queued. */
void device_exchange_landed(struct device_exchange *exchange, uint32_t target, uint64_t bytes);
bool device_exchange_progress(struct device_exchange *exchange);
void device_exchange_reading_done(struct device_exchange *exchange);
/* After a failure it has aborted the talk of this rank. */
int device_exchange_finish_stage(struct device_exchange *exchange, uint64_t deadline_ns,
                                 struct cb_err *err) CB_MUST_CHECK;
/* Nobody waits for this rank any longer: ends what is under way. */
void device_exchange_give_up(struct device_exchange *exchange);
uint64_t device_exchange_copied(const struct device_exchange *exchange);

#endif
