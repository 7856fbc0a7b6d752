/* Ranks that train with a device each: what they send each other goes from device to device, late and in order
 * (fake_comm.h), behind and before what the devices compute (fake_math.h). Their losses and weights are those of one
 * rank of this machine that has all their samples. Nothing of it goes by way of this machine. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/fake_comm.h"
#include "tests/unit/fake_math.h"
#include "tests/unit/thread_comm.h"
#include "train/parallel.h"

#define MOST_RANKS 6
#define STEPS 4
#define TIMEOUT_NS (120 * NS_PER_S)
#define TOLERANCE 1e-5
#define TRACED 1000 /* events of a track */
#define STAGES 5    /* of gpt2() */

/* --- what ranks may not exchange by way of this machine --- */

int comm_part(struct comm *comm, uint32_t color, struct comm **part, struct cb_err *err)
{
    (void)comm, (void)color, (void)part;
    return cb_fail(err, CB_ERR_INTERNAL, "ranks of devices were divided");
}

void comm_free(struct comm *comm)
{
    (void)comm;
}

int comm_start_all_gather(struct comm *comm, const void *mine, void *all, uint64_t values, struct comm_message *message,
                          struct cb_err *err)
{
    (void)comm, (void)mine, (void)all, (void)values, (void)message;
    return cb_fail(err, CB_ERR_INTERNAL, "gathered by way of this machine");
}

int comm_start_reduce_scatter(struct comm *comm, const float *all, float *mine, uint64_t values,
                              struct comm_message *message, struct cb_err *err)
{
    (void)comm, (void)mine, (void)all, (void)values, (void)message;
    return cb_fail(err, CB_ERR_INTERNAL, "scattered by way of this machine");
}

int comm_start_all_reduce(struct comm *comm, const float *mine, float *sum, uint64_t values,
                          struct comm_message *message, struct cb_err *err)
{
    (void)comm, (void)mine, (void)sum, (void)values, (void)message;
    return cb_fail(err, CB_ERR_INTERNAL, "reduced by way of this machine");
}

static double brought[MOST_RANKS][COMM_MOST_SUMS];

int comm_sum(struct comm *comm, double *numbers, uint32_t count, uint64_t deadline_ns, struct cb_err *err)
{
    memcpy(brought[comm->rank], numbers, count * sizeof *numbers);
    int rc = comm_barrier(comm, deadline_ns, err);
    for (uint32_t i = 0; i < count && !rc; i++) {
        numbers[i] = 0;
        for (uint32_t rank = 0; rank < comm_size(comm); rank++)
            numbers[i] += brought[rank][i];
    }
    return rc ? rc : comm_barrier(comm, deadline_ns, err);
}

/* --- ranks --- */

/* How ranks share: of `ranks` that many hold the state together. */
struct way {
    struct train_setup setup; /* with the samples of all ranks together */
    uint32_t ranks, shards;
    bool ddp, bf16, forward_prefetch, offload, traced;
    enum wrap_policy wrap;
    enum backward_prefetch backward;
    enum optimizer_kind optimizer;
    uint64_t fail_talk_at; /* of the last rank's device */
    uint32_t seed;
};

struct rank {
    const struct way *way;
    struct rank *all;
    struct comm comm;
    struct status_page *page;
    struct training training;
    struct train_setup setup;
    struct train_model *model;
    struct trace trace;
    struct parallel *parallel;
    struct fake_device *device;
    double losses[STEPS], norms[STEPS];
    float *weights;             /* after the last step: of all units, those of others are NaN */
    uint64_t waits, talk_waits; /* of the host for the device, in the last step */
    struct stream_counts counts;
    struct parallel_figures figures;
    int code;
    struct cb_err err;
};

static uint64_t deadline(void)
{
    return clock_monotonic_ns() + TIMEOUT_NS;
}

/* What is asked must succeed; asserts of cmocka end only the thread that began the test. */
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        struct cb_err must_err = {0};                                                                                  \
        if ((call)) {                                                                                                  \
            fprintf(stderr, "%s: %s\n", #call, must_err.message);                                                      \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

static struct train_setup gpt2(uint32_t batch, float dropout)
{
    return (struct train_setup){
        .shape =
            {.kind = TRAIN_GPT2, .layers = 3, .width = 24, .heads = 3, .positions = 11, .vocabulary = 19, .bias = true},
        .batch = batch,
        .sequence = 9,
        .dropout = dropout,
        .seed = 5,
        .threads = 1};
}

static struct train_setup linear(uint32_t batch)
{
    return (struct train_setup){.shape = {.kind = TRAIN_LINEAR, .layers = 3, .width = 17, .bias = true},
                                .batch = batch,
                                .sequence = 1,
                                .threads = 1};
}

static int step(struct rank *self, uint64_t number)
{
    uint64_t rows = (uint64_t)self->setup.batch * self->setup.sequence, first = self->comm.rank * rows;
    uint64_t vocabulary = self->setup.shape.vocabulary ? self->setup.shape.vocabulary : 1,
             width = self->setup.shape.width;
    uint32_t *tokens = calloc(2 * rows, sizeof *tokens);
    float *input = calloc(rows * width, sizeof *input);
    struct timeline timeline;
    double sums[2] = {0};
    for (uint64_t i = 0; i < rows; i++) {
        tokens[i] = (uint32_t)(rng_mix(1000 * number + first + i) % vocabulary);
        tokens[rows + i] = (uint32_t)(rng_mix(500000 + 1000 * number + first + i) % vocabulary);
    }
    for (uint64_t i = 0; i < rows * width; i++)
        input[i] = (float)((double)(rng_mix(100000 * number + first * width + i) >> 11) * 0x1p-53 - 0.5);
    struct train_batch batch = {.step = number,
                                .first_sample = (uint64_t)self->comm.rank * self->setup.batch,
                                .training = true,
                                .tokens = tokens,
                                .targets = tokens + rows,
                                .input = input};
    timeline_start(&timeline, self->page, OP_STEP, STATE_OTHER);
    uint64_t waits = self->device ? self->device->waits : 0, talk_waits = self->device ? self->device->talk_waits : 0;
    trace_begin_step(&self->trace, number);
    if (self->way->traced)
        MUST(self->device->base.ops->begin_marks(&self->device->base, &must_err));
    int rc = train_model_begin(self->model, &batch, &self->err);
    if (!rc)
        rc = parallel_gradients(self->parallel, &timeline, deadline(), &self->err);
    sums[1] = train_model_loss(self->model) / self->way->ranks;
    if (!rc)
        rc = parallel_norm(self->parallel, &timeline, sums, 2, deadline(), &self->err);
    self->losses[number] = sums[1];
    self->norms[number] = sums[0];
    if (!rc)
        rc =
            parallel_update(self->parallel, 1e-2, optimizer_clip_scale(sums[0], 1), number + 1, deadline(), &self->err);
    self->waits = self->device ? self->device->waits - waits : 0;
    self->talk_waits = self->device ? self->device->talk_waits - talk_waits : 0;
    if (self->way->traced)
        trace_take_times(&self->trace, &self->device->base);
    timeline_stop(&timeline);
    free(tokens);
    free(input);
    return rc;
}

static void fetch_weights(struct rank *self)
{
    uint64_t elements = 0, at = 0;
    for (size_t u = 0; u < train_model_unit_count(self->model); u++)
        elements += train_model_unit(self->model, u)->elements;
    self->weights = calloc(elements, sizeof(float));
    for (size_t u = 0; u < train_model_unit_count(self->model); u++) {
        for (uint64_t i = 0; i < train_model_unit(self->model, u)->elements; i++, at++) {
            const float *place = parallel_place(self->parallel, PARALLEL_WEIGHTS, u, i);
            self->weights[at] = NAN;
            if (place)
                memcpy(&self->weights[at], self->device ? fake_where(self->device, place, sizeof *place) : place,
                       sizeof *place);
        }
    }
}

static void open_rank(struct rank *self, uint32_t ranks)
{
    const struct way *way = self->way;
    self->setup = way->setup;
    self->setup.batch = way->setup.batch / ranks;
    self->training = (struct training){.ddp = way->ddp,
                                       .linear = way->setup.shape.kind == TRAIN_LINEAR,
                                       .ranks = ranks,
                                       .shard_ranks = ranks > 1 ? way->shards : 1,
                                       .wrap = way->wrap,
                                       .bf16 = way->bf16,
                                       .cpu_offload = self->device && way->offload,
                                       .backward_prefetch = way->backward,
                                       .forward_prefetch = way->forward_prefetch,
                                       .batch = self->setup.batch,
                                       .sequence = self->setup.sequence};
    if (self->device)
        MUST(fake_math_open(&self->device->base, &self->setup.math, &must_err));
    MUST(train_model_new(&self->setup, &self->model, &must_err));
    MUST(trace_init(&self->trace, way->traced ? TRACED : 0, &must_err));
    trace_start(&self->trace, clock_monotonic_ns());
    struct parallel_setup setup = {.training = &self->training,
                                   .comm = &self->comm,
                                   .model = self->model,
                                   .trace = &self->trace,
                                   .math = self->setup.math,
                                   .device_comm = self->device ? &fake_comm_ops : NULL,
                                   .optimizer = optimizer_default(way->optimizer),
                                   .seed = 5};
    self->code = parallel_new(&setup, deadline(), &self->parallel, &self->err);
}

static void close_rank(struct rank *self)
{
    parallel_free(self->parallel);
    train_model_free(self->model);
    if (self->setup.math)
        self->setup.math->ops->close(self->setup.math);
    if (!self->device)
        return;
    if (self->device->allocations != 0)
        abort();
    device_close(&self->device->base);
}

static void *run_rank(void *context)
{
    struct rank *self = context;
    open_rank(self, comm_size(&self->comm));
    for (uint64_t i = 0; i < STEPS && !self->code; i++)
        self->code = step(self, i);
    if (!self->code) {
        fetch_weights(self);
        self->counts = parallel_counts(self->parallel);
        self->figures = parallel_figures(self->parallel);
    }
    for (uint32_t i = 0; self->code && i < comm_size(&self->comm); i++) /* as the agent does */
        self->all[i].page->stop = STOP_NOW;
    close_rank(self);
    return NULL;
}

static void run_ranks(const struct way *way, uint32_t count, bool on_devices, struct rank *ranks)
{
    pthread_t threads[MOST_RANKS];
    struct meeting meeting;
    meeting_init(&meeting, count);
    for (uint32_t i = 0; i < count; i++) {
        struct status_page *page = calloc(1, sizeof *page);
        ranks[i] = (struct rank){.way = way, .all = ranks, .page = page};
        ranks[i].comm =
            (struct comm){.meeting = &meeting, .rank = i, .check = status_page_check, .check_context = page};
        if (on_devices)
            ranks[i].device = fake_device_new(way->seed + 31 * i, 3);
        if (on_devices && i + 1 == count)
            ranks[i].device->fail_talk_at = way->fail_talk_at;
    }
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ranks[i]), 0);
    for (uint32_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < count; i++)
        free(ranks[i].page);
    free(meeting.messages);
    assert_int_equal(fake_rooms.open, 0);
}

static void free_ranks(struct rank *ranks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        free(ranks[i].weights);
    for (uint32_t i = 0; i < count; i++)
        trace_release(&ranks[i].trace);
}

static void assert_near(double ours, double theirs, double tolerance, const char *what, uint64_t where)
{
    if (!(fabs(ours - theirs) <= tolerance * fabs(ours)))
        fail_msg("%s %llu: %.9g with one rank here, %.9g on devices", what, (unsigned long long)where, ours, theirs);
}

/* One rank here has the losses, the norms and the weights of the ranks with devices. */
static void compare(const struct way *way, struct rank *ranks)
{
    struct rank alone;
    run_ranks(
        &(struct way){
            .setup = way->setup, .ranks = 1, .bf16 = way->bf16, .wrap = way->wrap, .optimizer = way->optimizer},
        1, false, &alone);
    run_ranks(way, way->ranks, true, ranks);
    assert_int_equal(alone.code, 0);
    for (uint32_t i = 0; i < way->ranks; i++) {
        if (ranks[i].code)
            fail_msg("rank %u: %s", i, ranks[i].err.message);
        for (uint64_t k = 0; k < STEPS; k++) {
            assert_near(alone.losses[k], ranks[i].losses[k], TOLERANCE, "loss of step", k);
            assert_near(alone.norms[k], ranks[i].norms[k], 1e-4, "norm of step", k);
        }
    }
    uint64_t elements = 0, missing = 0;
    double difference = 0, norm = 0;
    elements = ranks[0].figures.parameters;
    for (uint64_t e = 0; e < elements; e++) {
        uint32_t holders = 0;
        for (uint32_t i = 0; i < way->ranks; i++) {
            double value = (double)ranks[i].weights[e], ours = (double)alone.weights[e];
            if (isnan(value))
                continue;
            holders++;
            difference += (value - ours) * (value - ours);
            norm += ours * ours;
        }
        missing += holders != way->ranks / way->shards;
    }
    assert_int_equal(missing, 0);
    /* AdamW makes steps of full size out of gradients that are 0 but for rounding (of the bias of keys). */
    if (!(sqrt(difference) <= (way->optimizer == OPTIMIZER_SGD ? 1e-5 : 3e-2) * sqrt(norm)))
        fail_msg("weights differ by %g of %g", sqrt(difference), sqrt(norm));
    free_ranks(&alone, 1);
}

static void run_way(struct way way)
{
    struct rank ranks[MOST_RANKS];
    compare(&way, ranks);
    free_ranks(ranks, way.ranks);
}

static void ddp_on_devices_is_one_rank_with_all_samples(void **unused)
{
    (void)unused;
    run_way((struct way){.setup = gpt2(4, 0.1f), .ranks = 2, .shards = 1, .ddp = true, .seed = 1});
    run_way(
        (struct way){.setup = gpt2(6, 0), .ranks = 3, .shards = 1, .ddp = true, .optimizer = OPTIMIZER_SGD, .seed = 2});
    run_way((struct way){.setup = linear(8), .ranks = 4, .shards = 1, .ddp = true, .seed = 3});
    run_way((struct way){.setup = gpt2(4, 0), .ranks = 2, .shards = 1, .ddp = true, .bf16 = true, .seed = 4});
}

static void fsdp_on_devices_is_one_rank_with_all_samples(void **unused)
{
    (void)unused;
    run_way((struct way){.setup = gpt2(4, 0.1f), .ranks = 2, .shards = 2, .seed = 1});
    run_way((struct way){.setup = gpt2(6, 0), .ranks = 3, .shards = 3, .wrap = WRAP_NONE, .seed = 2});
    run_way((struct way){.setup = linear(10), .ranks = 5, .shards = 5, .seed = 3});
}

static void every_prefetch_and_order_of_events_leads_to_the_same(void **unused)
{
    (void)unused;
    static const enum backward_prefetch backward[] = {BACKWARD_PRE, BACKWARD_POST, BACKWARD_NONE};
    for (uint32_t i = 0; i < 12; i++)
        run_way((struct way){.setup = gpt2(4, 0),
                             .ranks = 2,
                             .shards = 2,
                             .backward = backward[i % 3],
                             .forward_prefetch = i / 3 % 2,
                             .bf16 = i / 6 % 2,
                             .seed = 100 + i});
}

static void hybrid_on_devices_is_one_rank_with_all_samples(void **unused)
{
    (void)unused;
    run_way((struct way){.setup = gpt2(4, 0.1f), .ranks = 4, .shards = 2, .seed = 1});
    run_way((struct way){.setup = gpt2(6, 0), .ranks = 6, .shards = 3, .bf16 = true, .seed = 2});
    run_way((struct way){.setup = linear(8), .ranks = 4, .shards = 2, .forward_prefetch = true, .seed = 3});
}

static void offloaded_states_are_updated_here_and_lead_to_the_same(void **unused)
{
    (void)unused;
    struct rank ranks[2];
    struct way way = {.setup = gpt2(4, 0.1f), .ranks = 2, .shards = 2, .offload = true, .seed = 1};
    compare(&way, ranks);
    uint64_t copied = ranks[0].counts.copied_bytes;
    assert_int_equal(ranks[0].counts.copies, STEPS * (6 + 4)); /* with every gather and every scatter */
    free_ranks(ranks, 2);
    way.bf16 = true; /* parameters in two bytes, gradients in four */
    compare(&way, ranks);
    assert_true(ranks[0].counts.copied_bytes < 0.8 * (double)copied);
    assert_int_equal(ranks[0].counts.copies, STEPS * (6 + 4));
    free_ranks(ranks, 2);
    run_way((struct way){.setup = gpt2(2, 0), .ranks = 1, .shards = 1, .offload = true, .seed = 2});
    run_way((struct way){.setup = gpt2(2, 0), .ranks = 1, .shards = 1, .offload = true, .bf16 = true, .seed = 3});
    run_way((struct way){.setup = gpt2(2, 0), .ranks = 1, .shards = 1, .offload = true, .wrap = WRAP_NONE, .seed = 4});
    run_way((struct way){.setup = linear(8), .ranks = 4, .shards = 2, .offload = true, .bf16 = true, .seed = 5});
}

static void bf16_is_gathered_in_two_bytes(void **unused)
{
    (void)unused;
    struct rank whole[2], half[2];
    struct way way = {.setup = gpt2(4, 0), .ranks = 2, .shards = 2, .seed = 1};
    compare(&way, whole);
    way.bf16 = true;
    compare(&way, half);
    uint64_t gathered = whole[0].counts.bytes_sent - half[0].counts.bytes_sent,
             rest = half[0].counts.bytes_sent - gathered;
    assert_int_equal(whole[0].counts.gathers, half[0].counts.gathers);
    /* The root once, the blocks in both directions, the last of them once for both; gradients once each. */
    assert_int_equal(half[0].counts.gathers, STEPS * 6);
    assert_int_equal(half[0].counts.scatters, STEPS * 4);
    assert_true(rest > 0 && whole[0].counts.bytes_sent == 2 * gathered + rest);
    free_ranks(whole, 2);
    free_ranks(half, 2);
}

/* The loss, the gradients, their norm and the update are waited for, however many wraps there are. */
static void the_host_waits_for_no_wrap(void **unused)
{
    (void)unused;
    uint64_t waits[2];
    for (uint32_t i = 0; i < 2; i++) {
        struct rank ranks[2];
        struct way way = {.setup = gpt2(4, 0), .ranks = 2, .shards = 2, .seed = 1};
        way.setup.shape.layers = i ? 9 : 2;
        compare(&way, ranks);
        waits[i] = ranks[0].waits;
        free_ranks(ranks, 2);
    }
    assert_int_equal(waits[0], waits[1]);
    assert_true(waits[0] <= 3);
}

static uint64_t count_events(const struct trace *trace, enum trace_track track, const char *name)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < trace->counts[track]; i++)
        count += strncmp(trace->events[track][i].name, name, strlen(name)) == 0;
    return count;
}

/* The times of a queue's events are those of the device: each within its step, in order, none beside another. */
static void check_times(const struct trace *trace, enum trace_track track, uint64_t end_ns)
{
    uint64_t before_ns = trace->start_ns;
    for (uint64_t i = 0; i < trace->counts[track]; i++) {
        const struct trace_event *event = &trace->events[track][i];
        if (strcmp(event->name, "optimizer") == 0)
            continue;
        assert_true(before_ns <= event->start_ns && event->start_ns <= event->end_ns && !event->marked);
        before_ns = event->end_ns;
    }
    assert_true(before_ns <= end_ns);
}

/* The host waits as often as without a trace but for its beginning, and everything is in it: of each step a forward and a backward of three blocks,
 * what is before them and what is after them; and all that ranks exchanged. */
static void a_traced_step_waits_only_to_compare_clocks_and_shows_it_all(void **unused)
{
    (void)unused;
    static const struct way ways[] = {
        {.ranks = 2, .shards = 2, .seed = 1, .forward_prefetch = true},
        {.ranks = 2, .shards = 1, .ddp = true, .seed = 2},
        {.ranks = 4, .shards = 2, .bf16 = true, .seed = 3},
        {.ranks = 2, .shards = 2, .offload = true, .seed = 4},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct rank plain[MOST_RANKS], traced[MOST_RANKS];
        struct way way = ways[i];
        way.setup = gpt2(4, 0);
        compare(&way, plain);
        way.traced = true;
        compare(&way, traced);
        uint64_t end_ns = clock_monotonic_ns();
        for (uint32_t rank = 0; rank < way.ranks; rank++) {
            const struct trace *trace = &traced[rank].trace;
            const struct stream_counts *counts = &traced[rank].counts;
            assert_int_equal(traced[rank].waits, plain[rank].waits + 1);
            assert_int_equal(traced[rank].talk_waits, plain[rank].talk_waits);
            assert_int_equal(trace->dropped, 0);
            assert_int_equal(count_events(trace, TRACE_COMPUTE, "forward"), STEPS * STAGES);
            assert_int_equal(count_events(trace, TRACE_COMPUTE, "backward"), STEPS * STAGES);
            assert_int_equal(count_events(trace, TRACE_COMM, "all-gather"), counts->gathers);
            assert_int_equal(count_events(trace, TRACE_COMM, "reduce-scatter"), counts->scatters);
            assert_int_equal(count_events(trace, TRACE_COMM, "all-reduce"), counts->reduces);
            assert_int_equal(count_events(trace, TRACE_H2D, "to "), counts->copies);
            check_times(trace, TRACE_COMPUTE, end_ns);
            check_times(trace, TRACE_COMM, end_ns);
            check_times(trace, TRACE_H2D, end_ns);
        }
        free_ranks(plain, way.ranks);
        free_ranks(traced, way.ranks);
    }
}

static void a_device_that_loses_a_message_ends_the_ranks_with_its_reason(void **unused)
{
    (void)unused;
    for (uint64_t at = 2; at < 30; at += 9) {
        struct rank ranks[2];
        struct way way = {.setup = gpt2(4, 0), .ranks = 2, .shards = 2, .fail_talk_at = at, .seed = 1};
        run_ranks(&way, 2, true, ranks);
        assert_int_equal(ranks[1].code, CB_ERR_SYSTEM);
        assert_non_null(strstr(ranks[1].err.message, "lost what another sent"));
        assert_true(ranks[0].code != 0);
        free_ranks(ranks, 2);
    }
}

static void two_ranks_with_one_device_are_refused(void **unused)
{
    (void)unused;
    struct rank ranks[2];
    struct way way = {.setup = gpt2(4, 0), .ranks = 2, .shards = 1, .ddp = true, .seed = 1};
    fake_rooms.same_device = true;
    run_ranks(&way, 2, true, ranks);
    fake_rooms.same_device = false;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ranks[i].code, CB_ERR_UNSUPPORTED);
        assert_non_null(strstr(ranks[i].err.message, "a GPU for each rank"));
    }
    free_ranks(ranks, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ddp_on_devices_is_one_rank_with_all_samples),
        cmocka_unit_test(fsdp_on_devices_is_one_rank_with_all_samples),
        cmocka_unit_test(every_prefetch_and_order_of_events_leads_to_the_same),
        cmocka_unit_test(hybrid_on_devices_is_one_rank_with_all_samples),
        cmocka_unit_test(offloaded_states_are_updated_here_and_lead_to_the_same),
        cmocka_unit_test(bf16_is_gathered_in_two_bytes),
        cmocka_unit_test(the_host_waits_for_no_wrap),
        cmocka_unit_test(a_traced_step_waits_only_to_compare_clocks_and_shows_it_all),
        cmocka_unit_test(a_device_that_loses_a_message_ends_the_ranks_with_its_reason),
        cmocka_unit_test(two_ranks_with_one_device_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
