/* Trains as a file says, for comparison with PyTorch, or for a while, for its speed.
 *
 *   train_probe steps IN OUT
 *     IN:  12 uint32: kind (0 GPT-2, 1 linear), layers, width, heads, positions, vocabulary, batch, sequence, threads, steps,
 *          optimizer (0 AdamW, 1 SGD), bf16; 4 float: rate, weight decay, clip, dropout; the weights of all units; for each step
 *          tokens and targets (uint32), or the input (float)
 *     OUT: a double loss a step; all gradients of the first step before clipping; the weights after the last
 *   train_probe speed VOCABULARY WIDTH LAYERS HEADS BATCH SEQUENCE THREADS STEPS
 *     one line of JSON: tokens a second of the median step, its time, and the memory that was needed */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "core/clock.h"
#include "train/data.h"
#include "train/optimizer.h"

#define WARMUP 3

struct probe {
    struct train_setup setup;
    struct train_model *model;
    struct optimizer optimizer;
    double rate, clip;
    bool bf16;
    uint64_t elements;
    float *weights, *rounded, *gradients, *exp_avg, *exp_avg_sq;
};

static void die(const struct cb_err *err)
{
    fprintf(stderr, "train_probe: %s\n", err->message);
    exit(1);
}

static void *allocate(uint64_t count, uint64_t bytes)
{
    void *memory = calloc(count, bytes);
    if (!memory) {
        fprintf(stderr, "train_probe: no memory\n");
        exit(1);
    }
    return memory;
}

static void probe_init(struct probe *self)
{
    struct cb_err err = {0};
    if (train_model_new(&self->setup, &self->model, &err))
        die(&err);
    for (size_t u = 0; u < train_model_unit_count(self->model); u++)
        self->elements += train_model_unit(self->model, u)->elements;
    self->weights = allocate(self->elements, sizeof(float));
    self->rounded = self->bf16 ? allocate(self->elements, sizeof(float)) : self->weights;
    self->gradients = allocate(self->elements, sizeof(float));
    if (optimizer_moments(self->optimizer.kind)) {
        self->exp_avg = allocate(self->elements, sizeof(float));
        self->exp_avg_sq = allocate(self->elements, sizeof(float));
    }
}

static void probe_release(struct probe *self)
{
    train_model_free(self->model);
    if (self->bf16)
        free(self->rounded);
    free(self->weights);
    free(self->gradients);
    free(self->exp_avg);
    free(self->exp_avg_sq);
}

/* Where a unit begins, all of them being in a row. */
static uint64_t place_of(const struct probe *self, size_t unit)
{
    uint64_t place = 0;
    for (size_t u = 0; u < unit; u++)
        place += train_model_unit(self->model, u)->elements;
    return place;
}

static double gradients_of(struct probe *self, const struct train_batch *batch)
{
    struct cb_err err = {0};
    size_t stages = train_model_stage_count(self->model);
    if (self->bf16)
        kernel_round_bf16(self->weights, self->rounded, self->elements);
    memset(self->gradients, 0, self->elements * sizeof(float));
    if (train_model_begin(self->model, batch, &err))
        die(&err);
    for (size_t s = 0; s < stages; s++)
        train_model_forward(self->model, s, self->rounded + place_of(self, train_model_stage_unit(self->model, s)));
    for (size_t s = stages; s-- > 0;) {
        uint64_t place = place_of(self, train_model_stage_unit(self->model, s));
        train_model_backward(self->model, s, self->rounded + place, self->gradients + place);
    }
    return train_model_loss(self->model);
}

static void update(struct probe *self, uint64_t step)
{
    struct thread_pool *team = train_model_team(self->model);
    double norm = sqrt(optimizer_sum_of_squares(self->gradients, self->elements, team));
    double scale = optimizer_clip_scale(norm, self->clip);
    for (size_t u = 0; u < train_model_unit_count(self->model); u++) {
        uint64_t place = place_of(self, u);
        const struct train_unit *unit = train_model_unit(self->model, u);
        struct optimizer_range range = {.count = unit->elements,
                                        .weights = self->weights + place,
                                        .gradients = self->gradients + place,
                                        .exp_avg = self->exp_avg ? self->exp_avg + place : NULL,
                                        .exp_avg_sq = self->exp_avg_sq ? self->exp_avg_sq + place : NULL};
        optimizer_step(&self->optimizer, unit, &range, self->rate, scale, step, team);
    }
}

static void need(bool done, const char *what)
{
    if (!done) {
        fprintf(stderr, "train_probe: %s\n", what);
        exit(1);
    }
}

static int steps(const char *in_path, const char *out_path)
{
    FILE *in = fopen(in_path, "rb"), *out = fopen(out_path, "wb");
    uint32_t n[12];
    float f[4];
    need(in && out && fread(n, sizeof n, 1, in) == 1 && fread(f, sizeof f, 1, in) == 1, "cannot read or write");
    struct probe self = {.rate = (double)f[0], .clip = (double)f[2], .bf16 = n[11] != 0};
    self.setup = (struct train_setup){.shape = {.kind = n[0] ? TRAIN_LINEAR : TRAIN_GPT2,
                                                .layers = n[1],
                                                .width = n[2],
                                                .heads = n[3],
                                                .positions = n[4],
                                                .vocabulary = n[5],
                                                .bias = true},
                                      .batch = n[6],
                                      .sequence = n[7],
                                      .threads = n[8],
                                      .dropout = f[3]};
    self.optimizer = optimizer_default(n[10] ? OPTIMIZER_SGD : OPTIMIZER_ADAMW);
    self.optimizer.weight_decay = (double)f[1];
    probe_init(&self);
    need(fread(self.weights, sizeof(float), self.elements, in) == self.elements, "weights are too short");
    uint64_t rows = (uint64_t)n[6] * n[7], inputs = n[0] ? rows * n[2] : rows;
    uint32_t *tokens = allocate(inputs, 4), *targets = allocate(inputs, 4);
    float *first = allocate(self.elements, sizeof(float));
    for (uint32_t step = 0; step < n[9]; step++) {
        need(fread(tokens, 4, inputs, in) == inputs, "inputs are too short");
        need(n[0] || fread(targets, 4, inputs, in) == inputs, "targets are too short");
        struct train_batch batch = {.step = step, .training = true, .tokens = tokens, .targets = targets};
        batch.input = (const float *)tokens;
        double loss = gradients_of(&self, &batch);
        need(fwrite(&loss, sizeof loss, 1, out) == 1, "cannot write");
        if (step == 0)
            memcpy(first, self.gradients, self.elements * sizeof(float));
        update(&self, step + 1);
    }
    need(fwrite(first, sizeof(float), self.elements, out) == self.elements, "cannot write");
    need(fwrite(self.weights, sizeof(float), self.elements, out) == self.elements, "cannot write");
    free(first);
    free(tokens);
    free(targets);
    probe_release(&self);
    fclose(in);
    return fclose(out) == 0 ? 0 : 1;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static int speed(char **words)
{
    uint32_t n[8];
    struct cb_err err = {0};
    for (int i = 0; i < 8; i++)
        n[i] = (uint32_t)strtoul(words[i], NULL, 10);
    struct probe self = {.rate = 1e-3, .clip = 1, .optimizer = optimizer_default(OPTIMIZER_ADAMW)};
    self.setup = (struct train_setup){
        .shape = {.layers = n[2], .width = n[1], .heads = n[3], .positions = n[5], .vocabulary = n[0], .bias = true},
        .batch = n[4],
        .sequence = n[5],
        .threads = n[6]};
    probe_init(&self);
    for (size_t u = 0; u < train_model_unit_count(self.model); u++)
        train_model_init(self.model, u, 0, train_model_unit(self.model, u)->elements, 1,
                         self.weights + place_of(&self, u));
    struct train_data_setup source = {.source = "markov", .vocabulary = n[0], .sequence = n[5], .seed = 1};
    struct train_data *data = NULL;
    if (train_data_open(&source, &data, &err))
        die(&err);
    uint32_t *tokens = allocate((uint64_t)n[4] * n[5], 4), *targets = allocate((uint64_t)n[4] * n[5], 4);
    double *seconds = allocate(n[7] + 1, sizeof *seconds), first_loss = 0, loss = 0;
    double cpu_start_s = 0;
    for (uint32_t step = 0; step < n[7] + WARMUP; step++) {
        if (step == WARMUP)
            cpu_start_s = cpu_seconds();
        uint64_t start_ns = clock_monotonic_ns();
        for (uint32_t b = 0; b < n[4]; b++)
            if (train_data_sample(data, DATA_TRAINING, (uint64_t)step * n[4] + b, tokens + (uint64_t)b * n[5],
                                  targets + (uint64_t)b * n[5], &err))
                die(&err);
        struct train_batch batch = {.step = step, .training = true, .tokens = tokens, .targets = targets};
        loss = gradients_of(&self, &batch);
        update(&self, step + 1);
        if (step == 0)
            first_loss = loss;
        if (step >= WARMUP)
            seconds[step - WARMUP] = (double)(clock_monotonic_ns() - start_ns) / 1e9;
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    qsort(seconds, n[7], sizeof *seconds, compare);
    double median = seconds[n[7] / 2];
    printf("{\"tokens_per_s\": %.1f, \"step_s\": %.6f, \"least_step_s\": %.6f, \"peak_rss_bytes\": %llu, "
           "\"cpu_s_per_step\": %.6f, \"model_bytes\": %llu, \"first_loss\": %.4f, \"loss\": %.4f}\n",
           (double)n[4] * n[5] / median, median, seconds[0], (unsigned long long)usage.ru_maxrss << 10,
           (cpu_seconds() - cpu_start_s) / n[7], (unsigned long long)train_model_bytes(&self.setup), first_loss, loss);
    free(seconds);
    free(tokens);
    free(targets);
    train_data_close(data);
    probe_release(&self);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "steps") == 0)
        return steps(argv[2], argv[3]);
    if (argc == 10 && strcmp(argv[1], "speed") == 0)
        return speed(argv + 2);
    fprintf(stderr,
            "usage: train_probe steps IN OUT | speed VOCABULARY WIDTH LAYERS HEADS BATCH SEQUENCE THREADS STEPS\n");
    return 2;
}
