/* Checkpoints of a training: the folder in the store, and saving while steps continue. */
#include "train/train_checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "comm/agree.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "setup/engine_config.h"
#include "setup/folder/claim.h"
#include "setup/memory_estimate.h"
#include "setup/open_store.h"
#include "setup/trace_requests.h"
#include "store/kind.h"

/* A rank's result of a save that failed, and whether the cause is only the store. */
#define FAILED_IN_STORE UINT64_C(1)
#define FAILED_OTHERWISE (UINT64_C(1) << 32)

/* --- the folder --- */

const char *train_checkpoint_run_name(const struct train_place *place)
{
    const char *slash = strrchr(place->run_folder, '/');
    return slash ? slash + 1 : place->run_folder;
}

/* The run that wrote the checkpoints in this folder; "" if unknown. Call before the folder is claimed. */
static void read_owner(struct train_checkpoint *self, const struct trainer *trainer)
{
    const char *suffix = experiment_text(self->experiment, OPT_SUFFIX);
    struct store *store;
    struct claim claim;
    if (!store_uri_of(experiment_text(self->experiment, OPT_STORE)).kind->keeps_data || !*suffix ||
        open_store(self->experiment, trainer->page, trainer->place.pages_folder, &store, NULL))
        return;
    if (claim_read(store, suffix, &claim, NULL) == 0)
        snprintf(self->owner, sizeof self->owner, "%s", claim.run);
    store_free(store);
}

static int open_store_of_state(struct train_checkpoint *self, struct trainer *trainer, struct cb_err *err)
{
    struct parallel_device_memory memory = parallel_device_memory(trainer->parallel);
    int rc = gds_open(&self->gds, self->experiment, trainer_state_device(trainer), err);
    if (!rc)
        rc = gds_open_store(&self->gds, self->experiment, trainer->page, trainer->place.pages_folder, &self->folder,
                            &self->store, err);
    if (!rc && self->gds.files)
        self->gds.files->ops->add_memory(self->gds.files, memory.base, memory.bytes);
    return rc;
}

static int open_place(struct train_checkpoint *self, struct trainer *trainer, struct cb_err *err)
{
    struct agreement agreement;
    struct layout_pair pair = {.saved = self->layout, .loaded = self->layout, .ranks = trainer->training.ranks};
    const char *name = train_checkpoint_run_name(&trainer->place);
    const struct lease_owner owner = {.run = name,
                                      .run_folder = trainer->place.run_folder,
                                      .attempt = trainer->place.attempt,
                                      .one_machine = comm_local_size(trainer->comm) == comm_size(trainer->comm)};
    int rc = 0;
    if (trainer->rank == 0) {
        read_owner(self, trainer);
        rc =
            folder_prepare(&self->folder, self->experiment, &owner, estimate_store_bytes(&pair, self->experiment), err);
        if (!rc && folder_weakness(&self->folder))
            status_page_add_fact(trainer->page, "claim", folder_weakness(&self->folder));
    }
    rc = trainer_join(trainer, rc, err);
    if (!rc)
        rc = folder_open(&self->folder, self->experiment, name, err);
    if (!rc)
        rc = open_store_of_state(self, trainer, err);
    if (!rc && self->async)
        rc = open_store(self->experiment, trainer->page, trainer->place.pages_folder, &self->async_store, err);
    const struct trace_place place = {trainer->place.run_folder, trainer->place.attempt};
    if (!rc)
        rc = trace_requests_start(self->experiment, &place, trainer->page, self->store, false, &self->trace, err);
    if (!rc && self->async)
        rc = trace_requests_start(self->experiment, &place, trainer->page, self->async_store, true, &self->async_trace,
                                  err);
    if (!rc && self->async && !trainer_state_device(trainer))
        rc = device_host_open(device_host_cores(), &self->device, err);
    rc = agree_number(trainer->comm, rc, self->gds.files ? 1 : 0, trainer_deadline(trainer), &agreement, err);
    if (!rc)
        rc = gds_check(&self->gds, agreement.min, agreement.max, err);
    if (!rc && self->async)
        rc = comm_twin(trainer->comm, &self->async_comm, err);
    return rc;
}

static int make_engine(struct train_checkpoint *self, struct trainer *trainer, struct cb_err *err)
{
    struct engine_setup setup = {
        .layout = self->layout,
        .comm = trainer->comm,
        .page = trainer->page,
        .store = self->store,
        .plain = self->folder.plain,
        .run_folder = trainer->place.run_folder,
        .check_owner = folder_check_owner,
        .folder = &self->folder,
        .async_comm = self->async_comm,
        .async_store = self->async_store,
        .device = self->device ? self->device : trainer_state_device(trainer),
    };
    int rc = engine_config_read(self->experiment, &setup.config, err);
    return rc ? rc : engine_new(&setup, &self->engine, err);
}

int checkpoint_open(struct trainer *trainer, struct cb_err *err)
{
    struct train_checkpoint *self = calloc(1, sizeof *self);
    if (!self)
        return trainer_join(trainer, alloc_fail(err, "for checkpoints"), err);
    const struct experiment *experiment = trainer->place.experiment;
    trainer->checkpoint = self;
    self->state.shared_fd = -1;
    self->async = experiment_bool(experiment, OPT_SAVE_ASYNC);
    self->resumes = experiment_is(experiment, OPT_TRAIN_RESUME, "latest");
    self->keep_last = experiment_u64(experiment, OPT_KEEP_LAST);
    self->keep_last = self->keep_last == 0 ? 1 : self->keep_last < TRAIN_KEPT ? self->keep_last : TRAIN_KEPT;
    self->last_step = -1;
    int rc = trainer_join(trainer, train_checkpoint_make_state(self, trainer, err), err);
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
    comm_free(self->async_comm);
    trace_requests_end(self->async_trace);
    trace_requests_end(self->trace);
    store_free(self->async_store);
    store_free(self->store);
    gds_end(&self->gds); /* after the store that uses its files, before the memory that it knows */
    if (self->device)
        device_close(self->device);
    folder_release(&self->folder);
    self->state.base = NULL; /* memory of the trainer, not of the state */
    state_release(&self->state);
    layout_free(self->layout);
    model_free(self->model);
    experiment_free(self->experiment);
    free(self);
    trainer->checkpoint = NULL;
    return true;
}

/* --- retention --- */

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

void train_checkpoint_clear(struct trainer *trainer, uint32_t step)
{
    struct cb_err why;
    if (remove_one(trainer, step, &why))
        status_page_add_fact(trainer->page, "train.left_over", why.message);
}

/* Removes the oldest if there are more than keep.last, but only after a step from the next checkpoint has succeeded:
 * the newest may contain weights that lead to NaN. */
static void drop_older(struct trainer *trainer, bool at_end)
{
    struct train_checkpoint *self = trainer->checkpoint;
    while (self->kept_count > self->keep_last && (at_end || self->kept[1] < trainer->position.step)) {
        uint32_t oldest = self->kept[0];
        self->kept_count--;
        memmove(self->kept, self->kept + 1, self->kept_count * sizeof *self->kept);
        if (oldest != self->kept[self->kept_count - 1])
            train_checkpoint_clear(trainer, oldest);
    }
}

/* --- saves --- */

bool checkpoint_is_saving(const struct trainer *trainer)
{
    const struct train_checkpoint *self = trainer->checkpoint;
    return self && self->async && engine_under_way(self->engine) > 0;
}

static double seconds_a_step(const struct step_rate *rate)
{
    return rate->steps ? (double)rate->spent_ns / 1e9 / (double)rate->steps : NAN;
}

/* A save has ended on this rank. */
static void settle_one(struct trainer *trainer, struct pending_save *save)
{
    struct train_checkpoint *self = trainer->checkpoint;
    struct sample *sample = &save->sample;
    double *values = sample->values;
    double beside_s = seconds_a_step(&trainer->beside), alone_s = seconds_a_step(&trainer->alone);
    if (isnan(values[METRIC_STALL_S]))
        values[METRIC_STALL_S] = values[METRIC_OP_S];
    if (self->async && !isnan(beside_s) && !isnan(alone_s))
        values[METRIC_INTERFERENCE_FRACTION] = 1 - alone_s / beside_s;
    trainer->beside = (struct step_rate){0};
    struct sample *published = status_page_begin_sample(trainer->page);
    if (published) { /* otherwise the next step reports the full page */
        *published = *sample;
        status_page_publish_sample(trainer->page);
    }
    if (sample->flags & SAMPLE_FAILED) {
        if (self->failing++ == 0)
            self->failing_step = sample->iteration;
        return;
    }
    trace_add_numbered(&trainer->trace, TRACE_IO, "checkpoint", sample->iteration, save->start_ns,
                       save->start_ns + (uint64_t)(values[METRIC_OP_S] * 1e9), (uint64_t)values[METRIC_BYTES_MOVED]);
    self->committed++;
    self->kept[self->kept_count++] = sample->iteration;
}

void checkpoint_settle(struct trainer *trainer)
{
    struct train_checkpoint *self = trainer->checkpoint;
    if (!self)
        return;
    uint32_t under_way = self->async ? engine_under_way(self->engine) : 0;
    while (self->pending_count > under_way) {
        struct pending_save *save = &self->pending[self->pending_first];
        self->pending_first = (self->pending_first + 1) % TRAIN_PENDING;
        self->pending_count--;
        settle_one(trainer, save);
    }
    drop_older(trainer, false);
}

/* Records that a save failed: now as a fact, at the end as a failure of the run. Removes its files. Of the saves that have
 * ended, it is the first that failed; those after it were not written. If none of them failed, the save of `step` did not
 * start. */
static void note_failure(struct trainer *trainer, uint32_t step, int code, const struct cb_err *why)
{
    struct train_checkpoint *self = trainer->checkpoint;
    const char *message = code ? why->message : "another rank's store failed";
    char key[64];
    if (self->failing > 0)
        step = self->failing_step;
    if (self->failed == 0) {
        self->first_failed_step = step;
        snprintf(self->first_failure, sizeof self->first_failure, "%.1000s", message);
    }
    self->failed += self->failing > 0 ? self->failing : 1;
    self->failing = 0;
    snprintf(key, sizeof key, "train.checkpoint_failed.%" PRIu32, step);
    if (code != CB_ERR_ABORTED)
        status_page_add_fact(trainer->page, key, message);
    train_checkpoint_clear(trainer, step); /* makes room in the store for the next one */
}

static int agree_on_save(struct trainer *trainer, int code, struct agreement *agreement, struct cb_err *err)
{
    bool in_store = code == CB_ERR_NO_SPACE || code == CB_ERR_SYSTEM || code == CB_ERR_NOT_FOUND;
    uint64_t number = !code || code == CB_ERR_ABORTED ? 0 : in_store ? FAILED_IN_STORE : FAILED_OTHERWISE;
    struct cb_err unheard;
    int rc = comm_agree(trainer->comm, code, number, trainer_deadline(trainer), agreement, code ? &unheard : err);
    return rc && code ? code : rc;
}

/* All ranks agree on the result of a save, which is 0 too if only the store failed: then training continues. One rank may
 * return the failure of an earlier save while another has queued this one, so each waits until none is under way, and
 * `code` becomes the failure that it returns then. */
static int judge_save(struct trainer *trainer, int *code, bool *store_failed, struct cb_err *err)
{
    struct agreement agreement;
    struct cb_err late;
    *store_failed = false;
    if (!comm_can_end(trainer->comm))
        return *code ? *code : cb_fail(err, CB_ERR_ABORTED, "ranks no longer answer");
    int rc = agree_on_save(trainer, *code, &agreement, err);
    if (!rc && agreement.code && agreement.sum < FAILED_OTHERWISE && trainer->checkpoint->async) {
        int late_code = engine_wait(trainer->checkpoint->engine, trainer_deadline(trainer), &late);
        if (late_code) {
            *code = late_code;
            *err = late;
        }
        rc = agree_on_save(trainer, *code, &agreement, err);
    }
    if (rc || agreement.code == 0)
        return rc;
    *store_failed = agreement.sum > 0 && agreement.sum < FAILED_OTHERWISE;
    if (*store_failed)
        return 0;
    return *code ? *code : cb_fail(err, CB_ERR_ABORTED, "rank %u failed to save", agreement.failed_rank);
}

static struct pending_save *add_pending(struct trainer *trainer)
{
    struct train_checkpoint *self = trainer->checkpoint;
    struct pending_save *save = &self->pending[(self->pending_first + self->pending_count++) % TRAIN_PENDING];
    *save = (struct pending_save){.start_ns = clock_monotonic_ns()};
    save->sample.op = OP_SAVE;
    save->sample.iteration = (uint32_t)trainer->position.step;
    for (int i = 0; i < METRIC_SAMPLE_COUNT; i++)
        save->sample.values[i] = NAN;
    return save;
}

static int begin_save(struct trainer *trainer, struct pending_save *save, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    struct engine_options options = {
        .iteration = save->sample.iteration, .deadline_ns = trainer_deadline(trainer), .async = self->async};
    char name[FOLDER_NAME_BYTES];
    int rc = 0;
    folder_checkpoint_name(&self->folder, self->experiment, save->sample.iteration, name);
    self->position = trainer->position;
    if (trainer->rank == 0) /* an incomplete checkpoint of an earlier attempt */
        rc = folder_remove(&self->folder, name, err);
    if (!rc)
        rc = train_checkpoint_move_position(self, trainer, HOST_TO_DEVICE, err);
    rc = trainer_join(trainer, rc, err);
    return rc ? rc : engine_save(self->engine, name, &self->state, &options, &save->sample, err);
}

/* The store failed this save, or an earlier save whose failure is returned now. */
static void go_on_without(struct trainer *trainer, struct pending_save *save, int code, const struct cb_err *why)
{
    struct train_checkpoint *self = trainer->checkpoint;
    if (self->async)
        self->pending_count--; /* the save did not start, or was not written */
    else
        save->sample.flags |= SAMPLE_FAILED;
    checkpoint_settle(trainer);
    note_failure(trainer, save->sample.iteration, code, why);
}

int checkpoint_save(struct trainer *trainer, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    struct cb_err why = {0};
    bool store_failed = false;
    for (int attempt = 0; attempt < 2; attempt++) {
        struct pending_save *save = add_pending(trainer);
        int code = begin_save(trainer, save, &why);
        int rc = judge_save(trainer, &code, &store_failed, &why);
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
    return 0; /* asynchronous: the previous save failed, and so did the start of this one */
}

static int wait_for_saves(struct trainer *trainer, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    struct cb_err why = {0};
    bool store_failed = false;
    if (!self->async)
        return 0;
    int code = engine_wait(self->engine, trainer_deadline(trainer), &why);
    int rc = judge_save(trainer, &code, &store_failed, &why);
    if (rc) {
        if (err)
            *err = why;
        return rc;
    }
    checkpoint_settle(trainer);
    if (store_failed)
        note_failure(trainer, self->failing_step, code, &why);
    return 0;
}

/* Runs store.record; with keep=false removes all checkpoints of this run. */
static int leave(struct trainer *trainer, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    int rc = 0;
    if (trainer->rank == 0)
        rc = folder_record(&self->folder, self->experiment, trainer->place.run_folder, trainer->place.attempt, err);
    rc = trainer_join(trainer, rc, err);
    if (rc)
        return rc;
    while (experiment_is(self->experiment, OPT_KEEP, "false") && self->kept_count > 0)
        train_checkpoint_clear(trainer, self->kept[--self->kept_count]);
    return trainer_join(trainer, trainer->rank == 0 ? folder_leave(&self->folder, err) : 0, err);
}

int checkpoint_finish(struct trainer *trainer, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    int rc = 0;
    if (!self)
        return 0;
    bool saves = trainer->training.checkpoint_steps || trainer->training.checkpoint_ns; /* if not, it only resumed */
    if (saves && self->last_step != trainer->position.step && trainer->position.step > 0)
        rc = checkpoint_save(trainer, err);
    if (!rc)
        rc = wait_for_saves(trainer, err);
    if (!rc)
        drop_older(trainer, true);
    if (!rc)
        rc = leave(trainer, err);
    if (rc || self->failed == 0)
        return rc;
    return cb_fail(err, CB_ERR_NO_SPACE,
                   "training went on to step %lld, but %u of %u checkpoints failed; the first, of step %u: %s",
                   (long long)trainer->position.step, self->failed, self->failed + self->committed,
                   self->first_failed_step, self->first_failure);
}

int checkpoint_leave_broken(struct trainer *trainer, int code, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    char name[FOLDER_NAME_BYTES], reason[sizeof err->message];
    struct cb_err unheard;
    if (!self || !self->folder.path || wait_for_saves(trainer, &unheard) || self->kept_count == 0)
        return code;
    if (self->kept_count > 1 && self->kept[self->kept_count - 1] == trainer->position.step)
        train_checkpoint_clear(trainer, self->kept[--self->kept_count]);
    uint32_t newest = self->kept[self->kept_count - 1];
    folder_checkpoint_name(&self->folder, self->experiment, newest, name);
    snprintf(reason, sizeof reason, "%s", err->message);
    return cb_fail(err, code, "%s; %s is kept%s", reason, name,
                   newest == trainer->position.step ? ", and has the weights of this step" : "");
}

/* --- records --- */

void checkpoint_add_facts(struct trainer *trainer)
{
    struct train_checkpoint *self = trainer->checkpoint;
    char name[FOLDER_NAME_BYTES];
    if (!self || trainer->rank != 0 || !self->store)
        return;
    status_page_add_fact(trainer->page, "io.used", store_describe(self->store));
    gds_note(&self->gds, trainer->page);
    trainer->page->run_values[METRIC_CHECKPOINTS] = self->committed;
    trainer->page->run_values[METRIC_CHECKPOINTS_FAILED] = self->failed;
    if (self->kept_count == 0 || !self->folder.path)
        return;
    folder_checkpoint_name(&self->folder, self->experiment, self->kept[self->kept_count - 1], name);
    status_page_add_fact(trainer->page, "checkpoint", name);
}
