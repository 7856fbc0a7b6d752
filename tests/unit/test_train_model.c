/* The model's promises: gradients that finite differences confirm, for every parameter of every stage; initial values and
 * dropout that do not depend on how the work is divided; memory as announced; names of the checkpoint's model. */
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/kernels.h"
#include "engine/rng.h"
#include "train/train_model.h"

#define MOST_UNITS 8

struct world {
    struct train_setup setup;
    struct train_model *model;
    float *flat[MOST_UNITS], *gradients[MOST_UNITS];
    uint32_t *tokens, *targets;
    float *input;
};

static struct train_setup gpt2_setup(uint32_t layers, uint32_t batch, uint32_t sequence, uint32_t threads)
{
    return (struct train_setup){.shape = {.kind = TRAIN_GPT2,
                                          .layers = layers,
                                          .width = 24,
                                          .heads = 3,
                                          .positions = sequence + 2,
                                          .vocabulary = 19,
                                          .bias = true},
                                .batch = batch,
                                .sequence = sequence,
                                .seed = 5,
                                .threads = threads};
}

static double uniform(uint64_t counter)
{
    return (double)(rng_mix(counter) >> 11) * 0x1p-53 - 0.5;
}

/* Weights much larger than GPT-2's first ones: gradients must stand out of fp32's noise. */
static void world_init(struct world *self, const struct train_setup *setup)
{
    struct cb_err err = {0};
    *self = (struct world){.setup = *setup};
    if (train_model_new(setup, &self->model, &err))
        fail_msg("%s", err.message);
    uint64_t rows = (uint64_t)setup->batch * setup->sequence, counter = 1;
    for (size_t u = 0; u < train_model_unit_count(self->model); u++) {
        uint64_t elements = train_model_unit(self->model, u)->elements;
        self->flat[u] = calloc(elements, sizeof(float));
        self->gradients[u] = calloc(elements, sizeof(float));
        train_model_init(self->model, u, 0, elements, 3, self->flat[u]);
        for (uint64_t i = 0; i < elements; i++)
            self->flat[u][i] += (float)(0.5 * uniform(counter++));
    }
    self->tokens = calloc(rows, sizeof *self->tokens);
    self->targets = calloc(rows, sizeof *self->targets);
    self->input = calloc(rows * setup->shape.width, sizeof(float));
    for (uint64_t i = 0; i < rows && setup->shape.kind == TRAIN_GPT2; i++) {
        self->tokens[i] = (uint32_t)(rng_mix(i) % setup->shape.vocabulary);
        self->targets[i] = i % 5 == 3 ? TRAIN_IGNORE : (uint32_t)(rng_mix(i + 1000) % setup->shape.vocabulary);
    }
    for (uint64_t i = 0; i < rows * setup->shape.width; i++)
        self->input[i] = (float)uniform(i + 77);
}

static void world_release(struct world *self)
{
    for (size_t u = 0; u < train_model_unit_count(self->model); u++) {
        free(self->flat[u]);
        free(self->gradients[u]);
    }
    free(self->tokens);
    free(self->targets);
    free(self->input);
    train_model_free(self->model);
}

static double forward(struct world *self)
{
    struct train_batch batch = {.step = 4,
                                .first_sample = 8,
                                .training = true,
                                .tokens = self->tokens,
                                .targets = self->targets,
                                .input = self->input};
    assert_int_equal(train_model_begin(self->model, &batch, NULL), 0);
    for (size_t s = 0; s < train_model_stage_count(self->model); s++)
        train_model_forward(self->model, s, self->flat[train_model_stage_unit(self->model, s)]);
    return train_model_loss(self->model);
}

static double forward_backward(struct world *self)
{
    double loss = forward(self);
    for (size_t s = train_model_stage_count(self->model); s-- > 0;) {
        size_t unit = train_model_stage_unit(self->model, s);
        train_model_backward(self->model, s, self->flat[unit], self->gradients[unit]);
    }
    return loss;
}

/* Along the gradient itself the loss must grow as fast as the gradient is long, and along a random direction by their product. */
static void check_direction(struct world *self, size_t unit, const struct train_parameter *parameter, bool random)
{
    float *weights = self->flat[unit] + parameter->offset, *kept = malloc(parameter->count * sizeof *kept);
    const float *gradient = self->gradients[unit] + parameter->offset;
    double *direction = calloc(parameter->count, sizeof *direction), length = 0, expected = 0, norm = 0;
    for (uint64_t i = 0; i < parameter->count; i++) {
        direction[i] = random ? uniform(i + 12345) + (double)gradient[i] : (double)gradient[i];
        length += direction[i] * direction[i];
        norm += (double)gradient[i] * (double)gradient[i];
    }
    length = sqrt(length);
    memcpy(kept, weights, parameter->count * sizeof *kept);
    double step = 0.01, losses[2];
    for (int side = 0; side < 2; side++) {
        for (uint64_t i = 0; i < parameter->count; i++)
            weights[i] = kept[i] + (float)((side ? -step : step) * direction[i] / length);
        losses[side] = forward(self);
    }
    memcpy(weights, kept, parameter->count * sizeof *kept);
    for (uint64_t i = 0; i < parameter->count; i++)
        expected += (double)gradient[i] * direction[i] / length;
    double got = (losses[0] - losses[1]) / (2 * step);
    if (!(fabs(got - expected) <= 0.01 * sqrt(norm) + 2e-5))
        fail_msg("%s: finite differences say %g, the gradient %g (its length %g)", parameter->fqn, got, expected,
                 sqrt(norm));
    free(kept);
    free(direction);
}

static void check_gradients(const struct train_setup *setup)
{
    struct world world;
    world_init(&world, setup);
    forward_backward(&world);
    for (size_t u = 0; u < train_model_unit_count(world.model); u++) {
        const struct train_unit *unit = train_model_unit(world.model, u);
        for (size_t p = 0; p < unit->count; p++) {
            check_direction(&world, u, &unit->parameters[p], false);
            check_direction(&world, u, &unit->parameters[p], true);
        }
    }
    world_release(&world);
}

static void gradients_of_a_transformer_are_those_of_finite_differences(void **unused)
{
    (void)unused;
    struct train_setup setup = gpt2_setup(2, 2, 9, 1);
    check_gradients(&setup);
}

static void gradients_with_dropout_are_those_of_what_was_kept(void **unused)
{
    (void)unused;
    struct train_setup setup = gpt2_setup(2, 2, 9, 2);
    setup.dropout = 0.2f;
    check_gradients(&setup);
}

static void gradients_over_several_blocks_of_queries_and_threads_are_right(void **unused)
{
    (void)unused;
    struct train_setup setup = gpt2_setup(1, 1, 131, 3);
    check_gradients(&setup);
}

static void gradients_of_a_linear_stack_are_those_of_finite_differences(void **unused)
{
    (void)unused;
    for (int bias = 0; bias < 2; bias++) {
        struct train_setup setup = {.shape = {.kind = TRAIN_LINEAR, .layers = 3, .width = 17, .bias = bias},
                                    .batch = 5,
                                    .sequence = 1,
                                    .threads = 2};
        check_gradients(&setup);
    }
}

static void assert_close(const float *a, const float *b, uint64_t count, double tolerance)
{
    double difference = 0, norm = 0;
    for (uint64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)a[i] * (double)a[i];
    }
    if (!(sqrt(difference) <= tolerance * sqrt(norm)))
        fail_msg("differ by %g of %g", sqrt(difference), sqrt(norm));
}

/* The same step by one thread and by three: also which elements dropout takes. */
static void threads_do_not_change_the_step(void **unused)
{
    (void)unused;
    struct train_setup one = gpt2_setup(2, 3, 40, 1), three = gpt2_setup(2, 3, 40, 3);
    one.dropout = three.dropout = 0.1f;
    struct world a, b;
    world_init(&a, &one);
    world_init(&b, &three);
    double loss_a = forward_backward(&a), loss_b = forward_backward(&b);
    assert_true(fabs(loss_a - loss_b) < 1e-5 * loss_a);
    for (size_t u = 0; u < 3; u++)
        assert_close(a.gradients[u], b.gradients[u], train_model_unit(a.model, u)->elements, 1e-4);
    world_release(&a);
    world_release(&b);
}

static void a_step_has_the_same_bits_again(void **unused)
{
    (void)unused;
    struct train_setup setup = gpt2_setup(2, 3, 40, 2);
    setup.dropout = 0.1f;
    struct world a, b;
    world_init(&a, &setup);
    world_init(&b, &setup);
    forward(&b); /* what was there before does not matter */
    assert_true(forward_backward(&a) == forward_backward(&b));
    for (size_t u = 0; u < 3; u++)
        assert_memory_equal(a.gradients[u], b.gradients[u], train_model_unit(a.model, u)->elements * sizeof(float));
    world_release(&a);
    world_release(&b);
}

/* Two ranks with a sample each are one rank with both: dropout goes by the sample's number among all. */
static void samples_divide_over_ranks_without_a_difference(void **unused)
{
    (void)unused;
    struct train_setup both = gpt2_setup(1, 2, 12, 1), each = gpt2_setup(1, 1, 12, 1);
    both.dropout = each.dropout = 0.3f;
    struct world a, b;
    world_init(&a, &both);
    world_init(&b, &each);
    for (uint32_t i = 0; i < 24; i++)
        a.targets[i] = i % 19;
    forward_backward(&a);
    double loss = 0;
    for (uint64_t sample = 0; sample < 2; sample++) {
        struct train_batch batch = {.step = 4, .first_sample = 8 + sample, .training = true};
        batch.tokens = a.tokens + 12 * sample;
        batch.targets = a.targets + 12 * sample;
        assert_int_equal(train_model_begin(b.model, &batch, NULL), 0);
        for (size_t s = 0; s < 3; s++)
            train_model_forward(b.model, s, b.flat[train_model_stage_unit(b.model, s)]);
        for (size_t s = 3; s-- > 0;)
            train_model_backward(b.model, s, b.flat[s % 2], b.gradients[s % 2]);
        loss += train_model_loss(b.model) / 2;
    }
    assert_true(fabs(loss - train_model_loss(a.model)) < 1e-5);
    for (size_t u = 0; u < 2; u++) {
        uint64_t elements = train_model_unit(a.model, u)->elements;
        for (uint64_t i = 0; i < elements; i++)
            b.gradients[u][i] /= 2;
        assert_close(a.gradients[u], b.gradients[u], elements, 1e-4);
    }
    world_release(&a);
    world_release(&b);
}

static void without_training_there_is_no_dropout(void **unused)
{
    (void)unused;
    struct train_setup with = gpt2_setup(1, 2, 12, 1), without = with;
    with.dropout = 0.5f;
    struct world a, b;
    world_init(&a, &with);
    world_init(&b, &without);
    struct train_batch batch = {.tokens = a.tokens, .targets = a.targets};
    assert_int_equal(train_model_begin(a.model, &batch, NULL), 0);
    for (size_t s = 0; s < 3; s++)
        train_model_forward(a.model, s, a.flat[train_model_stage_unit(a.model, s)]);
    assert_true(train_model_loss(a.model) == forward(&b));
    assert_true(train_model_loss(a.model) != forward(&a));
    world_release(&a);
    world_release(&b);
}

static void targets_to_ignore_do_not_count(void **unused)
{
    (void)unused;
    struct train_setup setup = gpt2_setup(1, 1, 10, 1);
    struct world world;
    world_init(&world, &setup);
    for (uint32_t i = 0; i < 10; i++)
        world.targets[i] = TRAIN_IGNORE;
    assert_true(forward_backward(&world) == 0);
    assert_int_equal(train_model_counted(world.model), 0);
    for (size_t u = 0; u < 2; u++)
        for (uint64_t i = 0; i < train_model_unit(world.model, u)->elements; i++)
            assert_true(world.gradients[u][i] == 0);
    world.targets[4] = 7;
    assert_true(forward_backward(&world) > 0);
    assert_int_equal(train_model_counted(world.model), 1);
    world_release(&world);
}

static void a_token_outside_the_vocabulary_is_named(void **unused)
{
    (void)unused;
    struct train_setup setup = gpt2_setup(1, 2, 6, 1);
    struct world world;
    struct cb_err err = {0};
    world_init(&world, &setup);
    world.tokens[8] = 19;
    struct train_batch batch = {.first_sample = 40, .tokens = world.tokens, .targets = world.targets};
    assert_int_equal(train_model_begin(world.model, &batch, &err), CB_ERR_FORMAT);
    assert_non_null(strstr(err.message, "token 19 at place 2 of sample 41"));
    world_release(&world);
}

static void a_nan_reaches_the_loss(void **unused)
{
    (void)unused;
    struct train_setup setup = gpt2_setup(2, 1, 6, 1);
    struct world world;
    world_init(&world, &setup);
    world.flat[1][100] = NAN;
    assert_true(isnan(forward(&world)));
    world_release(&world);
}

/* Any cut of a unit gives the values of the whole, with any number of threads. */
static void first_values_do_not_depend_on_the_shard(void **unused)
{
    (void)unused;
    struct train_setup setup = gpt2_setup(2, 1, 6, 1);
    struct world world;
    world_init(&world, &setup);
    for (size_t u = 0; u < 3; u++) {
        uint64_t elements = train_model_unit(world.model, u)->elements;
        float *whole = calloc(elements, sizeof *whole), *parts = calloc(elements, sizeof *parts);
        train_model_init(world.model, u, 0, elements, 9, whole);
        for (uint64_t first = 0, size = 1; first < elements; first += size, size = 3 * size + 1)
            train_model_init(world.model, u, first, first + size < elements ? size : elements - first, 9,
                             parts + first);
        assert_memory_equal(whole, parts, elements * sizeof *whole);
        free(whole);
        free(parts);
    }
    world_release(&world);
}

static void deviation_is(const float *values, uint64_t count, double expected)
{
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < count; i++) {
        sum += (double)values[i];
        squares += (double)values[i] * (double)values[i];
    }
    assert_true(fabs(sum / (double)count) < 0.1 * expected);
    assert_true(fabs(sqrt(squares / (double)count) - expected) < 0.05 * expected);
}

static void first_values_are_gpt2s(void **unused)
{
    (void)unused;
    struct train_setup setup = gpt2_setup(2, 1, 6, 2);
    struct train_model *model = NULL;
    setup.shape.width = 96;
    setup.shape.vocabulary = 200;
    assert_int_equal(train_model_new(&setup, &model, NULL), 0);
    const struct train_unit *unit = train_model_unit(model, 1);
    float *values = calloc(unit->elements, sizeof *values);
    train_model_init(model, 1, 0, unit->elements, 1, values);
    deviation_is(values + unit->parameters[2].offset, unit->parameters[2].count, 0.02);
    deviation_is(values + unit->parameters[10].offset, unit->parameters[10].count, 0.02 / 2); /* sqrt(2 x 2 layers) */
    for (uint64_t i = 0; i < 96; i++) {
        assert_true(values[unit->parameters[0].offset + i] == 1);
        assert_true(values[unit->parameters[1].offset + i] == 0);
    }
    free(values);
    train_model_free(model);
}

static void memory_is_what_was_announced(void **unused)
{
    (void)unused;
    struct train_setup setup = gpt2_setup(3, 4, 64, 1);
    struct train_model *model = NULL, *warm = NULL;
    setup.shape.width = 192;
    assert_int_equal(train_model_new(&setup, &warm, NULL), 0); /* loads the library */
    struct mallinfo2 before = mallinfo2();
    assert_int_equal(train_model_new(&setup, &model, NULL), 0);
    struct mallinfo2 after = mallinfo2();
    double taken = (double)(after.uordblks + after.hblkhd) - (double)(before.uordblks + before.hblkhd);
    double announced = (double)train_model_bytes(&setup);
    if (taken > 0) /* a sanitizer's allocator does not say */
        assert_true(taken >= announced && taken < announced + 16384);
    train_model_free(model);
    train_model_free(warm);
}

static void shapes_that_cannot_be_are_refused(void **unused)
{
    (void)unused;
    struct train_model *model = NULL;
    struct cb_err err = {0};
    struct train_setup setup = gpt2_setup(1, 1, 6, 1);
    setup.shape.heads = 5;
    assert_int_equal(train_model_new(&setup, &model, &err), CB_ERR_USAGE);
    assert_non_null(strstr(err.message, "5 heads do not divide a width of 24"));
    setup = gpt2_setup(1, 1, 6, 1);
    setup.sequence = 9;
    assert_int_equal(train_model_new(&setup, &model, &err), CB_ERR_USAGE);
    assert_non_null(strstr(err.message, "9 tokens do not fit the 8 positions"));
    setup = gpt2_setup(1, 0, 6, 1);
    assert_int_equal(train_model_new(&setup, &model, &err), CB_ERR_USAGE);
    setup = gpt2_setup(1, UINT32_MAX, 6, 1);
    assert_int_equal(train_model_new(&setup, &model, &err), CB_ERR_USAGE);
    assert_null(model);
}

static void shape_of(const char *name, struct train_shape *shape, int expected, const char *says)
{
    struct model *model = NULL;
    struct cb_err err = {0};
    assert_int_equal(model_load(name, 0, NULL, &model, NULL), 0);
    assert_int_equal(train_shape_of_model(model, shape, &err), expected);
    if (expected)
        assert_non_null(strstr(err.message, says));
    else
        assert_int_equal(train_shape_parameters(shape), model_parameters(model));
    model_free(model);
}

static void shapes_are_those_of_the_presets(void **unused)
{
    (void)unused;
    struct train_shape shape = {0};
    shape_of("gpt2-tiny", &shape, 0, NULL);
    assert_int_equal(shape.vocabulary, 257);
    assert_int_equal(shape.heads, 4);
    shape_of("gpt2", &shape, 0, NULL);
    assert_int_equal(train_shape_parameters(&shape), 124439808);
    shape_of("linear-8x16384", &shape, 0, NULL);
    assert_int_equal(shape.kind, TRAIN_LINEAR);
    assert_int_equal(train_shape_parameters(&shape), 8 * (UINT64_C(16384) * 16384 + 16384));
    shape_of("llama3-8b", &shape, CB_ERR_UNSUPPORTED, "workload=train knows GPT-2");
    assert_true(train_flops_per_token(&shape, 1) == 6.0 * (double)train_shape_parameters(&shape));
}

static void bf16_rounds_to_nearest_even(void **unused)
{
    (void)unused;
    const float values[] = {1.0f, 1.00390625f, 1.01171875f, -1.005f, 3.4028235e38f, NAN, 0.0f};
    const float expected[] = {1.0f, 1.0f, 1.015625f, -1.0078125f, INFINITY, NAN, 0.0f};
    float rounded[7], unpacked[7];
    uint16_t packed[7];
    kernel_round_bf16(values, rounded, 7);
    kernel_pack_bf16(values, packed, 7);
    kernel_unpack_bf16(packed, unpacked, 7);
    for (int i = 0; i < 7; i++) {
        assert_true(isnan(expected[i]) ? isnan(rounded[i]) : rounded[i] == expected[i]);
        assert_true(isnan(expected[i]) ? isnan(unpacked[i]) : unpacked[i] == expected[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_a_transformer_are_those_of_finite_differences),
        cmocka_unit_test(gradients_with_dropout_are_those_of_what_was_kept),
        cmocka_unit_test(gradients_over_several_blocks_of_queries_and_threads_are_right),
        cmocka_unit_test(gradients_of_a_linear_stack_are_those_of_finite_differences),
        cmocka_unit_test(threads_do_not_change_the_step),
        cmocka_unit_test(a_step_has_the_same_bits_again),
        cmocka_unit_test(samples_divide_over_ranks_without_a_difference),
        cmocka_unit_test(without_training_there_is_no_dropout),
        cmocka_unit_test(targets_to_ignore_do_not_count),
        cmocka_unit_test(a_token_outside_the_vocabulary_is_named),
        cmocka_unit_test(a_nan_reaches_the_loss),
        cmocka_unit_test(first_values_do_not_depend_on_the_shard),
        cmocka_unit_test(first_values_are_gpt2s),
        cmocka_unit_test(memory_is_what_was_announced),
        cmocka_unit_test(shapes_that_cannot_be_are_refused),
        cmocka_unit_test(shapes_are_those_of_the_presets),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
