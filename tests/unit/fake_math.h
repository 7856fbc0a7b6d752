/* For tests: a device that computes. Everything queued on it, copies and operations, is done late, when somebody looks at an
 * event behind it (or some of it at any time before), one after the other; memory of its own is closed to everybody else
 * (fake_device.h). What it computes with are the functions of the CPU (engine/kernels.h) and the BLAS library, so a
 * model on it has the bits of a model on the CPU wherever both are asked for the same. */
#ifndef TESTS_FAKE_MATH_H
#define TESTS_FAKE_MATH_H

#include <sched.h>

#include "core/blas.h"
#include "engine/device_math.h"
#include "engine/rng.h"
#include "tests/unit/fake_device.h"
#include "train/train_model.h"

#define FAKE_MOST_QUEUED 8192
#define FAKE_ARGUMENT_WORDS 32

struct fake_math;
struct fake_operation {
    void (*run)(struct fake_math *self, const void *arguments);
    uint64_t arguments[FAKE_ARGUMENT_WORDS];
    uint64_t event; /* the first one behind it */
    uint64_t held;  /* not 0: it waits for this event of the talk with others (fake_comm.h), and does nothing else */
};

struct fake_math {
    struct device_math base;
    struct fake_device *device;
    struct blas blas;
    struct fake_operation *queue; /* in order */
    size_t first, count;
    uint64_t operations; /* done, copies not counted */
    uint64_t holds;      /* passed */
    uint64_t fail_at;    /* the operation with this number fails, and all that follow; 0: none */
    bool failed;
};

static inline struct fake_math *fake_math_of(struct device *device)
{
    return ((struct fake_device *)device)->math;
}

static inline void *fake_at(const struct fake_math *self, const void *address, uint64_t bytes)
{
    return address ? fake_where(self->device, address, bytes) : NULL;
}

static inline float *fake_floats(const struct fake_math *self, const float *address, uint64_t count)
{
    return fake_at(self, address, count * sizeof(float));
}

/* --- the queue --- */

/* All up to an event, or the first `most`; false where one of them has to wait for others. */
static inline bool fake_run_queue(struct fake_math *self, uint64_t event, size_t most)
{
    for (; most > 0 && self->count > 0 && self->queue[self->first].event <= event; most--) {
        const struct fake_operation *operation = &self->queue[self->first];
        if (operation->held && !self->device->talk_until(self->device, operation->held))
            return false;
        if (operation->held)
            self->holds++;
        else
            operation->run(self, operation->arguments);
        self->first = (self->first + 1) % FAKE_MOST_QUEUED;
        self->count--;
    }
    return true;
}

/* What the talk needs before it goes on. */
static inline bool fake_math_until(struct fake_device *device, uint64_t event)
{
    return fake_run_queue(device->math, event, SIZE_MAX);
}

static inline void fake_put(struct fake_math *self, void (*run)(struct fake_math *, const void *),
                            const void *arguments, size_t bytes)
{
    assert(bytes <= sizeof self->queue->arguments && self->count < FAKE_MOST_QUEUED);
    struct fake_operation *operation = &self->queue[(self->first + self->count++) % FAKE_MOST_QUEUED];
    operation->run = run;
    operation->held = 0;
    operation->event = self->device->recorded + 1;
    memcpy(operation->arguments, arguments, bytes);
    if (fake_random(self->device) % 8 == 0) /* a real one does not wait to be looked at */
        (void)fake_run_queue(self, UINT64_MAX, fake_random(self->device) % 4);
}

static inline void fake_math_hold(struct fake_device *device, uint64_t event)
{
    struct fake_math *self = device->math;
    assert(self->count < FAKE_MOST_QUEUED);
    self->queue[(self->first + self->count++) % FAKE_MOST_QUEUED] =
        (struct fake_operation){.event = device->recorded + 1, .held = event};
}

static inline void fake_put_operation(struct device_math *math, void (*run)(struct fake_math *, const void *),
                                      const void *arguments, size_t bytes)
{
    struct fake_math *self = (struct fake_math *)math;
    if (self->fail_at && ++self->operations >= self->fail_at)
        self->failed = true;
    if (!self->failed)
        fake_put(self, run, arguments, bytes);
}
#define FAKE_PUT(run, ...)                                                                                             \
    do {                                                                                                               \
        const struct arguments arguments = {__VA_ARGS__};                                                              \
        fake_put_operation(self, run, &arguments, sizeof arguments);                                                   \
    } while (0)

/* --- the device's own functions, in that order --- */

static inline void fake_run_copy(struct fake_math *self, const void *arguments)
{
    struct fake_copy copy = {.copy = *(const struct device_copy *)arguments};
    fake_perform(self->device, &copy);
}

static inline int fake_math_copies(struct device *device, enum device_direction direction,
                                   const struct device_copy *copies, size_t count, struct cb_err *err)
{
    struct fake_math *self = fake_math_of(device);
    (void)err;
    for (size_t i = 0; i < count; i++) {
        *(direction == DEVICE_TO_HOST ? &self->device->bytes_to_host : &self->device->bytes_to_device) +=
            copies[i].row_bytes * copies[i].rows;
        fake_put(self, fake_run_copy, &copies[i], sizeof copies[i]);
    }
    return 0;
}

static inline int fake_math_poll(struct device *device, uint64_t event, bool *done, struct cb_err *err)
{
    struct fake_math *self = fake_math_of(device);
    int rc = fake_poll(device, event, done, err);
    if (!rc && *done)
        *done = fake_run_queue(self, event, SIZE_MAX);
    return rc;
}

static inline int fake_math_wait(struct device *device, uint64_t event, uint64_t deadline_ns, struct cb_err *err)
{
    bool done = false;
    ((struct fake_device *)device)->waits++;
    while (!done) {
        int rc = fake_math_poll(device, event, &done, err);
        if (!rc && !done && clock_monotonic_ns() > deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "the fake device is late");
        if (rc)
            return rc;
        if (!done)
            sched_yield();
    }
    return 0;
}

static inline void fake_run_mark(struct fake_math *self, const void *arguments)
{
    fake_pass_mark(self->device, *(const uint64_t *)arguments);
}

static inline int fake_math_mark(struct device *device, uint64_t *mark, struct cb_err *err)
{
    (void)err;
    *mark = fake_new_mark((struct fake_device *)device);
    fake_put(fake_math_of(device), fake_run_mark, mark, sizeof *mark);
    return 0;
}

static inline int fake_math_set(struct device *device, void *memory, unsigned char byte, uint64_t bytes,
                                struct cb_err *err)
{
    (void)fake_run_queue(fake_math_of(device), UINT64_MAX, SIZE_MAX);
    return fake_set(device, memory, byte, bytes, err);
}

static inline void fake_math_release(struct device *device, enum memory_kind kind, void *memory, uint64_t bytes)
{
    (void)fake_run_queue(fake_math_of(device), UINT64_MAX, SIZE_MAX);
    fake_release(device, kind, memory, bytes);
}

static const struct device_ops fake_math_device_ops = {
    .version = DEVICE_VERSION,
    .name = "fake",
    .allocate = fake_allocate,
    .release = fake_math_release,
    .copy = fake_math_copies,
    .follow = fake_follow,
    .record = fake_record,
    .poll = fake_math_poll,
    .wait = fake_math_wait,
    .begin_marks = fake_begin_marks,
    .mark = fake_math_mark,
    .mark_ns = fake_mark_ns,
    .set = fake_math_set,
    .fill = fake_fill,
    .check = fake_check,
    .close = fake_close,
};

/* --- products --- */

/* Rounds values to `to`, and gives them as floats. */
static inline float *fake_rounded(struct fake_math *self, const float *values, uint16_t *to, uint64_t count)
{
    float *copy = malloc(count * sizeof *copy);
    assert(copy && (uintptr_t)to % 256 == 0);
    to = fake_at(self, to, count * sizeof *to);
    kernel_pack_bf16(values, to, count);
    kernel_unpack_bf16(to, copy, count);
    return copy;
}

static inline void fake_run_product(struct fake_math *self, const void *arguments)
{
    const struct device_product *p = arguments;
    uint64_t samples = p->samples ? p->samples : 1, heads = p->heads ? p->heads : 1;
    uint64_t in_rows = p->in_transposed ? p->inner : p->rows, in_width = p->in_transposed ? p->rows : p->inner;
    uint64_t weight_rows = p->weight_transposed ? p->columns : p->inner;
    uint64_t weight_width = p->weight_transposed ? p->inner : p->columns;
    struct device_product_rounded counts = device_product_rounded(p);
    float *rounded[2] = {NULL, NULL};
    assert(samples * heads == 1 || (!p->base && !p->bias && !p->rounded));
    for (uint64_t i = 0; i < samples * heads; i++) {
        uint64_t s = i / heads, h = i % heads;
        const float *in = p->in + s * p->in_sample + h * p->in_head;
        const float *weight = p->weight + s * p->weight_sample + h * p->weight_head;
        float *out = p->out + s * p->out_sample + h * p->out_head;
        uint64_t out_count = (p->rows - 1) * p->out_stride + p->columns;
        in = fake_floats(self, in, (in_rows - 1) * p->in_stride + in_width);
        weight = fake_floats(self, weight, (weight_rows - 1) * p->weight_stride + weight_width);
        if (p->rounded) {
            in = rounded[0] = fake_rounded(self, in, counts.in, counts.in_count);
            weight = rounded[1] = fake_rounded(self, weight, counts.weight, counts.weight_count);
        }
        out = fake_floats(self, out, out_count);
        const float *base = fake_floats(self, p->base, out_count), *bias = fake_floats(self, p->bias, p->columns);
        for (uint64_t r = 0; r < p->rows && (bias || (base && base != out)); r++) {
            float *row = out + r * p->out_stride;
            if (!base)
                memcpy(row, bias, p->columns * sizeof *row);
            for (uint64_t c = 0; base && c < p->columns; c++)
                row[c] = base[r * p->out_stride + c] + (bias ? bias[c] : 0);
        }
        blas_sgemm(&self->blas, p->in_transposed, p->weight_transposed, (int)p->rows, (int)p->columns, (int)p->inner,
                   p->scale, in, (int)p->in_stride, weight, (int)p->weight_stride, base || bias ? 1.0f : 0.0f, out,
                   (int)p->out_stride);
        free(rounded[0]);
        free(rounded[1]);
    }
}

static inline void fake_product(struct device_math *self, const struct device_product *product)
{
    fake_put_operation(self, fake_run_product, product, sizeof *product);
}

/* --- all others: an address each, four numbers, some factors --- */

struct arguments {
    const void *a, *b, *c, *d, *e;
    void *x, *y, *z;
    uint64_t n, m, k, l, stride;
    float value, other;
};

static inline void fake_run_norm(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    uint64_t all = a->n * a->m;
    kernel_layer_norm(fake_floats(self, a->a, all), fake_floats(self, a->b, a->m), fake_floats(self, a->c, a->m), a->n,
                      a->m, fake_floats(self, a->x, all), fake_floats(self, a->y, a->n), fake_floats(self, a->z, a->n));
}

static inline void fake_layer_norm(struct device_math *self, const float *x, const float *weight, const float *bias,
                                   uint64_t rows, uint64_t width, float *out, float *mean, float *scale)
{
    FAKE_PUT(fake_run_norm, .a = x, .b = weight, .c = bias, .n = rows, .m = width, .x = out, .y = mean, .z = scale);
}

static inline void fake_run_norm_again(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    uint64_t all = a->n * a->m;
    kernel_layer_norm_again(fake_floats(self, a->a, all), fake_floats(self, a->b, a->m), fake_floats(self, a->c, a->m),
                            fake_floats(self, a->d, a->n), fake_floats(self, a->e, a->n), a->n, a->m,
                            fake_floats(self, a->x, all));
}

static inline void fake_layer_norm_again(struct device_math *self, const float *x, const float *weight,
                                         const float *bias, const float *mean, const float *scale, uint64_t rows,
                                         uint64_t width, float *out)
{
    FAKE_PUT(fake_run_norm_again, .a = x, .b = weight, .c = bias, .d = mean, .e = scale, .n = rows, .m = width,
             .x = out);
}

static inline void fake_run_norm_backward(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    uint64_t all = a->n * a->m;
    kernel_layer_norm_backward(fake_floats(self, a->a, all), fake_floats(self, a->b, a->m),
                               fake_floats(self, a->c, a->n), fake_floats(self, a->d, a->n),
                               fake_floats(self, a->e, all), a->n, a->m, fake_floats(self, a->x, all),
                               fake_floats(self, a->y, a->m), fake_floats(self, a->z, a->m));
}

static inline void fake_layer_norm_backward(struct device_math *self, const float *x, const float *weight,
                                            const float *mean, const float *scale, const float *dout, uint64_t rows,
                                            uint64_t width, float *dx, float *dweight, float *dbias)
{
    FAKE_PUT(fake_run_norm_backward, .a = x, .b = weight, .c = mean, .d = scale, .e = dout, .n = rows, .m = width,
             .x = dx, .y = dweight, .z = dbias);
}

static inline void fake_run_gelu(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    kernel_gelu(fake_floats(self, a->a, a->n), fake_floats(self, a->x, a->n), a->n);
}

static inline void fake_gelu(struct device_math *self, const float *x, float *y, uint64_t count)
{
    FAKE_PUT(fake_run_gelu, .a = x, .x = y, .n = count);
}

static inline void fake_run_gelu_and_slope(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    kernel_gelu_and_slope(fake_floats(self, a->x, a->n), fake_floats(self, a->y, a->n), a->n);
}

static inline void fake_gelu_and_slope(struct device_math *self, float *x, float *y, uint64_t count)
{
    FAKE_PUT(fake_run_gelu_and_slope, .x = x, .y = y, .n = count);
}

static inline void fake_run_multiply(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    kernel_multiply(fake_floats(self, a->x, a->n), fake_floats(self, a->a, a->n), a->n);
}

static inline void fake_multiply(struct device_math *self, float *x, const float *factor, uint64_t count)
{
    FAKE_PUT(fake_run_multiply, .a = factor, .x = x, .n = count);
}

static inline void fake_run_add(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    kernel_add(fake_floats(self, a->x, a->n), fake_floats(self, a->a, a->n), a->n);
}

static inline void fake_add(struct device_math *self, float *x, const float *addend, uint64_t count)
{
    FAKE_PUT(fake_run_add, .a = addend, .x = x, .n = count);
}

static inline void fake_run_fill(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    float *x = fake_floats(self, a->x, a->n);
    for (uint64_t i = 0; i < a->n; i++)
        x[i] = a->value;
}

static inline void fake_fill_value(struct device_math *self, float *x, float value, uint64_t count)
{
    FAKE_PUT(fake_run_fill, .x = x, .value = value, .n = count);
}

static inline void fake_run_column_sums(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    kernel_add_column_sums(fake_floats(self, a->a, (a->n - 1) * a->stride + a->m), a->stride, a->n, 0, a->m,
                           fake_floats(self, a->x, a->m));
}

static inline void fake_add_column_sums(struct device_math *self, const float *matrix, uint64_t stride, uint64_t rows,
                                        uint64_t width, float *sums)
{
    FAKE_PUT(fake_run_column_sums, .a = matrix, .stride = stride, .n = rows, .m = width, .x = sums);
}

static inline void fake_run_row_sums(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    const float *matrix = fake_floats(self, a->a, a->n * a->m);
    double *sums = fake_at(self, a->x, a->n * sizeof *sums);
    for (uint64_t r = 0; r < a->n; r++)
        sums[r] = kernel_sum(matrix + r * a->m, a->m);
}

static inline void fake_row_sums(struct device_math *self, const float *matrix, uint64_t rows, uint64_t width,
                                 double *sums)
{
    FAKE_PUT(fake_run_row_sums, .a = matrix, .n = rows, .m = width, .x = sums);
}

/* In the pieces that the optimizer takes on the CPU. */
static inline void fake_run_squares(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    const float *values = fake_floats(self, a->a, a->n);
    double *sum = fake_at(self, a->x, sizeof *sum);
    *sum = 0;
    for (uint64_t at = 0; at < a->n; at += 65536)
        *sum += kernel_sum_of_squares(values + at, a->n - at < 65536 ? a->n - at : 65536);
}

static inline void fake_sum_of_squares(struct device_math *self, const float *values, uint64_t count, double *sum)
{
    FAKE_PUT(fake_run_squares, .a = values, .n = count, .x = sum);
}

static inline void fake_run_softmax(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    for (uint64_t i = 0; i < a->n; i++) {
        float *scores = (float *)a->x + i * a->m * a->stride;
        scores = fake_floats(self, scores, (a->m - 1) * a->stride + a->m);
        float *log_sum = fake_floats(self, (float *)a->y + i * a->m, a->m);
        if (a->k)
            kernel_causal_weights(scores, a->stride, a->m, 0, a->m, log_sum);
        else
            kernel_causal_softmax(scores, a->stride, a->m, 0, a->m, log_sum);
    }
}

static inline void fake_causal_softmax(struct device_math *self, float *scores, uint64_t stride, uint64_t matrices,
                                       uint64_t rows, float *log_sum)
{
    FAKE_PUT(fake_run_softmax, .x = scores, .y = log_sum, .stride = stride, .n = matrices, .m = rows);
}

static inline void fake_causal_weights(struct device_math *self, float *scores, uint64_t stride, uint64_t matrices,
                                       uint64_t rows, const float *log_sum)
{
    FAKE_PUT(fake_run_softmax, .x = scores, .y = (void *)(uintptr_t)log_sum, .stride = stride, .n = matrices, .m = rows,
             .k = 1);
}

static inline void fake_run_causal_backward(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    uint64_t samples = a->n, heads = a->m, rows = a->k, size = a->l, out_stride = (uint64_t)(uintptr_t)a->z;
    for (uint64_t i = 0; i < samples * heads; i++) {
        uint64_t at = i * rows * a->stride, count = (rows - 1) * a->stride + rows;
        uint64_t out_at = i / heads * rows * out_stride + i % heads * size, out_count = (rows - 1) * out_stride + size;
        kernel_causal_backward(fake_floats(self, (const float *)a->a + at, count),
                               fake_floats(self, (float *)a->x + at, count), a->stride, rows, rows,
                               fake_floats(self, (const float *)a->b + out_at, out_count),
                               fake_floats(self, (const float *)a->c + out_at, out_count), out_stride, size, a->value);
    }
}

static inline void fake_causal_backward(struct device_math *self, const float *weights, float *dweights,
                                        uint64_t stride, uint64_t samples, uint64_t heads, uint64_t rows,
                                        const float *dout, const float *out, uint64_t out_stride, uint64_t size,
                                        float scale)
{
    FAKE_PUT(fake_run_causal_backward, .a = weights, .x = dweights, .stride = stride, .n = samples, .m = heads,
             .k = rows, .b = dout, .c = out, .z = (void *)(uintptr_t)out_stride, .l = size, .value = scale);
}

static inline void fake_run_cross_entropy(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    const uint32_t *targets = fake_at(self, a->a, a->n * sizeof *targets);
    double *row_loss = fake_at(self, a->y, a->n * sizeof *row_loss);
    for (uint64_t r = 0; r < a->n; r++) {
        float *logits = fake_floats(self, (float *)a->x + r * a->stride, a->m);
        row_loss[r] = 0;
        if (targets[r] == TRAIN_IGNORE)
            memset(logits, 0, a->m * sizeof *logits);
        else
            row_loss[r] = kernel_cross_entropy(logits, a->m, targets[r], a->value);
    }
}

static inline void fake_cross_entropy(struct device_math *self, float *logits, uint64_t stride, uint64_t rows,
                                      uint64_t count, const uint32_t *targets, float gradient_scale, double *row_loss)
{
    FAKE_PUT(fake_run_cross_entropy, .x = logits, .stride = stride, .n = rows, .m = count, .a = targets,
             .value = gradient_scale, .y = row_loss);
}

static inline void fake_run_embed(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    const uint32_t *tokens = fake_at(self, a->a, a->n * sizeof *tokens);
    for (uint64_t r = 0; r < a->n; r++)
        kernel_start_rows(fake_floats(self, (const float *)a->b + tokens[r] * a->k, a->k),
                          fake_floats(self, (const float *)a->c + r % a->m * a->k, a->k), 1, a->k,
                          fake_floats(self, (float *)a->x + r * a->k, a->k));
}

static inline void fake_embed(struct device_math *self, const uint32_t *tokens, const float *tokens_weight,
                              const float *positions_weight, uint64_t rows, uint64_t sequence, uint64_t width,
                              float *out)
{
    FAKE_PUT(fake_run_embed, .a = tokens, .b = tokens_weight, .c = positions_weight, .n = rows, .m = sequence,
             .k = width, .x = out);
}

static inline void fake_run_embed_backward(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    uint64_t rows = a->n, sequence = a->m, width = a->k, distinct_count = a->l;
    const uint32_t *distinct = fake_at(self, a->a, distinct_count * sizeof *distinct);
    const uint32_t *begins = fake_at(self, a->b, (distinct_count + 1) * sizeof *begins);
    const uint32_t *order = fake_at(self, a->c, rows * sizeof *order);
    const float *gradient = fake_floats(self, a->d, rows * width);
    assert(begins[0] == 0 && begins[distinct_count] == rows);
    for (uint64_t i = 0; i < distinct_count; i++)
        for (uint32_t k = begins[i]; k < begins[i + 1]; k++)
            kernel_add(fake_floats(self, (float *)a->x + distinct[i] * width, width), gradient + order[k] * width,
                       width);
    for (uint64_t r = 0; r < rows; r++)
        kernel_add(fake_floats(self, (float *)a->y + r % sequence * width, width), gradient + r * width, width);
}

static inline void fake_embed_backward(struct device_math *self, const struct device_token_rows *token_rows,
                                       const float *gradient, uint64_t rows, uint64_t sequence, uint64_t width,
                                       float *dtokens, float *dpositions)
{
    FAKE_PUT(fake_run_embed_backward, .a = token_rows->distinct, .b = token_rows->begins, .c = token_rows->order,
             .l = token_rows->distinct_count, .d = gradient, .n = rows, .m = sequence, .k = width, .x = dtokens,
             .y = dpositions);
}

struct fake_dropped {
    struct device_dropout dropout;
    const float *x;
    float *out;
    uint64_t stride, rows, width;
};

static inline void fake_run_dropout(struct fake_math *self, const void *arguments)
{
    const struct fake_dropped *a = arguments;
    for (uint64_t r = 0; r < a->rows; r++) {
        uint64_t sample = a->dropout.first_sample + r / a->dropout.sample_rows;
        struct dropout site = {.key = dropout_site_key(a->dropout.step_key, sample, a->dropout.place),
                               .threshold = a->dropout.threshold,
                               .scale = a->dropout.scale};
        kernel_dropout(&site, r % a->dropout.sample_rows * a->width, fake_floats(self, a->x + r * a->stride, a->width),
                       fake_floats(self, a->out + r * a->stride, a->width), a->width);
    }
}

static inline void fake_dropout(struct device_math *self, const struct device_dropout *dropout, const float *x,
                                float *out, uint64_t stride, uint64_t rows, uint64_t width)
{
    struct fake_dropped all = {*dropout, x, out, stride, rows, width};
    fake_put_operation(self, fake_run_dropout, &all, sizeof all);
}

struct fake_updated {
    struct adamw_factors factors;
    float *weights, *exp_avg, *exp_avg_sq;
    const float *gradients;
    uint64_t count;
};

static inline void fake_run_adamw(struct fake_math *self, const void *arguments)
{
    const struct fake_updated *a = arguments;
    kernel_adamw(&a->factors, fake_floats(self, a->weights, a->count), fake_floats(self, a->gradients, a->count),
                 fake_floats(self, a->exp_avg, a->count), fake_floats(self, a->exp_avg_sq, a->count), a->count);
}

static inline void fake_adamw(struct device_math *self, const struct adamw_factors *factors, float *weights,
                              const float *gradients, float *exp_avg, float *exp_avg_sq, uint64_t count)
{
    struct fake_updated all = {*factors, weights, exp_avg, exp_avg_sq, gradients, count};
    fake_put_operation(self, fake_run_adamw, &all, sizeof all);
}

static inline void fake_run_sgd(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    kernel_sgd(a->value, a->other, fake_floats(self, a->x, a->n), fake_floats(self, a->a, a->n), a->n);
}

static inline void fake_sgd(struct device_math *self, float decay, float rate, float *weights, const float *gradients,
                            uint64_t count)
{
    FAKE_PUT(fake_run_sgd, .value = decay, .other = rate, .x = weights, .a = gradients, .n = count);
}

static inline void fake_run_round(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    kernel_round_bf16(fake_floats(self, a->a, a->n), fake_floats(self, a->x, a->n), a->n);
}

static inline void fake_round_bf16(struct device_math *self, const float *values, float *rounded, uint64_t count)
{
    FAKE_PUT(fake_run_round, .a = values, .x = rounded, .n = count);
}

static inline void fake_run_pack(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    kernel_pack_bf16(fake_floats(self, a->a, a->n), fake_at(self, a->x, a->n * sizeof(uint16_t)), a->n);
}

static inline void fake_pack_bf16(struct device_math *self, const float *values, uint16_t *packed, uint64_t count)
{
    FAKE_PUT(fake_run_pack, .a = values, .x = packed, .n = count);
}

static inline void fake_run_unpack(struct fake_math *self, const void *arguments)
{
    const struct arguments *a = arguments;
    kernel_unpack_bf16(fake_at(self, a->a, a->n * sizeof(uint16_t)), fake_floats(self, a->x, a->n), a->n);
}

static inline void fake_unpack_bf16(struct device_math *self, const uint16_t *packed, float *values, uint64_t count)
{
    FAKE_PUT(fake_run_unpack, .a = packed, .x = values, .n = count);
}

static inline int fake_math_check(struct device_math *math, struct cb_err *err)
{
    return ((struct fake_math *)math)->failed ? cb_fail(err, CB_ERR_SYSTEM, "the fake device cannot multiply") : 0;
}

static inline void fake_math_close(struct device_math *math)
{
    struct fake_math *self = (struct fake_math *)math;
    (void)fake_run_queue(self, UINT64_MAX, SIZE_MAX);
    self->device->base.ops = &fake_ops;
    self->device->math = NULL;
    self->device->math_until = NULL;
    blas_close(&self->blas);
    free(self->queue);
    free(self);
}

static const struct device_math_ops fake_math_ops = {
    .version = DEVICE_MATH_VERSION,
    .product = fake_product,
    .layer_norm = fake_layer_norm,
    .layer_norm_again = fake_layer_norm_again,
    .layer_norm_backward = fake_layer_norm_backward,
    .gelu = fake_gelu,
    .gelu_and_slope = fake_gelu_and_slope,
    .multiply = fake_multiply,
    .add = fake_add,
    .fill = fake_fill_value,
    .add_column_sums = fake_add_column_sums,
    .row_sums = fake_row_sums,
    .sum_of_squares = fake_sum_of_squares,
    .causal_softmax = fake_causal_softmax,
    .causal_weights = fake_causal_weights,
    .causal_backward = fake_causal_backward,
    .cross_entropy = fake_cross_entropy,
    .embed = fake_embed,
    .embed_backward = fake_embed_backward,
    .dropout = fake_dropout,
    .adamw = fake_adamw,
    .sgd = fake_sgd,
    .round_bf16 = fake_round_bf16,
    .pack_bf16 = fake_pack_bf16,
    .unpack_bf16 = fake_unpack_bf16,
    .check = fake_math_check,
    .close = fake_math_close,
};

/* Of a fake device, whose copies it puts in order with what it computes. */
static inline int fake_math_open(struct device *device, struct device_math **math, struct cb_err *err)
{
    struct fake_math *self = calloc(1, sizeof *self);
    assert(self);
    self->queue = calloc(FAKE_MOST_QUEUED, sizeof *self->queue);
    assert(self->queue);
    int rc = blas_open(&self->blas, err);
    if (rc) {
        free(self->queue);
        free(self);
        return rc;
    }
    self->device = (struct fake_device *)device;
    self->base = (struct device_math){.ops = &fake_math_ops, .device = device};
    self->device->math = self;
    device->ops = &fake_math_device_ops;
    self->device->math_until = fake_math_until;
    self->device->hold = fake_math_hold;
    *math = &self->base;
    return 0;
}

#endif
