/* Shared by the files of an attempt: how it ends, its world size, the places of its ranks. */
#include "agent/attempt/attempt.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void attempt_decide(struct attempt *self, enum outcome outcome, int code, const char *format, ...)
{
    if (self->verdict.decided)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(self->verdict.message, sizeof self->verdict.message, format, arguments);
    va_end(arguments);
    self->verdict.decided = true;
    self->verdict.outcome = outcome;
    self->verdict.code = code;
}

uint32_t attempt_world_size(const struct experiment *experiment)
{
    uint64_t ranks = experiment_u64(experiment, OPT_RANKS);
    const char *mesh = experiment_text(experiment, OPT_MESH); /* "pp=2+tp=4" */
    if (ranks == 0 && *mesh) {
        ranks = 1;
        for (const char *at = strchr(mesh, '='); at; at = strchr(at + 1, '='))
            ranks *= strtoull(at + 1, NULL, 10);
    }
    if (ranks == 0) {
        uint64_t dp = experiment_u64(experiment, OPT_DP);
        ranks = (dp ? dp : experiment_u64(experiment, OPT_EP)) * experiment_u64(experiment, OPT_TP) *
                experiment_u64(experiment, OPT_PP);
    }
    return ranks > 0 && ranks <= UINT32_MAX ? (uint32_t)ranks : 1;
}

static const char *describe_state(uint32_t op, uint32_t state)
{
    static const char *const names[STATE_COUNT] = {
        "between steps",        "planning",   "staging",
        "serializing",          NULL,         "in fsync",
        "exchanging",           "committing", "waiting for other ranks",
        "waiting to try again",
    };
    if (state == STATE_IO)
        return op == OP_SAVE || op == OP_BASELINE_WRITE ? "writing" : "reading";
    return state < STATE_COUNT ? names[state] : "in an unknown state";
}

char *attempt_describe_place(const struct attempt *self, uint32_t rank, char text[96])
{
    const struct status_page *page = self->pages.page[rank];
    uint32_t op = atomic_load(&page->op), state = atomic_load(&page->state), phase = atomic_load(&page->phase);
    unsigned long long iteration = atomic_load(&page->iteration), warmup = self->warmup;
    bool warming = iteration < warmup;
    if (phase == PHASE_STARTING)
        snprintf(text, 96, "starting");
    else if (op == OP_NONE || op >= OP_COUNT)
        snprintf(text, 96, phase == PHASE_READY ? "preparing" : "between operations");
    else if (op != OP_SAVE && op != OP_LOAD)
        snprintf(text, 96, "%s, %s", operation_name((enum operation)op), describe_state(op, state));
    else
        snprintf(text, 96, "%s%s %llu/%llu, %s", warming ? "warm-up " : "", operation_name((enum operation)op),
                 warming ? iteration + 1 : iteration - warmup + 1,
                 warming ? warmup : (unsigned long long)self->iterations, describe_state(op, state));
    return text;
}
