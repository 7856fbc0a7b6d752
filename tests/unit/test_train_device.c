/* A model on a device is the model on this machine: the same losses, gradients and weights, with everything that is
 * queued done late and memory that nobody else may touch (fake_math.h). Bitwise where both ask the same of the same
 * functions: attention over one block of queries. Failures of the device are told, and leave nothing behind. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/fake_math.h"
#include "tests/unit/thread_comm.h"
#include "train/parallel.h"
#include "train/train_model_internal.h"

/* One rank has nobody to exchange with: whoever calls these is wrong. */
int comm_part(struct comm *comm, uint32_t color, struct comm **part, struct cb_err *err)
{
    (void)comm, (void)color, (void)part;
    return cb_fail(err, CB_ERR_INTERNAL, "one rank was divided");
}

void comm_free(struct comm *comm)
{
    assert_null(comm);
}

int comm_start_all_gather(struct comm *comm, const void *mine, void *all, uint64_t values, struct comm_message *message,
                          struct cb_err *err)
{
    (void)comm, (void)mine, (void)all, (void)values, (void)message;
    return cb_fail(err, CB_ERR_INTERNAL, "one rank gathered");
}

int comm_start_reduce_scatter(struct comm *comm, const float *all, float *mine, uint64_t values,
                              struct comm_message *message, struct cb_err *err)
{
    (void)comm, (void)mine, (void)all, (void)values, (void)message;
    return cb_fail(err, CB_ERR_INTERNAL, "one rank scattered");
}

int comm_start_all_reduce(struct comm *comm, const float *mine, float *sum, uint64_t values,
                          struct comm_message *message, struct cb_err *err)
{
    (void)comm, (void)mine, (void)sum, (void)values, (void)message;
    return cb_fail(err, CB_ERR_INTERNAL, "one rank reduced");
}

int comm_sum(struct comm *comm, double *numbers, uint32_t count, uint64_t deadline_ns, struct cb_err *err)
{
    (void)comm, (void)numbers, (void)count, (void)deadline_ns;
    return cb_fail(err, CB_ERR_INTERNAL, "one rank added up");
}

#define TIMEOUT_NS (60 * NS_PER_S)
#define MOST_UNITS 4

static uint64_t deadline(void)
{
    return clock_monotonic_ns() + TIMEOUT_NS;
}

static struct device_math *open_math(uint32_t seed)
{
    struct device_math *math = NULL;
    struct cb_err err = {0};
    struct fake_device *device = fake_device_new(seed, 3);
    assert_non_null(device);
    if (fake_math_open(&device->base, &math, &err))
        fail_msg("%s", err.message);
    return math;
}

static void close_math(struct device_math *math)
{
    struct device *device = math->device;
    struct fake_device *fake = (struct fake_device *)device;
    math->ops->close(math);
    assert_int_equal(fake->allocations, 0);
    device_close(device);
}

static struct train_setup gpt2(uint32_t batch, uint32_t sequence, float dropout)
{
    return (struct train_setup){.shape = {.kind = TRAIN_GPT2,
                                          .layers = 2,
                                          .width = 24,
                                          .heads = 3,
                                          .positions = sequence + 2,
                                          .vocabulary = 19,
                                          .bias = true},
                                .batch = batch,
                                .sequence = sequence,
                                .dropout = dropout,
                                .seed = 5,
                                .threads = 1};
}

static struct train_setup linear(bool bias)
{
    return (struct train_setup){.shape = {.kind = TRAIN_LINEAR, .layers = 3, .width = 17, .bias = bias},
                                .batch = 5,
                                .sequence = 1,
                                .threads = 1};
}

static float value_of(uint64_t counter)
{
    return (float)((double)(rng_mix(counter) >> 11) * 0x1p-53 - 0.5);
}

/* --- one step of the model alone --- */

struct inputs {
    uint32_t *tokens, *targets;
    float *input;
};

static struct inputs make_inputs(const struct train_setup *setup, uint64_t seed)
{
    uint64_t rows = (uint64_t)setup->batch * setup->sequence;
    struct inputs inputs = {.tokens = calloc(rows, sizeof(uint32_t)),
                            .targets = calloc(rows, sizeof(uint32_t)),
                            .input = calloc(rows * setup->shape.width, sizeof(float))};
    uint64_t vocabulary = setup->shape.vocabulary ? setup->shape.vocabulary : 1;
    for (uint64_t i = 0; i < rows; i++) {
        inputs.tokens[i] = (uint32_t)(rng_mix(seed + i) % vocabulary);
        inputs.targets[i] = i % 5 == 3 ? TRAIN_IGNORE : (uint32_t)(rng_mix(seed + i + 1000) % vocabulary);
    }
    for (uint64_t i = 0; i < rows * setup->shape.width; i++)
        inputs.input[i] = value_of(seed + i + 77);
    return inputs;
}

static void free_inputs(struct inputs *self)
{
    free(self->tokens);
    free(self->targets);
    free(self->input);
}

static struct train_batch batch_of(const struct inputs *inputs, uint64_t step, bool training)
{
    return (struct train_batch){.step = step,
                                .first_sample = 8,
                                .training = training,
                                .tokens = inputs->tokens,
                                .targets = inputs->targets,
                                .input = inputs->input};
}

static uint64_t elements_of(const struct train_model *model)
{
    uint64_t elements = 0;
    for (size_t u = 0; u < train_model_unit_count(model); u++)
        elements += train_model_unit(model, u)->elements;
    return elements;
}

static uint64_t place_of(const struct train_model *model, size_t stage)
{
    uint64_t place = 0;
    for (size_t u = 0; u < train_model_stage_unit(model, stage); u++)
        place += train_model_unit(model, u)->elements;
    return place;
}

static void fill_weights(struct train_model *model, float *weights)
{
    uint64_t place = 0;
    for (size_t u = 0; u < train_model_unit_count(model); u++) {
        uint64_t elements = train_model_unit(model, u)->elements;
        train_model_init(model, u, 0, elements, 3, weights + place);
        for (uint64_t i = 0; i < elements; i++)
            weights[place + i] += 0.5f * value_of(place + i + 1);
        place += elements;
    }
}

static double run_stages(struct train_model *model, const struct train_batch *batch, const float *weights,
                         float *gradients)
{
    struct cb_err err = {0};
    if (train_model_begin(model, batch, &err))
        fail_msg("%s", err.message);
    for (size_t s = 0; s < train_model_stage_count(model); s++)
        train_model_forward(model, s, weights + place_of(model, s));
    for (size_t s = train_model_stage_count(model); s-- > 0 && gradients;)
        train_model_backward(model, s, weights + place_of(model, s), gradients + place_of(model, s));
    if (train_model_finish(model, deadline(), &err))
        fail_msg("%s", err.message);
    return train_model_loss(model);
}

static void bring(struct device_math *math, enum device_direction direction, void *to, const void *from, uint64_t bytes)
{
    struct cb_err err = {0};
    if (device_math_copy(math, direction, to, from, bytes, &err) || device_math_finish(math, deadline(), &err))
        fail_msg("%s", err.message);
}

static struct train_model *make_model(const struct train_setup *setup)
{
    struct train_model *model = NULL;
    struct cb_err err = {0};
    if (train_model_new(setup, &model, &err))
        fail_msg("%s", err.message);
    return model;
}

/* tolerance 0: the same bits. */
static void assert_same(const float *a, const float *b, uint64_t count, double tolerance)
{
    double difference = 0, norm = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (tolerance == 0 && memcmp(&a[i], &b[i], sizeof a[i]) != 0 && !(a[i] == 0 && b[i] == 0))
            fail_msg("element %llu: %.9g here, %.9g on the device", (unsigned long long)i, (double)a[i], (double)b[i]);
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)a[i] * (double)a[i];
    }
    if (!(sqrt(difference) <= tolerance * sqrt(norm)))
        fail_msg("differ by %g of %g", sqrt(difference), sqrt(norm));
}

/* Two steps with other inputs, then forward alone. */
static void compare(struct train_setup setup, double tolerance, uint64_t samples_at_once)
{
    struct device_math *math = open_math(7);
    struct device *device = math->device;
    struct train_model *here = make_model(&setup);
    setup.math = math;
    struct train_model *there = make_model(&setup);
    if (samples_at_once)
        there->on_device->samples_at_once = samples_at_once;
    uint64_t elements = elements_of(here), bytes = elements * sizeof(float);
    float *weights = calloc(elements, sizeof(float)), *gradients = calloc(elements, sizeof(float));
    float *back = calloc(elements, sizeof(float));
    void *memory = NULL;
    assert_int_equal(device->ops->allocate(device, MEMORY_DEVICE, 2 * bytes, &memory, NULL), 0);
    float *their_weights = memory, *their_gradients = their_weights + elements;
    fill_weights(here, weights);
    bring(math, HOST_TO_DEVICE, their_weights, weights, bytes);
    math->ops->fill(math, their_gradients, 0, elements);
    for (uint64_t step = 0; step < 3; step++) {
        struct inputs inputs = make_inputs(&setup, 100 * step);
        struct train_batch batch = batch_of(&inputs, step, step < 2);
        double ours = run_stages(here, &batch, weights, step < 2 ? gradients : NULL);
        double theirs = run_stages(there, &batch, their_weights, step < 2 ? their_gradients : NULL);
        if (!(fabs(ours - theirs) <= tolerance * fabs(ours)))
            fail_msg("losses: %.17g here, %.17g on the device", ours, theirs);
        assert_int_equal(train_model_counted(here), train_model_counted(there));
        free_inputs(&inputs);
        bring(math, DEVICE_TO_HOST, back, their_gradients, bytes);
        if (step == 0)
            assert_same(gradients, back, elements, tolerance);
        else
            assert_same(gradients, back, elements, tolerance > 1e-6 ? tolerance : 1e-6); /* sums begin elsewhere */
    }
    device->ops->release(device, MEMORY_DEVICE, memory, 2 * bytes);
    free(weights);
    free(gradients);
    free(back);
    train_model_free(here);
    train_model_free(there);
    close_math(math);
}

static void a_transformer_on_a_device_has_the_bits_of_this_machine(void **unused)
{
    (void)unused;
    compare(gpt2(5, 9, 0), 0, 0);
    compare(gpt2(1, 64, 0), 0, 0);
}

static void dropout_takes_the_same_values_there(void **unused)
{
    (void)unused;
    compare(gpt2(5, 9, 0.2f), 0, 0);
}

static void attention_in_parts_of_the_batch_is_the_same(void **unused)
{
    (void)unused;
    compare(gpt2(5, 9, 0.2f), 0, 2);
    compare(gpt2(3, 17, 0), 0, 1);
}

static void attention_over_all_keys_is_that_over_blocks(void **unused)
{
    (void)unused;
    compare(gpt2(2, 131, 0.1f), 1e-6, 0);
}

static void a_linear_stack_on_a_device_has_the_bits_of_this_machine(void **unused)
{
    (void)unused;
    compare(linear(true), 0, 0);
    compare(linear(false), 0, 0);
}

/* Products with weights, and those of their gradients; what lies between them and attention stay fp32. */
static void products_in_bf16_are_near_those_in_fp32(void **unused)
{
    (void)unused;
    struct train_setup all[] = {gpt2(5, 9, 0.2f), linear(true)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct device_math *math = open_math(3);
        all[i].bf16 = true;
        all[i].math = math;
        struct train_model *model = make_model(&all[i]);
        assert_non_null(model->on_device->rounded);
        assert_int_equal(model->on_device->bytes, train_model_device_bytes(&all[i]));
        train_model_free(model);
        close_math(math);
        all[i].math = NULL;
        compare(all[i], 3e-2, 0);
    }
}

static void an_input_that_stays_is_sent_once(void **unused)
{
    (void)unused;
    struct train_setup setup = linear(true);
    struct device_math *math = open_math(3);
    struct device *device = math->device;
    setup.math = math;
    struct train_model *model = make_model(&setup);
    struct inputs inputs = make_inputs(&setup, 1);
    void *weights = NULL;
    assert_int_equal(device->ops->allocate(device, MEMORY_DEVICE, elements_of(model) * sizeof(float), &weights, NULL),
                     0);
    struct train_batch batch = batch_of(&inputs, 0, false);
    batch.input_stays = true;
    double first = run_stages(model, &batch, weights, NULL);
    uint64_t sent = ((struct fake_device *)device)->bytes_to_device;
    assert_int_equal(sent, 5 * 17 * sizeof(float));
    assert_true(run_stages(model, &batch, weights, NULL) == first);
    assert_int_equal(((struct fake_device *)device)->bytes_to_device, sent);
    device->ops->release(device, MEMORY_DEVICE, weights, elements_of(model) * sizeof(float));
    free_inputs(&inputs);
    train_model_free(model);
    close_math(math);
}

/* --- steps, with arrays and optimizer --- */

struct world {
    struct meeting meeting;
    struct comm comm;
    struct status_page *page;
    struct training training;
    struct train_setup setup;
    struct train_model *model;
    struct trace trace;
    struct parallel *parallel;
};

static void world_init(struct world *self, const struct train_setup *setup, bool bf16, enum wrap_policy wrap,
                       enum optimizer_kind kind)
{
    struct cb_err err = {0};
    memset(self, 0, sizeof *self);
    meeting_init(&self->meeting, 1);
    self->page = calloc(1, sizeof *self->page);
    assert_non_null(self->page);
    self->comm = (struct comm){.meeting = &self->meeting, .check = status_page_check, .check_context = self->page};
    self->setup = *setup;
    self->training = (struct training){.linear = setup->shape.kind == TRAIN_LINEAR,
                                       .ranks = 1,
                                       .shard_ranks = 1,
                                       .wrap = wrap,
                                       .bf16 = bf16,
                                       .backward_prefetch = BACKWARD_PRE,
                                       .forward_prefetch = true,
                                       .batch = setup->batch,
                                       .sequence = setup->sequence};
    self->model = make_model(setup);
    struct parallel_setup parallel = {.training = &self->training,
                                      .comm = &self->comm,
                                      .model = self->model,
                                      .trace = &self->trace,
                                      .math = setup->math,
                                      .optimizer = optimizer_default(kind),
                                      .seed = 5};
    if (trace_init(&self->trace, 0, &err) || parallel_new(&parallel, deadline(), &self->parallel, &err))
        fail_msg("%s", err.message);
}

static void world_release(struct world *self)
{
    parallel_free(self->parallel);
    train_model_free(self->model);
    trace_release(&self->trace);
    free(self->page);
}

struct step {
    double loss, norm;
};

static int world_step(struct world *self, uint64_t step, struct step *done, struct cb_err *err)
{
    struct timeline timeline;
    struct inputs inputs = make_inputs(&self->setup, 100 * step);
    struct train_batch batch = batch_of(&inputs, step, true);
    timeline_start(&timeline, self->page, OP_STEP, STATE_OTHER);
    int rc = train_model_begin(self->model, &batch, err);
    if (!rc)
        rc = parallel_gradients(self->parallel, &timeline, deadline(), err);
    done->loss = train_model_loss(self->model);
    if (!rc)
        rc = parallel_norm(self->parallel, &timeline, &done->norm, 1, deadline(), err);
    if (!rc)
        rc = parallel_update(self->parallel, 1e-2, optimizer_clip_scale(done->norm, 1), step + 1, deadline(), err);
    free_inputs(&inputs);
    timeline_stop(&timeline);
    return rc;
}

/* Weights or moments of a unit, here or there. */
static void fetch(struct world *self, enum parallel_array array, size_t unit, float *values)
{
    uint64_t bytes = train_model_unit(self->model, unit)->elements * sizeof(float);
    const float *place = parallel_place(self->parallel, array, unit, 0);
    assert_non_null(place);
    if (self->setup.math)
        bring(self->setup.math, DEVICE_TO_HOST, values, place, bytes);
    else
        memcpy(values, place, bytes);
}

static void compare_arrays(struct world *here, struct world *there, enum parallel_array array)
{
    for (size_t u = 0; u < train_model_unit_count(here->model); u++) {
        uint64_t elements = train_model_unit(here->model, u)->elements;
        float *a = calloc(elements, sizeof *a), *b = calloc(elements, sizeof *b);
        fetch(here, array, u, a);
        fetch(there, array, u, b);
        assert_same(a, b, elements, 0);
        free(a);
        free(b);
    }
}

static void compare_steps(struct train_setup setup, bool bf16, enum wrap_policy wrap, enum optimizer_kind kind)
{
    struct world here, there;
    struct device_math *math = open_math(11);
    world_init(&here, &setup, bf16, wrap, kind);
    setup.math = math;
    world_init(&there, &setup, bf16, wrap, kind);
    compare_arrays(&here, &there, PARALLEL_WEIGHTS); /* first values */
    for (uint64_t step = 0; step < 4; step++) {
        struct step ours, theirs;
        struct cb_err err = {0};
        assert_int_equal(world_step(&here, step, &ours, &err), 0);
        if (world_step(&there, step, &theirs, &err))
            fail_msg("%s", err.message);
        assert_true(ours.loss == theirs.loss && ours.norm == theirs.norm);
    }
    compare_arrays(&here, &there, PARALLEL_WEIGHTS);
    if (kind == OPTIMIZER_ADAMW) {
        compare_arrays(&here, &there, PARALLEL_EXP_AVG);
        compare_arrays(&here, &there, PARALLEL_EXP_AVG_SQ);
    }
    struct parallel_device_memory memory = parallel_device_memory(there.parallel);
    assert_null(parallel_device_memory(here.parallel).base);
    for (int array = PARALLEL_WEIGHTS; array < PARALLEL_ARRAYS; array++) {
        const float *place = parallel_place(there.parallel, (enum parallel_array)array, 0, 0);
        assert_true((uintptr_t)place % 4096 == 0 && (!place || place >= (const float *)memory.base));
    }
    assert_true((char *)memory.counters + 16 <= (char *)memory.base + memory.bytes);
    world_release(&here);
    world_release(&there);
    close_math(math);
}

static void steps_on_a_device_lead_to_the_same_weights(void **unused)
{
    (void)unused;
    compare_steps(gpt2(3, 9, 0.1f), false, WRAP_MODULE, OPTIMIZER_ADAMW);
    compare_steps(gpt2(3, 9, 0), false, WRAP_NONE, OPTIMIZER_SGD);
    compare_steps(linear(true), false, WRAP_MODULE, OPTIMIZER_ADAMW);
    compare_steps(linear(false), false, WRAP_MODULE, OPTIMIZER_NONE);
}

static void bf16_is_rounded_there_as_here(void **unused)
{
    (void)unused;
    compare_steps(gpt2(3, 9, 0.1f), true, WRAP_MODULE, OPTIMIZER_ADAMW);
    compare_steps(gpt2(3, 9, 0), true, WRAP_NONE, OPTIMIZER_SGD);
}

/* --- failures --- */

/* The `fail_at`-th operation of the device fails: some step tells it, and all memory comes back. */
static void an_operation_that_fails_ends_the_step_with_its_reason(void **unused)
{
    (void)unused;
    static const uint64_t places[] = {1, 2, 7, 40, 60, 90, 120, 150};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct train_setup setup = gpt2(2, 9, 0);
        struct device_math *math = open_math(11);
        struct fake_math *fake = (struct fake_math *)math;
        struct world world;
        struct step unused_step;
        struct cb_err err = {0};
        int rc = 0;
        setup.math = math;
        world_init(&world, &setup, false, WRAP_MODULE, OPTIMIZER_ADAMW);
        fake->fail_at = places[i];
        for (uint64_t step = 0; step < 3 && !rc; step++)
            rc = world_step(&world, step, &unused_step, &err);
        assert_int_equal(rc, CB_ERR_SYSTEM);
        assert_non_null(strstr(err.message, "cannot multiply"));
        world_release(&world);
        close_math(math);
    }
}

static int no_room(struct device *device, enum memory_kind kind, uint64_t bytes, void **memory, struct cb_err *err)
{
    (void)device, (void)kind, (void)bytes, (void)memory;
    return cb_fail(err, CB_ERR_MEMORY, "the GPU is full");
}

static void a_full_device_says_what_needs_less(void **unused)
{
    (void)unused;
    struct train_setup setup = gpt2(2, 9, 0);
    struct device_math *math = open_math(11);
    struct device_ops full = *math->device->ops;
    struct train_model *model = NULL;
    struct cb_err err = {0};
    full.allocate = no_room;
    math->device->ops = &full;
    setup.math = math;
    assert_int_equal(train_model_new(&setup, &model, &err), CB_ERR_MEMORY);
    assert_non_null(strstr(err.message, "the GPU is full"));
    assert_non_null(strstr(err.message, "batch_size"));
    assert_null(model);
    close_math(math);
}

static void what_is_announced_is_what_is_taken(void **unused)
{
    (void)unused;
    struct train_setup setup = gpt2(2, 9, 0.1f);
    struct device_math *math = open_math(11);
    setup.math = math;
    struct train_model *model = make_model(&setup);
    assert_int_equal(model->on_device->bytes, train_model_device_bytes(&setup));
    assert_int_equal(((struct fake_device *)math->device)->allocations, 2);
    assert_true(train_model_bytes(&setup) < train_model_device_bytes(&setup));
    setup.math = NULL;
    assert_int_equal(train_model_device_bytes(&setup), 0);
    train_model_free(model);
    close_math(math);
}

static void a_table_with_a_hole_is_seen(void **unused)
{
    (void)unused;
    struct device_math_ops ops = fake_math_ops;
    assert_true(device_math_is_whole(&ops));
    ops.version++;
    assert_false(device_math_is_whole(&ops));
    for (size_t at = offsetof(struct device_math_ops, product); at < sizeof ops; at += sizeof(void (*)(void))) {
        ops = fake_math_ops;
        memset((char *)&ops + at, 0, sizeof(void (*)(void)));
        assert_false(device_math_is_whole(&ops));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_transformer_on_a_device_has_the_bits_of_this_machine),
        cmocka_unit_test(dropout_takes_the_same_values_there),
        cmocka_unit_test(attention_in_parts_of_the_batch_is_the_same),
        cmocka_unit_test(attention_over_all_keys_is_that_over_blocks),
        cmocka_unit_test(a_linear_stack_on_a_device_has_the_bits_of_this_machine),
        cmocka_unit_test(products_in_bf16_are_near_those_in_fp32),
        cmocka_unit_test(an_input_that_stays_is_sent_once),
        cmocka_unit_test(steps_on_a_device_lead_to_the_same_weights),
        cmocka_unit_test(bf16_is_rounded_there_as_here),
        cmocka_unit_test(an_operation_that_fails_ends_the_step_with_its_reason),
        cmocka_unit_test(a_full_device_says_what_needs_less),
        cmocka_unit_test(what_is_announced_is_what_is_taken),
        cmocka_unit_test(a_table_with_a_hole_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
