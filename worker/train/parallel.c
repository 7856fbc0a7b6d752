/* Data parallelism. Owns the arrays of a rank's share, the buffers that wraps are gathered into, and the order of
 * exchange and computing; must not know files, data or what a stage computes. */
#include "worker/train/parallel.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/clock.h"
#include "core/units.h"
#include "worker/together.h"
#include "worker/train/wraps.h"

#define SLOTS 2
#define BUCKET_VALUES (PARALLEL_BUCKET_BYTES / sizeof(float))

/* A buffer for one whole wrap at a time. */
struct slot {
    float *memory;
    size_t wrap;     /* which has it; SIZE_MAX where free */
    uint64_t ticket; /* of the work that fills or reads it last */
};

struct parallel {
    struct parallel_setup setup;
    const struct training *training; /* setup's */
    struct wraps wraps;
    uint32_t shard_index, replicas;
    bool gathers;                           /* wraps are used from slots, else where they lie */
    bool scatters;                          /* gradients of a wrap are made in slots */
    bool buckets;                           /* gradients are added up in pieces of the whole array, into `sums` */
    struct comm *shard_comm, *replica_comm; /* of the stream; NULL where they have one rank */
    struct stream *stream;                  /* NULL where nothing is exchanged or copied */
    float *arrays[PARALLEL_ARRAYS];         /* wraps.share elements each; moments may be NULL */
    float *sums;
    float *staged_up, *staged_down; /* a share on the device, with CPU offload */
    struct slot slots[SLOTS], root;
    struct slot gradient_slots[SLOTS], root_gradient;
    uint32_t next_gradient_slot, gathered, most_gathered;
    float **whole;    /* of each wrap; NULL where not gathered */
    float **gradient; /* of each wrap, while backward adds to it */
    uint64_t *ready;  /* ticket of each wrap's gather */
    uint64_t last_ticket;
    uint32_t *uses_left; /* of each unit, in the backward pass under way */
    uint64_t bucket_end; /* elements of the arrays from here on are being added up */
    uint64_t bytes;
};

/* --- memory --- */

static int map_floats(struct parallel *self, uint64_t count, float **memory, struct cb_err *err)
{
    char text[32];
    uint64_t bytes = count * sizeof(float);
    if (count == 0)
        return 0;
    void *place = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for %s of training state: use more ranks, or a smaller model",
                       units_format_bytes((double)bytes, text));
    (void)madvise(place, bytes, MADV_HUGEPAGE);
    *memory = place;
    self->bytes += bytes;
    return 0;
}

static void unmap_floats(float *memory, uint64_t count)
{
    if (memory)
        munmap(memory, count * sizeof(float));
}

static bool uses_slots(const struct training *training)
{
    return training->shard_ranks > 1 || training->cpu_offload || training->bf16;
}

static bool uses_gradient_slots(const struct training *training)
{
    return training->shard_ranks > 1 || training->cpu_offload;
}

static bool uses_buckets(const struct training *training)
{
    return !uses_gradient_slots(training) && training->ranks > training->shard_ranks;
}

/* The largest share of a wrap, staged on the device. */
static uint64_t staged_values(const struct wraps *wraps)
{
    uint64_t largest = 0;
    for (size_t i = 0; i < wraps->count; i++)
        largest = wraps->items[i].share > largest ? wraps->items[i].share : largest;
    return largest;
}

static uint64_t values_of(const struct training *training, const struct wraps *wraps, unsigned moments)
{
    uint64_t values = wraps->share * (2 + moments + (uses_buckets(training) ? 1 : 0));
    if (uses_slots(training))
        values += SLOTS * wraps->largest + wraps->root_padded;
    if (uses_gradient_slots(training))
        values += SLOTS * wraps->largest + wraps->root_padded;
    if (training->cpu_offload)
        values += 2 * staged_values(wraps);
    return values;
}

uint64_t parallel_bytes(const struct training *training, const struct model *model, unsigned moments)
{
    uint64_t root = training->linear ? 0 : 1, values = 0;
    struct wraps wraps;
    uint64_t *units = calloc(model->layers + 1, sizeof *units);
    for (size_t i = 0; units && i < model->count; i++) {
        const struct model_tensor *tensor = &model->tensors[i];
        struct box whole = box_whole(tensor->dims, tensor->shape);
        units[tensor->layer >= 0 ? root + (uint64_t)tensor->layer : 0] += box_elements(&whole);
    }
    if (units && wraps_init(&wraps, training, units, model->layers + root, NULL, 0, NULL) == 0) {
        values = values_of(training, &wraps, moments);
        wraps_release(&wraps);
    }
    free(units);
    return values * sizeof(float);
}

static int map_arrays(struct parallel *self, struct cb_err *err)
{
    const struct wraps *wraps = &self->wraps;
    unsigned moments = optimizer_moments(self->setup.optimizer.kind);
    int rc = map_floats(self, wraps->share, &self->arrays[PARALLEL_WEIGHTS], err);
    if (!rc)
        rc = map_floats(self, wraps->share, &self->arrays[PARALLEL_GRADIENTS], err);
    if (!rc)
        rc = map_floats(self, moments > 0 ? wraps->share : 0, &self->arrays[PARALLEL_EXP_AVG], err);
    if (!rc)
        rc = map_floats(self, moments > 1 ? wraps->share : 0, &self->arrays[PARALLEL_EXP_AVG_SQ], err);
    if (!rc)
        rc = map_floats(self, self->buckets ? wraps->share : 0, &self->sums, err);
    return rc;
}

static int map_slots(struct parallel *self, bool wanted, struct slot *slots, struct slot *root, struct cb_err *err)
{
    int rc = map_floats(self, wanted ? self->wraps.root_padded : 0, &root->memory, err);
    for (int i = 0; i < SLOTS && !rc; i++) {
        slots[i].wrap = SIZE_MAX;
        rc = map_floats(self, wanted ? self->wraps.largest : 0, &slots[i].memory, err);
    }
    return rc;
}

static int map_all(struct parallel *self, struct cb_err *err)
{
    uint64_t staged = self->training->cpu_offload ? staged_values(&self->wraps) : 0;
    int rc = map_arrays(self, err);
    if (!rc)
        rc = map_slots(self, self->gathers, self->slots, &self->root, err);
    if (!rc)
        rc = map_slots(self, self->scatters, self->gradient_slots, &self->root_gradient, err);
    if (!rc)
        rc = map_floats(self, staged, &self->staged_up, err);
    return rc ? rc : map_floats(self, staged, &self->staged_down, err);
}

static void unmap_all(struct parallel *self)
{
    for (int i = 0; i < PARALLEL_ARRAYS; i++)
        unmap_floats(self->arrays[i], self->wraps.share);
    unmap_floats(self->sums, self->wraps.share);
    for (int i = 0; i < SLOTS; i++) {
        unmap_floats(self->slots[i].memory, self->wraps.largest);
        unmap_floats(self->gradient_slots[i].memory, self->wraps.largest);
    }
    unmap_floats(self->root.memory, self->wraps.root_padded);
    unmap_floats(self->root_gradient.memory, self->wraps.root_padded);
    unmap_floats(self->staged_up, staged_values(&self->wraps));
    unmap_floats(self->staged_down, staged_values(&self->wraps));
}

/* --- making it --- */

static int make_wraps(struct parallel *self, struct cb_err *err)
{
    const struct train_model *model = self->setup.model;
    size_t unit_count = train_model_unit_count(model), stage_count = train_model_stage_count(model);
    uint64_t *units = calloc(unit_count + 1, sizeof *units);
    size_t *stages = calloc(stage_count + 1, sizeof *stages);
    int rc = units && stages ? 0 : cb_fail(err, CB_ERR_MEMORY, "no memory for the list of %zu units", unit_count);
    for (size_t i = 0; i < unit_count && !rc; i++)
        units[i] = train_model_unit(model, i)->elements;
    for (size_t i = 0; i < stage_count && !rc; i++)
        stages[i] = train_model_stage_unit(model, i);
    if (!rc)
        rc = wraps_init(&self->wraps, self->training, units, unit_count, stages, stage_count, err);
    free(units);
    free(stages);
    for (size_t i = 0; i < self->wraps.count && !rc; i++)
        if (self->training->ranks > 1 && self->wraps.items[i].share > COMM_MOST_VALUES)
            rc = cb_fail(err, CB_ERR_USAGE,
                         "a wrap of %" PRIu64 " parameters is more than MPI moves at once: use "
                         "train.auto_wrap_policy=module_wrap",
                         self->wraps.items[i].elements);
    return rc;
}

static int make_lists(struct parallel *self, struct cb_err *err)
{
    size_t wraps = self->wraps.count, units = train_model_unit_count(self->setup.model);
    self->whole = calloc(wraps + 1, sizeof *self->whole);
    self->gradient = calloc(wraps + 1, sizeof *self->gradient);
    self->ready = calloc(wraps + 1, sizeof *self->ready);
    self->uses_left = calloc(units + 1, sizeof *self->uses_left);
    if (!self->whole || !self->gradient || !self->ready || !self->uses_left)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for the list of %zu wraps", wraps);
    return 0;
}

/* Groups of neighbours shard; ranks with the same place in theirs are replicas. Collective. */
static int make_stream(struct parallel *self, struct cb_err *err)
{
    struct comm *comm = self->setup.comm;
    uint32_t shards = self->training->shard_ranks, rank = comm_rank(comm);
    int rc = shards > 1 ? comm_part(comm, rank / shards, &self->shard_comm, err) : 0;
    if (!rc && self->replicas > 1)
        rc = comm_part(comm, rank % shards, &self->replica_comm, err);
    if (!rc && (self->gathers || self->scatters || self->buckets))
        rc = stream_new(comm, self->setup.device, self->setup.trace, &self->stream, err);
    return rc;
}

/* Calls for each unit of each wrap that has elements in this rank's share: [first, first + count) of the unit, which
 * begin at element `at` of the arrays. */
typedef void (*share_fn)(void *context, struct parallel *self, size_t unit, uint64_t first, uint64_t count,
                         uint64_t at);

static void each_share(struct parallel *self, share_fn each, void *context)
{
    for (size_t w = 0; w < self->wraps.count; w++) {
        const struct wrap *wrap = &self->wraps.items[w];
        uint64_t share_begin = wrap->share * self->shard_index, share_end = share_begin + wrap->share;
        for (size_t unit = wrap->first_unit; unit < wrap->first_unit + wrap->unit_count; unit++) {
            uint64_t begin = self->wraps.offset_of[unit];
            uint64_t end = begin + train_model_unit(self->setup.model, unit)->elements;
            uint64_t from = begin > share_begin ? begin : share_begin, to = end < share_end ? end : share_end;
            if (from < to)
                each(context, self, unit, from - begin, to - from, wrap->begin + from - share_begin);
        }
    }
}

static void init_share(void *context, struct parallel *self, size_t unit, uint64_t first, uint64_t count, uint64_t at)
{
    (void)context;
    train_model_init(self->setup.model, unit, first, count, self->setup.seed, self->arrays[PARALLEL_WEIGHTS] + at);
}

static void release(struct parallel *self)
{
    unmap_all(self);
    comm_free(self->shard_comm);
    comm_free(self->replica_comm);
    free(self->whole);
    free(self->gradient);
    free(self->ready);
    free(self->uses_left);
    wraps_release(&self->wraps);
    free(self);
}

int parallel_new(const struct parallel_setup *setup, uint64_t deadline_ns, struct parallel **parallel,
                 struct cb_err *err)
{
    struct parallel *self = calloc(1, sizeof *self);
    if (!self)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for training");
    self->setup = *setup;
    self->training = setup->training;
    self->shard_index = comm_rank(setup->comm) % self->training->shard_ranks;
    self->replicas = self->training->ranks / self->training->shard_ranks;
    self->gathers = uses_slots(self->training);
    self->scatters = uses_gradient_slots(self->training);
    self->buckets = uses_buckets(self->training);
    int rc = make_wraps(self, err);
    if (!rc)
        rc = make_lists(self, err);
    if (!rc)
        rc = map_all(self, err);
    rc = together(setup->comm, rc, deadline_ns, err); /* dividing ranks needs all of them */
    if (!rc)
        rc = make_stream(self, err);
    if (rc) {
        release(self); /* the stream is what is made last */
        return rc;
    }
    each_share(self, init_share, NULL);
    *parallel = self;
    return 0;
}

bool parallel_stop(struct parallel *self)
{
    if (!self || !self->stream)
        return true;
    bool stopped = stream_stop(self->stream);
    if (stopped) {
        stream_free(self->stream);
        self->stream = NULL;
    }
    return stopped;
}

void parallel_free(struct parallel *self)
{
    if (self && parallel_stop(self)) /* else it may still be written to */
        release(self);
}

/* --- exchange --- */

static uint64_t add_work(struct parallel *self, enum stream_kind kind, struct comm *comm, const float *from, float *to,
                         uint64_t values, size_t wrap)
{
    struct stream_work work = {
        .kind = kind, .comm = comm, .from = from, .to = to, .values = values, .number = (uint32_t)wrap};
    self->last_ticket = stream_add(self->stream, &work);
    return self->last_ticket;
}

static int wait_for(struct parallel *self, uint64_t ticket, struct timeline *timeline, uint64_t deadline_ns,
                    struct cb_err *err)
{
    if (!self->stream || stream_is_done(self->stream, ticket))
        return 0;
    timeline_enter(timeline, STATE_EXCHANGE);
    int rc = stream_wait(self->stream, ticket, deadline_ns, err);
    timeline_enter(timeline, STATE_OTHER);
    return rc;
}

static struct slot *take_slot(struct parallel *self, size_t wrap)
{
    if (self->wraps.items[wrap].root)
        return &self->root;
    struct slot *slot = self->slots[0].wrap == SIZE_MAX ? &self->slots[0] : &self->slots[1];
    assert(slot->wrap == SIZE_MAX); /* the order of visits needs no more than two */
    slot->wrap = wrap;
    self->gathered++;
    if (self->gathered > self->most_gathered)
        self->most_gathered = self->gathered;
    return slot;
}

/* Begins to make the wrap whole, unless it is or becomes so. */
static void start_gather(struct parallel *self, size_t index)
{
    const struct wrap *wrap = &self->wraps.items[index];
    const struct training *training = self->training;
    if (self->whole[index])
        return;
    float *weights = self->arrays[PARALLEL_WEIGHTS] + wrap->begin;
    if (!self->gathers) {
        self->whole[index] = weights;
        return;
    }
    float *to = take_slot(self, index)->memory;
    bool shards = training->shard_ranks > 1;
    if (training->cpu_offload) {
        float *staged = shards ? self->staged_up : to;
        add_work(self, STREAM_TO_DEVICE, NULL, weights, staged, wrap->share, index);
        weights = staged;
    }
    if (shards)
        add_work(self, STREAM_GATHER, self->shard_comm, weights, to, wrap->share, index);
    if (training->bf16)
        add_work(self, STREAM_ROUND, NULL, shards || training->cpu_offload ? to : weights, to,
                 wrap->share * training->shard_ranks, index);
    self->whole[index] = to;
    self->ready[index] = self->last_ticket;
}

static void give_up(struct parallel *self, size_t index)
{
    for (int i = 0; i < SLOTS; i++) {
        if (self->slots[i].memory && self->slots[i].wrap == index) {
            self->slots[i].wrap = SIZE_MAX;
            self->gathered--;
        }
    }
    self->whole[index] = NULL;
}

static void prefetch(struct parallel *self, size_t visit)
{
    size_t next = wraps_next(&self->wraps, visit);
    if (next < self->wraps.visit_count)
        start_gather(self, self->wraps.visits[next].wrap);
}

/* Where backward adds this wrap's gradients; zeros at first. */
static int begin_gradient(struct parallel *self, size_t index, struct timeline *timeline, uint64_t deadline_ns,
                          struct cb_err *err)
{
    const struct wrap *wrap = &self->wraps.items[index];
    if (self->gradient[index])
        return 0;
    if (!self->scatters) {
        self->gradient[index] = self->arrays[PARALLEL_GRADIENTS] + wrap->begin;
        memset(self->gradient[index], 0, wrap->share * sizeof(float));
        return 0;
    }
    struct slot *slot = wrap->root ? &self->root_gradient : &self->gradient_slots[self->next_gradient_slot];
    if (!wrap->root)
        self->next_gradient_slot = (self->next_gradient_slot + 1) % SLOTS;
    int rc = wait_for(self, slot->ticket, timeline, deadline_ns, err);
    if (rc)
        return rc;
    memset(slot->memory, 0, wrap->share * self->training->shard_ranks * sizeof(float));
    slot->wrap = index;
    self->gradient[index] = slot->memory;
    return 0;
}

/* This rank has added all it will to the wrap's gradients. */
static void end_gradient(struct parallel *self, size_t index)
{
    const struct wrap *wrap = &self->wraps.items[index];
    float *gradient = self->gradient[index], *mine = self->arrays[PARALLEL_GRADIENTS] + wrap->begin;
    self->gradient[index] = NULL;
    if (!self->scatters)
        return;
    bool offload = self->training->cpu_offload, shards = self->training->shard_ranks > 1;
    float *share = !shards ? gradient : offload ? self->staged_down : mine;
    if (shards)
        add_work(self, STREAM_SCATTER, self->shard_comm, gradient, share, wrap->share, index);
    if (self->replicas > 1)
        add_work(self, STREAM_REDUCE, self->replica_comm, share, share, wrap->share, index);
    if (offload)
        add_work(self, STREAM_TO_HOST, NULL, share, mine, wrap->share, index);
    for (int i = 0; i < SLOTS; i++)
        if (self->gradient_slots[i].memory == gradient)
            self->gradient_slots[i].ticket = self->last_ticket;
    if (wrap->root)
        self->root_gradient.ticket = self->last_ticket;
}

/* Adds up what is complete, from the end of the arrays on, in buckets; the rest with the last stage. */
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
    const struct wrap *wrap = &self->wraps.items[self->wraps.wrap_of[first]];
    uint64_t complete = wrap->begin + self->wraps.offset_of[first];
    while (self->bucket_end > complete && (self->bucket_end - complete >= BUCKET_VALUES || complete == 0)) {
        uint64_t values = self->bucket_end < BUCKET_VALUES ? self->bucket_end : BUCKET_VALUES;
        self->bucket_end -= values;
        add_work(self, STREAM_REDUCE, self->replica_comm, self->arrays[PARALLEL_GRADIENTS] + self->bucket_end,
                 self->sums + self->bucket_end, values, (size_t)(self->bucket_end / BUCKET_VALUES));
    }
}

/* --- a step --- */

static void run_stage(struct parallel *self, const struct visit *visit, size_t stage)
{
    size_t unit = train_model_stage_unit(self->setup.model, stage);
    uint64_t offset = self->wraps.offset_of[unit], start_ns = clock_monotonic_ns();
    const float *flat = self->whole[visit->wrap] + offset;
    if (visit->backward)
        train_model_backward(self->setup.model, stage, flat, self->gradient[visit->wrap] + offset);
    else
        train_model_forward(self->setup.model, stage, flat);
    trace_add_numbered(self->setup.trace, TRACE_COMPUTE, visit->backward ? "backward" : "forward", stage, start_ns,
                       clock_monotonic_ns(), 0);
}

static int run_visit(struct parallel *self, size_t index, bool forward_only, struct timeline *timeline,
                     uint64_t deadline_ns, struct cb_err *err)
{
    const struct visit *visit = &self->wraps.visits[index];
    const struct training *training = self->training;
    bool gathers_next =
        self->gathers && !(forward_only && wraps_next(&self->wraps, index) >= self->wraps.forward_count);
    start_gather(self, visit->wrap);
    int rc = wait_for(self, self->ready[visit->wrap], timeline, deadline_ns, err);
    if (!rc && visit->backward)
        rc = begin_gradient(self, visit->wrap, timeline, deadline_ns, err);
    if (rc)
        return rc;
    if (gathers_next && (visit->backward ? training->backward_prefetch == BACKWARD_PRE : training->forward_prefetch))
        prefetch(self, index);
    for (size_t i = 0; i < visit->stage_count; i++) {
        size_t stage = visit->backward ? visit->first_stage - i : visit->first_stage + i;
        run_stage(self, visit, stage);
        atomic_store_explicit(&timeline->page->progress_ns, clock_monotonic_ns(), memory_order_relaxed);
        if (visit->backward)
            add_up_buckets(self, stage);
    }
    if (gathers_next && visit->backward && training->backward_prefetch == BACKWARD_POST)
        prefetch(self, index);
    if (visit->backward && visit->last)
        end_gradient(self, visit->wrap);
    size_t next = wraps_next(&self->wraps, index);
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
    for (size_t i = 0; i < count && !rc; i++)
        rc = run_visit(self, i, forward_only, timeline, deadline_ns, err);
    for (size_t i = 0; i < self->wraps.count && !rc; i++)
        give_up(self, i); /* the root's; weights are about to change */
    return rc;
}

int parallel_gradients(struct parallel *self, struct timeline *timeline, uint64_t deadline_ns, struct cb_err *err)
{
    memset(self->uses_left, 0, train_model_unit_count(self->setup.model) * sizeof *self->uses_left);
    for (size_t i = 0; i < train_model_stage_count(self->setup.model); i++)
        self->uses_left[train_model_stage_unit(self->setup.model, i)]++;
    self->bucket_end = self->wraps.share;
    int rc = run_visits(self, self->wraps.visit_count, timeline, deadline_ns, err);
    return rc ? rc : wait_for(self, self->last_ticket, timeline, deadline_ns, err);
}

int parallel_forward(struct parallel *self, struct timeline *timeline, uint64_t deadline_ns, struct cb_err *err)
{
    return run_visits(self, self->wraps.forward_count, timeline, deadline_ns, err);
}

static const float *summed_gradients(const struct parallel *self)
{
    return self->buckets ? self->sums : self->arrays[PARALLEL_GRADIENTS];
}

/* Gradients are sums over all ranks; replicas have the same of them. */
int parallel_norm(struct parallel *self, struct timeline *timeline, double *numbers, uint32_t count,
                  uint64_t deadline_ns, struct cb_err *err)
{
    uint32_t ranks = self->training->ranks;
    numbers[0] =
        optimizer_sum_of_squares(summed_gradients(self), self->wraps.share, train_model_team(self->setup.model));
    timeline_enter(timeline, STATE_EXCHANGE);
    int rc = ranks > 1 ? comm_sum(self->setup.comm, numbers, count, deadline_ns, err) : 0;
    timeline_enter(timeline, STATE_OTHER);
    numbers[0] = sqrt(numbers[0] / self->replicas) / ranks;
    return rc;
}

struct update {
    double learning_rate, scale;
    uint64_t step;
};

static void update_share(void *context, struct parallel *self, size_t unit, uint64_t first, uint64_t count, uint64_t at)
{
    const struct update *update = context;
    struct optimizer_range range = {
        .first = first,
        .count = count,
        .weights = self->arrays[PARALLEL_WEIGHTS] + at,
        .gradients = summed_gradients(self) + at,
    };
    if (self->arrays[PARALLEL_EXP_AVG])
        range.exp_avg = self->arrays[PARALLEL_EXP_AVG] + at;
    if (self->arrays[PARALLEL_EXP_AVG_SQ])
        range.exp_avg_sq = self->arrays[PARALLEL_EXP_AVG_SQ] + at;
    optimizer_step(&self->setup.optimizer, train_model_unit(self->setup.model, unit), &range, update->learning_rate,
                   update->scale, update->step, train_model_team(self->setup.model));
}

void parallel_update(struct parallel *self, double learning_rate, double scale, uint64_t step)
{
    struct update update = {learning_rate, scale / self->training->ranks, step};
    uint64_t start_ns = clock_monotonic_ns();
    each_share(self, update_share, &update);
    trace_add(self->setup.trace, TRACE_COMPUTE, "optimizer", start_ns, clock_monotonic_ns(), 0);
}

/* --- what lies where --- */

float *parallel_place(const struct parallel *self, enum parallel_array array, size_t unit, uint64_t element)
{
    const struct wrap *wrap = &self->wraps.items[self->wraps.wrap_of[unit]];
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

struct parallel_figures parallel_figures(const struct parallel *self)
{
    struct parallel_figures figures = {.wraps = self->wraps.count,
                                       .share = self->wraps.share,
                                       .bytes = self->bytes,
                                       .most_gathered = self->most_gathered};
    for (size_t i = 0; i < self->wraps.count; i++)
        figures.parameters += self->wraps.items[i].elements;
    return figures;
}

struct stream_counts parallel_counts(const struct parallel *self)
{
    return self->stream ? stream_counts(self->stream) : (struct stream_counts){0};
}
