/* Loads with an exchange: in each stage, this rank reads for itself and for others, while blocks that have been read
 * are sent, from device to device if the state is on devices, else as messages. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/load/load_stages.h"

void native_load_end_exchange(struct native_load *self, bool failed)
{
    if (failed) /* on all ranks, because one of them has given up */
        device_groups_abort(&self->sharing.groups);
    exchange_free(self->complete.exchange);
    load_share_free(self->sharing.share);
    self->complete.exchange = NULL;
    self->sharing.share = NULL;
}

/* --- creating --- */

/* Whether blocks go from device to device; the same on all ranks. */
static bool talks(const struct native_load *self)
{
    const struct state *state = self->operation->state;
    return self->sharing.groups.ops && state->device && state->device == self->sharing.groups.device &&
           !self->sharing.shares_device;
}

static int share_load(struct native_load *self, bool all_in_transit, struct cb_err *err)
{
    const struct state *state = self->operation->state;
    struct share_options options = {
        .mode = self->plan.mode == LOAD_SPLIT ? SHARE_SPLIT : SHARE_BROADCAST,
        .block_bytes = self->sharing.block_bytes,
        .transit_bytes = self->sharing.block_bytes * EXCHANGE_WINDOW,
        .all_in_transit = all_in_transit,
    };
    if (options.block_bytes > COMM_MESSAGE_MAX_BYTES / 2)
        options.block_bytes = COMM_MESSAGE_MAX_BYTES / 2;
    return load_share_compute(state->layout, state->holder, state->pieces, state->piece_count, self->plan.checkpoint,
                              &options, &self->sharing.share, err);
}

static uint32_t shift_of(const struct native_load *self)
{
    const struct state *state = self->operation->state;
    uint32_t ranks = layout_world_size(state->layout);
    return state->holder < ranks ? (state->holder + ranks - self->operation->engine->rank) % ranks : 0;
}

/* Creates an exchange with its own share. */
static int set_up(struct native_load *self, bool all_in_transit, struct exchange_setup *setup, struct cb_err *err)
{
    const struct state *state = self->operation->state;
    int rc = share_load(self, all_in_transit, err);
    if (!rc)
        *setup = (struct exchange_setup){
            .comm = self->operation->engine->setup.comm,
            .state = state,
            .share = self->sharing.share,
            .ranks = layout_world_size(state->layout),
            .shift = shift_of(self),
            .pinned = &self->sharing.transit,
        };
    return rc;
}

static int make_exchange(struct native_load *self, struct cb_err *err)
{
    struct exchange_setup setup;
    int rc = set_up(self, self->operation->state->device != NULL, &setup, err);
    return rc ? rc : exchange_new(&setup, &self->complete.exchange, err);
}

static int make_device_exchange(struct native_load *self, struct cb_err *err)
{
    struct device_exchange_setup setup = {.groups = &self->sharing.groups,
                                          .deadline_ns = self->operation->options->deadline_ns};
    int rc = set_up(self, false, &setup.load, err);
    return rc ? rc : device_exchange_new(&setup, &self->complete.exchange, err);
}

static void tell_path(struct native_load *self, const char *path)
{
    if (!self->sharing.told_path)
        status_page_add_fact(self->operation->engine->setup.page, "load.path", path);
    self->sharing.told_path = true;
}

/* Tries to exchange from device to device. Sets self->sharing.shares_device if two ranks share a device, which makes
 * that impossible. */
static int try_devices(struct native_load *self, struct cb_err *err)
{
    struct native_operation *operation = self->operation;
    struct agreement agreement;
    struct cb_err why = {0};
    int made = make_device_exchange(self, &why);
    int rc = comm_agree(operation->engine->setup.comm, made, made == CB_ERR_UNSUPPORTED,
                        operation->options->deadline_ns, &agreement, err);
    if (!rc && agreement.code == 0) {
        tell_path(self, "from device to device");
        return 0;
    }
    native_load_end_exchange(self, true);
    if (rc)
        return rc;
    if (agreement.max > 0) {
        char text[640];
        snprintf(text, sizeof text, "through memory of this machine: %.512s",
                 made == CB_ERR_UNSUPPORTED ? why.message : "two ranks have one device");
        tell_path(self, text);
        self->sharing.shares_device = true;
        return 0;
    }
    if (!made)
        return cb_fail(err, CB_ERR_ABORTED, "rank %" PRIu32 " could not exchange from device to device (%s)",
                       agreement.failed_rank, cb_code_name(agreement.code));
    *err = why;
    return made;
}

/* Ends with an agreement. */
static int begin_exchange(struct native_load *self, int code, struct cb_err *err)
{
    struct native_operation *operation = self->operation;
    struct agreement agreement;
    int rc = code;
    timeline_enter(&operation->timeline, STATE_WAIT);
    if (talks(self)) {
        rc = native_agree(operation, code, 0, &agreement, err);
        if (!rc)
            rc = try_devices(self, err);
        if (rc || self->complete.exchange)
            return rc;
    }
    rc = rc ? rc : make_exchange(self, err);
    return native_agree(operation, rc, 0, &agreement, err);
}

/* --- reading and exchanging --- */

static int read_stage(struct native_load *self, uint32_t stage, struct cb_err *err)
{
    struct exchange_targets targets = exchange_begin_stage(self->complete.exchange, stage);
    timeline_enter(&self->operation->timeline, STATE_PLAN);
    native_load_forget(self);
    self->plan.pieces = targets.pieces;
    self->plan.memory = targets.memory;
    self->plan.piece_count = targets.count;
    const struct native_engine *engine = self->operation->engine; /* rank 0 checks values for all ranks */
    self->plan.wants_values = stage == 0 && (engine->rank == 0 || engine->setup.keep_value);
    int rc = load_plan_compute(self->plan.checkpoint, self->operation->state->layout, targets.pieces, targets.count,
                               NULL, NULL, &self->plan.wanted, err);
    return rc ? rc : native_load_read(self, err);
}

/* After these failures no rank waits for this one any more. */
static bool ends_all(int code)
{
    return code == CB_ERR_TIMEOUT || code == CB_ERR_ABORTED;
}

/* A rank that cannot read still forwards what others need. */
static int run_stages(struct native_load *self, struct cb_err *err)
{
    struct native_operation *operation = self->operation;
    struct cb_err later;
    int failure = 0;
    for (uint32_t stage = 0; stage < self->sharing.share->stage_count; stage++) {
        int rc = read_stage(self, stage, failure ? &later : err);
        failure = failure ? failure : rc;
        if (ends_all(rc)) {
            exchange_give_up(self->complete.exchange);
            return failure;
        }
        timeline_enter(&operation->timeline, STATE_EXCHANGE);
        exchange_reading_done(self->complete.exchange);
        rc = exchange_finish_stage(self->complete.exchange, operation->options->deadline_ns, failure ? &later : err);
        if (rc)
            return failure ? failure : rc;
    }
    return failure;
}

int native_load_exchange(struct native_load *self, int code, struct cb_err *err)
{
    int rc = begin_exchange(self, code, err);
    if (rc)
        return rc;
    rc = run_stages(self, err);
    self->operation->bytes_copied += exchange_copied(self->complete.exchange);
    return rc;
}
