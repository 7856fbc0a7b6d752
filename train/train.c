/* workload=train: makes a trainer from the keys, and runs steps, checkpoints and traces in order. */
#include "train/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/agree.h"
#include "core/alloc.h"
#include "core/blas.h"
#include "core/clock.h"
#include "core/memory.h"
#include "core/units.h"
#include "engine/state.h"
#include "train/train_checkpoint.h"

#define VALIDATION_SHARE 0.05 /* of a file's windows */
#define EVENTS_A_STAGE 16     /* per traced step and track, more than enough */
#define PATH_BYTES 4096
/* The peak is measured with matrix products of this size, for this long. They reach the speed of larger ones, and are
 * short enough that some of them run without sharing a core even on a busy machine. */
#define PEAK_SIZE 256
#define PEAK_NS (150 * NS_PER_MS)
#define DEVICE_PEAK_ROWS 4096 /* of a device's products */

/* --- the peak --- */

struct peak {
    const struct blas *blas;
    uint64_t until_ns;
    uint64_t *shortest_ns; /* per thread: its fastest product */
    _Atomic bool failed;
};

static void multiply(void *context, uint32_t thread)
{
    struct peak *self = context;
    size_t elements = (size_t)PEAK_SIZE * PEAK_SIZE;
    float *a = malloc(3 * elements * sizeof *a);
    if (!a) {
        self->failed = true;
        return;
    }
    for (size_t i = 0; i < 3 * elements; i++)
        a[i] = (float)(i % 7) - 3;
    uint64_t began_ns = clock_monotonic_ns(), shortest_ns = UINT64_MAX;
    do {
        blas_sgemm(self->blas, false, false, PEAK_SIZE, PEAK_SIZE, PEAK_SIZE, 1, a, PEAK_SIZE, a + elements, PEAK_SIZE,
                   0, a + 2 * elements, PEAK_SIZE);
        uint64_t ended_ns = clock_monotonic_ns();
        if (ended_ns - began_ns < shortest_ns)
            shortest_ns = ended_ns - began_ns;
        began_ns = ended_ns;
    } while (began_ns < self->until_ns);
    self->shortest_ns[thread] = shortest_ns;
    free(a);
}

/* Operations per second of matrix products alone on this rank's cores, with all ranks measuring simultaneously; 0 if
 * unknown. Uses the fastest product of each thread: time lost to other processes is not a property of the core, and too
 * low a peak would make the steps look too good. */
static double measure_peak(uint32_t threads)
{
    struct blas blas;
    struct thread_pool *team = NULL;
    struct cb_err unheard;
    double flops = 0;
    if (blas_open(&blas, &unheard))
        return 0;
    struct peak peak = {.blas = &blas, .shortest_ns = calloc(threads, sizeof *peak.shortest_ns)};
    if (peak.shortest_ns && thread_pool_new(threads, &team, &unheard) == 0) {
        peak.until_ns = clock_monotonic_ns() + PEAK_NS;
        thread_pool_run(team, multiply, &peak);
        for (uint32_t i = 0; i < threads && !peak.failed; i++)
            flops += 2.0 * PEAK_SIZE * PEAK_SIZE * PEAK_SIZE * 1e9 / (double)peak.shortest_ns[i];
        thread_pool_free(team);
    }
    free(peak.shortest_ns);
    blas_close(&blas);
    return peak.failed ? 0 : flops;
}

/* The same for the device. */
static double measure_device_peak(const struct trainer *self)
{
    struct cb_err unheard;
    double flops = 0;
    enum device_measure what = self->setup.bf16 ? DEVICE_MEASURE_GEMM_BF16 : DEVICE_MEASURE_GEMM_FP32;
    int rc = self->plugin.ops->measure(self->gpu, what, DEVICE_PEAK_ROWS, &flops, &unheard);
    return rc ? 0 : flops;
}

static int find_peak(struct trainer *self, struct cb_err *err)
{
    char text[128];
    int rc = comm_barrier(self->comm, trainer_deadline(self), err);
    if (rc)
        return rc;
    self->peak_flops = self->gpu ? measure_device_peak(self) : measure_peak(self->setup.threads);
    if (self->peak_flops > 0)
        snprintf(text, sizeof text, "%.1f GFLOP/s a rank: %s, before training", self->peak_flops / 1e9,
                 self->setup.bf16 ? "bf16 matrix products on the GPU"
                 : self->gpu      ? "fp32 matrix products on the GPU"
                                  : "the fastest fp32 matrix products here");
    else
        snprintf(text, sizeof text, "not known");
    status_page_add_fact(self->page, "mfu.peak", text);
    return 0;
}

/* --- creating the trainer --- */

static void read_keys(struct trainer *self)
{
    const struct experiment *experiment = self->place.experiment;
    bool cosine = experiment_is(experiment, OPT_TRAIN_SCHEDULE, "cosine");
    self->optimizer = optimizer_default(experiment_is(experiment, OPT_TRAIN_OPTIMIZER, "adamw") ? OPTIMIZER_ADAMW
                                        : experiment_is(experiment, OPT_TRAIN_OPTIMIZER, "sgd") ? OPTIMIZER_SGD
                                                                                                : OPTIMIZER_NONE);
    self->optimizer.weight_decay = experiment_double(experiment, OPT_TRAIN_WEIGHT_DECAY);
    self->schedule = (struct schedule){.kind = cosine ? SCHEDULE_COSINE : SCHEDULE_CONSTANT,
                                       .peak = experiment_double(experiment, OPT_TRAIN_LR),
                                       .warmup = experiment_u64(experiment, OPT_TRAIN_WARMUP_STEPS),
                                       .steps = self->training.steps};
    self->clip = experiment_double(experiment, OPT_TRAIN_CLIP);
    self->epochs = experiment_u64(experiment, OPT_TRAIN_EPOCHS);
    self->validate_every = experiment_u64(experiment, OPT_TRAIN_VALIDATE_EVERY);
    self->trace_steps = experiment_u64(experiment, OPT_TRAIN_TRACE);
    self->op_timeout_ns = experiment_u64(experiment, OPT_TIMEOUT_OP);
}

static int read_experiment(struct trainer *self, struct cb_err *err)
{
    const struct experiment *experiment = self->place.experiment;
    const enum dtype fp32 = DTYPE_F32;
    uint64_t ranks = experiment_u64(experiment, OPT_RANKS);
    int rc = 0;
    if (ranks != comm_size(self->comm))
        rc = cb_fail(err, CB_ERR_USAGE, "the experiment is for %" PRIu64 " ranks, but %u were started", ranks,
                     comm_size(self->comm));
    if (!rc)
        rc = model_load(experiment_text(experiment, OPT_MODEL), experiment_u64(experiment, OPT_LAYERS), &fp32,
                        &self->described, err);
    if (!rc)
        rc = training_read(experiment, self->described, comm_size(self->comm), &self->training, err);
    if (!rc)
        rc = train_shape_of_model(self->described, &self->setup.shape, err);
    if (rc)
        return rc;
    read_keys(self);
    self->setup.batch = self->training.batch;
    self->setup.sequence = self->training.sequence;
    self->setup.bf16 = self->training.bf16 && experiment_is(experiment, OPT_DEVICE, "cuda");
    self->setup.dropout = (float)experiment_double(experiment, OPT_TRAIN_DROPOUT);
    self->setup.seed = experiment_u64(experiment, OPT_SEED);
    return 0;
}

static int open_device(struct trainer *self, struct cb_err *err)
{
    int rc = device_plugin_open_own(&self->plugin, self->comm, self->page, &self->gpu, &self->gpu_info, err);
    if (rc)
        return rc;
    rc = device_plugin_open_math(&self->plugin, self->gpu, &self->setup.math, err);
    return rc ? cb_context(err, "device=cuda") : 0;
}

static int pin(struct trainer *self, struct cb_err *err)
{
    int rc = device_place_apply(self->comm, "/sys", self->gpu ? &self->gpu_info : NULL,
                                experiment_is(self->place.experiment, OPT_AFFINITY, "auto"), self->page,
                                trainer_deadline(self), err);
    self->setup.threads = device_host_cores();
    return rc;
}

static uint64_t batch_elements(const struct trainer *self)
{
    return (uint64_t)self->setup.batch * (self->training.linear ? self->setup.shape.width : 2 * self->setup.sequence);
}

/* Limit of this rank's address space. */
static int check_own_limit(const struct trainer *self, uint64_t needed, struct cb_err *err)
{
    uint64_t left = memory_left_to_map();
    char a[32], b[32];
    if (needed <= left)
        return 0;
    return cb_fail(err, CB_ERR_MEMORY, "training needs %s of memory on rank %u, but its limit (ulimit -v) leaves %s",
                   units_format_bytes((double)needed, a), self->rank, units_format_bytes((double)left, b));
}

/* A fact in case this rank is killed: the memory that it needs, and the memory that was available. */
static void note_needs(struct trainer *self, uint64_t needed)
{
    uint64_t available = 0;
    char text[128], a[32], b[32];
    if (memory_available(&available, NULL))
        return;
    snprintf(text, sizeof text, "%s for itself, %s were free before on the machine of %u ranks",
             units_format_bytes((double)needed, a), units_format_bytes((double)available, b),
             comm_local_size(self->comm));
    status_page_add_fact(self->page, "memory.needed", text);
}

/* Whether the device had that much free memory when it was opened. */
static int check_device_memory(const struct trainer *self, uint64_t bytes, struct cb_err *err)
{
    char needed[32], had[32];
    if (bytes <= self->gpu_info.free_bytes)
        return 0;
    return cb_fail(err, CB_ERR_MEMORY, "training needs %s of memory on the GPU (%s), which has %s free",
                   units_format_bytes((double)bytes, needed), self->gpu_info.name,
                   units_format_bytes((double)self->gpu_info.free_bytes, had));
}

/* Checks the needs of this rank, and of all ranks of its machine. */
static int check_host_memory(struct trainer *self, uint64_t needed, struct cb_err *err)
{
    note_needs(self, needed);
    int rc = trainer_join(self, check_own_limit(self, needed, err), err);
    return rc ? rc : state_check_memory(self->comm, needed, trainer_deadline(self), err);
}

static int say_what_needs_less(const struct trainer *self, const struct cb_err *short_of, uint64_t state, uint64_t step,
                               uint64_t staging, struct cb_err *err)
{
    char a[32], b[32], c[32], samples[64] = " rows";
    if (!self->training.linear)
        snprintf(samples, sizeof samples, " samples of train.seq_length=%u", self->setup.sequence);
    return cb_fail(err, CB_ERR_MEMORY,
                   "%s. A rank's parameters, gradients and optimizer take %s, a step of train.batch_size=%u%s %s%s%s: "
                   "less of %s needs less%s",
                   short_of->message, units_format_bytes((double)state, a), self->setup.batch, samples,
                   units_format_bytes((double)step, b), staging ? ", staging of checkpoints " : "",
                   staging ? units_format_bytes((double)staging, c) : "", self->training.linear ? "it" : "either",
                   self->training.ddp ? "" : ", and more ranks on other machines share the state");
}

/* Checks the memory of all ranks of a machine before any of it is allocated. */
static int check_memory(struct trainer *self, struct cb_err *err)
{
    bool on_device = self->gpu;
    unsigned moments = optimizer_moments(self->optimizer.kind);
    uint64_t pinned = 0, state = parallel_bytes(&self->training, self->described, moments, on_device, &pinned);
    uint64_t host_step = train_model_bytes(&self->setup) + 4 * batch_elements(self);
    uint64_t step = on_device ? train_model_device_bytes(&self->setup) : host_step;
    bool saves = self->training.checkpoint_steps || self->training.checkpoint_ns;
    uint64_t staging = saves && experiment_bool(self->place.experiment, OPT_SAVE_ASYNC)
                           ? 4 * model_parameters(self->described) * (1 + moments) / self->training.ranks
                           : 0;
    struct cb_err short_of;
    int rc = on_device ? check_device_memory(self, state + step, &short_of) : 0;
    if (on_device)
        rc = trainer_join(self, rc, &short_of);
    if (!rc)
        rc = check_host_memory(self, (on_device ? pinned : state) + host_step + staging, &short_of);
    if (rc == CB_ERR_MEMORY)
        return say_what_needs_less(self, &short_of, state + pinned, step, staging, err);
    return rc ? cb_fail(err, rc, "%s", short_of.message) : 0;
}

static int make_data(struct trainer *self, struct cb_err *err)
{
    const struct experiment *experiment = self->place.experiment;
    uint64_t elements = batch_elements(self);
    struct train_data_setup setup = {
        .source = experiment_text(experiment, OPT_TRAIN_DATA),
        .vocab_json = experiment_text(experiment, OPT_TRAIN_VOCAB),
        .merges = experiment_text(experiment, OPT_TRAIN_MERGES),
        .vocabulary = self->setup.shape.vocabulary,
        .sequence = self->setup.sequence,
        .validation_share = VALIDATION_SHARE,
        .seed = self->setup.seed,
    };
    void *batch = calloc(elements, 4);
    if (!batch)
        return alloc_fail(err, "for a batch: use a smaller train.batch_size, or a shorter train.seq_length");
    if (self->training.linear) {
        self->input = batch;
        trainer_fill_input(self);
        status_page_add_fact(self->page, "train.data", "the same random rows in every step");
        return 0;
    }
    self->tokens = batch;
    self->targets = self->tokens + elements / 2;
    int rc = train_data_open(&setup, &self->data, err);
    if (!rc)
        status_page_add_fact(self->page, "train.data", train_data_about(self->data));
    return rc;
}

static int make_parallel(struct trainer *self, struct cb_err *err)
{
    struct parallel_setup setup = {
        .training = &self->training,
        .comm = self->comm,
        .model = self->model,
        .trace = &self->trace,
        .device = self->device,
        .math = self->setup.math,
        .device_comm = self->gpu ? self->plugin.ops->comm : NULL,
        .optimizer = self->optimizer,
        .seed = self->setup.seed,
    };
    return parallel_new(&setup, trainer_deadline(self), &self->parallel, err);
}

static int make_model(struct trainer *self, struct cb_err *err)
{
    int rc = train_model_new(&self->setup, &self->model, err);
    if (!rc && self->training.cpu_offload && !self->gpu)
        rc = device_host_open(1, &self->device, err);
    uint64_t events = rc ? 0 : self->trace_steps * (train_model_stage_count(self->model) + 4) * EVENTS_A_STAGE;
    if (!rc)
        rc = trace_init(&self->trace, events, err);
    self->trace.backend = self->gpu ? "nccl" : NULL;
    rc = trainer_join(self, rc, err);
    return rc ? rc : trainer_join(self, make_parallel(self, err), err);
}

/* On a device everything is allocated with the model, and kept. Reserved is what libraries allocate as well; other
 * processes on the same device count, too, so it is asked from the device only at the stages. */
static void take_memory_stage(struct trainer *self, enum memory_stage stage)
{
    double device_bytes = self->gpu ? 0 : NAN, reserved_bytes = NAN;
    struct device_info now;
    if (self->memory.taken[stage])
        return;
    if (self->gpu && self->parallel)
        device_bytes =
            (double)parallel_device_memory(self->parallel).bytes + (double)train_model_device_bytes(&self->setup);
    if (self->gpu && self->plugin.ops->describe(self->gpu, &now, NULL) == 0)
        reserved_bytes = (double)self->gpu_info.free_bytes - (double)now.free_bytes;
    memory_stages_take(&self->memory, stage, device_bytes, reserved_bytes);
}

static int prepare(struct trainer *self, struct cb_err *err)
{
    self->op_timeout_ns = 60 * NS_PER_S; /* until the experiment is read */
    int rc = trainer_join(self, read_experiment(self, err), err);
    if (!rc && experiment_is(self->place.experiment, OPT_DEVICE, "cuda"))
        rc = trainer_join(self, open_device(self, err), err);
    if (!rc)
        rc = pin(self, err);
    if (!rc)
        rc = trainer_join(self, check_memory(self, err), err);
    if (!rc)
        rc = find_peak(self, err);
    if (!rc)
        rc = trainer_join(self, make_data(self, err), err);
    if (rc)
        return rc;
    take_memory_stage(self, MEMORY_AFTER_DATA_CREATION);
    rc = make_model(self, err);
    if (rc)
        return rc;
    take_memory_stage(self, MEMORY_AFTER_MODEL_CREATION);
    if (self->training.checkpoint_steps || self->training.checkpoint_ns ||
        experiment_is(self->place.experiment, OPT_TRAIN_RESUME, "latest"))
        rc = checkpoint_open(self, err);
    if (!rc)
        rc = checkpoint_resume(self, err);
    self->first_step = (uint64_t)self->position.step;
    return rc;
}

/* --- steps --- */

/* Rank 0's instruction before a step, encoded as one number that the ranks sum. */
enum { SAY_SAVE = 1 };
#define SAY_STOP (UINT64_C(1) << 32)

static bool is_save_due(const struct trainer *self, uint64_t saved_ns)
{
    const struct training *training = &self->training;
    uint64_t step = (uint64_t)self->position.step;
    if (step == self->first_step)
        return false;
    if (training->checkpoint_steps)
        return step % training->checkpoint_steps == 0;
    return training->checkpoint_ns && clock_monotonic_ns() >= saved_ns + training->checkpoint_ns;
}

static bool is_done(const struct trainer *self)
{
    if ((uint64_t)self->position.step >= self->training.steps)
        return true;
    return self->epochs && self->data &&
           (uint64_t)self->position.samples >= self->epochs * train_data_samples(self->data, DATA_TRAINING);
}

/* The ranks agree on the next instruction. */
static int decide(struct trainer *self, uint64_t saved_ns, bool *stop, bool *save, struct cb_err *err)
{
    struct agreement said;
    bool asked = atomic_load_explicit(&self->page->stop, memory_order_relaxed) != STOP_NONE;
    uint64_t say = asked ? SAY_STOP : 0;
    if (self->rank == 0 && is_save_due(self, saved_ns))
        say |= SAY_SAVE;
    int rc = agree_number(self->comm, 0, say, trainer_deadline(self), &said, err);
    if (rc)
        return rc;
    *stop = said.sum >= SAY_STOP;
    *save = said.sum % SAY_STOP != 0;
    if (*stop) {
        char text[64];
        snprintf(text, sizeof text, "after step %" PRId64 " of %" PRIu64, self->position.step, self->training.steps);
        status_page_add_fact(self->page, "stopped", text);
    }
    return 0;
}

/* Kernels and copies are in the trace of a device if this machine lets us see them; if not, a fact says why, and the device's
 * times of stages and exchanges remain. */
static void begin_trace(struct trainer *self)
{
    struct cb_err why;
    char text[sizeof why.message + 64];
    if (self->gpu && self->plugin.ops->start_activity(self->gpu, &why) == 0) {
        self->records_activity = true;
    } else if (self->gpu) {
        snprintf(text, sizeof text, "none in the trace: %s", why.message);
        status_page_add_fact(self->page, "train.kernels", text);
    }
    trace_start(&self->trace, clock_monotonic_ns());
}

static void add_activity(void *context, const struct device_activity *activity)
{
    trace_add_activity(context, activity);
}

static void end_trace(struct trainer *self)
{
    struct cb_err why;
    char text[sizeof why.message + 64];
    uint64_t lost = 0;
    if (trace_is_active(&self->trace))
        trace_stop(&self->trace, clock_monotonic_ns());
    if (!self->records_activity)
        return;
    self->records_activity = false;
    if (self->plugin.ops->stop_activity(self->gpu, add_activity, &self->trace, &lost, &why))
        snprintf(text, sizeof text, "incomplete in the trace: %s", why.message);
    else
        snprintf(text, sizeof text, "%" PRIu64 " kernels and copies in the trace, %" PRIu64 " lost",
                 self->trace.activity_count, lost);
    status_page_add_fact(self->page, "train.kernels", text);
    self->trace.dropped += lost;
}

/* The first steps after warm-up. */
static void switch_trace(struct trainer *self)
{
    uint64_t begin = self->first_step + self->training.warmup, step = (uint64_t)self->position.step;
    if (self->trace_steps && step == begin)
        begin_trace(self);
    else if (trace_is_active(&self->trace) && step == begin + self->trace_steps)
        end_trace(self);
}

static int run_steps(struct trainer *self, struct cb_err *err)
{
    uint64_t saved_ns = clock_monotonic_ns();
    int rc = 0;
    for (;;) {
        bool stop = false, save = false;
        checkpoint_settle(self);
        rc = decide(self, saved_ns, &stop, &save, err);
        if (!rc && save) {
            rc = checkpoint_save(self, err);
            saved_ns = clock_monotonic_ns();
        }
        if (rc || stop || is_done(self))
            return rc;
        switch_trace(self);
        rc = trainer_step(self, err);
        if (rc)
            return rc;
        if ((uint64_t)self->position.step == self->first_step + 1)
            checkpoint_note_recovery(self);
        if ((uint64_t)self->position.step >= self->first_step + self->training.warmup)
            take_memory_stage(self, MEMORY_AFTER_WARMUP);
    }
}

/* Ratio of the time that the steps would take without saves to the elapsed time, since the first measured step. */
static void note_goodput(struct trainer *self)
{
    uint64_t steps = self->alone.steps + self->beside.steps;
    uint64_t first = self->first_step + self->training.warmup, step = (uint64_t)self->position.step;
    double elapsed_s = (double)(clock_monotonic_ns() - self->began_ns) / 1e9;
    if (self->rank != 0 || self->alone.steps == 0 || steps == 0 || step <= first || self->began_ns == 0)
        return;
    double alone_s = (double)self->alone.spent_ns / 1e9 / (double)self->alone.steps;
    double share = (double)(step - first) * alone_s / elapsed_s;
    self->page->run_values[METRIC_TRAIN_GOODPUT] = share < 1 ? share : 1;
}

/* --- output --- */

/* Traces and memory stages, next to the attempt's records; a fact reports it if the run folder is not on this node. */
static void write_files(struct trainer *self)
{
    char attempt[PATH_BYTES / 2], folder[PATH_BYTES], text[PATH_BYTES + 128];
    struct cb_err err;
    const char *name = self->training.name;
    int len = snprintf(attempt, sizeof attempt, "%s/attempts/%u", self->place.run_folder, self->place.attempt);
    if (len >= (int)sizeof attempt || access(attempt, W_OK) < 0) {
        status_page_add_fact(self->page, "train.files",
                             "no memory figures and traces: the run's folder is not on this node");
        return;
    }
    snprintf(folder, sizeof folder, "%s/memory", attempt);
    memory_stages_describe(&self->memory, folder, text, sizeof text);
    bool kept = memory_stages_write(&self->memory, folder, self->rank, &err) == 0;
    status_page_add_fact(self->page, "train.memory", kept ? text : err.message);
    if (self->trace.capacity == 0)
        return;
    snprintf(folder, sizeof folder, "%s/traces/%s", attempt, name);
    bool written = trace_write(&self->trace, folder, self->rank, self->training.ranks, &err) == 0;
    status_page_add_fact(self->page, "train.trace", written ? folder : err.message);
}

static void add_facts(struct trainer *self)
{
    char text[512], a[32], b[32];
    struct stream_counts counts = parallel_counts(self->parallel);
    struct parallel_figures figures = parallel_figures(self->parallel);
    uint64_t steps = (uint64_t)self->position.step - self->first_step;
    status_page_add_fact(self->page, "train.configuration", self->training.name);
    snprintf(text, sizeof text, "%" PRIu64 " wrap%s, %" PRIu64 " of %" PRIu64 " parameters on this rank, %s in all",
             figures.wraps, units_plural(figures.wraps), figures.share, figures.parameters,
             units_format_bytes((double)figures.bytes, a));
    status_page_add_fact(self->page, "train.share", text);
    if (steps == 0 || self->training.ranks == 1)
        return;
    snprintf(text, sizeof text,
             "a rank and step: %" PRIu64 " all-gathers, %" PRIu64 " reduce-scatters, %" PRIu64
             " all-reduces, %s sent at "
             "least; at most %u gathered at a time",
             counts.gathers / steps, counts.scatters / steps, counts.reduces / steps,
             units_format_bytes((double)counts.bytes_sent / (double)steps, b), figures.most_gathered);
    status_page_add_fact(self->page, "train.exchange", text);
}

static void release(struct trainer *self)
{
    if (!parallel_stop(self->parallel) || !checkpoint_close(self)) {
        comm_give_up(self->comm); /* an operation that hangs still uses the memory */
        return;
    }
    parallel_free(self->parallel);
    train_model_free(self->model);
    train_data_close(self->data);
    if (self->device)
        device_close(self->device);
    if (self->setup.math)
        self->setup.math->ops->close(self->setup.math);
    device_close(self->gpu);
    device_plugin_close(&self->plugin);
    trace_release(&self->trace);
    free(self->tokens ? (void *)self->tokens : (void *)self->input);
    model_free(self->described);
}

int train_run(const struct train_place *place, struct cb_err *err)
{
    struct trainer self = {.place = *place, .comm = place->comm, .page = place->page, .rank = comm_rank(place->comm)};
    int rc = prepare(&self, err);
    if (!rc)
        rc = run_steps(&self, err);
    if (!rc) {
        rc = checkpoint_finish(&self, err);
        note_goodput(&self);
    } else if (self.broken) {
        rc = checkpoint_leave_broken(&self, rc, err);
    }
    if (self.parallel) {
        end_trace(&self);
        add_facts(&self);
        checkpoint_add_facts(&self);
        write_files(&self);
    }
    release(&self);
    return rc;
}
