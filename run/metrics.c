/* The metric catalogue and the names of operations and states. Read-only data. */
#include "run/metrics.h"

#include <assert.h>
#include <string.h>

#include "core/json_fields.h"

#define LOWER_IS_BETTER METRIC_LOWER_IS_BETTER
#define HIGHER_IS_BETTER METRIC_HIGHER_IS_BETTER
#define NEUTRAL METRIC_NEUTRAL
#define OF_SAMPLE METRIC_OF_SAMPLE
#define OF_ITERATION METRIC_OF_ITERATION
#define OF_RUN METRIC_OF_RUN
#define IN_RUN 0
#define IN_SAVE (1u << OP_SAVE)
#define IN_LOAD (1u << OP_LOAD)
#define IN_SAVE_LOAD (IN_SAVE | IN_LOAD)
#define IN_VERIFY (1u << OP_VERIFY)
#define IN_SUITE (1u << OP_SUITE)
#define IN_STEP (1u << OP_STEP)
#define IN_ANY ((1u << OP_COUNT) - 1 - (1u << OP_NONE))

static const struct metric metrics[METRIC_COUNT] = {
#define METRIC(id, name, unit, direction, scope, operations, primary, group, over, shown, meaning)                     \
    {                                                                                                                  \
        name,                                                                                                          \
        unit,                                                                                                          \
        direction,                                                                                                     \
        scope,                                                                                                         \
        IN_##operations,                                                                                               \
        METRIC_GROUP_##group,                                                                                          \
        METRIC_OVER_##over,                                                                                            \
        METRIC_SHOWN_##shown,                                                                                          \
        primary,                                                                                                       \
        meaning},
#include "run/metrics.def"
#undef METRIC
};

static const char *const operation_names[OP_COUNT] = {
    "none", "save", "load", "verify", "delete", "baseline_write", "baseline_read", "suite", "step",
};
static const struct name_list operations = NAME_LIST(operation_names, "there is no operation");

static const char *const state_names[STATE_COUNT] = {
    "other", "plan", "stage", "serialize", "io", "fsync", "exchange", "commit", "wait", "backoff",
};
static const struct name_list states = NAME_LIST(state_names, "there is no state");

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

bool metric_has_operation(enum metric_id id, enum operation op)
{
    return metric_row(id)->operations & (1u << op);
}

bool metric_in_report(enum metric_id id)
{
    enum metric_shown shown = metric_row(id)->shown;
    return shown == METRIC_SHOWN_REPORT || shown == METRIC_SHOWN_BOTH;
}

bool metric_in_list(enum metric_id id)
{
    enum metric_shown shown = metric_row(id)->shown;
    return shown == METRIC_SHOWN_LIST || shown == METRIC_SHOWN_BOTH;
}

enum metric_id metric_of_state(enum rank_state state)
{
    static const enum metric_id times[STATE_COUNT] = {
        [STATE_OTHER] = METRIC_OTHER_S,         [STATE_PLAN] = METRIC_PLAN_S,     [STATE_STAGE] = METRIC_STAGE_S,
        [STATE_SERIALIZE] = METRIC_SERIALIZE_S, [STATE_IO] = METRIC_IO_S,         [STATE_FSYNC] = METRIC_FSYNC_S,
        [STATE_EXCHANGE] = METRIC_EXCHANGE_S,   [STATE_COMMIT] = METRIC_COMMIT_S, [STATE_WAIT] = METRIC_WAIT_S,
        [STATE_BACKOFF] = METRIC_IN_BACKOFF_S};
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
    return name_find(&operations, name, (unsigned *)op);
}

const char *rank_state_name(enum rank_state state)
{
    assert(state < STATE_COUNT);
    return state_names[state];
}

bool rank_state_find(const char *name, enum rank_state *state)
{
    return name_find(&states, name, (unsigned *)state);
}
