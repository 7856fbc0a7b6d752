/* Reads the training keys and checks them against the model. */
#include "setup/training.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/units.h"

#define LINEAR_BATCH 8192 /* as in PyTorch's data-parallel tutorial */
#define GPT2_BATCH 16
#define GPT2_SEQUENCE 512
#define GB 1073741824.0

static bool is_linear(const struct model *model)
{
    return model->count > 0 && strncmp(model->tensors[0].fqn, "layers.", strlen("layers.")) == 0;
}

/* Rows of the position embedding; 0 if the model has none. */
static uint64_t positions_of(const struct model *model)
{
    for (size_t i = 0; i < model->count; i++)
        if (strcmp(model->tensors[i].fqn, "transformer.wpe.weight") == 0)
            return model->tensors[i].shape[0];
    return 0;
}

static int read_sizes(const struct experiment *experiment, const struct model *model, struct training *self,
                      struct cb_err *err)
{
    uint64_t positions = positions_of(model), batch = experiment_u64(experiment, OPT_TRAIN_BATCH_SIZE);
    uint64_t sequence = experiment_u64(experiment, OPT_TRAIN_SEQ_LENGTH);
    self->linear = is_linear(model);
    if (!self->linear && positions == 0)
        return cb_fail(err, CB_ERR_UNSUPPORTED,
                       "workload=train trains GPT-2's and linear models (gpt2, gpt2-tiny, linear-8x16384, …), not %s",
                       model->name);
    if (self->linear && sequence > 1)
        return cb_fail(err, CB_ERR_USAGE, "train.seq_length=%" PRIu64 ": a sample of %s is one row", sequence,
                       model->name);
    if (!self->linear && sequence > positions)
        return cb_fail(err, CB_ERR_USAGE, "train.seq_length=%" PRIu64 ": %s has %" PRIu64 " positions", sequence,
                       model->name, positions);
    self->batch = (uint32_t)(batch ? batch : self->linear ? LINEAR_BATCH : GPT2_BATCH);
    self->sequence = (uint32_t)(sequence                    ? sequence
                                : self->linear              ? 1
                                : positions < GPT2_SEQUENCE ? positions
                                                            : GPT2_SEQUENCE);
    return 0;
}

/* "hybrid(n)": groups of n shard, and the groups are replicas. */
static int read_sharding(const struct experiment *experiment, struct training *self, struct cb_err *err)
{
    const char *text = experiment_text(experiment, OPT_SHARDING);
    self->shard_ranks = self->ddp ? 1 : self->ranks;
    if (self->ddp && strcmp(text, "none") != 0)
        return cb_fail(err, CB_ERR_USAGE, "train.data_parallel=ddp shards nothing: sharding=%s needs fsdp", text);
    if (strncmp(text, "hybrid(", strlen("hybrid(")) != 0)
        return 0;
    self->shard_ranks = (uint32_t)strtoul(text + strlen("hybrid("), NULL, 10);
    if (self->shard_ranks == 0 || self->ranks % self->shard_ranks)
        return cb_fail(err, CB_ERR_USAGE, "sharding=%s: groups of %u do not divide %u ranks", text, self->shard_ranks,
                       self->ranks);
    return 0;
}

/* "100" means steps, "30s" time, "0" never. */
static int read_interval(const struct experiment *experiment, struct training *self, struct cb_err *err)
{
    const char *text = experiment_text(experiment, OPT_TRAIN_CHECKPOINT_EVERY);
    bool counts = *text && text[strspn(text, "0123456789")] == '\0';
    self->checkpoint_steps = self->checkpoint_ns = 0;
    bool has_unit = *text && !strchr("0123456789.", text[strlen(text) - 1]); /* 0.5 is neither steps nor a time */
    int rc = counts     ? units_parse_u64(text, &self->checkpoint_steps, err)
             : has_unit ? units_parse_duration(text, &self->checkpoint_ns, err)
                        : CB_ERR_USAGE;
    return rc ? cb_fail(err, CB_ERR_USAGE, "train.checkpoint_every=%s: must be steps, as 100, or time, as 30s", text)
              : 0;
}

static int check_axes(const struct experiment *experiment, struct cb_err *err)
{
    static const enum option_id alone[] = {OPT_TP, OPT_PP, OPT_EP};
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++)
        if (experiment_u64(experiment, alone[i]) != 1)
            return cb_fail(err, CB_ERR_USAGE, "%s=%s: training is data-parallel; %s is for checkpoints",
                           option_row(alone[i])->name, experiment_text(experiment, alone[i]),
                           option_row(alone[i])->name);
    if (*experiment_text(experiment, OPT_MESH) || experiment_u64(experiment, OPT_ZERO))
        return cb_fail(err, CB_ERR_USAGE,
                       "mesh and zero are for checkpoints: a training's layout is train.data_parallel, and "
                       "sharding=hybrid(n)");
    if (experiment_is(experiment, OPT_DTYPE, "fp16"))
        return cb_fail(err, CB_ERR_USAGE,
                       "dtype=fp16: training is in fp32 (auto), or in bf16 with fp32 master weights");
    return 0;
}

static void name_configuration(const struct experiment *experiment, struct training *self)
{
    char group[24] = "";
    if (self->ddp) {
        snprintf(self->name, sizeof self->name, "ddp");
        return;
    }
    if (self->shard_ranks < self->ranks)
        snprintf(group, sizeof group, "-hybrid%u", self->shard_ranks);
    snprintf(self->name, sizeof self->name, "fsdp-%s-%s%s%s%s", experiment_text(experiment, OPT_TRAIN_AUTO_WRAP_POLICY),
             experiment_text(experiment, OPT_TRAIN_BACKWARD_PREFETCH), group,
             self->forward_prefetch ? "-forward_prefetch" : "", self->cpu_offload ? "-cpu_offload" : "");
}

/* Rejects keys without effect, so that a run does not seem to have used them. */
static int check_wraps(const struct experiment *experiment, const struct training *self, struct cb_err *err)
{
    const struct {
        bool given;
        const char *key;
    } of_fsdp[] = {{self->cpu_offload, "train.cpu_offload"},
                   {self->forward_prefetch, "train.forward_prefetch"},
                   {self->backward_prefetch != BACKWARD_PRE, "train.backward_prefetch"},
                   {self->wrap != WRAP_MODULE, "train.auto_wrap_policy"}};
    for (size_t i = 0; self->ddp && i < sizeof of_fsdp / sizeof *of_fsdp; i++)
        if (of_fsdp[i].given)
            return cb_fail(
                err, CB_ERR_USAGE,
                "%s is FSDP's: with train.data_parallel=ddp every rank keeps all of it; leave it out, or take "
                "train.data_parallel=fsdp",
                of_fsdp[i].key);
    if (self->wrap != WRAP_SIZE && strcmp(experiment_text(experiment, OPT_TRAIN_MIN_NUM_PARAMS),
                                          option_row(OPT_TRAIN_MIN_NUM_PARAMS)->fallback) != 0)
        return cb_fail(err, CB_ERR_USAGE, "train.min_num_params=%" PRIu64 " needs train.auto_wrap_policy=size_based",
                       self->min_num_params);
    return 0;
}

/* A stack of linear layers has one batch, the same in every step; the Markov source has no end and no text. */
static int check_data(const struct experiment *experiment, const struct training *self, struct cb_err *err)
{
    bool from_file = strcmp(experiment_text(experiment, OPT_TRAIN_DATA), "markov") != 0;
    const struct {
        bool given;
        enum option_id key;
        bool of_text; /* the Markov source has neither end nor text */
    } keys[] = {{from_file, OPT_TRAIN_DATA, false},
                {experiment_u64(experiment, OPT_TRAIN_VALIDATE_EVERY) > 0, OPT_TRAIN_VALIDATE_EVERY, false},
                {experiment_double(experiment, OPT_TRAIN_DROPOUT) > 0, OPT_TRAIN_DROPOUT, false},
                {experiment_u64(experiment, OPT_TRAIN_EPOCHS) > 0, OPT_TRAIN_EPOCHS, true},
                {*experiment_text(experiment, OPT_TRAIN_VOCAB) != '\0', OPT_TRAIN_VOCAB, true}};
    if (*experiment_text(experiment, OPT_TRAIN_DATA) == '\0')
        return cb_fail(err, CB_ERR_USAGE, "train.data= is empty; name a file, or leave it out for the Markov source");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *name = option_row(keys[i].key)->name, *value = experiment_text(experiment, keys[i].key);
        if (keys[i].given && self->linear)
            return cb_fail(err, CB_ERR_USAGE,
                           "%s=%s is for transformers: a stack of linear layers sees the same rows in every step", name,
                           value);
        if (keys[i].given && keys[i].of_text && !from_file)
            return cb_fail(err, CB_ERR_USAGE,
                           "%s=%s needs a file in train.data: markov, a source of its own, has no %s", name, value,
                           keys[i].key == OPT_TRAIN_EPOCHS ? "end" : "text");
    }
    return 0;
}

/* Rejects what would fail in the first save, hours later. */
static int check_format(const struct experiment *experiment, const struct training *self, struct cb_err *err)
{
    bool saves = self->checkpoint_steps > 0 || self->checkpoint_ns > 0;
    if (!saves || self->shard_ranks == 1 || !experiment_is(experiment, OPT_FORMAT, "safetensors"))
        return 0;
    return cb_fail(
        err, CB_ERR_USAGE,
        "format=safetensors has each tensor whole in one file, and with FSDP a rank holds parts of them: give "
        "format=dcp+safetensors, or save in DCP's format and `ckptbench convert` the last checkpoint");
}

int training_read(const struct experiment *experiment, const struct model *model, uint32_t ranks,
                  struct training *training, struct cb_err *err)
{
    const char *wrap = experiment_text(experiment, OPT_TRAIN_AUTO_WRAP_POLICY);
    const char *prefetch = experiment_text(experiment, OPT_TRAIN_BACKWARD_PREFETCH);
    struct training self = {
        .ddp = experiment_is(experiment, OPT_TRAIN_DATA_PARALLEL, "ddp"),
        .ranks = ranks ? ranks : 1,
        .wrap = strcmp(wrap, "module_wrap") == 0  ? WRAP_MODULE
                : strcmp(wrap, "size_based") == 0 ? WRAP_SIZE
                                                  : WRAP_NONE,
        .min_num_params = experiment_u64(experiment, OPT_TRAIN_MIN_NUM_PARAMS),
        .backward_prefetch = strcmp(prefetch, "BACKWARD_PRE") == 0    ? BACKWARD_PRE
                             : strcmp(prefetch, "BACKWARD_POST") == 0 ? BACKWARD_POST
                                                                      : BACKWARD_NONE,
        .forward_prefetch = experiment_bool(experiment, OPT_TRAIN_FORWARD_PREFETCH),
        .cpu_offload = experiment_bool(experiment, OPT_TRAIN_CPU_OFFLOAD),
        .bf16 = experiment_is(experiment, OPT_DTYPE, "bf16"),
        .steps = experiment_u64(experiment, OPT_TRAIN_STEPS),
        .warmup = experiment_u64(experiment, OPT_WARMUP),
    };
    int rc = check_axes(experiment, err);
    if (!rc)
        rc = check_wraps(experiment, &self, err);
    if (!rc && self.warmup >= self.steps)
        rc = cb_fail(err, CB_ERR_USAGE,
                     "train.steps=%" PRIu64 " leaves no step to measure after warmup=%" PRIu64 ": give more steps",
                     self.steps, self.warmup);
    if (!rc)
        rc = read_sizes(experiment, model, &self, err);
    if (!rc)
        rc = check_data(experiment, &self, err);
    if (!rc)
        rc = read_sharding(experiment, &self, err);
    if (!rc)
        rc = read_interval(experiment, &self, err);
    if (!rc)
        rc = check_format(experiment, &self, err);
    if (rc)
        return rc;
    name_configuration(experiment, &self);
    *training = self;
    return 0;
}

/* --- memory --- */

const char *memory_stage_name(enum memory_stage stage)
{
    static const char *const names[MEMORY_STAGES] = {"after data creation", "after model creation", "after warmup"};
    return names[stage];
}

/* Bytes of a batch and its targets, 4 per element; for a linear stack a row has the model's width. */
static uint64_t data_bytes(const struct training *training, uint64_t width)
{
    return UINT64_C(2) * 4 * training->batch * (training->linear ? width : training->sequence);
}

uint64_t memory_stage_bytes(const struct training *training, const struct model *model, unsigned moments,
                            enum memory_stage stage)
{
    uint64_t data = data_bytes(training, model->hidden), parameters = model_parameters(model);
    uint64_t share = (parameters + training->shard_ranks - 1) / training->shard_ranks;
    switch (stage) {
    case MEMORY_AFTER_DATA_CREATION:
        return data;
    case MEMORY_AFTER_MODEL_CREATION:
        return data + 4 * parameters;
    default: /* no device holds offloaded arrays */
        return training->cpu_offload ? data : data + 4 * share * (2 + moments + (training->ddp ? 1 : 0));
    }
}

unsigned training_moments(const struct experiment *experiment)
{
    return experiment_is(experiment, OPT_TRAIN_OPTIMIZER, "adamw") ? 2 : 0;
}

uint64_t training_least_bytes(const struct experiment *experiment, const struct training *training,
                              const struct model *model)
{
    struct training here = *training;
    here.cpu_offload = false; /* what is offloaded lies in this machine's memory */
    return experiment_is(experiment, OPT_DEVICE, "cuda") && !training->cpu_offload
               ? 0
               : memory_stage_bytes(&here, model, training_moments(experiment), MEMORY_AFTER_WARMUP);
}

static void write_gb(struct json_writer *json, const char *key, double bytes)
{
    json_member_double(json, key, bytes / GB);
}

void memory_record_write(const struct memory_record *record, struct json_writer *json)
{
    json_write_begin_object(json);
    json_member_text(json, "stage", memory_stage_name(record->stage));
    json_member_u64(json, "rank", record->rank);
    json_member_text(json, "log_key", "memory"); /* the tutorial's key for all of them */
    write_gb(json, "cuda_memory_allocated_GB", record->allocated_bytes);
    write_gb(json, "cuda_max_memory_allocated_GB", record->most_allocated_bytes);
    write_gb(json, "cuda_memory_reserved_GB", record->reserved_bytes);
    write_gb(json, "cuda_max_memory_reserved_GB", record->most_reserved_bytes);
    write_gb(json, "cpu_memory_rss_GB", record->resident_bytes);
    json_write_end_object(json);
}
