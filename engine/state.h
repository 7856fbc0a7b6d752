/* The memory of a rank's state: allocates it, fills it with values, poisons it before a load.
 *
 * `struct state` is defined in engine/engine.h. The pieces are adjacent in one mapping, each page-aligned. Not collective
 * unless noted. */
#ifndef ENGINE_STATE_H
#define ENGINE_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/payload.h"
#include "engine/engine.h"

enum state_memory {
    STATE_MEMORY_NONE,   /* no memory: for engines that hold the state themselves */
    STATE_MEMORY_OWN,    /* anonymous memory of this process */
    STATE_MEMORY_SHARED, /* a memory file (shared_fd) that another process can map */
};

struct payload_settings {
    enum payload_kind kind;
    uint64_t seed;
};

/* Describes the pieces of `holder` and how many bytes state_allocate needs for them, without allocating those. There are
 * no pieces if the layout has fewer ranks. */
int state_init(struct state *self, const struct layout *layout, uint32_t holder, struct cb_err *err) CB_MUST_CHECK;
/* Maps memory for the state, at least `least_bytes`, so that another state can borrow it. */
int state_allocate(struct state *self, enum state_memory memory, uint64_t least_bytes,
                   struct cb_err *err) CB_MUST_CHECK;
/* The same in the memory of a device, which must outlive the state. */
int state_allocate_on(struct state *self, struct device *device, uint64_t least_bytes,
                      struct cb_err *err) CB_MUST_CHECK;
/* Places the state in the memory of `owner`, which must be large enough and outlive it. Only one of the two has valid
 * values at a time. */
void state_borrow(struct state *self, const struct state *owner);
void state_release(struct state *self);

/* Two states with the same pieces can share memory. */
bool state_same_pieces(const struct state *a, const struct state *b);

/* Fills the state with the payload's values. Fails only if the device fails. */
int state_set_values(struct state *self, const struct payload_settings *payload, struct cb_err *err) CB_MUST_CHECK;
/* Overwrites all values, so that verification detects bytes that a load did not write. Fails only if the device fails. */
int state_set_poison(struct state *self, struct cb_err *err) CB_MUST_CHECK;

/* Whether an address is in device memory, which the host cannot access. */
bool state_is_on_device(const struct state *self, const void *address);

/* The values of a region of a tensor. */
struct device_values state_values(const struct state_tensor *tensor, const struct region *region,
                                  const struct payload_settings *payload);
struct payload_source state_payload_source(const struct state_tensor *tensor, const struct payload_settings *payload);

/* Fails on all ranks of a machine if together they need more memory than it has; the message has both numbers.
 * Collective among the ranks of a machine. */
int state_check_memory(struct comm *comm, uint64_t bytes, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

#endif
