/* On a machine with a GPU: every operation of engine/device_math.h is what engine/kernels.h is, for sizes that fill
 * blocks and that do not, and a step of a model has the gradients of this machine's. The other side is tests/unit/fake_math.h,
 * which computes with those functions. Without a device every test fails and says why; with the plugin of tests/plugin/ in
 * CKPTBENCH_CUDA_PLUGIN both sides are the same, which shows that the tests themselves are right. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "engine/device_plugin.h"
#include "tests/unit/fake_math.h"
#include "train/train_model_internal.h"

#define MOST_ARRAYS 8
#define TIMEOUT_NS (120 * NS_PER_S)

struct side {
    struct device *device;
    struct device_math *math;
};

static struct device_plugin plugin;
static struct side gpu, here;

static uint64_t deadline(void)
{
    return clock_monotonic_ns() + TIMEOUT_NS;
}

static void need(int rc, const struct cb_err *err)
{
    if (rc)
        fail_msg("%s", err->message);
}

static int open_both(void **unused)
{
    (void)unused;
    struct device_info info;
    struct cb_err err = {0};
    int rc = device_plugin_open(&plugin, &err);
    if (!rc)
        rc = device_plugin_open_device(&plugin, 0, &gpu.device, &info, &err);
    if (!rc)
        rc = device_plugin_open_math(&plugin, gpu.device, &gpu.math, &err);
    here.device = &fake_device_new(1, 1)->base;
    if (!rc)
        rc = fake_math_open(here.device, &here.math, &err);
    if (rc)
        print_error("%s\n", err.message);
    return rc;
}

static int close_both(void **unused)
{
    (void)unused;
    gpu.math->ops->close(gpu.math);
    device_close(gpu.device);
    here.math->ops->close(here.math);
    device_close(here.device);
    device_plugin_close(&plugin);
    return 0;
}

/* --- one operation on both sides --- */

struct array {
    void *values; /* before; its own, freed with it */
    uint64_t count, bytes;
    bool doubles, is_result;
};

struct op_case {
    struct array arrays[MOST_ARRAYS];
    uint64_t rows, width, stride;
    void (*run)(struct device_math *math, void **arrays, const struct op_case *self);
    double tolerance; /* of an element, relative to the largest of its array */
};

static float random_value(uint64_t counter)
{
    return (float)((double)(rng_mix(counter) >> 11) * 0x1p-52 - 1.0);
}

static struct array floats(uint64_t count, bool is_result)
{
    struct array array = {.count = count, .bytes = count * sizeof(float), .is_result = is_result};
    float *values = malloc(array.bytes);
    for (uint64_t i = 0; i < count; i++)
        values[i] = random_value(count + 7919 * i + is_result);
    array.values = values;
    return array;
}

static struct array positive(uint64_t count, bool is_result)
{
    struct array array = floats(count, is_result);
    for (uint64_t i = 0; i < count; i++)
        ((float *)array.values)[i] = fabsf(((float *)array.values)[i]) + 0.01f;
    return array;
}

static struct array results_in_double(uint64_t count)
{
    return (struct array){.values = calloc(count, sizeof(double)),
                          .count = count,
                          .bytes = count * sizeof(double),
                          .doubles = true,
                          .is_result = true};
}

static struct array words(const uint32_t *values, uint64_t count)
{
    struct array array = {.values = malloc(count * sizeof *values), .count = count, .bytes = count * sizeof *values};
    memcpy(array.values, values, array.bytes);
    return array;
}

static void run_on(const struct side *side, const struct op_case *operation, void *results[MOST_ARRAYS])
{
    void *memory[MOST_ARRAYS] = {0};
    struct cb_err err = {0};
    for (int i = 0; i < MOST_ARRAYS && operation->arrays[i].bytes; i++) {
        const struct array *array = &operation->arrays[i];
        need(side->device->ops->allocate(side->device, MEMORY_DEVICE, array->bytes, &memory[i], &err), &err);
        need(device_math_copy(side->math, HOST_TO_DEVICE, memory[i], array->values, array->bytes, &err), &err);
    }
    operation->run(side->math, memory, operation);
    for (int i = 0; i < MOST_ARRAYS && operation->arrays[i].bytes; i++) {
        results[i] = malloc(operation->arrays[i].bytes);
        need(device_math_copy(side->math, DEVICE_TO_HOST, results[i], memory[i], operation->arrays[i].bytes, &err),
             &err);
    }
    need(device_math_finish(side->math, deadline(), &err), &err);
    for (int i = 0; i < MOST_ARRAYS && operation->arrays[i].bytes; i++)
        side->device->ops->release(side->device, MEMORY_DEVICE, memory[i], operation->arrays[i].bytes);
}

static double element_of(const struct array *array, const void *values, uint64_t i)
{
    return array->doubles ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

static void compare_results(const char *name, int index, const struct array *array, const void *ours,
                            const void *theirs, double tolerance)
{
    double most = 0;
    if (!array->is_result) {
        assert_memory_equal(ours, theirs, array->bytes); /* what is only read stays */
        return;
    }
    for (uint64_t i = 0; i < array->count; i++)
        most = fmax(most, fabs(element_of(array, theirs, i)));
    for (uint64_t i = 0; i < array->count; i++) {
        double a = element_of(array, ours, i), b = element_of(array, theirs, i);
        if (!(fabs(a - b) <= tolerance * (most + 1e-30)))
            fail_msg("%s: element %llu of array %d is %.9g on the GPU, %.9g here", name, (unsigned long long)i, index,
                     a, b);
    }
}

static void compare(const char *name, struct op_case *operation)
{
    void *ours[MOST_ARRAYS] = {0}, *theirs[MOST_ARRAYS] = {0};
    run_on(&gpu, operation, ours);
    run_on(&here, operation, theirs);
    for (int i = 0; i < MOST_ARRAYS && operation->arrays[i].bytes; i++) {
        compare_results(name, i, &operation->arrays[i], ours[i], theirs[i], operation->tolerance);
        free(ours[i]);
        free(theirs[i]);
        free(operation->arrays[i].values);
    }
}

static const struct size {
    uint64_t rows, width;
} sizes[] = {{1, 1}, {3, 17}, {70, 256}, {129, 257}, {1000, 1600}, {2, 10000}};
#define SIZES (sizeof sizes / sizeof *sizes)

/* --- layer norm --- */

static void run_norm(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->layer_norm(math, a[0], a[1], a[2], self->rows, self->width, a[3], a[4], a[5]);
}

static void run_norm_again(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->layer_norm_again(math, a[0], a[1], a[2], a[4], a[5], self->rows, self->width, a[3]);
}

static void run_norm_backward(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->layer_norm_backward(math, a[0], a[1], a[2], a[3], a[4], self->rows, self->width, a[5], a[6], a[7]);
}

static void layer_norms_and_their_gradients(void **unused)
{
    (void)unused;
    for (size_t i = 1; i < SIZES; i++) { /* one element has no variance */
        uint64_t n = sizes[i].rows, c = sizes[i].width;
        struct op_case norm = {.rows = n, .width = c, .run = run_norm, .tolerance = 1e-5};
        norm.arrays[0] = floats(n * c, false);
        norm.arrays[1] = floats(c, false);
        norm.arrays[2] = floats(c, false);
        norm.arrays[3] = floats(n * c, true);
        norm.arrays[4] = floats(n, true);
        norm.arrays[5] = positive(n, true);
        struct op_case again = norm;
        compare("layer norm", &norm);
        again.arrays[0] = floats(n * c, false);
        again.arrays[1] = floats(c, false);
        again.arrays[2] = floats(c, false);
        again.arrays[3] = floats(n * c, true);
        again.arrays[4] = floats(n, false);
        again.arrays[5] = positive(n, false);
        again.run = run_norm_again;
        compare("layer norm again", &again);
        struct op_case back = {.rows = n, .width = c, .run = run_norm_backward, .tolerance = 1e-4};
        back.arrays[0] = floats(n * c, false);
        back.arrays[1] = floats(c, false);
        back.arrays[2] = floats(n, false);
        back.arrays[3] = positive(n, false);
        back.arrays[4] = floats(n * c, false);
        back.arrays[5] = floats(n * c, true);
        back.arrays[6] = floats(c, true);
        back.arrays[7] = floats(c, true);
        compare("layer norm's gradient", &back);
    }
}

/* --- elements and sums --- */

static void run_gelu(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->gelu(math, a[0], a[1], self->rows * self->width);
}

static void run_slope(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->gelu_and_slope(math, a[1], a[2], self->rows * self->width);
}

static void run_multiply(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->multiply(math, a[1], a[0], self->rows * self->width);
}

static void run_add(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->add(math, a[1], a[0], self->rows * self->width);
}

static void run_fill(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->fill(math, a[1], 0.25f, self->rows * self->width);
}

static void run_round(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->round_bf16(math, a[0], a[1], self->rows * self->width);
}

static void run_pack(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->pack_bf16(math, a[0], a[1], self->rows * self->width);
    math->ops->unpack_bf16(math, a[1], a[2], self->rows * self->width);
}

static void elements_one_by_one(void **unused)
{
    (void)unused;
    static const struct {
        const char *name;
        void (*run)(struct device_math *math, void **arrays, const struct op_case *self);
        double tolerance;
    } all[] = {
        {"GELU", run_gelu, 1e-6}, {"GELU's slope", run_slope, 2e-6}, {"multiply", run_multiply, 0}, {"add", run_add, 0},
        {"fill", run_fill, 0},    {"round", run_round, 0},           {"pack", run_pack, 0}};
    for (size_t i = 0; i < SIZES; i++)
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            uint64_t count = sizes[i].rows * sizes[i].width;
            struct op_case operation = {.rows = sizes[i].rows, .width = sizes[i].width, .run = all[k].run};
            operation.tolerance = all[k].tolerance;
            operation.arrays[0] = floats(count, false);
            operation.arrays[1] = floats(count, true);
            operation.arrays[2] = floats(count, true);
            for (uint64_t e = 0; e < count; e++) { /* as far as GELU is not flat */
                ((float *)operation.arrays[0].values)[e] *= 8;
                ((float *)operation.arrays[1].values)[e] *= 8;
            }
            compare(all[k].name, &operation);
        }
}

static void run_column_sums(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->add_column_sums(math, a[0], self->stride, self->rows, self->width, a[1]);
}

static void run_row_sums(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->row_sums(math, a[0], self->rows, self->width, a[1]);
}

static void run_squares(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->sum_of_squares(math, a[0], self->rows * self->width, a[1]);
}

static void sums_of_columns_rows_and_squares(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < SIZES; i++) {
        uint64_t n = sizes[i].rows, c = sizes[i].width;
        struct op_case columns = {.rows = n, .width = c, .stride = c + 3, .run = run_column_sums, .tolerance = 1e-5};
        columns.arrays[0] = floats(n * (c + 3), false);
        columns.arrays[1] = floats(c, true);
        compare("sums of columns", &columns);
        struct op_case rows = {.rows = n, .width = c, .run = run_row_sums, .tolerance = 1e-12};
        rows.arrays[0] = floats(n * c, false);
        rows.arrays[1] = results_in_double(n);
        compare("sums of rows", &rows);
        struct op_case squares = {.rows = n, .width = c, .run = run_squares, .tolerance = 1e-12};
        squares.arrays[0] = floats(n * c, false);
        squares.arrays[1] = results_in_double(1);
        compare("sum of squares", &squares);
    }
}

/* --- products --- */

/* Sizes, strides, bias, base and heads vary with `stride`, which is a case's number. */
static struct device_product product_of(const struct op_case *self, void **a)
{
    uint64_t way = self->stride, m = self->rows, n = self->width, k = 33;
    bool several = way & 16;
    struct device_product product = {.in = a[0],
                                     .weight = a[1],
                                     .base = way & 4 && !several ? (way & 32 ? a[4] : a[2]) : NULL,
                                     .bias = way & 8 && !several ? a[3] : NULL,
                                     .out = a[2],
                                     .rows = m,
                                     .inner = k,
                                     .columns = n,
                                     .in_transposed = way & 1,
                                     .weight_transposed = way & 2,
                                     .rounded = way & 64 ? a[5] : NULL,
                                     .scale = several ? 0.125f : 1.0f};
    product.in_stride = (product.in_transposed ? m : k) + 2;
    product.weight_stride = (product.weight_transposed ? k : n) + 1;
    product.out_stride = n + 5;
    if (!several)
        return product;
    product.samples = 2;
    product.heads = 3;
    product.in_head = (product.in_transposed ? k : m) * product.in_stride;
    product.weight_head = (product.weight_transposed ? n : k) * product.weight_stride;
    product.out_head = m * product.out_stride;
    product.in_sample = 3 * product.in_head;
    product.weight_sample = 3 * product.weight_head;
    product.out_sample = 3 * product.out_head;
    return product;
}

static void run_product(struct device_math *math, void **a, const struct op_case *self)
{
    struct device_product product = product_of(self, a);
    math->ops->product(math, &product);
    math->ops->product(math, &product); /* from what is kept of the first; adds again where out is its own base */
}

static void products_in_all_ways(void **unused)
{
    (void)unused;
    static const struct size shapes[] = {{1, 1}, {5, 64}, {128, 96}, {131, 257}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (uint64_t way = 0; way < 80; way++) { /* from 64 on in bf16 */
            uint64_t m = shapes[i].rows, n = shapes[i].width, most = (m > 33 ? m : 33) + 8;
            struct op_case operation = {.rows = m, .width = n, .stride = way, .run = run_product, .tolerance = 1e-5};
            operation.arrays[0] = floats(6 * most * most, false);
            operation.arrays[1] = floats(6 * (n + 40) * (n + 40), false);
            operation.arrays[2] = floats(6 * m * (n + 5), true);
            operation.arrays[3] = floats(n, false);
            operation.arrays[4] = floats(m * (n + 5), false);
            if (way & 64)
                operation.arrays[5] = floats(most * most + (n + 40) * (n + 40) + 128, true);
            compare("product", &operation);
        }
}

/* --- attention --- */

static void run_softmax(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->causal_softmax(math, a[0], self->stride, 6, self->rows, a[1]);
}

static void run_weights(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->causal_weights(math, a[0], self->stride, 6, self->rows, a[1]);
}

static void run_causal_backward(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->causal_backward(math, a[0], a[1], self->stride, 2, 3, self->rows, a[2], a[3], 3 * self->width,
                               self->width, 0.3f);
}

static void attention_of_several_heads(void **unused)
{
    (void)unused;
    static const uint64_t lengths[] = {1, 7, 64, 300, 1024};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint64_t t = lengths[i], stride = (t + 15) / 16 * 16, size = 24;
        struct op_case softmax = {.rows = t, .stride = stride, .run = run_softmax, .tolerance = 2e-6};
        softmax.arrays[0] = floats(6 * t * stride, true);
        softmax.arrays[1] = floats(6 * t, true);
        struct op_case again = softmax;
        compare("softmax", &softmax);
        again.arrays[0] = floats(6 * t * stride, true);
        again.arrays[1] = positive(6 * t, false);
        again.run = run_weights;
        compare("softmax again", &again);
        struct op_case back = {.rows = t, .width = size, .stride = stride, .run = run_causal_backward};
        back.tolerance = 1e-5;
        back.arrays[0] = floats(6 * t * stride, false);
        back.arrays[1] = floats(6 * t * stride, true);
        back.arrays[2] = floats(2 * t * 3 * size, false);
        back.arrays[3] = floats(2 * t * 3 * size, false);
        compare("softmax's gradient", &back);
    }
}

/* --- tokens --- */

static void run_cross_entropy(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->cross_entropy(math, a[0], self->stride, self->rows, self->width, a[1], 0.01f, a[2]);
}

static void losses_of_rows_some_of_which_do_not_count(void **unused)
{
    (void)unused;
    static const uint64_t vocabularies[] = {2, 257, 50257};
    for (size_t i = 0; i < sizeof vocabularies / sizeof *vocabularies; i++) {
        uint64_t rows = 40, v = vocabularies[i], stride = (v + 15) / 16 * 16;
        uint32_t targets[40];
        for (uint64_t r = 0; r < rows; r++)
            targets[r] = r % 7 == 3 ? TRAIN_IGNORE : (uint32_t)(rng_mix(r) % v);
        struct op_case operation = {.rows = rows, .width = v, .stride = stride, .run = run_cross_entropy};
        operation.tolerance = 2e-6;
        operation.arrays[0] = floats(rows * stride, true);
        operation.arrays[1] = words(targets, rows);
        operation.arrays[2] = results_in_double(rows);
        compare("cross entropy", &operation);
    }
}

#define TOKENS 96
#define SEQUENCE 12

static void run_embed(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->embed(math, a[0], a[1], a[2], TOKENS, SEQUENCE, self->width, a[3]);
}

static void run_embed_backward(struct device_math *math, void **a, const struct op_case *self)
{
    struct device_token_rows rows = {.distinct = a[0], .begins = a[1], .order = a[2], .distinct_count = self->rows};
    math->ops->embed_backward(math, &rows, a[3], TOKENS, SEQUENCE, self->width, a[4], a[5]);
}

static void embeddings_and_their_gradients_have_the_same_bits(void **unused)
{
    (void)unused;
    for (uint64_t width = 5; width < 1000; width = 7 * width + 1) {
        uint32_t tokens[TOKENS], order[TOKENS], distinct[TOKENS], begins[TOKENS + 1], count = 0, placed = 0;
        for (uint32_t r = 0; r < TOKENS; r++)
            tokens[r] = (uint32_t)(rng_mix(r) % 31);
        for (uint32_t token = 0; token < 31; token++) {
            uint32_t before = placed;
            for (uint32_t r = 0; r < TOKENS; r++)
                if (tokens[r] == token)
                    order[placed++] = r;
            if (placed > before) {
                distinct[count] = token;
                begins[count++] = before;
            }
        }
        begins[count] = placed;
        struct op_case embed = {.width = width, .run = run_embed};
        embed.arrays[0] = words(tokens, TOKENS);
        embed.arrays[1] = floats(31 * width, false);
        embed.arrays[2] = floats(SEQUENCE * width, false);
        embed.arrays[3] = floats(TOKENS * width, true);
        compare("embedding", &embed);
        struct op_case back = {.rows = count, .width = width, .run = run_embed_backward};
        back.arrays[0] = words(distinct, count);
        back.arrays[1] = words(begins, count + 1);
        back.arrays[2] = words(order, TOKENS);
        back.arrays[3] = floats(TOKENS * width, false);
        back.arrays[4] = floats(31 * width, true);
        back.arrays[5] = floats(SEQUENCE * width, true);
        compare("embedding's gradient", &back);
    }
}

static void run_dropout(struct device_math *math, void **a, const struct op_case *self)
{
    struct device_dropout dropout = {.step_key = 0x123456789ABCDEF,
                                     .first_sample = 5,
                                     .place = 9,
                                     .sample_rows = 11,
                                     .threshold = (uint32_t)(0.3 * 0x1p32),
                                     .scale = 1.0f / 0.7f};
    math->ops->dropout(math, &dropout, a[0], a[1], self->stride, self->rows, self->width);
    math->ops->dropout(math, &dropout, a[2], a[2], self->stride, self->rows, self->width); /* in place */
}

static void dropout_takes_the_same_values(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < SIZES; i++) {
        uint64_t n = sizes[i].rows, c = sizes[i].width;
        struct op_case operation = {.rows = n, .width = c, .stride = c + 2, .run = run_dropout};
        operation.arrays[0] = floats(n * (c + 2), false);
        operation.arrays[1] = floats(n * (c + 2), true);
        operation.arrays[2] = floats(n * (c + 2), true);
        compare("dropout", &operation);
    }
}

/* --- optimizers --- */

static void run_adamw(struct device_math *math, void **a, const struct op_case *self)
{
    struct adamw_factors factors = {.decay = 0.99f,
                                    .one_less_beta1 = 0.1f,
                                    .beta2 = 0.999f,
                                    .one_less_beta2 = 0.001f,
                                    .rate = 0.01f,
                                    .correction = 2,
                                    .epsilon = 1e-8f,
                                    .gradient_scale = 0.5f};
    math->ops->adamw(math, &factors, a[0], a[1], a[2], a[3], self->rows * self->width);
}

static void run_sgd(struct device_math *math, void **a, const struct op_case *self)
{
    math->ops->sgd(math, 0.99f, 0.1f, a[0], a[1], self->rows * self->width);
}

static void optimizers_move_weights_alike(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < SIZES; i++) {
        uint64_t count = sizes[i].rows * sizes[i].width;
        struct op_case adamw = {.rows = sizes[i].rows, .width = sizes[i].width, .run = run_adamw, .tolerance = 1e-6};
        adamw.arrays[0] = floats(count, true);
        adamw.arrays[1] = floats(count, false);
        adamw.arrays[2] = floats(count, true);
        adamw.arrays[3] = positive(count, true);
        compare("AdamW", &adamw);
        struct op_case sgd = {.rows = sizes[i].rows, .width = sizes[i].width, .run = run_sgd, .tolerance = 1e-6};
        sgd.arrays[0] = floats(count, true);
        sgd.arrays[1] = floats(count, false);
        compare("SGD", &sgd);
    }
}

/* --- a step --- */

static double step_of(struct train_model *model, const struct train_batch *batch, const float *weights,
                      float *gradients)
{
    struct cb_err err = {0};
    uint64_t root = train_model_unit(model, 0)->elements, block = train_model_unit(model, 1)->elements;
    need(train_model_begin(model, batch, &err), &err);
    for (size_t s = 0; s < train_model_stage_count(model); s++) {
        size_t unit = train_model_stage_unit(model, s);
        train_model_forward(model, s, weights + (unit ? root + (unit - 1) * block : 0));
    }
    for (size_t s = train_model_stage_count(model); s-- > 0;) {
        size_t unit = train_model_stage_unit(model, s);
        uint64_t place = unit ? root + (unit - 1) * block : 0;
        train_model_backward(model, s, weights + place, gradients + place);
    }
    need(train_model_finish(model, deadline(), &err), &err);
    return train_model_loss(model);
}

/* The gradients of a step on a side, computed from the same first values. */
static double gradients_on(const struct side *side, const struct train_setup *setup, float *gradients)
{
    struct train_setup own = *setup;
    struct train_model *model = NULL;
    struct cb_err err = {0};
    uint32_t tokens[3 * 131], targets[3 * 131];
    own.math = side->math;
    need(train_model_new(&own, &model, &err), &err);
    uint64_t root = train_model_unit(model, 0)->elements, block = train_model_unit(model, 1)->elements;
    uint64_t count = root + 2 * block, bytes = count * sizeof(float);
    float *weights = malloc(bytes);
    void *memory = NULL;
    for (size_t u = 0; u < 3; u++)
        train_model_init(model, u, 0, u ? block : root, 3, weights + (u ? root + (u - 1) * block : 0));
    for (uint32_t i = 0; i < 3 * 131; i++) {
        tokens[i] = (uint32_t)(rng_mix(i) % setup->shape.vocabulary);
        targets[i] = i % 9 == 4 ? TRAIN_IGNORE : (uint32_t)(rng_mix(i + 1000) % setup->shape.vocabulary);
    }
    struct train_batch batch = {.step = 2, .first_sample = 6, .training = true, .tokens = tokens, .targets = targets};
    need(side->device->ops->allocate(side->device, MEMORY_DEVICE, 2 * bytes, &memory, &err), &err);
    float *there = memory;
    need(device_math_copy(side->math, HOST_TO_DEVICE, there, weights, bytes, &err), &err);
    side->math->ops->fill(side->math, there + count, 0, count);
    double loss = step_of(model, &batch, there, there + count);
    need(device_math_copy(side->math, DEVICE_TO_HOST, gradients, there + count, bytes, &err), &err);
    need(device_math_finish(side->math, deadline(), &err), &err);
    side->device->ops->release(side->device, MEMORY_DEVICE, memory, 2 * bytes);
    train_model_free(model);
    free(weights);
    return loss;
}

static void a_step_has_the_loss_and_the_gradients_of_this_machine(void **unused)
{
    (void)unused;
    for (int dropout = 0; dropout < 2; dropout++) {
        struct train_setup setup = {.shape = {.kind = TRAIN_GPT2,
                                              .layers = 2,
                                              .width = 96,
                                              .heads = 3,
                                              .positions = 131,
                                              .vocabulary = 257,
                                              .bias = true},
                                    .batch = 3,
                                    .sequence = 131,
                                    .dropout = 0.1f * (float)dropout,
                                    .seed = 5,
                                    .threads = 1};
        uint64_t count = train_shape_parameters(&setup.shape);
        float *ours = calloc(count, sizeof *ours), *theirs = calloc(count, sizeof *theirs);
        double a = gradients_on(&gpu, &setup, ours), b = gradients_on(&here, &setup, theirs);
        double difference = 0, norm = 0;
        for (uint64_t i = 0; i < count; i++) {
            difference += ((double)ours[i] - (double)theirs[i]) * ((double)ours[i] - (double)theirs[i]);
            norm += (double)theirs[i] * (double)theirs[i];
        }
        if (!(fabs(a - b) <= 1e-5 * b) || !(sqrt(difference) <= 1e-4 * sqrt(norm)))
            fail_msg("loss %.9g on the GPU, %.9g here; gradients differ by %g of %g", a, b, sqrt(difference),
                     sqrt(norm));
        free(ours);
        free(theirs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_norms_and_their_gradients),
        cmocka_unit_test(elements_one_by_one),
        cmocka_unit_test(sums_of_columns_rows_and_squares),
        cmocka_unit_test(products_in_all_ways),
        cmocka_unit_test(attention_of_several_heads),
        cmocka_unit_test(losses_of_rows_some_of_which_do_not_count),
        cmocka_unit_test(embeddings_and_their_gradients_have_the_same_bits),
        cmocka_unit_test(dropout_takes_the_same_values),
        cmocka_unit_test(optimizers_move_weights_alike),
        cmocka_unit_test(a_step_has_the_loss_and_the_gradients_of_this_machine),
    };
    return cmocka_run_group_tests(tests, open_both, close_both);
}
