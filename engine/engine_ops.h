/* The interface that an engine implements, behind engine/engine.h.
 *
 * An engine's struct begins with `struct engine`. Every call is collective, from one thread, and follows the contract in
 * engine/engine.h:
 * - open may keep pointers from `setup`, which outlive the engine; it does no I/O that another rank waits for.
 * - save and load agree with the other ranks first, then start the clock. They fill in the values of `sample` that they
 *   know (timeline_fill sets the times), and return after the final agreement. They never commit before the data is
 *   written. The caller has set op, iteration and flags of the sample; with SAMPLE_WARMUP no latencies are recorded.
 * - wait, under_way and stop implement engine_wait, engine_under_way and engine_stop. They are NULL in an engine without
 *   asynchronous saves, whose open rejects save.async.
 * - close frees the struct without communicating. */
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

extern const struct engine_ops engine_native_ops;       /* engine_native.c */
extern const struct engine_ops engine_torch_ops;        /* engine_torch.c */
extern const struct engine_ops engine_torch_native_ops; /* the same */
extern const struct engine_ops engine_command_ops;      /* engine_command.c */

#endif
