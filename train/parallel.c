/* Data parallelism: the arrays of a rank's share, the buffers that wraps are gathered into, and the order of
 * communication and computation. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "comm/agree.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "train/parallel_parts.h"

#define BUCKET_VALUES (PARALLEL_BUCKET_BYTES / sizeof(float))

/* --- construction --- */

static int make_wraps(struct parallel *self, struct cb_err *err)
{
    const struct train_model *model = self->setup.model;
    size_t unit_count = train_model_unit_count(model), stage_count = train_model_stage_count(model);
    uint64_t *units = calloc(unit_count + 1, sizeof *units);
    size_t *stages = calloc(stage_count + 1, sizeof *stages);
    int rc = units && stages ? 0 : alloc_fail(err, "for the list of %zu units", unit_count);
    for (size_t i = 0; i < unit_count && !rc; i++)
        units[i] = train_model_unit(model, i)->elements;
    for (size_t i = 0; i < stage_count && !rc; i++)
        stages[i] = train_model_stage_unit(model, i);
    if (!rc)
        rc = fsdp_units_init(&self->wraps, self->training, units, unit_count, stages, stage_count, err);
    free(units);
    free(stages);
    for (size_t i = 0; i < self->wraps.count && !rc; i++)
        if (!self->math && self->training->ranks > 1 && self->wraps.items[i].share > COMM_MOST_VALUES)
            rc = cb_fail(err, CB_ERR_USAGE,
                         "a wrap of %" PRIu64 " parameters is more than MPI moves at once: use "
                         "train.auto_wrap_policy=module_wrap",
                         self->wraps.items[i].elements);
    return rc;
}

static int make_lists(struct parallel *self, struct cb_err *err)
{
    size_t wraps = self->wraps.count, units = train_model_unit_count(self->setup.model);
    self->in_use = calloc(wraps + 1, sizeof *self->in_use);
    self->uses_left = calloc(units + 1, sizeof *self->uses_left);
    if (!self->in_use || !self->uses_left)
        return alloc_fail(err, "for the list of %zu wraps", wraps);
    return 0;
}

static int make_device_stream(struct parallel *self, uint64_t deadline_ns, struct cb_err *err)
{
    struct device_stream_setup setup = {.comm = self->setup.comm,
                                        .ops = self->setup.device_comm,
                                        .device = self->math->device,
                                        .trace = self->setup.trace,
                                        .shards = &self->shards,
                                        .replicas = &self->replicas,
                                        .copies = self->training->cpu_offload};
    return self->training->ranks > 1 || setup.copies ? device_stream_new(&setup, deadline_ns, &self->device_stream, err)
                                                     : 0;
}

/* Adjacent ranks form the sharding groups; ranks at the same position in their groups are replicas. Collective. */
static int make_stream(struct parallel *self, uint64_t deadline_ns, struct cb_err *err)
{
    struct comm *comm = self->setup.comm;
    uint32_t shards = self->shards.ranks, rank = comm_rank(comm);
    if (self->math)
        return make_device_stream(self, deadline_ns, err);
    int rc = shards > 1 ? comm_part(comm, rank / shards, &self->shards.comm, err) : 0;
    if (!rc && self->replicas.ranks > 1)
        rc = comm_part(comm, rank % shards, &self->replicas.comm, err);
    if (!rc && (self->gathers || self->scatters || self->buckets))
        rc = stream_new(comm, self->setup.device, self->setup.trace, &self->stream, err);
    return rc;
}

/* The part of a unit that this rank keeps: `count` elements from `first` on, at element `at` of the arrays. */
struct share {
    uint64_t first, count, at;
};

/* False if this rank keeps nothing of the unit. */
static bool share_of(const struct parallel *self, size_t unit, struct share *share)
{
    const struct fsdp_unit *wrap = &self->wraps.items[self->wraps.wrap_of[unit]];
    uint64_t share_begin = wrap->share * self->shard_index, share_end = share_begin + wrap->share;
    uint64_t begin = self->wraps.offset_of[unit], end = begin + train_model_unit(self->setup.model, unit)->elements;
    uint64_t from = begin > share_begin ? begin : share_begin, to = end < share_end ? end : share_end;
    if (from >= to)
        return false;
    *share = (struct share){from - begin, to - from, wrap->begin + from - share_begin};
    return true;
}

static int init_values(struct parallel *self, uint64_t deadline_ns, struct cb_err *err)
{
    struct share share;
    int rc = 0;
    for (size_t unit = 0; unit < train_model_unit_count(self->setup.model) && !rc; unit++) {
        if (!share_of(self, unit, &share))
            continue;
        float *weights = self->arrays[PARALLEL_WEIGHTS] + share.at;
        if (self->owner)
            rc = parallel_device_init(self, unit, share.first, share.count, weights, deadline_ns, err);
        else
            train_model_init(self->setup.model, unit, share.first, share.count, self->setup.seed, weights);
    }
    return rc;
}

static void release(struct parallel *self)
{
    parallel_unmap(self);
    comm_free(self->shards.comm);
    comm_free(self->replicas.comm);
    free(self->in_use);
    free(self->uses_left);
    fsdp_units_release(&self->wraps);
    free(self);
}

int parallel_new(const struct parallel_setup *setup, uint64_t deadline_ns, struct parallel **parallel,
                 struct cb_err *err)
{
    struct parallel *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for training");
    self->setup = *setup;
    self->math = setup->math;
    self->owner = setup->training->cpu_offload ? NULL : setup->math;
    self->packed_wrap = SIZE_MAX;
    self->shard_index = comm_rank(setup->comm) % setup->training->shard_ranks;
    parallel_set_mode(self, setup->training, setup->math != NULL);
    int rc = make_wraps(self, err);
    if (!rc)
        rc = make_lists(self, err);
    if (!rc)
        rc = parallel_map(self, err);
    rc = agree(setup->comm, rc, deadline_ns, err); /* all ranks take part in splitting the communicator */
    if (!rc)
        rc = make_stream(self, deadline_ns, err);
    if (rc) {
        release(self); /* the stream is created last */
        return rc;
    }
    rc = init_values(self, deadline_ns, err);
    if (rc)
        parallel_free(self);
    else
        *parallel = self;
    return rc;
}

bool parallel_stop(struct parallel *self)
{
    if (self && self->stream && !stream_stop(self->stream))
        return false;
    if (!self)
        return true;
    device_stream_free(self->device_stream);
    self->device_stream = NULL;
    self->stream = NULL;
    return true;
}

void parallel_free(struct parallel *self)
{
    if (self && parallel_stop(self)) /* if not, communication may still write to it */
        release(self);
}

/* --- communication --- */

static void add_work(struct parallel *self, enum stream_kind kind, const struct stream_group *group, const float *from,
                     float *to, uint64_t values, size_t wrap)
{
    struct stream_work work = {
        .kind = kind, .group = group, .from = from, .to = to, .values = values, .number = (uint32_t)wrap};
    self->last_ticket = self->math ? device_stream_add(self->device_stream, &work) : stream_add(self->stream, &work);
}

/* The host waits, which counts as exchange. */
static int wait_for(struct parallel *self, uint64_t ticket, struct timeline *timeline, uint64_t deadline_ns,
                    struct cb_err *err)
{
    if (self->math ? !self->device_stream : !self->stream || stream_is_done(self->stream, ticket))
        return 0;
    timeline_enter(timeline, STATE_EXCHANGE);
    int rc = self->math ? device_stream_wait(self->device_stream, ticket, deadline_ns, err)
                        : stream_wait(self->stream, ticket, deadline_ns, err);
    timeline_enter(timeline, STATE_OTHER);
    return rc;
}

/* What is computed from now on needs the ticket's work. On a device only the device waits for it. */
static int compute_after(struct parallel *self, uint64_t ticket, struct timeline *timeline, uint64_t deadline_ns,
                         struct cb_err *err)
{
    if (!self->math)
        return wait_for(self, ticket, timeline, deadline_ns, err);
    if (!self->device_stream)
        return 0;
    self->awaited_ticket = ticket > self->awaited_ticket ? ticket : self->awaited_ticket;
    return device_stream_hold(self->device_stream, ticket, err);
}

static uint64_t padded_values(const struct parallel *self, size_t wrap)
{
    return self->wraps.items[wrap].share * self->training->shard_ranks;
}

static struct slot *take_slot(struct parallel *self, size_t wrap)
{
    self->whole_values += padded_values(self, wrap);
    if (self->whole_values > self->most_whole_values)
        self->most_whole_values = self->whole_values;
    if (self->wraps.items[wrap].root)
        return &self->root;
    struct slot *slot = self->slots[0].wrap == SIZE_MAX ? &self->slots[0] : &self->slots[1];
    assert(slot->wrap == SIZE_MAX); /* the order of visits never needs more than two */
    slot->wrap = wrap;
    self->gathered++;
    if (self->gathered > self->most_gathered)
        self->most_gathered = self->gathered;
    return slot;
}

/* In bf16 with two bytes per value: rounds this rank's part, here or on the device, and gathers all. */
static void gather_packed(struct parallel *self, const float *weights, float *to, size_t index)
{
    uint64_t values = self->wraps.items[index].share, packed = stream_packed(values);
    const struct stream_group *shards = &self->shards;
    float *share = shards->ranks > 1 ? self->packed_share : self->packed;
    if (self->packed_here)
        add_work(self, STREAM_TO_DEVICE, shards, parallel_packed_here(self, index), share, packed, index);
    else if (self->math)
        self->math->ops->pack_bf16(self->math, weights, (uint16_t *)(void *)share, values);
    else
        add_work(self, STREAM_PACK, shards, weights, share, values, index);
    if (shards->ranks > 1)
        add_work(self, STREAM_GATHER, shards, share, self->packed, packed, index);
    if (self->math)
        self->packed_wrap = index;
    else
        add_work(self, STREAM_UNPACK, shards, self->packed, to, values, index);
}

/* On a device a wrap is unpacked when it is used: earlier, what is computed until then would wait for its gather. */
static void unpack(struct parallel *self, size_t index)
{
    uint64_t values = self->wraps.items[index].share;
    if (self->packed_wrap != index)
        return;
    for (uint32_t i = 0; i < self->shards.ranks; i++)
        self->math->ops->unpack_bf16(self->math,
                                     (const uint16_t *)(const void *)(self->packed + i * stream_packed(values)),
                                     self->in_use[index].whole + i * values, values);
    self->packed_wrap = SIZE_MAX;
}

/* Starts to gather the wrap, unless it is gathered or being gathered. */
static void start_gather(struct parallel *self, size_t index)
{
    const struct fsdp_unit *wrap = &self->wraps.items[index];
    const struct training *training = self->training;
    if (self->in_use[index].whole)
        return;
    float *weights = self->arrays[PARALLEL_WEIGHTS] + wrap->begin;
    if (!self->gathers) {
        self->in_use[index].whole = weights;
        return;
    }
    assert(self->packed_wrap == SIZE_MAX); /* every wrap is used before the next one is gathered */
    float *to = take_slot(self, index)->memory;
    bool shards = training->shard_ranks > 1;
    uint64_t before = self->last_ticket;
    if (training->cpu_offload && !self->packed_here) {
        float *staged = shards ? self->staged_up : to;
        add_work(self, STREAM_TO_DEVICE, &self->shards, weights, staged, wrap->share, index);
        weights = staged;
    }
    if (self->sends_bf16)
        gather_packed(self, weights, to, index);
    else if (shards)
        add_work(self, STREAM_GATHER, &self->shards, weights, to, wrap->share, index);
    else if (training->bf16 && self->math)
        self->math->ops->round_bf16(self->math, weights, to, wrap->share);
    else if (training->bf16)
        add_work(self, STREAM_ROUND, &self->shards, weights, to, wrap->share, index);
    self->in_use[index].whole = to;
    self->in_use[index].ready = self->last_ticket > before ? self->last_ticket : 0;
}

static void give_up(struct parallel *self, size_t index)
{
    for (int i = 0; i < PARALLEL_SLOTS; i++) {
        if (self->slots[i].memory && self->slots[i].wrap == index) {
            self->slots[i].wrap = SIZE_MAX;
            self->gathered--;
        }
    }
    if (self->gathers && self->in_use[index].whole)
        self->whole_values -= padded_values(self, index);
    self->in_use[index].whole = NULL;
}

static void prefetch(struct parallel *self, size_t visit)
{
    size_t next = fsdp_units_next(&self->wraps, visit);
    if (next < self->wraps.visit_count)
        start_gather(self, self->wraps.visits[next].wrap);
}

static void zero(struct parallel *self, float *values, uint64_t count)
{
    if (self->math)
        self->math->ops->fill(self->math, values, 0, count);
    else
        memset(values, 0, count * sizeof *values);
}

/* Where backward accumulates this wrap's gradients; initially zeros. */
static int begin_gradient(struct parallel *self, size_t index, struct timeline *timeline, uint64_t deadline_ns,
                          struct cb_err *err)
{
    const struct fsdp_unit *wrap = &self->wraps.items[index];
    if (self->in_use[index].gradient)
        return 0;
    if (!self->scatters) {
        self->in_use[index].gradient = self->arrays[PARALLEL_GRADIENTS] + wrap->begin;
        zero(self, self->in_use[index].gradient, wrap->share);
        return 0;
    }
    struct slot *slot = wrap->root ? &self->root_gradient : &self->gradient_slots[self->next_gradient_slot];
    if (!wrap->root)
        self->next_gradient_slot = (self->next_gradient_slot + 1) % PARALLEL_SLOTS;
    int rc = compute_after(self, slot->ticket, timeline, deadline_ns, err);
    if (rc)
        return rc;
    zero(self, slot->memory, padded_values(self, index));
    slot->wrap = index;
    self->in_use[index].gradient = slot->memory;
    return 0;
}

/* This rank's gradients of the wrap are complete. */
static void end_gradient(struct parallel *self, size_t index)
{
    const struct fsdp_unit *wrap = &self->wraps.items[index];
    float *gradient = self->in_use[index].gradient, *mine = self->arrays[PARALLEL_GRADIENTS] + wrap->begin;
    self->in_use[index].gradient = NULL;
    if (!self->scatters)
        return;
    bool offload = self->training->cpu_offload, shards = self->training->shard_ranks > 1;
    float *share = !shards ? gradient : offload ? self->staged_down : mine;
    if (shards)
        add_work(self, STREAM_SCATTER, &self->shards, gradient, share, wrap->share, index);
    if (self->replicas.ranks > 1)
        add_work(self, STREAM_REDUCE, &self->replicas, share, share, wrap->share, index);
    if (offload)
        add_work(self, STREAM_TO_HOST, &self->shards, share, mine, wrap->share, index);
    for (int i = 0; i < PARALLEL_SLOTS; i++)
        if (self->gradient_slots[i].memory == gradient)
            self->gradient_slots[i].ticket = self->last_ticket;
    if (wrap->root)
        self->root_gradient.ticket = self->last_ticket;
}

/* Reduces completed gradients, from the end of the arrays, in buckets; with the last stage also the rest. */
static void add_up_buckets(struct parallel *self, size_t stage)
{
    size_t unit = train_model_stage_unit(self->setup.model, stage);
    if (!self->buckets || --self->uses_left[unit] > 0)
        return;
    size_t units = train_model_unit_count(self->setup.model), first = units;
    while (first > 0 && self->uses_left[first - 1] == 0)
        first--;
    if (first == units)
        return;
    const struct fsdp_unit *wrap = &self->wraps.items[self->wraps.wrap_of[first]];
    uint64_t complete = wrap->begin + self->wraps.offset_of[first];
    while (self->bucket_end > complete && (self->bucket_end - complete >= BUCKET_VALUES || complete == 0)) {
        uint64_t values = self->bucket_end < BUCKET_VALUES ? self->bucket_end : BUCKET_VALUES;
        self->bucket_end -= values;
        add_work(self, STREAM_REDUCE, &self->replicas, self->arrays[PARALLEL_GRADIENTS] + self->bucket_end,
                 self->sums + self->bucket_end, values, (size_t)(self->bucket_end / BUCKET_VALUES));
    }
}

/* --- a step --- */

/* A device notes for a trace when a stage starts and ends; the host does not wait for it. */
static int run_stage(struct parallel *self, const struct visit *visit, size_t stage, struct cb_err *err)
{
    struct device *device = self->math && trace_is_active(self->setup.trace) ? self->math->device : NULL;
    size_t unit = train_model_stage_unit(self->setup.model, stage);
    uint64_t offset = self->wraps.offset_of[unit], start = 0, end = 0;
    const float *flat = self->in_use[visit->wrap].whole + offset;
    int rc = device ? device->ops->mark(device, &start, err) : 0;
    if (rc)
        return rc;
    if (!device)
        start = clock_monotonic_ns();
    if (visit->backward)
        train_model_backward(self->setup.model, stage, flat, self->in_use[visit->wrap].gradient + offset);
    else
        train_model_forward(self->setup.model, stage, flat);
    if (device)
        rc = device->ops->mark(device, &end, err);
    else
        end = clock_monotonic_ns();
    if (!rc)
        (device ? trace_add_marked : trace_add_numbered)(
            self->setup.trace, TRACE_COMPUTE, visit->backward ? "backward" : "forward", stage, start, end, 0);
    return rc;
}

static int run_visit(struct parallel *self, size_t index, bool forward_only, struct timeline *timeline,
                     uint64_t deadline_ns, struct cb_err *err)
{
    const struct visit *visit = &self->wraps.visits[index];
    const struct training *training = self->training;
    bool gathers_next =
        self->gathers && !(forward_only && fsdp_units_next(&self->wraps, index) >= self->wraps.forward_count);
    start_gather(self, visit->wrap);
    int rc = compute_after(self, self->in_use[visit->wrap].ready, timeline, deadline_ns, err);
    if (rc)
        return rc;
    unpack(self, visit->wrap);
    if (visit->backward)
        rc = begin_gradient(self, visit->wrap, timeline, deadline_ns, err);
    if (rc)
        return rc;
    if (gathers_next && (visit->backward ? training->backward_prefetch == BACKWARD_PRE : training->forward_prefetch))
        prefetch(self, index);
    for (size_t i = 0; i < visit->stage_count; i++) {
        size_t stage = visit->backward ? visit->first_stage - i : visit->first_stage + i;
        rc = run_stage(self, visit, stage, err);
        if (rc)
            return rc;
        atomic_store_explicit(&timeline->page->progress_ns, clock_monotonic_ns(), memory_order_relaxed);
        if (visit->backward)
            add_up_buckets(self, stage);
    }
    if (gathers_next && visit->backward && training->backward_prefetch == BACKWARD_POST)
        prefetch(self, index);
    if (visit->backward && visit->last)
        end_gradient(self, visit->wrap);
    size_t next = fsdp_units_next(&self->wraps, index);
    bool again = gathers_next && next < self->wraps.visit_count && self->wraps.visits[next].wrap == visit->wrap;
    if (!self->wraps.items[visit->wrap].root && !again)
        give_up(self, visit->wrap);
    return 0;
}

static int run_visits(struct parallel *self, size_t count, struct timeline *timeline, uint64_t deadline_ns,
                      struct cb_err *err)
{
    bool forward_only = count == self->wraps.forward_count;
    int rc = 0;
    if (self->device_stream)
        device_stream_begin(self->device_stream, deadline_ns);
    if (self->packed_here)
        parallel_pack_here(self);
    for (size_t i = 0; i < count && !rc; i++)
        rc = run_visit(self, i, forward_only, timeline, deadline_ns, err);
    for (size_t i = 0; i < self->wraps.count && !rc; i++)
        give_up(self, i);           /* only the root's is left; its weights are about to change */
    if (!rc && self->device_stream) /* the time in which the device also computes */
        rc = device_stream_wait(self->device_stream, self->awaited_ticket, deadline_ns, err);
    return rc ? rc : train_model_finish(self->setup.model, deadline_ns, err);
}

int parallel_gradients(struct parallel *self, struct timeline *timeline, uint64_t deadline_ns, struct cb_err *err)
{
    memset(self->uses_left, 0, train_model_unit_count(self->setup.model) * sizeof *self->uses_left);
    for (size_t i = 0; i < train_model_stage_count(self->setup.model); i++)
        self->uses_left[train_model_stage_unit(self->setup.model, i)]++;
    self->bucket_end = self->wraps.share;
    self->most_whole_values = self->whole_values;
    int rc = run_visits(self, self->wraps.visit_count, timeline, deadline_ns, err);
    return rc ? rc : wait_for(self, self->last_ticket, timeline, deadline_ns, err);
}

int parallel_forward(struct parallel *self, struct timeline *timeline, uint64_t deadline_ns, struct cb_err *err)
{
    return run_visits(self, self->wraps.forward_count, timeline, deadline_ns, err);
}

/* Gradients are sums over all ranks; replicas have equal gradients. */
int parallel_norm(struct parallel *self, struct timeline *timeline, double *numbers, uint32_t count,
                  uint64_t deadline_ns, struct cb_err *err)
{
    uint32_t ranks = self->training->ranks;
    int rc = 0;
    if (self->owner)
        rc = parallel_device_sum_of_squares(self, &numbers[0], deadline_ns, err);
    else
        numbers[0] = optimizer_sum_of_squares(parallel_summed_gradients(self), self->wraps.share,
                                              train_model_team(self->setup.model));
    if (rc)
        return rc;
    timeline_enter(timeline, STATE_EXCHANGE);
    rc = ranks > 1 ? comm_sum(self->setup.comm, numbers, count, deadline_ns, err) : 0;
    timeline_enter(timeline, STATE_OTHER);
    numbers[0] = sqrt(numbers[0] / self->replicas.ranks) / ranks;
    return rc;
}

int parallel_update(struct parallel *self, double learning_rate, double scale, uint64_t step, uint64_t deadline_ns,
                    struct cb_err *err)
{
    struct train_model *model = self->setup.model;
    float *exp_avg = self->arrays[PARALLEL_EXP_AVG], *exp_avg_sq = self->arrays[PARALLEL_EXP_AVG_SQ];
    uint64_t start_ns = clock_monotonic_ns();
    struct share share;
    for (size_t unit = 0; unit < train_model_unit_count(model); unit++) {
        if (!share_of(self, unit, &share))
            continue;
        struct optimizer_range range = {.first = share.first,
                                        .count = share.count,
                                        .weights = self->arrays[PARALLEL_WEIGHTS] + share.at,
                                        .gradients = parallel_summed_gradients(self) + share.at,
                                        .exp_avg = exp_avg ? exp_avg + share.at : NULL,
                                        .exp_avg_sq = exp_avg_sq ? exp_avg_sq + share.at : NULL,
                                        .math = self->owner};
        optimizer_step(&self->setup.optimizer, train_model_unit(model, unit), &range, learning_rate,
                       scale / self->training->ranks, step, train_model_team(model));
    }
    int rc = self->owner ? device_math_finish(self->owner, deadline_ns, err) : 0;
    trace_add(self->setup.trace, TRACE_COMPUTE, "optimizer", start_ns, clock_monotonic_ns(), 0);
    return rc;
}

/* --- locations --- */

float *parallel_place(const struct parallel *self, enum parallel_array array, size_t unit, uint64_t element)
{
    const struct fsdp_unit *wrap = &self->wraps.items[self->wraps.wrap_of[unit]];
    uint64_t flat = self->wraps.offset_of[unit] + element, first = wrap->share * self->shard_index;
    if (!self->arrays[array] || flat < first || flat >= first + wrap->share)
        return NULL;
    return self->arrays[array] + wrap->begin + flat - first;
}

void parallel_flat(const struct parallel *self, size_t unit, uint64_t element, uint64_t *begin, uint64_t *elements)
{
    *begin = self->wraps.offset_of[unit] + element;
    *elements = self->wraps.items[self->wraps.wrap_of[unit]].elements;
}

struct parallel_device_memory parallel_device_memory(const struct parallel *self)
{
    return (struct parallel_device_memory){.base = self->owner ? self->memory : NULL,
                                           .bytes = self->math ? self->bytes : 0,
                                           .counters = self->owner ? self->counters : NULL};
}

struct parallel_figures parallel_figures(const struct parallel *self)
{
    struct parallel_figures figures = {.wraps = self->wraps.count,
                                       .share = self->wraps.share,
                                       .bytes = self->bytes + self->pinned_bytes,
                                       .most_gathered = self->most_gathered,
                                       .gathered_bytes = self->most_whole_values * sizeof(float)};
    for (size_t i = 0; i < self->wraps.count; i++)
        figures.parameters += self->wraps.items[i].elements;
    return figures;
}

struct stream_counts parallel_counts(const struct parallel *self)
{
    if (self->device_stream)
        return device_stream_counts(self->device_stream);
    return self->stream ? stream_counts(self->stream) : (struct stream_counts){0};
}
