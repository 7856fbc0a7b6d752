/* Loading where ranks exchange: stage by stage, what this rank reads for itself and for others, while what
 * has been read travels. Knows shares and stages; who sends what to whom is in exchange.c. */
#include <string.h>

#include "worker/native_load.h"

static int make_exchange(struct native_load *self, struct cb_err *err)
{
    const struct native_engine *engine = self->operation->engine;
    const struct state *state = self->operation->state;
    uint32_t ranks = layout_world_size(state->layout);
    struct share_options options = {
        .mode = self->mode == LOAD_SPLIT ? SHARE_SPLIT : SHARE_BROADCAST,
        .block_bytes = self->program.limits.block,
        .transit_bytes = self->program.limits.block * EXCHANGE_WINDOW,
        .all_in_transit = state->device != NULL,
    };
    if (options.block_bytes > COMM_MESSAGE_MAX_BYTES / 2)
        options.block_bytes = COMM_MESSAGE_MAX_BYTES / 2;
    struct exchange_setup setup = {
        .comm = engine->setup.comm,
        .state = state,
        .ranks = ranks,
        .pinned = &self->transit,
        .shift = state->holder < ranks ? (state->holder + ranks - engine->rank) % ranks : 0,
    };
    int rc = load_share_compute(state->layout, state->holder, state->pieces, state->piece_count, self->checkpoint,
                                &options, &self->share, err);
    setup.share = self->share;
    return rc ? rc : exchange_new(&setup, &self->exchange, err);
}

static int read_stage(struct native_load *self, uint32_t stage, struct cb_err *err)
{
    struct exchange_targets targets = exchange_begin_stage(self->exchange, stage);
    timeline_enter(&self->operation->timeline, STATE_PLAN);
    native_load_forget_items(self);
    self->pieces = targets.pieces;
    self->memory = targets.memory;
    self->piece_count = targets.count;
    self->wants_values = stage == 0 && self->operation->engine->rank == 0; /* looked at, and not kept */
    int rc = load_plan_compute(self->checkpoint, self->operation->state->layout, targets.pieces, targets.count, NULL,
                               NULL, &self->plan, err);
    if (!rc)
        rc = native_load_make_items(self, err);
    return rc ? rc : native_load_read(self, err);
}

/* After these nobody waits for this rank any longer: its time is over, or it was told to stop. */
static bool ends_all(int code)
{
    return code == CB_ERR_TIMEOUT || code == CB_ERR_ABORTED;
}

/* A rank that cannot read still hands on what others wait for. */
static int run_stages(struct native_load *self, struct cb_err *err)
{
    struct native_operation *operation = self->operation;
    struct cb_err later;
    int failure = 0;
    for (uint32_t stage = 0; stage < self->share->stage_count; stage++) {
        int rc = read_stage(self, stage, failure ? &later : err);
        failure = failure ? failure : rc;
        if (ends_all(rc)) {
            comm_abandon_messages(operation->engine->setup.comm);
            return failure;
        }
        exchange_reading_done(self->exchange);
        timeline_enter(&operation->timeline, STATE_EXCHANGE);
        rc = exchange_finish_stage(self->exchange, operation->options->deadline_ns, failure ? &later : err);
        if (rc)
            return failure ? failure : rc;
    }
    return failure;
}

int native_load_exchange(struct native_load *self, int code, struct cb_err *err)
{
    struct native_operation *operation = self->operation;
    struct agreement agreement;
    int rc = code ? code : make_exchange(self, err);
    timeline_enter(&operation->timeline, STATE_WAIT);
    rc = native_agree(operation, rc, 0, &agreement, err);
    if (rc)
        return rc;
    rc = run_stages(self, err);
    operation->bytes_copied += exchange_copied(self->exchange);
    return rc;
}
