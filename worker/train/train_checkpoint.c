/* Checkpoints of a training: the state as the engine sees it, saving while steps go on, resuming. Owns the place in the
 * store and the engine; must not know how a step computes, or how an engine moves bytes. */
#include "worker/train/train_checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/model_shape.h"
#include "ckpt/needs.h"
#include "core/clock.h"
#include "core/record.h"
#include "core/run_folder.h"
#include "worker/run.h"
#include "worker/together.h"

/* What a rank says of a save that failed: whether the store alone is to blame. */
#define FAILED_IN_STORE UINT64_C(1)
#define FAILED_OTHERWISE (UINT64_C(1) << 32)

/* --- the state --- */

/* The training's own keys as a layout wants them. */
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

/* Adds the counters to the model that the layout is of. */
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
        rc = model_add(self->model, role, 0, NULL, err, "%s", names[i]);
        if (!rc)
            self->model->tensors[self->model->count - 1].dtype = DTYPE_I64;
    }
    return rc;
}

/* The unit and the parameter of a name. */
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
        return cb_fail(err, CB_ERR_MEMORY, "no memory for the names of %zu tensors", self->model->count);
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
    if (!rc)
        rc = layout_new_training(self->model, self->experiment, &training, &self->layout, err);
    free(ranges);
    return rc;
}

static int64_t *counter_of(struct train_checkpoint *self, const struct state_tensor *tensor)
{
    return strcmp(tensor->fqn, "train.step") == 0 ? &self->position.step : &self->position.samples;
}

/* Where the trainer keeps what the layout says this rank holds. */
static void *place_of(struct train_checkpoint *self, const struct trainer *trainer, const struct piece *piece)
{
    static const enum parallel_array arrays[] = {[KIND_WEIGHT] = PARALLEL_WEIGHTS,
                                                 [KIND_MASTER] = PARALLEL_WEIGHTS,
                                                 [KIND_EXP_AVG] = PARALLEL_EXP_AVG,
                                                 [KIND_EXP_AVG_SQ] = PARALLEL_EXP_AVG_SQ};
    const struct state_tensor *tensor = layout_tensor(self->layout, piece->tensor);
    size_t unit;
    if (tensor->model_tensor >= self->parameters)
        return counter_of(self, tensor);
    const struct train_parameter *parameter =
        find_parameter(trainer, self->model->tensors[tensor->model_tensor].fqn, &unit);
    if (!parameter)
        return NULL;
    return parallel_place(trainer->parallel, arrays[tensor->kind], unit,
                          parameter->offset + box_first_element(&piece->box, tensor->shape));
}

static int make_state(struct train_checkpoint *self, const struct trainer *trainer, struct cb_err *err)
{
    int rc = state_init(&self->state, self->layout, trainer->rank, err);
    for (size_t i = 0; i < self->state.piece_count && !rc; i++) {
        self->state.memory[i] = place_of(self, trainer, &self->state.pieces[i]);
        if (!self->state.memory[i])
            rc = cb_fail(err, CB_ERR_INTERNAL, "the trainer holds no part of %s",
                         layout_tensor(self->layout, self->state.pieces[i].tensor)->fqn);
    }
    return rc;
}

/* --- the place --- */

/* The run that wrote what lies where this one saves; "" where that is not known. Before it is claimed. */
static void read_owner(struct train_checkpoint *self)
{
    char path[2 * FOLDER_NAME_BYTES];
    const char *store = folder_store_path(experiment_text(self->experiment, OPT_STORE));
    const char *suffix = experiment_text(self->experiment, OPT_SUFFIX);
    struct buf text;
    if (!store || store[0] != '/' || !*suffix)
        return;
    buf_init(&text, FOLDER_NAME_BYTES);
    int len = snprintf(path, sizeof path, "%s/%s/" FOLDER_CLAIM, store, suffix);
    if (len < (int)sizeof path && buf_read_file(&text, path, NULL) == 0)
        snprintf(self->owner, sizeof self->owner, "%.*s", (int)strcspn(text.data, "\n"), text.data);
    buf_release(&text);
}

static const char *run_name(const struct train_place *place)
{
    const char *slash = strrchr(place->run_folder, '/');
    return slash ? slash + 1 : place->run_folder;
}

static int open_place(struct train_checkpoint *self, struct trainer *trainer, struct cb_err *err)
{
    struct layout_pair pair = {.saved = self->layout, .loaded = self->layout, .ranks = trainer->training.ranks};
    const char *name = run_name(&trainer->place);
    int rc = 0;
    if (trainer->rank == 0) {
        read_owner(self);
        rc = folder_prepare(self->experiment, name, needs_store_bytes(&pair, self->experiment), err);
    }
    rc = trainer_join(trainer, rc, err);
    if (!rc)
        rc = folder_open(&self->folder, self->experiment, name, err);
    if (!rc)
        rc = run_open_store(self->experiment, trainer->rank, trainer->place.pages_folder, &self->store, err);
    if (!rc && self->async)
        rc = run_open_store(self->experiment, trainer->rank, trainer->place.pages_folder, &self->behind_store, err);
    if (!rc && self->async)
        rc = device_host_open(device_host_cores(), &self->device, err);
    rc = trainer_join(trainer, rc, err);
    if (!rc && self->async)
        rc = comm_twin(trainer->comm, &self->behind_comm, err);
    return rc;
}

static int make_engine(struct train_checkpoint *self, struct trainer *trainer, struct cb_err *err)
{
    struct engine_setup setup = {
        .experiment = self->experiment,
        .layout = self->layout,
        .comm = trainer->comm,
        .page = trainer->page,
        .store = self->store,
        .plain = self->folder.plain,
        .run_folder = trainer->place.run_folder,
        .behind_comm = self->behind_comm,
        .behind_store = self->behind_store,
        .device = self->device,
    };
    return engine_new(&setup, &self->engine, err);
}

int checkpoint_open(struct trainer *trainer, struct cb_err *err)
{
    struct train_checkpoint *self = calloc(1, sizeof *self);
    if (!self)
        return trainer_join(trainer, cb_fail(err, CB_ERR_MEMORY, "no memory for checkpoints"), err);
    const struct experiment *experiment = trainer->place.experiment;
    trainer->checkpoint = self;
    self->state.shared_fd = -1;
    self->async = experiment_bool(experiment, OPT_SAVE_ASYNC);
    self->resumes = experiment_is(experiment, OPT_TRAIN_RESUME, "latest");
    self->keep_last = experiment_u64(experiment, OPT_KEEP_LAST);
    self->keep_last = self->keep_last == 0 ? 1 : self->keep_last < TRAIN_KEPT ? self->keep_last : TRAIN_KEPT;
    self->last_step = -1;
    int rc = own_experiment(self, trainer, err);
    if (!rc)
        rc = own_model(self, trainer, err);
    if (!rc)
        rc = make_layout(self, trainer, err);
    if (!rc)
        rc = make_state(self, trainer, err);
    rc = trainer_join(trainer, rc, err);
    if (!rc)
        rc = open_place(self, trainer, err);
    if (!rc)
        rc = trainer_join(trainer, make_engine(self, trainer, err), err);
    if (!rc)
        trainer->page->run_values[METRIC_CHECKPOINT_BYTES] = (double)layout_total_bytes(self->layout);
    return rc;
}

bool checkpoint_close(struct trainer *trainer)
{
    struct train_checkpoint *self = trainer->checkpoint;
    if (!self)
        return true;
    if (!engine_stop(self->engine))
        return false;
    engine_free(self->engine);
    comm_free(self->behind_comm);
    store_free(self->behind_store);
    store_free(self->store);
    if (self->device)
        device_close(self->device);
    folder_release(&self->folder);
    self->state.base = NULL; /* its memory is the trainer's */
    state_release(&self->state);
    layout_free(self->layout);
    model_free(self->model);
    experiment_free(self->experiment);
    free(self);
    trainer->checkpoint = NULL;
    return true;
}

/* --- keeping and removing --- */

static int remove_one(struct trainer *trainer, uint32_t step, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    char name[FOLDER_NAME_BYTES];
    if (trainer->rank != 0 || !self->folder.path)
        return 0;
    struct sample *sample = status_page_begin_sample(trainer->page);
    if (!sample)
        return cb_fail(err, CB_ERR_INTERNAL, "the status page has no room for another sample");
    folder_checkpoint_name(&self->folder, self->experiment, step, name);
    uint64_t start_ns = clock_monotonic_ns();
    int rc = folder_remove(&self->folder, name, err);
    sample->op = OP_DELETE;
    sample->iteration = step;
    sample->values[METRIC_DELETE_S] = (double)(clock_monotonic_ns() - start_ns) / 1e9;
    sample->flags = rc ? SAMPLE_FAILED : 0;
    status_page_publish_sample(trainer->page);
    return rc;
}

/* One that cannot be removed takes room and stops nothing. */
static void clear_one(struct trainer *trainer, uint32_t step)
{
    struct cb_err why;
    if (remove_one(trainer, step, &why))
        status_page_add_fact(trainer->page, "train.left_over", why.message);
}

/* The checkpoint of `step` is durable: the oldest goes where more than keep.last are there. */
static void keep(struct trainer *trainer, uint32_t step)
{
    struct train_checkpoint *self = trainer->checkpoint;
    self->kept[self->kept_count++] = step;
    while (self->kept_count > self->keep_last) {
        uint32_t oldest = self->kept[0];
        self->kept_count--;
        memmove(self->kept, self->kept + 1, self->kept_count * sizeof *self->kept);
        if (oldest != step)
            clear_one(trainer, oldest);
    }
}

/* --- saves --- */

bool checkpoint_is_saving(const struct trainer *trainer)
{
    const struct train_checkpoint *self = trainer->checkpoint;
    return self && self->async && engine_under_way(self->engine) > 0;
}

/* What a checkpoint that failed leaves: a fact now, the run's failure in the end, no files. */
static void note_failure(struct trainer *trainer, uint32_t step, int code, const char *message)
{
    struct train_checkpoint *self = trainer->checkpoint;
    char key[64];
    self->failed++;
    if (self->failed == 1) {
        self->first_failed_step = step;
        snprintf(self->first_failure, sizeof self->first_failure, "%.1000s", message);
    }
    snprintf(key, sizeof key, "train.checkpoint_failed.%" PRIu32, step);
    if (code != CB_ERR_ABORTED)
        status_page_add_fact(trainer->page, key, message);
}

static double seconds_a_step(const struct step_pace *pace)
{
    return pace->steps ? (double)pace->spent_ns / 1e9 / (double)pace->steps : NAN;
}

static void publish(struct trainer *trainer, const struct sample *from)
{
    struct sample *sample = status_page_begin_sample(trainer->page);
    if (!sample)
        return; /* the next step says that the page is full */
    *sample = *from;
    status_page_publish_sample(trainer->page);
}

/* A save has ended on this rank. */
static void settle_one(struct trainer *trainer, struct save_under_way *save)
{
    struct train_checkpoint *self = trainer->checkpoint;
    struct sample *sample = &save->sample;
    double *values = sample->values;
    double beside_s = seconds_a_step(&trainer->beside), alone_s = seconds_a_step(&trainer->alone);
    if (isnan(values[METRIC_STALL_S]))
        values[METRIC_STALL_S] = values[METRIC_OP_S];
    if (isnan(values[METRIC_DURABLE_S]) && experiment_bool(self->experiment, OPT_IO_FSYNC))
        values[METRIC_DURABLE_S] = values[METRIC_OP_S];
    if (self->async && !isnan(beside_s) && !isnan(alone_s))
        values[METRIC_INTERFERENCE_FRACTION] = 1 - alone_s / beside_s;
    trainer->beside = (struct step_pace){0};
    publish(trainer, sample);
    if (sample->flags & SAMPLE_FAILED)
        return;
    trace_add_numbered(&trainer->trace, TRACE_IO, "checkpoint", sample->iteration, save->start_ns,
                       save->start_ns + (uint64_t)(values[METRIC_OP_S] * 1e9), (uint64_t)values[METRIC_BYTES_MOVED]);
    self->committed++;
    keep(trainer, sample->iteration);
}

void checkpoint_settle(struct trainer *trainer)
{
    struct train_checkpoint *self = trainer->checkpoint;
    if (!self || self->pending_count == 0)
        return;
    uint32_t under_way = self->async ? engine_under_way(self->engine) : 0;
    while (self->pending_count > under_way) {
        struct save_under_way *save = &self->pending[self->pending_first];
        self->pending_first = (self->pending_first + 1) % TRAIN_PENDING;
        self->pending_count--;
        settle_one(trainer, save);
    }
}

/* All ranks bring what a save came to. 0: it is well. 1: the store failed it, training goes on. Else an error. */
static int judge_save(struct trainer *trainer, int code, bool *store_failed, struct cb_err *err)
{
    struct agreement agreement;
    bool in_store = code == CB_ERR_NO_SPACE || code == CB_ERR_SYSTEM || code == CB_ERR_NOT_FOUND;
    uint64_t number = !code || code == CB_ERR_ABORTED ? 0 : in_store ? FAILED_IN_STORE : FAILED_OTHERWISE;
    struct cb_err unheard;
    *store_failed = false;
    if (!comm_can_end(trainer->comm))
        return code ? code : cb_fail(err, CB_ERR_ABORTED, "ranks no longer answer");
    int rc = comm_agree(trainer->comm, code, number, trainer_deadline(trainer), &agreement, code ? &unheard : err);
    if (rc)
        return code ? code : rc;
    if (agreement.code == 0)
        return 0;
    *store_failed = agreement.sum > 0 && agreement.sum < FAILED_OTHERWISE;
    if (*store_failed)
        return 0;
    return code ? code : cb_fail(err, CB_ERR_ABORTED, "rank %u failed to save", agreement.failed_rank);
}

static struct save_under_way *add_pending(struct trainer *trainer)
{
    struct train_checkpoint *self = trainer->checkpoint;
    struct save_under_way *save = &self->pending[(self->pending_first + self->pending_count++) % TRAIN_PENDING];
    *save = (struct save_under_way){.start_ns = clock_monotonic_ns()};
    save->sample.op = OP_SAVE;
    save->sample.iteration = (uint32_t)trainer->position.step;
    for (int i = 0; i < METRIC_SAMPLE_COUNT; i++)
        save->sample.values[i] = NAN;
    return save;
}

static int begin_save(struct trainer *trainer, struct save_under_way *save, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    struct engine_options options = {
        .iteration = save->sample.iteration, .deadline_ns = trainer_deadline(trainer), .async = self->async};
    char name[FOLDER_NAME_BYTES];
    int rc = 0;
    folder_checkpoint_name(&self->folder, self->experiment, save->sample.iteration, name);
    if (trainer->rank == 0) /* what an attempt before this one left half done */
        rc = folder_remove(&self->folder, name, err);
    rc = trainer_join(trainer, rc, err);
    if (rc)
        return rc;
    self->position = trainer->position;
    return engine_save(self->engine, name, &self->state, &options, &save->sample, err);
}

/* The store failed: this save, or one before it that only now tells. */
static void go_on_without(struct trainer *trainer, struct save_under_way *save, int code, const struct cb_err *why)
{
    struct train_checkpoint *self = trainer->checkpoint;
    uint32_t step = self->async ? self->pending[self->pending_first].sample.iteration : save->sample.iteration;
    note_failure(trainer, step, code, code ? why->message : "another rank's store failed");
    if (self->async)
        self->pending_count--; /* it did not begin */
    else
        save->sample.flags |= SAMPLE_FAILED;
    checkpoint_settle(trainer);
    clear_one(trainer, step); /* room for the next one */
}

int checkpoint_save(struct trainer *trainer, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    struct cb_err why = {0};
    bool store_failed = false;
    for (int attempt = 0; attempt < 2; attempt++) {
        struct save_under_way *save = add_pending(trainer);
        int code = begin_save(trainer, save, &why);
        int rc = judge_save(trainer, code, &store_failed, &why);
        if (rc) {
            self->pending_count--;
            if (err)
                *err = why;
            return rc;
        }
        self->last_step = trainer->position.step;
        if (!store_failed && !self->async)
            checkpoint_settle(trainer);
        if (store_failed)
            go_on_without(trainer, save, code, &why);
        if (!store_failed || !self->async)
            return 0;
    }
    return 0; /* behind: the one before failed, and so did this one's beginning */
}

static int wait_for_saves(struct trainer *trainer, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    struct cb_err why = {0};
    bool store_failed = false;
    if (!self->async)
        return 0;
    uint32_t step = self->pending[self->pending_first].sample.iteration;
    int code = engine_wait(self->engine, trainer_deadline(trainer), &why);
    int rc = judge_save(trainer, code, &store_failed, &why);
    if (rc) {
        if (err)
            *err = why;
        return rc;
    }
    checkpoint_settle(trainer);
    if (!store_failed)
        return 0;
    note_failure(trainer, step, code, code ? why.message : "another rank's store failed");
    clear_one(trainer, step);
    return 0;
}

/* keep=false: all of this run's go, and its folder where nothing else is in it. */
static int drop_all(struct trainer *trainer, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    while (self->kept_count > 0)
        clear_one(trainer, self->kept[--self->kept_count]);
    return trainer_join(trainer, trainer->rank == 0 ? folder_leave(&self->folder, err) : 0, err);
}

int checkpoint_finish(struct trainer *trainer, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    int rc = 0;
    if (!self)
        return 0;
    bool saves = trainer->training.checkpoint_steps || trainer->training.checkpoint_ns; /* else it only resumed */
    if (saves && self->last_step != trainer->position.step && trainer->position.step > 0)
        rc = checkpoint_save(trainer, err);
    if (!rc)
        rc = wait_for_saves(trainer, err);
    if (!rc && experiment_is(self->experiment, OPT_KEEP, "false"))
        rc = drop_all(trainer, err);
    if (rc || self->failed == 0)
        return rc;
    return cb_fail(err, CB_ERR_NO_SPACE,
                   "training went on to step %lld, but %u of %u checkpoints failed; the first, of step %u: %s",
                   (long long)trainer->position.step, self->failed, self->failed + self->committed,
                   self->first_failed_step, self->first_failure);
}

/* --- resuming --- */

/* Steps that a rank had done, and the one it was in. */
static void note_reached(struct train_checkpoint *self, const struct record_rank *rank)
{
    uint64_t reached = rank->last_op == OP_STEP ? rank->last_iteration + UINT64_C(1) : 0;
    for (uint32_t i = 0; i < rank->sample_count; i++)
        if (rank->samples[i].op == OP_STEP && rank->samples[i].iteration >= reached)
            reached = rank->samples[i].iteration + UINT64_C(1);
    self->reached_step = reached > self->reached_step ? reached : self->reached_step;
}

/* When the attempt before this one ended, and the step it was in. */
static void look_back(struct trainer *trainer)
{
    struct train_checkpoint *self = trainer->checkpoint;
    const struct train_place *place = &trainer->place;
    const char *name = run_name(place);
    char folder[FOLDER_NAME_BYTES * 2], attempt_path[FOLDER_NAME_BYTES * 3], records[FOLDER_NAME_BYTES * 3 + 16];
    uint32_t attempt = place->attempt - 1;
    struct manifest manifest;
    struct record record;
    bool other = *self->owner && strcmp(self->owner, name) != 0;
    snprintf(folder, sizeof folder, "%.*s%s", (int)(name - place->run_folder), place->run_folder,
             other ? self->owner : name);
    if (other && run_folder_last_attempt(folder, &attempt, NULL))
        return;
    snprintf(attempt_path, sizeof attempt_path, "%s/attempts/%u", folder, attempt);
    if (attempt == 0 || manifest_read(attempt_path, &manifest, NULL))
        return;
    self->failed_at_wall_ns = manifest.ended_wall_ns;
    snprintf(records, sizeof records, "%s/records", attempt_path);
    if (record_read(records, &record, NULL))
        return;
    for (uint32_t i = 0; i < record.rank_count; i++)
        note_reached(self, &record.ranks[i]);
    record_release(&record);
}

static int find_newest(struct trainer *trainer, char name[FOLDER_NAME_BYTES], struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    int rc = 0;
    name[0] = '\0';
    if (trainer->rank == 0) {
        rc = self->folder.path ? folder_find_checkpoint(&self->folder, name, err) : 0;
        if (rc == CB_ERR_NOT_FOUND) {
            name[0] = '\0';
            rc = 0;
        }
        if (!rc)
            look_back(trainer);
    }
    rc = trainer_join(trainer, rc, err);
    return rc ? rc : comm_broadcast(trainer->comm, name, FOLDER_NAME_BYTES, trainer_deadline(trainer), err);
}

static int load(struct trainer *trainer, const char *name, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    struct engine_options options = {.deadline_ns = trainer_deadline(trainer)};
    struct sample *sample = status_page_begin_sample(trainer->page);
    if (!sample)
        return cb_fail(err, CB_ERR_INTERNAL, "the status page has no room for another sample");
    sample->op = OP_LOAD;
    int rc = engine_load(self->engine, name, &self->state, &options, sample, err);
    sample->iteration = rc ? 0 : (uint32_t)self->position.step;
    sample->flags |= rc ? SAMPLE_FAILED : SAMPLE_COLDNESS_UNKNOWN;
    status_page_publish_sample(trainer->page);
    return rc ? cb_context(err, "train.resume=latest, %s", name) : 0;
}

int checkpoint_resume(struct trainer *trainer, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    char name[FOLDER_NAME_BYTES], text[FOLDER_NAME_BYTES + 64];
    if (!self || !self->resumes)
        return 0;
    int rc = find_newest(trainer, name, err);
    if (rc)
        return rc;
    if (!name[0]) {
        status_page_add_fact(trainer->page, "train.resumed", "nothing to resume: from step 0");
        return 0;
    }
    rc = trainer_join(trainer, load(trainer, name, err), err);
    if (rc)
        return rc;
    if (self->position.step < 0 || self->position.step > UINT32_MAX)
        return cb_fail(err, CB_ERR_CORRUPT, "%s says that its step is %lld", name, (long long)self->position.step);
    trainer->position = self->position;
    self->last_step = self->position.step;
    self->kept[self->kept_count++] = (uint32_t)self->position.step;
    self->resumed = true;
    snprintf(text, sizeof text, "%s, from step %lld", name, (long long)self->position.step);
    status_page_add_fact(trainer->page, "train.resumed", text);
    if (trainer->rank == 0 && self->reached_step > 0)
        trainer->page->run_values[METRIC_LOST_STEPS] =
            self->reached_step > (uint64_t)self->position.step
                ? (double)(self->reached_step - (uint64_t)self->position.step)
                : 0;
    return 0;
}

void checkpoint_note_recovery(struct trainer *trainer)
{
    struct train_checkpoint *self = trainer->checkpoint;
    uint64_t now_ns = clock_wall_ns();
    if (!self || !self->resumed || trainer->rank != 0 || self->failed_at_wall_ns == 0 ||
        now_ns < self->failed_at_wall_ns)
        return;
    trainer->page->run_values[METRIC_RECOVERY_S] = (double)(now_ns - self->failed_at_wall_ns) / 1e9;
}

void checkpoint_add_facts(struct trainer *trainer)
{
    struct train_checkpoint *self = trainer->checkpoint;
    char name[FOLDER_NAME_BYTES];
    if (!self || trainer->rank != 0 || !self->store)
        return;
    status_page_add_fact(trainer->page, "io.used", store_describe(self->store));
    trainer->page->run_values[METRIC_CHECKPOINTS] = self->committed;
    trainer->page->run_values[METRIC_CHECKPOINTS_FAILED] = self->failed;
    if (self->kept_count == 0 || !self->folder.path)
        return;
    folder_checkpoint_name(&self->folder, self->experiment, self->kept[self->kept_count - 1], name);
    status_page_add_fact(trainer->page, "checkpoint", name);
}
