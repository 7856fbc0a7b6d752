/* One step of training: the batch, forward and backward, the norm, the update, and its metrics. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "core/clock.h"
#include "train/trainer.h"

/* The numbers that the ranks sum after backward; the first one is the norm's. */
enum sums { SUM_NORM, SUM_LOSS, SUM_COUNTED, SUM_BROKEN, SUMS };

/* A number in [-1, 1) for an element of a sample. */
static float value_of(uint64_t seed, uint64_t sample, uint64_t column)
{
    uint64_t bits = seed * UINT64_C(0x9E3779B97F4A7C15) + sample * UINT64_C(0xBF58476D1CE4E5B9) + column + 1;
    bits ^= bits >> 30;
    bits *= UINT64_C(0xBF58476D1CE4E5B9);
    bits ^= bits >> 27;
    bits *= UINT64_C(0x94D049BB133111EB);
    bits ^= bits >> 31;
    return (float)((double)(bits >> 11) * 0x1p-52 - 1);
}

void trainer_fill_input(struct trainer *self)
{
    uint64_t width = self->setup.shape.width, first = (uint64_t)self->rank * self->setup.batch;
    for (uint64_t i = 0; i < self->setup.batch; i++)
        for (uint64_t column = 0; column < width; column++)
            self->input[i * width + column] = value_of(self->setup.seed, first + i, column);
}

/* `first` is the first sample of all ranks' batches. */
static int read_batch(struct trainer *self, enum data_split split, uint64_t first, struct cb_err *err)
{
    uint64_t mine = first + (uint64_t)self->rank * self->setup.batch;
    int rc = 0;
    for (uint64_t i = 0; self->data && i < self->setup.batch && !rc; i++)
        rc = train_data_sample(self->data, split, mine + i, self->tokens + i * self->setup.sequence,
                               self->targets + i * self->setup.sequence, err);
    return rc;
}

static int begin_batch(struct trainer *self, bool training, struct cb_err *err)
{
    struct train_batch batch = {
        .step = (uint64_t)self->position.step,
        .first_sample = (uint64_t)self->rank * self->setup.batch,
        .training = training,
        .tokens = self->tokens,
        .targets = self->targets,
        .input = self->input,
        .input_stays = true,
    };
    return train_model_begin(self->model, &batch, err);
}

static void add_own_loss(const struct trainer *self, double numbers[SUMS])
{
    double loss = train_model_loss(self->model), counted = (double)train_model_counted(self->model);
    numbers[SUM_LOSS] = loss * counted;
    numbers[SUM_COUNTED] = counted;
    numbers[SUM_BROKEN] = isfinite(loss) ? 0 : 1;
}

/* All ranks get the same result; ranks whose own loss is NaN or infinite have the reason. */
static int check_finite(struct trainer *self, const double numbers[SUMS], struct cb_err *err)
{
    double loss = train_model_loss(self->model);
    if (numbers[SUM_BROKEN] == 0 && isfinite(numbers[SUM_NORM]))
        return 0;
    long long step = (long long)self->position.step;
    const char *advice = "lower train.lr, give train.warmup_steps, or look at the data";
    self->broken = true;
    if (numbers[SUM_BROKEN] == 0)
        return cb_fail(err, CB_ERR_BELOW, "the gradients of step %lld are not finite (norm %g, train.lr %g): %s", step,
                       numbers[SUM_NORM], self->learning_rate, advice);
    if (isfinite(loss))
        return cb_fail(err, CB_ERR_ABORTED, "the loss of step %lld is no number on another rank", step);
    return cb_fail(err, CB_ERR_BELOW, "the loss of step %lld on rank %u is %s: %s", step, self->rank,
                   isnan(loss) ? "no number (NaN)" : "infinite", advice);
}

static int validate(struct trainer *self, struct sample *sample, struct cb_err *err)
{
    struct timeline timeline; /* excluded from the step's time, since it has its own sample */
    double numbers[SUMS] = {0};
    uint64_t start_ns = clock_monotonic_ns();
    timeline_start(&timeline, self->page, OP_STEP, STATE_OTHER);
    int rc = read_batch(self, DATA_VALIDATION, 0, err);
    if (!rc)
        rc = begin_batch(self, false, err);
    rc = trainer_join(self, rc, err);
    if (!rc)
        rc = parallel_forward(self->parallel, &timeline, trainer_deadline(self), err);
    if (rc)
        return rc;
    self->exchanged = parallel_counts(self->parallel); /* not part of the step's communication */
    add_own_loss(self, numbers);
    rc = self->training.ranks > 1 ? comm_sum(self->comm, numbers, SUMS, trainer_deadline(self), err) : 0;
    timeline_stop(&timeline);
    if (!rc)
        sample->values[METRIC_VALIDATION_LOSS] = numbers[SUM_LOSS] / numbers[SUM_COUNTED];
    trace_add(&self->trace, TRACE_COMPUTE, "validation", start_ns, clock_monotonic_ns(), 0);
    return rc;
}

static double cpu_seconds(void)
{
    struct rusage now;
    getrusage(RUSAGE_SELF, &now);
    return (double)(now.ru_utime.tv_sec + now.ru_stime.tv_sec) +
           (double)(now.ru_utime.tv_usec + now.ru_stime.tv_usec) / 1e6;
}

static void fill_sample(struct trainer *self, const struct timeline *timeline, const double numbers[SUMS], double cpu_s,
                        struct sample *sample)
{
    struct rusage usage;
    uint64_t tokens = (uint64_t)self->setup.batch * self->setup.sequence;
    double flops = train_flops_per_token(&self->setup.shape, self->setup.sequence) * (double)tokens;
    struct stream_counts counts = parallel_counts(self->parallel);
    uint64_t gathered_bytes = parallel_figures(self->parallel).gathered_bytes;
    timeline_fill(timeline, sample);
    getrusage(RUSAGE_SELF, &usage);
    sample->values[METRIC_LOSS] = numbers[SUM_LOSS] / numbers[SUM_COUNTED];
    sample->values[METRIC_GRADIENT_NORM] = numbers[SUM_NORM];
    sample->values[METRIC_LEARNING_RATE] = self->learning_rate;
    sample->values[METRIC_TOKENS] = (double)tokens;
    if (!self->gpu) /* how long a device's collectives take is not known to the host */
        sample->values[METRIC_COMM_S] = (double)(counts.busy_ns - self->exchanged.busy_ns) / 1e9;
    sample->values[METRIC_COMM_BYTES] = (double)(counts.bytes_sent - self->exchanged.bytes_sent);
    if (self->training.cpu_offload)
        sample->values[METRIC_OFFLOAD_BYTES] = (double)(counts.copied_bytes - self->exchanged.copied_bytes);
    if (gathered_bytes > 0)
        sample->values[METRIC_GATHERED_BYTES] = (double)gathered_bytes;
    sample->values[METRIC_CPU_S] = cpu_seconds() - cpu_s;
    sample->values[METRIC_RSS_BYTES] = (double)usage.ru_maxrss * 1024;
    if (self->peak_flops > 0)
        sample->values[METRIC_MFU] = flops / sample->values[METRIC_OP_S] / self->peak_flops;
    self->exchanged = counts;
}

/* `sums` stay unchanged until they are sums over all ranks: a step that fails earlier has no loss. */
static int compute(struct trainer *self, struct timeline *timeline, double sums[SUMS], struct cb_err *err)
{
    double numbers[SUMS] = {0};
    uint64_t step = (uint64_t)self->position.step + 1;
    timeline_enter(timeline, STATE_IO);
    int rc = read_batch(self, DATA_TRAINING, (uint64_t)self->position.samples, err);
    timeline_enter(timeline, STATE_OTHER);
    if (!rc)
        rc = begin_batch(self, true, err);
    rc = self->data ? trainer_join(self, rc, err) : rc;
    if (!rc)
        rc = parallel_gradients(self->parallel, timeline, trainer_deadline(self), err);
    if (rc)
        return rc;
    add_own_loss(self, numbers);
    self->learning_rate = schedule_rate(&self->schedule, step);
    rc = parallel_norm(self->parallel, timeline, numbers, SUMS, trainer_deadline(self), err);
    if (!rc) {
        memcpy(sums, numbers, sizeof numbers);
        rc = check_finite(self, numbers, err);
    }
    if (!rc)
        rc = parallel_update(self->parallel, self->learning_rate, optimizer_clip_scale(numbers[SUM_NORM], self->clip),
                             step, trainer_deadline(self), err);
    return rc;
}

/* Adds a measured step to one of two groups: with and without a concurrent save. */
static void note_pace(struct trainer *self, const struct timeline *timeline, bool saving_before)
{
    bool saving = checkpoint_is_saving(self);
    if (saving != saving_before) /* a save ended during it, so it belongs to neither group */
        return;
    struct step_rate *rate = saving ? &self->beside : &self->alone;
    rate->steps++;
    rate->spent_ns += timeline->end_ns - timeline->start_ns;
}

static bool is_warmup(const struct trainer *self)
{
    return (uint64_t)self->position.step < self->first_step + self->training.warmup;
}

int trainer_step(struct trainer *self, struct cb_err *err)
{
    struct timeline timeline;
    double numbers[SUMS] = {NAN, NAN, NAN, NAN}, cpu_s = cpu_seconds();
    bool warmup = is_warmup(self), saving = checkpoint_is_saving(self);
    bool marks = self->gpu && trace_is_active(&self->trace);
    struct sample *sample = status_page_begin_sample(self->page);
    if (!sample)
        return cb_fail(err, CB_ERR_INTERNAL, "the status page has no room for another sample");
    sample->op = OP_STEP;
    sample->iteration = (uint32_t)self->position.step;
    sample->flags = warmup ? SAMPLE_WARMUP : 0;
    atomic_store_explicit(&self->page->iteration, sample->iteration, memory_order_relaxed);
    trace_begin_step(&self->trace, (uint64_t)self->position.step);
    timeline_start(&timeline, self->page, OP_STEP, STATE_OTHER);
    if (atomic_load_explicit(&self->page->first_operation_ns, memory_order_relaxed) == 0)
        atomic_store_explicit(&self->page->first_operation_ns, timeline.start_ns, memory_order_relaxed);
    if (!warmup && self->began_ns == 0)
        self->began_ns = timeline.start_ns;
    int rc = marks ? self->gpu->ops->begin_marks(self->gpu, err) : 0;
    if (!rc)
        rc = compute(self, &timeline, numbers, err);
    timeline_own_done(&timeline);
    timeline_stop(&timeline);
    fill_sample(self, &timeline, numbers, cpu_s, sample);
    trace_add_step(&self->trace, timeline.start_ns, timeline.end_ns);
    trace_add_memory(&self->trace, timeline.end_ns, memory_resident_bytes());
    if (!rc) {
        self->position.step++;
        self->position.samples += (int64_t)self->training.ranks * self->setup.batch;
        if (!warmup)
            note_pace(self, &timeline, saving);
        if (self->data && self->validate_every && (uint64_t)self->position.step % self->validate_every == 0)
            rc = validate(self, sample, err);
    }
    if (marks)
        trace_take_times(&self->trace, self->gpu);
    sample->flags |= rc ? SAMPLE_FAILED : 0;
    status_page_publish_sample(self->page);
    return rc;
}
