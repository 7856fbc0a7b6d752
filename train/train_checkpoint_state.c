/* A training's arrays as the engine sees them: model, layout, and where each tensor is. */
#include <stdio.h>
#include <string.h>

#include "ckpt/model/model_shape.h"
#include "core/alloc.h"
#include "setup/checkpoint_options.h"
#include "train/train_checkpoint.h"

_Static_assert(sizeof(struct position) == PARALLEL_COUNTERS * sizeof(int64_t), "the counters are the position");

/* Translates the training's own keys to a layout's. */
static int own_experiment(struct train_checkpoint *self, const struct trainer *trainer, struct cb_err *err)
{
    char sharding[32] = "full";
    const struct training *training = &trainer->training;
    bool moments = optimizer_moments(trainer->optimizer.kind) > 0;
    if (training->shard_ranks == 1)
        snprintf(sharding, sizeof sharding, "none");
    else if (training->shard_ranks < training->ranks)
        snprintf(sharding, sizeof sharding, "hybrid(%u)", training->shard_ranks);
    int rc = experiment_copy(trainer->place.experiment, &self->experiment, err);
    if (!rc)
        rc = experiment_set(self->experiment, "sharding", sharding, "training", err);
    if (!rc)
        rc = experiment_set(self->experiment, "state", moments ? "weights+adam" : "weights", "training", err);
    if (!rc)
        rc = experiment_set(self->experiment, "ops", "save", "training", err);
    return rc;
}

/* Adds the counters to the layout's model. */
static int own_model(struct train_checkpoint *self, const struct trainer *trainer, struct cb_err *err)
{
    static const char *const names[TRAIN_COUNTERS] = {"train.step", "train.samples"};
    const struct tensor_role role = {.layer = MODEL_LAYER_LAST, .tp_dim = -1, .expert = -1};
    const enum dtype fp32 = DTYPE_F32;
    const struct experiment *experiment = trainer->place.experiment;
    int rc = model_load(experiment_text(experiment, OPT_MODEL), experiment_u64(experiment, OPT_LAYERS), &fp32,
                        &self->model, err);
    self->parameters = rc ? 0 : self->model->count;
    for (int i = 0; i < TRAIN_COUNTERS && !rc; i++) {
        rc = model_add(self->model, role, 0, NULL, names[i], err);
        if (!rc)
            self->model->tensors[self->model->count - 1].dtype = DTYPE_I64;
    }
    return rc;
}

/* Finds the unit and the parameter of a name. */
static const struct train_parameter *find_parameter(const struct trainer *trainer, const char *fqn, size_t *unit)
{
    for (*unit = 0; *unit < train_model_unit_count(trainer->model); ++*unit) {
        const struct train_unit *found = train_model_unit(trainer->model, *unit);
        for (size_t i = 0; i < found->count; i++)
            if (strcmp(found->parameters[i].fqn, fqn) == 0)
                return &found->parameters[i];
    }
    return NULL;
}

static int make_layout(struct train_checkpoint *self, const struct trainer *trainer, struct cb_err *err)
{
    const struct experiment *experiment = trainer->place.experiment;
    char betas[64], epsilon[32], rate[32], decay[32];
    struct layout_item items[] = {{"optimizer.param_groups.lr", rate},
                                  {"optimizer.param_groups.betas", betas},
                                  {"optimizer.param_groups.eps", epsilon},
                                  {"optimizer.param_groups.weight_decay", decay},
                                  {"train.seed", experiment_text(experiment, OPT_SEED)}};
    struct layout_range *ranges = calloc(self->model->count, sizeof *ranges);
    if (!ranges)
        return alloc_fail(err, "for the names of %zu tensors", self->model->count);
    snprintf(rate, sizeof rate, "%.17g", trainer->schedule.peak);
    snprintf(betas, sizeof betas, "(%.17g, %.17g)", trainer->optimizer.beta1, trainer->optimizer.beta2);
    snprintf(epsilon, sizeof epsilon, "%.17g", trainer->optimizer.epsilon);
    snprintf(decay, sizeof decay, "%.17g", trainer->optimizer.weight_decay);
    int rc = 0;
    for (size_t i = 0; i < self->parameters && !rc; i++) {
        size_t unit;
        const struct train_parameter *parameter = find_parameter(trainer, self->model->tensors[i].fqn, &unit);
        if (parameter)
            parallel_flat(trainer->parallel, unit, parameter->offset, &ranges[i].begin, &ranges[i].elements);
        else
            rc = cb_fail(err, CB_ERR_INTERNAL, "the trainer has no parameter %s", self->model->tensors[i].fqn);
    }
    struct layout_training training = {.ranges = ranges, .items = items, .item_count = sizeof items / sizeof *items};
    const struct layout_options options = layout_options_of(self->experiment);
    if (!rc)
        rc = layout_new_training(self->model, &options, &training, &self->layout, err);
    free(ranges);
    return rc;
}

/* On a device the position is stored next to the arrays, as on the host. */
static int64_t *counter_of(struct train_checkpoint *self, const struct trainer *trainer,
                           const struct state_tensor *tensor)
{
    int64_t *counters = parallel_device_memory(trainer->parallel).counters;
    bool is_step = strcmp(tensor->fqn, "train.step") == 0;
    if (counters)
        return is_step ? &counters[0] : &counters[1];
    return is_step ? &self->position.step : &self->position.samples;
}

/* The trainer's memory for a tensor that the layout assigns to this rank. */
static void *place_of(struct train_checkpoint *self, const struct trainer *trainer, const struct piece *piece)
{
    static const enum parallel_array arrays[] = {[KIND_WEIGHT] = PARALLEL_WEIGHTS,
                                                 [KIND_MASTER] = PARALLEL_WEIGHTS,
                                                 [KIND_EXP_AVG] = PARALLEL_EXP_AVG,
                                                 [KIND_EXP_AVG_SQ] = PARALLEL_EXP_AVG_SQ};
    const struct state_tensor *tensor = layout_tensor(self->layout, piece->tensor);
    size_t unit;
    if (tensor->model_tensor >= self->parameters)
        return counter_of(self, trainer, tensor);
    const struct train_parameter *parameter =
        find_parameter(trainer, self->model->tensors[tensor->model_tensor].fqn, &unit);
    if (!parameter)
        return NULL;
    return parallel_place(trainer->parallel, arrays[tensor->kind], unit,
                          parameter->offset + region_first_element(&piece->region, tensor->shape));
}

static int place_pieces(struct train_checkpoint *self, const struct trainer *trainer, struct cb_err *err)
{
    int rc = state_init(&self->state, self->layout, trainer->rank, err);
    struct parallel_device_memory memory = parallel_device_memory(trainer->parallel);
    if (!rc && memory.base) {
        self->state.device = trainer->gpu;
        self->state.base = memory.base;
        self->state.mapped_bytes = memory.bytes;
    }
    for (size_t i = 0; i < self->state.piece_count && !rc; i++) {
        self->state.memory[i] = place_of(self, trainer, &self->state.pieces[i]);
        if (!self->state.memory[i])
            rc = cb_fail(err, CB_ERR_INTERNAL, "the trainer holds no part of %s",
                         layout_tensor(self->layout, self->state.pieces[i].tensor)->fqn);
    }
    return rc;
}

int train_checkpoint_make_state(struct train_checkpoint *self, const struct trainer *trainer, struct cb_err *err)
{
    int rc = own_experiment(self, trainer, err);
    if (!rc)
        rc = own_model(self, trainer, err);
    if (!rc)
        rc = make_layout(self, trainer, err);
    return rc ? rc : place_pieces(self, trainer, err);
}

int train_checkpoint_move_position(struct train_checkpoint *self, const struct trainer *trainer,
                                   enum device_direction direction, struct cb_err *err)
{
    struct device_math *math = trainer->setup.math;
    void *there = parallel_device_memory(trainer->parallel).counters, *here = &self->position;
    if (!there)
        return 0;
    bool sends = direction == HOST_TO_DEVICE;
    int rc = device_math_copy(math, direction, sends ? there : here, sends ? here : there, sizeof self->position, err);
    return rc ? rc : device_math_finish(math, trainer_deadline(trainer), err);
}
