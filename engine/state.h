/* The memory of a rank's state: allocated, filled with payload, poisoned before a load.
 *
 * `struct state` itself is in engine/engine.h. Pieces lie one after another in one mapping, each at a
 * page. Not collective but where noted. */
#ifndef ENGINE_STATE_H
#define ENGINE_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/payload.h"
#include "engine/engine.h"

enum state_memory {
    STATE_MEMORY_NONE,   /* only the pieces and their size: for engines that hold the state themselves */
    STATE_MEMORY_OWN,    /* anonymous memory of this process */
    STATE_MEMORY_SHARED, /* a memory file (shared_fd) that another process can map */
};

struct payload_settings {
    enum payload_kind kind;
    uint64_t seed;
};

/* The pieces of `holder` and the bytes that state_allocate would take for them; none where the layout has
 * fewer ranks than that. Allocates no state. */
int state_init(struct state *self, const struct layout *layout, uint32_t holder, struct cb_err *err) CB_MUST_CHECK;
/* Maps memory for it, at least `least_bytes`, so that another state can lie there, too. */
int state_allocate(struct state *self, enum state_memory memory, uint64_t least_bytes,
                   struct cb_err *err) CB_MUST_CHECK;
/* The same in a device's own memory. The device outlives the state. */
int state_allocate_on(struct state *self, struct device *device, uint64_t least_bytes,
                      struct cb_err *err) CB_MUST_CHECK;
/* Lies in the memory of `owner`, which is large enough and outlives it: one of them holds values at a time. */
void state_borrow(struct state *self, const struct state *owner);
void state_release(struct state *self);

/* Two states with the same pieces can share memory. */
bool state_same_pieces(const struct state *a, const struct state *b);

/* Fills it with the payload's values, wherever it lies. Only devices fail. */
int state_set_values(struct state *self, const struct payload_settings *payload, struct cb_err *err) CB_MUST_CHECK;
/* Overwrites everything, so that a load that did not happen is not mistaken for one. Only devices fail. */
int state_set_poison(struct state *self, struct cb_err *err) CB_MUST_CHECK;

/* Whether an address is in memory that only the state's device reaches. */
bool state_is_on_device(const struct state *self, const void *address);

/* What belongs into a region of a tensor. */
struct device_values state_values(const struct state_tensor *tensor, const struct region *region,
                                  const struct payload_settings *payload);
struct payload_source state_payload_source(const struct state_tensor *tensor, const struct payload_settings *payload);

/* Collective on a machine: checks what its ranks will take together against what it can give. Fails on
 * all ranks of a machine that cannot, with the figures. */
int state_check_memory(struct comm *comm, uint64_t bytes, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

#endif
