/* Optimizers against their definition in double, shards against the whole, and the schedule against values by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/rng.h"
#include "train/optimizer.h"

#define ELEMENTS 1000

/* A matrix that decays, and a vector that does not. */
static struct train_parameter parameters[] = {
    {.fqn = "matrix", .dims = 2, .shape = {30, 20}, .offset = 0, .count = 600, .decays = true},
    {.fqn = "vector", .dims = 1, .shape = {400}, .offset = 600, .count = 400},
};
static const struct train_unit unit = {parameters, 2, ELEMENTS};

struct arrays {
    float weights[ELEMENTS], gradients[ELEMENTS], exp_avg[ELEMENTS], exp_avg_sq[ELEMENTS];
};

static void fill(struct arrays *self)
{
    memset(self, 0, sizeof *self);
    for (uint64_t i = 0; i < ELEMENTS; i++) {
        self->weights[i] = (float)(rng_mix(i) >> 40) * 0x1p-24f - 0.5f;
        self->gradients[i] = ((float)(rng_mix(i + 5000) >> 40) * 0x1p-24f - 0.5f) * 0.1f;
    }
}

static void step_range(const struct optimizer *optimizer, struct arrays *arrays, uint64_t first, uint64_t count,
                       uint64_t step, struct thread_pool *team)
{
    struct optimizer_range range = {first,
                                    count,
                                    arrays->weights + first,
                                    arrays->gradients + first,
                                    arrays->exp_avg + first,
                                    arrays->exp_avg_sq + first};
    optimizer_step(optimizer, &unit, &range, 0.01, 0.5, step, team);
}

static void adamw_is_what_its_authors_wrote(void **unused)
{
    (void)unused;
    struct optimizer optimizer = optimizer_default(OPTIMIZER_ADAMW);
    struct arrays arrays;
    double w[ELEMENTS], m[ELEMENTS] = {0}, v[ELEMENTS] = {0};
    optimizer.weight_decay = 0.1;
    fill(&arrays);
    for (int i = 0; i < ELEMENTS; i++)
        w[i] = (double)arrays.weights[i];
    for (uint64_t step = 1; step <= 5; step++) {
        step_range(&optimizer, &arrays, 0, ELEMENTS, step, NULL);
        for (int i = 0; i < ELEMENTS; i++) {
            double g = 0.5 * (double)arrays.gradients[i];
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.999 * v[i] + 0.001 * g * g;
            double decay = i < 600 ? 1 - 0.01 * 0.1 : 1;
            double mean = m[i] / (1 - pow(0.9, (double)step)), square = v[i] / (1 - pow(0.999, (double)step));
            w[i] = decay * w[i] - 0.01 * mean / (sqrt(square) + 1e-8);
        }
    }
    for (int i = 0; i < ELEMENTS; i++)
        assert_true(fabs((double)arrays.weights[i] - w[i]) < 1e-6);
}

static void sgd_goes_down_the_gradient(void **unused)
{
    (void)unused;
    struct optimizer optimizer = optimizer_default(OPTIMIZER_SGD);
    struct arrays before, after;
    fill(&before);
    fill(&after);
    step_range(&optimizer, &after, 0, ELEMENTS, 1, NULL);
    for (int i = 0; i < ELEMENTS; i++) {
        double decay = i < 600 ? 1 - 0.01 * 0.01 : 1;
        double expected = decay * (double)before.weights[i] - 0.01 * 0.5 * (double)before.gradients[i];
        assert_true(fabs((double)after.weights[i] - expected) < 1e-7);
    }
    assert_int_equal(optimizer_moments(OPTIMIZER_SGD), 0);
}

static void none_changes_nothing(void **unused)
{
    (void)unused;
    struct optimizer optimizer = optimizer_default(OPTIMIZER_NONE);
    struct arrays before, after;
    fill(&before);
    fill(&after);
    step_range(&optimizer, &after, 0, ELEMENTS, 1, NULL);
    assert_memory_equal(&before, &after, sizeof before);
}

static void shards_and_threads_give_the_bits_of_the_whole(void **unused)
{
    (void)unused;
    struct optimizer optimizer = optimizer_default(OPTIMIZER_ADAMW);
    struct arrays whole, parts;
    struct thread_pool *team = NULL;
    assert_int_equal(thread_pool_new(3, &team, NULL), 0);
    for (uint64_t shard = 1; shard <= ELEMENTS; shard = 3 * shard + 2) {
        fill(&whole);
        fill(&parts);
        for (uint64_t step = 1; step <= 3; step++) {
            step_range(&optimizer, &whole, 0, ELEMENTS, step, NULL);
            for (uint64_t first = 0; first < ELEMENTS; first += shard)
                step_range(&optimizer, &parts, first, first + shard < ELEMENTS ? shard : ELEMENTS - first, step, team);
        }
        assert_memory_equal(&whole, &parts, sizeof whole);
    }
    thread_pool_free(team);
}

static void padding_is_left_alone(void **unused)
{
    (void)unused;
    struct optimizer optimizer = optimizer_default(OPTIMIZER_SGD);
    float weights[8] = {1, 1, 1, 1, 1, 1, 1, 1}, gradients[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct optimizer_range range = {.first = 996, .count = 8, .weights = weights, .gradients = gradients};
    optimizer_step(&optimizer, &unit, &range, 0.1, 1, 1, NULL);
    for (int i = 0; i < 8; i++)
        assert_true(i < 4 ? weights[i] < 1 : weights[i] == 1);
}

static void squares_add_up_the_same_with_any_threads(void **unused)
{
    (void)unused;
    uint64_t count = 40000000 / 2 + 12345;
    float *values = malloc(count * sizeof *values);
    struct thread_pool *team = NULL;
    assert_int_equal(thread_pool_new(3, &team, NULL), 0);
    for (uint64_t i = 0; i < count; i++)
        values[i] = (float)(i % 10);
    double expected = 0;
    for (uint64_t i = 0; i < count; i++)
        expected += (double)(i % 10) * (double)(i % 10);
    assert_true(optimizer_sum_of_squares(values, count, NULL) == expected);
    assert_true(optimizer_sum_of_squares(values, count, team) == expected);
    assert_true(optimizer_sum_of_squares(values, 0, team) == 0);
    free(values);
    thread_pool_free(team);
}

static void clipping_shortens_only_what_is_too_long(void **unused)
{
    (void)unused;
    assert_true(fabs(optimizer_clip_scale(4, 1) - 0.25) < 1e-6);
    assert_true(optimizer_clip_scale(0.5, 1) == 1);
    assert_true(optimizer_clip_scale(100, 0) == 1);
    assert_true(isnan(optimizer_clip_scale(NAN, 1)) || optimizer_clip_scale(NAN, 1) == 1);
}

static void near(double got, double expected)
{
    if (!(fabs(got - expected) < 1e-12))
        fail_msg("%.15g is not %.15g", got, expected);
}

/* By hand: a tenth of the peak a step, then half a cosine over 100 steps: 1 + cos(60 deg) = 1.5 after a third of them. */
static void the_schedule_has_the_values_of_its_formula(void **unused)
{
    (void)unused;
    struct schedule cosine = {.kind = SCHEDULE_COSINE, .peak = 1e-3, .floor = 1e-4, .warmup = 10, .steps = 130};
    near(schedule_rate(&cosine, 1), 1e-4);
    near(schedule_rate(&cosine, 5), 5e-4);
    near(schedule_rate(&cosine, 10), 1e-3);
    near(schedule_rate(&cosine, 50), 1e-4 + 0.5 * 1.5 * 9e-4);
    near(schedule_rate(&cosine, 70), 5.5e-4);
    near(schedule_rate(&cosine, 130), 1e-4);
    near(schedule_rate(&cosine, 500), 1e-4);
    struct schedule constant = {.kind = SCHEDULE_CONSTANT, .peak = 2e-4, .steps = 5};
    near(schedule_rate(&constant, 1), 2e-4);
    near(schedule_rate(&constant, 99), 2e-4);
}

struct counting {
    struct thread_pool *team;
    uint32_t seen[8], total;
    uint64_t covered;
};

static void count_in(void *context, uint32_t thread)
{
    struct counting *self = context;
    self->seen[thread]++;
    thread_pool_meet(self->team);
    uint32_t total = 0;
    for (uint32_t i = 0; i < thread_pool_threads(self->team); i++)
        total += self->seen[i];
    thread_pool_meet(self->team);
    if (thread == 0)
        self->total = total;
}

static void a_team_runs_all_and_meets(void **unused)
{
    (void)unused;
    struct counting counting = {0};
    assert_int_equal(thread_pool_new(5, &counting.team, NULL), 0);
    for (uint32_t call = 1; call <= 2000; call++) {
        thread_pool_run(counting.team, count_in, &counting);
        assert_int_equal(counting.total, 5 * call);
    }
    for (uint64_t count = 0; count < 40; count++) {
        uint64_t next = 0, first, end;
        for (uint32_t thread = 0; thread < 5; thread++) {
            thread_pool_share(counting.team, thread, count, 4, &first, &end);
            assert_true(first == next && end >= first && end <= count && (first % 4 == 0 || first == count));
            next = end;
        }
        assert_int_equal(next, count);
    }
    thread_pool_free(counting.team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_is_what_its_authors_wrote),
        cmocka_unit_test(sgd_goes_down_the_gradient),
        cmocka_unit_test(none_changes_nothing),
        cmocka_unit_test(shards_and_threads_give_the_bits_of_the_whole),
        cmocka_unit_test(padding_is_left_alone),
        cmocka_unit_test(squares_add_up_the_same_with_any_threads),
        cmocka_unit_test(clipping_shortens_only_what_is_too_long),
        cmocka_unit_test(the_schedule_has_the_values_of_its_formula),
        cmocka_unit_test(a_team_runs_all_and_meets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
