/* Chooses the engine, and calls it through its vtable. */
#include "engine/engine.h"

#include <assert.h>
#include <string.h>

#include "engine/engine_ops.h"

static const struct engine_ops *const engines[] = {&engine_native_ops, &engine_torch_ops, &engine_torch_native_ops,
                                                   &engine_command_ops};

int engine_new(const struct engine_setup *setup, struct engine **engine, struct cb_err *err)
{
    const char *name = setup->config.engine;
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++) {
        if (strcmp(engines[i]->name, name) == 0)
            return engines[i]->open(setup, engine, err);
    }
    return cb_fail(err, CB_ERR_INTERNAL, "engine=%s is in the option table, but this program has no such engine", name);
}

void engine_free(struct engine *engine)
{
    if (engine)
        engine->ops->close(engine);
}

bool engine_stop(struct engine *engine)
{
    return !engine || !engine->ops->stop || engine->ops->stop(engine);
}

int engine_wait(struct engine *engine, uint64_t deadline_ns, struct cb_err *err)
{
    return engine->ops->wait ? engine->ops->wait(engine, deadline_ns, err) : 0;
}

uint32_t engine_under_way(struct engine *engine)
{
    return engine->ops->under_way ? engine->ops->under_way(engine) : 0;
}

int engine_save(struct engine *engine, const char *path, struct state *state, const struct engine_options *options,
                struct sample *sample, struct cb_err *err)
{
    assert(sample->op == OP_SAVE);
    return engine->ops->save(engine, path, state, options, sample, err);
}

int engine_load(struct engine *engine, const char *path, struct state *state, const struct engine_options *options,
                struct sample *sample, struct cb_err *err)
{
    assert(sample->op == OP_LOAD);
    return engine->ops->load(engine, path, state, options, sample, err);
}
