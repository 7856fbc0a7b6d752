/* A load: rank 0 reads the metadata and passes on what each rank needs of it, and each rank reads what its pieces need.
 *
 * For items of our own writer, the length tells where the payload is. So header, payload and trailer are read with one
 * request, the payload directly into the state's memory; the header then shows whether that was right. Items with
 * another layout are read again according to their header: at another offset, or with other strides. A wrong item is
 * reported on the status page and the load continues, so that all wrong items are reported. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/load/load_need.h"
#include "ckpt/stored/read_metadata.h"
#include "core/alloc.h"
#include "core/units.h"
#include "engine/load/load_stages.h"
#include "engine/share_stored.h"

#define FRAME_MAX_BYTES (UINT64_C(128) * 1024 * 1024)
#define FILE_WASTE_PERCENT 4

void native_load_free(struct native_load *self)
{
    if (!self)
        return;
    io_schedule_release(&self->io.schedule);
    buf_release(&self->complete.frame);
    device_groups_release(&self->sharing.groups);
    pinned_release(&self->sharing.transit);
    pinned_release(&self->io.bounce);
    free(self);
}

/* A request to an object store costs as much time as megabytes: reading any gap within load.gap is cheaper. */
static uint64_t waste_percent(const struct native_engine *engine)
{
    bool has_files = store_capabilities(engine->setup.store)->part_bytes == 0;
    uint64_t percent = engine->setup.config.load_waste_percent; /* auto has no limit */
    return percent == ENGINE_WASTE_AUTO && has_files ? FILE_WASTE_PERCENT : percent;
}

static int load_new(const struct native_engine *engine, struct native_load **load, struct cb_err *err)
{
    struct native_load *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "to load");
    const struct store_capabilities *capabilities = store_capabilities(engine->setup.store);
    struct io_limits limits = io_limits_of(capabilities, engine->setup.config.block_bytes);
    const char *mode = engine->setup.config.load_exchange;
    self->plan.mode = strcmp(mode, "broadcast") == 0 ? LOAD_BROADCAST
                      : strcmp(mode, "split") == 0   ? LOAD_SPLIT
                                                     : LOAD_ALONE;
    self->plan.chooses = strcmp(mode, "auto") == 0;
    self->plan.gap_bytes = engine->setup.config.load_gap_bytes;
    self->plan.waste_percent = waste_percent(engine);
    self->sharing.block_bytes = limits.block;
    if (capabilities->read_bytes > 0 && limits.block > capabilities->read_bytes)
        limits.block = capabilities->read_bytes;
    limits.gap = self->plan.gap_bytes < limits.alignment ? limits.alignment : self->plan.gap_bytes;
    limits.whole_frames = true;
    io_schedule_init(&self->io.schedule, &limits);
    device_groups_init(&self->sharing.groups, engine->setup.device_comm, engine->setup.device);
    buf_init(&self->complete.frame, FRAME_MAX_BYTES);
    *load = self;
    return 0;
}

static void report_problem(void *context, const char *problem)
{
    native_load_fail(context, CB_ERR_CORRUPT, problem);
}

/* --- metadata --- */

/* Rank 0 reads the metadata, and all ranks get what they need of it. */
static int share_metadata(struct native_load *self, struct cb_err *err)
{
    struct native_operation *operation = self->operation;
    struct native_engine *engine = operation->engine;
    const struct state *state = operation->state;
    struct load_need need;
    struct agreement agreement;
    struct metadata metadata = {0};
    bool exchanges = self->plan.mode != LOAD_ALONE;
    int rc = load_need_init(&need, state->layout, state->pieces, state->piece_count, exchanges, err);
    if (!rc && engine->rank == 0)
        rc = metadata_open(&metadata, engine->setup.store, operation->path, err);
    timeline_enter(&operation->timeline, STATE_WAIT);
    rc = native_agree(operation, rc, 0, &agreement, err);
    timeline_enter(&operation->timeline, STATE_EXCHANGE);
    if (!rc) {
        rc = share_stored(engine->setup.comm, &metadata, load_need_of, &need, operation->options->deadline_ns,
                          &self->plan.checkpoint, err);
        rc = native_agree(operation, rc, 0, &agreement, err);
    }
    metadata_close(&metadata);
    load_need_release(&need);
    return rc;
}

/* --- steps of a load --- */

/* Fine-tuning loads only the weights of a training checkpoint. Reports once what is not loaded. */
static void tell_extra(struct native_load *self)
{
    char text[1024];
    const struct native_engine *engine = self->operation->engine;
    if (engine->rank != 0 || self->told_extra)
        return;
    self->told_extra = true;
    if (load_plan_describe_extra(self->plan.checkpoint, self->operation->state->layout, text, sizeof text) > 0)
        status_page_add_fact(engine->setup.page, "load.extra", text);
}

/* Reports once why there are so many requests. */
static void tell_gaps(struct native_load *self)
{
    const struct native_engine *engine = self->operation->engine;
    char text[256];
    if (engine->rank != 0 || self->told_gaps || !self->plan.ran_out)
        return;
    self->told_gaps = true;
    snprintf(text, sizeof text,
             "short runs were read one by one: more load.waste than %" PRIu64
             " percent, or load.exchange=split, makes fewer requests",
             self->plan.waste_percent);
    status_page_add_fact(engine->setup.page, "load.gaps", text);
}

/* Compares what this rank needs with what is stored, and reports what is missing or wrong. */
static int plan_load(struct native_load *self, struct cb_err *err)
{
    struct native_operation *operation = self->operation;
    int rc = load_plan_compute(self->plan.checkpoint, operation->state->layout, operation->state->pieces,
                               operation->state->piece_count, report_problem, self, &self->plan.wanted, err);
    if (!rc)
        operation->bytes_needed = self->plan.wanted->needed_bytes;
    if (!rc)
        tell_extra(self);
    return rc;
}

/* Without an exchange: each rank reads everything that it needs. */
static int load_alone(struct native_load *self, struct cb_err *err)
{
    const struct state *state = self->operation->state;
    self->plan.pieces = state->pieces;
    self->plan.memory = state->memory;
    self->plan.piece_count = state->piece_count;
    self->plan.wants_values = true;
    return native_load_read(self, err);
}

static int timed_load(struct native_operation *operation, struct cb_err *err)
{
    struct native_load *self = operation->engine->load;
    struct agreement agreement;
    int rc = share_metadata(self, err);
    if (rc)
        return rc;
    timeline_enter(&operation->timeline, STATE_PLAN);
    rc = plan_load(self, err);
    if (self->plan.mode == LOAD_ALONE)
        rc = rc ? rc : load_alone(self, err);
    else
        rc = native_load_exchange(self, rc, err);
    if (!rc && self->complete.failures > 0)
        rc = cb_fail(err, CB_ERR_CORRUPT,
                     "%zu of %zu items are missing, short or corrupt; the first: %s (`ckptbench verify` "
                     "says whether the files are whole: if not, restore them from a copy or load an older checkpoint)",
                     self->complete.failures, self->complete.item_total, self->complete.first_failure);
    timeline_own_done(&operation->timeline);
    timeline_enter(&operation->timeline, STATE_WAIT);
    return native_agree(operation, rc, 0, &agreement, err);
}

static void forget_load(struct native_load *self, bool failed)
{
    native_load_forget(self);
    native_load_end_exchange(self, failed);
    stored_checkpoint_free(self->plan.checkpoint);
    self->plan.checkpoint = NULL;
    self->operation = NULL;
}

int native_load_run(struct native_operation *operation, struct cb_err *err)
{
    struct native_engine *engine = operation->engine;
    struct agreement agreement;
    int rc = engine->load ? 0 : load_new(engine, &engine->load, err);
    rc = native_agree(operation, rc, 0, &agreement, err);
    if (rc)
        return cb_context(err, "loading %s, rank %" PRIu32, operation->path, engine->rank);
    assert(engine->load); /* it exists, since the agreement passed */
    engine->load->operation = operation;
    engine->load->complete.failures = engine->load->complete.item_total = 0;
    native_begin(operation, engine->rank == 0 ? STATE_IO : STATE_WAIT);
    rc = timed_load(operation, err);
    native_end(operation);
    tell_gaps(engine->load);
    if (!rc && engine->load->plan.chooses)
        rc = native_load_choose(engine->load, err);
    if (!transfer_is_stuck(engine->transfer))
        forget_load(engine->load, rc != 0);
    return rc ? cb_context(err, "loading %s, rank %" PRIu32, operation->path, engine->rank) : 0;
}
