/* On a machine with a GPU: operations of training on matrices of more than 2^32 elements, as a vocabulary of 128,256 and
 * long batches have. Only their last rows are written and compared, with engine/kernels.h. A GPU with less memory leaves a
 * test out and says so. Also runs on tests/cuda_on_cpu, where only the first and last blocks of a launch run. */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/clock.h"
#include "engine/device_math.h"
#include "engine/device_plugin.h"
#include "engine/kernels.h"
#include "engine/rng.h"

#define MOST_MATRICES 2
#define TIMEOUT_NS (120 * NS_PER_S)
#define BEYOND (UINT64_C(1) << 32)

static struct device_plugin plugin;
static struct device *gpu;
static struct device_math *math;

/* Memory of the GPU of which only the end is written and read. */
static struct matrix {
    void *memory;
    uint64_t bytes;
} matrices[MOST_MATRICES];

static void need(int rc, const struct cb_err *err)
{
    if (rc)
        fail_msg("%s", err->message);
}

static void finish(void)
{
    struct cb_err err = {0};
    need(device_math_finish(math, clock_monotonic_ns() + TIMEOUT_NS, &err), &err);
}

static int open_gpu(void **unused)
{
    (void)unused;
    struct device_info info;
    struct cb_err err = {0};
    int rc = device_plugin_open(&plugin, &err);
    if (!rc)
        rc = device_plugin_open_device(&plugin, 0, &gpu, &info, &err);
    if (!rc)
        rc = device_plugin_open_math(&plugin, gpu, &math, &err);
    if (rc)
        print_error("%s\n", err.message);
    return rc;
}

static int close_gpu(void **unused)
{
    (void)unused;
    math->ops->close(math);
    device_close(gpu);
    device_plugin_close(&plugin);
    return 0;
}

static int release(void **unused)
{
    (void)unused;
    for (int i = 0; i < MOST_MATRICES; i++) {
        if (matrices[i].memory)
            gpu->ops->release(gpu, MEMORY_DEVICE, matrices[i].memory, matrices[i].bytes);
        matrices[i] = (struct matrix){0};
    }
    return 0;
}

static void take(int count, uint64_t elements)
{
    for (int i = 0; i < count; i++) {
        struct cb_err err = {0};
        matrices[i].bytes = elements * sizeof(float);
        if (gpu->ops->allocate(gpu, MEMORY_DEVICE, matrices[i].bytes, &matrices[i].memory, &err)) {
            print_message("%d x %" PRIu64 " bytes: %s\n", count, matrices[i].bytes, err.message);
            skip();
        }
    }
}

static void write_end(int which, const float *values, uint64_t count)
{
    char *end = (char *)matrices[which].memory + matrices[which].bytes;
    struct cb_err err = {0};
    need(device_math_copy(math, HOST_TO_DEVICE, end - count * sizeof *values, values, count * sizeof *values, &err),
         &err);
    finish();
}

static void read_end(int which, float *values, uint64_t count)
{
    char *end = (char *)matrices[which].memory + matrices[which].bytes;
    struct cb_err err = {0};
    need(device_math_copy(math, DEVICE_TO_HOST, values, end - count * sizeof *values, count * sizeof *values, &err),
         &err);
    finish();
}

static void *on_gpu(const void *values, uint64_t bytes)
{
    void *memory = NULL;
    struct cb_err err = {0};
    need(gpu->ops->allocate(gpu, MEMORY_DEVICE, bytes, &memory, &err), &err);
    need(device_math_copy(math, HOST_TO_DEVICE, memory, values, bytes, &err), &err);
    finish();
    return memory;
}

static void from_gpu(void *values, void *memory, uint64_t bytes)
{
    struct cb_err err = {0};
    need(device_math_copy(math, DEVICE_TO_HOST, values, memory, bytes, &err), &err);
    finish();
    gpu->ops->release(gpu, MEMORY_DEVICE, memory, bytes);
}

static void assert_near(const float *ours, const float *theirs, uint64_t count, double tolerance)
{
    for (uint64_t i = 0; i < count; i++) {
        if (!(fabs((double)ours[i] - (double)theirs[i]) <= tolerance))
            fail_msg("element %" PRIu64 " of the end is %.9g, not %.9g", i, (double)ours[i], (double)theirs[i]);
    }
}

static float *random_row(uint64_t count)
{
    float *row = malloc(count * sizeof *row);
    assert_non_null(row);
    for (uint64_t i = 0; i < count; i++)
        row[i] = (float)((double)(rng_mix(i) >> 11) * 0x1p-52 - 1.0);
    return row;
}

static void the_last_elements_of_long_arrays_move(void **unused)
{
    (void)unused;
    float weights[3] = {1, 2, 3}, gradients[3] = {4, 8, 16}, expected[3] = {0.5f - 1, 1 - 2, 1.5f - 4};
    take(2, BEYOND + 3);
    write_end(0, weights, 3);
    write_end(1, gradients, 3);
    math->ops->sgd(math, 0.5f, 0.25f, matrices[0].memory, matrices[1].memory, BEYOND + 3);
    read_end(0, weights, 3);
    assert_near(weights, expected, 3, 1e-6);
}

static void the_last_row_of_a_large_vocabulary_has_its_loss(void **unused)
{
    (void)unused;
    enum { VOCABULARY = 128256, TARGET = 7 };
    uint64_t rows = BEYOND / VOCABULARY + 2;
    take(1, rows * VOCABULARY);
    float *logits = random_row(VOCABULARY), *expected = random_row(VOCABULARY);
    uint32_t *targets = malloc(rows * sizeof *targets);
    double *losses = calloc(rows, sizeof *losses);
    assert_true(targets && losses);
    for (uint64_t i = 0; i < rows; i++)
        targets[i] = TARGET;
    write_end(0, logits, VOCABULARY);
    void *gpu_targets = on_gpu(targets, rows * sizeof *targets), *gpu_losses = on_gpu(losses, rows * sizeof *losses);
    math->ops->cross_entropy(math, matrices[0].memory, VOCABULARY, rows, VOCABULARY, gpu_targets, 0.5f, gpu_losses);
    read_end(0, logits, VOCABULARY);
    from_gpu(targets, gpu_targets, rows * sizeof *targets);
    from_gpu(losses, gpu_losses, rows * sizeof *losses);
    double loss = kernel_cross_entropy(expected, VOCABULARY, TARGET, 0.5f);
    assert_near(logits, expected, VOCABULARY, 1e-6);
    assert_true(fabs(losses[rows - 1] - loss) <= 1e-5 * loss);
    free(logits);
    free(expected);
    free(targets);
    free(losses);
}

static void the_last_query_of_many_long_heads_sees_every_key(void **unused)
{
    (void)unused;
    enum { SEQUENCE = 8192, HEADS = 65 };
    take(1, (uint64_t)HEADS * SEQUENCE * SEQUENCE);
    float *scores = random_row(SEQUENCE), *expected = random_row(SEQUENCE);
    double largest = -2, sum = 0;
    for (int i = 0; i < SEQUENCE; i++)
        largest = fmax(largest, (double)expected[i]);
    for (int i = 0; i < SEQUENCE; i++)
        sum += exp((double)expected[i] - largest);
    for (int i = 0; i < SEQUENCE; i++)
        expected[i] = (float)(exp((double)expected[i] - largest) / sum);
    float *log_sums = calloc((size_t)HEADS * SEQUENCE, sizeof *log_sums);
    assert_non_null(log_sums);
    write_end(0, scores, SEQUENCE);
    void *gpu_log_sums = on_gpu(log_sums, (uint64_t)HEADS * SEQUENCE * sizeof *log_sums);
    math->ops->causal_softmax(math, matrices[0].memory, SEQUENCE, HEADS, SEQUENCE, gpu_log_sums);
    read_end(0, scores, SEQUENCE);
    from_gpu(log_sums, gpu_log_sums, (uint64_t)HEADS * SEQUENCE * sizeof *log_sums);
    assert_near(scores, expected, SEQUENCE, 1e-8);
    assert_true(fabs((double)log_sums[HEADS * SEQUENCE - 1] - (largest + log(sum))) <= 1e-5);
    free(scores);
    free(expected);
    free(log_sums);
}

/* CUDA counts the blocks of a launch in 32 bits, of which 2^31 - 1 are allowed: a number of rows must not wrap around. */
static void more_rows_than_a_launch_has_blocks_are_refused(void **unused)
{
    (void)unused;
    float row[4] = {0};
    double sum = 0;
    void *values = on_gpu(row, sizeof row), *sums = on_gpu(&sum, sizeof sum);
    struct device_math *other = NULL;
    struct cb_err err = {0};
    need(device_plugin_open_math(&plugin, gpu, &other, &err), &err);
    other->ops->row_sums(other, values, BEYOND + 1, 4, sums);
    assert_int_not_equal(other->ops->check(other, &err), 0);
    other->ops->close(other);
    from_gpu(row, values, sizeof row);
    from_gpu(&sum, sums, sizeof sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_last_elements_of_long_arrays_move, release),
        cmocka_unit_test_teardown(the_last_row_of_a_large_vocabulary_has_its_loss, release),
        cmocka_unit_test_teardown(the_last_query_of_many_long_heads_sees_every_key, release),
        cmocka_unit_test(more_rows_than_a_launch_has_blocks_are_refused),
    };
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
