/* What an engine is made of: the vtable behind engine/engine.h.
 *
 * An engine's own struct begins with `struct engine`, so that `struct engine *` is a pointer to it.
 * Every call is collective, from one thread, and follows the contract in engine/engine.h:
 * - open may copy `setup` and keep what it points at (all of that outlives the engine); it does no I/O that
 *   another rank waits for.
 * - save and load start the clock themselves, after a start agreement of their own, fill the values
 *   of `sample` they know (timeline_fill does the times), return only after the final agreement, and
 *   never move the commit ahead of the data. The caller has set op, iteration and flags of the sample;
 *   latencies are recorded only without SAMPLE_WARMUP.
 * - wait, under_way and stop are as engine_wait, engine_under_way and engine_stop; NULL for an engine without
 *   asynchronous saves: open refuses save.async then.
 * - close frees the struct; it must not talk to other ranks. */
#ifndef ENGINE_ENGINE_OPS_H
#define ENGINE_ENGINE_OPS_H

#include "engine/engine.h"

struct engine_ops {
    const char *name; /* the value of engine= that chooses it */
    int (*open)(const struct engine_setup *setup, struct engine **engine, struct cb_err *err);
    int (*save)(struct engine *engine, const char *path, struct state *state, const struct engine_options *options,
                struct sample *sample, struct cb_err *err);
    int (*load)(struct engine *engine, const char *path, struct state *state, const struct engine_options *options,
                struct sample *sample, struct cb_err *err);
    int (*wait)(struct engine *engine, uint64_t deadline_ns, struct cb_err *err);
    uint32_t (*under_way)(struct engine *engine);
    bool (*stop)(struct engine *engine);
    void (*close)(struct engine *engine);
};

struct engine {
    const struct engine_ops *ops; /* set by open */
};

extern const struct engine_ops engine_native_ops;  /* engine_native.c */
extern const struct engine_ops engine_torch_ops;   /* engine_torch.c */
extern const struct engine_ops engine_command_ops; /* engine_command.c */

#endif
