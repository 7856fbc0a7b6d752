/* The metric catalogue and the names of operations and states. Read-only data. */
#include "run/metrics.h"

#include <assert.h>
#include <string.h>

#define LOWER_IS_BETTER METRIC_LOWER_IS_BETTER
#define HIGHER_IS_BETTER METRIC_HIGHER_IS_BETTER
#define NEUTRAL METRIC_NEUTRAL
#define OF_SAMPLE METRIC_OF_SAMPLE
#define OF_ITERATION METRIC_OF_ITERATION
#define OF_RUN METRIC_OF_RUN

static const struct metric metrics[METRIC_COUNT] = {
#define METRIC(id, name, unit, direction, scope, primary, group, over, meaning)                                        \
    {name, unit, direction, scope, METRIC_GROUP_##group, METRIC_OVER_##over, primary, meaning},
#include "run/metrics.def"
#undef METRIC
};

static const char *const operation_names[OP_COUNT] = {
    "none", "save", "load", "verify", "delete", "baseline_write", "baseline_read", "suite", "step",
};

static const char *const state_names[STATE_COUNT] = {
    "other", "plan", "stage", "serialize", "io", "fsync", "exchange", "commit", "wait",
};

static size_t find_name(const char *const *names, size_t count, const char *name)
{
    size_t index = 0;
    while (index < count && strcmp(names[index], name) != 0)
        index++;
    return index;
}

const struct metric *metric_row(enum metric_id id)
{
    assert(id < METRIC_COUNT);
    return &metrics[id];
}

bool metric_is_of_suite(enum metric_id id)
{
    enum metric_group group = metric_row(id)->group;
    return group == METRIC_GROUP_SUITE_LINKS || group == METRIC_GROUP_SUITE_NODE || group == METRIC_GROUP_SUITE_GPU ||
           group == METRIC_GROUP_SUITE_GPU_LINKS;
}

enum metric_id metric_of_state(enum rank_state state)
{
    static const enum metric_id times[STATE_COUNT] = {
        [STATE_OTHER] = METRIC_OTHER_S,         [STATE_PLAN] = METRIC_PLAN_S,     [STATE_STAGE] = METRIC_STAGE_S,
        [STATE_SERIALIZE] = METRIC_SERIALIZE_S, [STATE_IO] = METRIC_IO_S,         [STATE_FSYNC] = METRIC_FSYNC_S,
        [STATE_EXCHANGE] = METRIC_EXCHANGE_S,   [STATE_COMMIT] = METRIC_COMMIT_S, [STATE_WAIT] = METRIC_WAIT_S};
    return times[state];
}

bool metric_find(const char *name, enum metric_id *id)
{
    for (size_t index = 0; index < METRIC_COUNT; index++) {
        if (strcmp(metrics[index].name, name) == 0) {
            *id = (enum metric_id)index;
            return true;
        }
    }
    return false;
}

const char *operation_name(enum operation op)
{
    assert(op < OP_COUNT);
    return operation_names[op];
}

bool operation_find(const char *name, enum operation *op)
{
    size_t index = find_name(operation_names, OP_COUNT, name);
    if (index == OP_COUNT)
        return false;
    *op = (enum operation)index;
    return true;
}

const char *rank_state_name(enum rank_state state)
{
    assert(state < STATE_COUNT);
    return state_names[state];
}

bool rank_state_find(const char *name, enum rank_state *state)
{
    size_t index = find_name(state_names, STATE_COUNT, name);
    if (index == STATE_COUNT)
        return false;
    *state = (enum rank_state)index;
    return true;
}
