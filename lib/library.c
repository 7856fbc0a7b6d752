/* The calls of include/ckptbench.h that save and load. */
#include "lib/library.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "comm/agree.h"
#include "core/alloc.h"
#include "core/sigpipe.h"
#include "lib/contents.h"
#include "lib/errors.h"

#define SLICE_NS (50 * NS_PER_MS) /* of waiting for an asynchronous save */

struct value {
    void *bytes; /* NULL: not loaded */
    size_t len;
};

/* From a call to the start of the engine's clock: all of it, and what of it was waiting for other ranks. Seconds. */
struct before {
    double all_s, waited_s;
    uint64_t told_bytes;
};

struct ckptbench_async {
    pthread_mutex_t lock;
    uint32_t owners;   /* the caller, and the handle while the save is in progress */
    ckptbench *handle; /* while it is in progress */
    struct sample sample;
    char *path;
    uint64_t start_wall_ns;
    struct before before;
    bool plan_is_kept, ended;
    bool told; /* its failure has been returned */
    struct cb_err err;
};

static double seconds_since(uint64_t start_ns)
{
    return (double)(clock_monotonic_ns() - start_ns) / 1e9;
}

/* Agrees, and adds the time that it takes to what was waited. Collective. */
static int agree_timed(ckptbench *self, int code, uint64_t deadline_ns, struct before *before, struct cb_err *err)
{
    uint64_t start_ns = clock_monotonic_ns();
    int rc = agree(self->comm, code, deadline_ns, err);
    before->waited_s += seconds_since(start_ns);
    return rc;
}

/* --- results --- */

static double known(double value)
{
    return isnan(value) ? 0 : value;
}

static int check_result(const struct ckptbench_result *result, struct cb_err *err)
{
    if (!result || result->struct_bytes == sizeof *result)
        return 0;
    return cb_fail(err, CB_ERR_USAGE, "the result's struct_bytes is not its size in this version");
}

static void fill_result(struct ckptbench_result *result, const struct sample *sample, const struct before *before,
                        bool plan_is_kept)
{
    const double *values = sample->values;
    if (!result)
        return;
    /* The times of a save that the caller waits for leave out the removal of what was there. */
    double removal_s = isnan(values[METRIC_PERSIST_S]) ? known(values[METRIC_DELETE_S]) : 0;
    *result = (struct ckptbench_result){
        .struct_bytes = sizeof *result,
        .total_s = before->all_s + removal_s + known(values[METRIC_OP_S]),
        .stall_s = before->all_s + removal_s + known(values[sample->op == OP_SAVE ? METRIC_STALL_S : METRIC_OP_S]),
        .plan_s = before->all_s - before->waited_s + known(values[METRIC_PLAN_S]),
        .transfer_s = known(values[METRIC_IO_S]) + known(values[METRIC_FSYNC_S]),
        .wait_s = before->waited_s + known(values[METRIC_WAIT_S]),
        .durable_s = before->all_s + removal_s + values[METRIC_DURABLE_S],
        .bytes = (uint64_t)known(values[METRIC_BYTES_NEEDED]),
        .moved_bytes = (uint64_t)known(values[METRIC_BYTES_MOVED]),
        .plan_is_kept = plan_is_kept && values[METRIC_PLAN_CACHE_HIT] > 0,
        .told_bytes = before->told_bytes,
    };
}

static void clear_sample(struct sample *sample, enum operation op, uint32_t call)
{
    *sample = (struct sample){.op = op, .iteration = call};
    for (size_t i = 0; i < METRIC_SAMPLE_COUNT; i++)
        sample->values[i] = NAN;
}

/* --- the record --- */

/* At each save or load, mostly the first. Its time is not theirs. Collective. */
static int begin_recording(ckptbench *self, uint64_t *start_ns, struct cb_err *err)
{
    uint64_t began_ns = clock_monotonic_ns();
    int rc = recording_begin(self->record, self->experiment, self->comm, library_deadline(self), &self->recording, err);
    *start_ns += clock_monotonic_ns() - began_ns;
    return rc;
}

static void record(ckptbench *self, const char *path, uint64_t start_wall_ns, const struct sample *sample,
                   const struct before *before, bool is_asynchronous)
{
    static const enum metric_id longer[] = {METRIC_OP_S, METRIC_OWN_S, METRIC_STALL_S, METRIC_DURABLE_S};
    struct sample whole = *sample;
    for (size_t i = 0; i < sizeof longer / sizeof *longer; i++)
        whole.values[longer[i]] += before->all_s;
    whole.values[METRIC_PLAN_S] += before->all_s - before->waited_s;
    whole.values[METRIC_WAIT_S] += before->waited_s;
    const struct recorded recorded = {
        .path = path, .start_wall_ns = start_wall_ns, .is_asynchronous = is_asynchronous, .sample = &whole};
    recording_add(self->recording, &recorded);
}

/* What a call returns: one that passes reports trouble with the record instead of a failure. */
static int report(const ckptbench *self, int rc, const struct cb_err *err, struct ckptbench_error *error)
{
    if (!rc && error) {
        error->code = 0;
        recording_trouble(self->recording, error->text, sizeof error->text);
        utf8_hide_controls(error->text, "");
    }
    return errors_report(rc, err, error);
}

/* Ends a save or load: a failure also says if the handle is of no more use. */
static int finish(const ckptbench *self, int rc, const struct cb_err *err, struct ckptbench_error *error)
{
    static const char useless[] = "; " CKPTBENCH_USELESS;
    int code = report(self, rc, err, error);
    if (code && error && !comm_can_end(self->comm)) {
        size_t len = strnlen(error->text, sizeof error->text - sizeof useless);
        memcpy(error->text + len, useless, sizeof useless);
    }
    return code;
}

/* Names the checkpoint whole in the reason of a failure: the engine calls it by its name in a store. */
static int name_path(int rc, const char *path, struct cb_err *err)
{
    struct place_name name;
    bool is_named = !rc || place_name_read(path, &name, NULL) || strstr(err->message, name.uri);
    return is_named ? rc : cb_context(err, "%s", path);
}

/* --- asynchronous saves --- */

static void async_release(ckptbench_async *self)
{
    pthread_mutex_lock(&self->lock);
    bool last = --self->owners == 0;
    pthread_mutex_unlock(&self->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&self->lock);
    free(self->path);
    free(self);
}

/* Waits until `until_ns` for the end of the save, with its lock held, and takes its result from the engine. */
static void await_end(ckptbench_async *self, uint64_t until_ns)
{
    struct engine *engine = self->ended ? NULL : place_engine(self->handle->saves);
    struct cb_err first = {0}, second = {0};
    if (self->ended)
        return;
    int rc = engine_under_way(engine) > 0 ? engine_wait(engine, until_ns, &first) : 0;
    if (engine_under_way(engine) > 0)
        return;
    int again = engine_wait(engine, until_ns, &second); /* if the first call only ran out of time */
    self->ended = true;
    if (self->sample.flags & SAMPLE_FAILED)
        self->err = again ? second : first;
    if (self->sample.flags & SAMPLE_FAILED && self->err.code == 0)
        (void)cb_fail(&self->err, rc ? rc : CB_ERR_INTERNAL, "an asynchronous save failed without a reason");
    (void)!name_path(self->err.code, self->path, &self->err);
    record(self->handle, self->path, self->start_wall_ns, &self->sample, &self->before, true);
}

/* Waits for the asynchronous save, and returns its failure if nobody was told yet. */
static int settle(ckptbench *self, uint64_t deadline_ns, struct cb_err *err)
{
    ckptbench_async *async = self->async;
    int rc = 0;
    if (!async)
        return 0;
    for (bool ended = false; !ended && !rc;) {
        pthread_mutex_lock(&async->lock);
        await_end(async, clock_monotonic_ns() + SLICE_NS);
        ended = async->ended;
        if (!ended && clock_monotonic_ns() > deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "the asynchronous save did not end in time");
        if (ended && async->err.code && !async->told) {
            *err = async->err;
            rc = err->code;
            async->told = true;
        }
        if (ended)
            async->handle = NULL;
        pthread_mutex_unlock(&async->lock);
        if (ended) {
            self->async = NULL;
            async_release(async);
        }
    }
    return rc;
}

int ckptbench_async_wait(ckptbench_async *save, double seconds, int *ended, struct ckptbench_result *result,
                         struct ckptbench_error *error)
{
    uint64_t start_ns = clock_monotonic_ns();
    struct cb_err err = {0};
    int rc = check_result(result, &err);
    bool done = false;
    while (!rc && !done) {
        bool waits = seconds < 0 || seconds_since(start_ns) < seconds;
        /* The holder of the lock waits for the same save, and keeps the lock for at most a slice. */
        if (!waits && pthread_mutex_trylock(&save->lock) != 0)
            break;
        if (waits)
            pthread_mutex_lock(&save->lock);
        await_end(save, clock_monotonic_ns() + (waits ? SLICE_NS : 0));
        done = save->ended;
        if (done && save->err.code) {
            err = save->err;
            rc = err.code;
            save->told = true;
        } else if (done) {
            fill_result(result, &save->sample, &save->before, save->plan_is_kept);
        }
        pthread_mutex_unlock(&save->lock);
        if (!waits)
            break;
    }
    if (ended)
        *ended = done;
    if (!rc && !done)
        rc = cb_fail(&err, CB_ERR_TIMEOUT, "the save has not ended");
    return errors_report(rc, &err, error);
}

void ckptbench_async_free(ckptbench_async *save)
{
    if (save)
        async_release(save);
}

static int make_async(ckptbench *self, const char *path, ckptbench_async **async, struct cb_err *err)
{
    ckptbench_async *made = calloc(1, sizeof *made);
    if (made)
        made->path = strdup(path);
    if (!made || !made->path) {
        free(made);
        return alloc_fail(err, "for an asynchronous save");
    }
    pthread_mutex_init(&made->lock, NULL);
    made->owners = 1;
    made->handle = self;
    *async = made;
    return 0;
}

/* --- places --- */

static int keep_value(void *context, const char *fqn, const void *bytes, size_t len, struct cb_err *err)
{
    ckptbench *self = context;
    for (size_t i = 0; i < self->loading->value_count; i++) {
        if (strcmp(self->loading->values[i].fqn, fqn) != 0)
            continue;
        void *copy = malloc(len + 1);
        if (!copy)
            return alloc_fail(err, "for the value of %s", fqn);
        memcpy(copy, bytes, len);
        free(self->values[i].bytes);
        self->values[i] = (struct value){copy, len};
    }
    return 0;
}

static struct place_setup place_setup_of(ckptbench *self, bool async)
{
    return (struct place_setup){
        .experiment = self->experiment,
        .comm = self->comm,
        .async_comm = async ? self->async_comm : NULL,
        .has_one_core = self->cores == 1,
        .page = self->page,
        .device = self->device,
        .keep_value = keep_value,
        .context = self,
    };
}

static int check_deadline(const void *context, struct cb_err *err)
{
    const uint64_t *deadline_ns = context;
    return clock_monotonic_ns() > *deadline_ns ? cb_fail(err, CB_ERR_TIMEOUT, "another rank did not come in time") : 0;
}

/* Collective. A twin has no deadline of its own, and inherits how its parent is watched. */
static int make_twin(ckptbench *self, uint64_t deadline_ns, struct cb_err *err)
{
    comm_watch(self->comm, check_deadline, &deadline_ns);
    int rc = comm_twin(self->comm, &self->async_comm, err);
    comm_watch(self->comm, NULL, NULL);
    if (!rc)
        comm_watch(self->async_comm, NULL, NULL);
    return rc;
}

/* Collective: all ranks have the same places open. */
static int find_place(ckptbench *self, const char *path, bool writes, bool async, struct place **place,
                      struct place_name *name, struct cb_err *err)
{
    int rc = place_name_read(path, name, err);
    if (rc)
        return rc;
    if (place_serves(self->saves, name, writes, async) || (!writes && place_serves(self->loads, name, false, false))) {
        *place = place_serves(self->saves, name, writes, async) ? self->saves : self->loads;
        return 0;
    }
    if (async && !self->async_comm)
        rc = make_twin(self, library_deadline(self), err);
    if (rc)
        return rc;
    struct place **slot = writes ? &self->saves : &self->loads;
    bool closed = place_close(*slot);
    if (closed)
        *slot = NULL;
    rc = agree(self->comm, closed ? 0 : cb_fail(err, CB_ERR_SYSTEM, "a save to another place hangs in the store"),
               library_deadline(self), err);
    if (rc)
        return rc;
    struct place_setup setup = place_setup_of(self, writes && self->async_comm);
    rc = place_open(&setup, name, writes, slot, err);
    *place = *slot;
    return rc;
}

/* --- saving --- */

/* This rank's values for the layout: those that it writes itself. */
static int set_values(ckptbench *self, const struct ckptbench_state *state, struct cb_err *err)
{
    const struct joined *joined = &self->saved.joined;
    int rc = 0;
    for (size_t i = 0; i < joined->value_count && !rc; i++) {
        if (layout_tensor(joined->layout, joined->value_at[i])->owner == comm_rank(self->comm))
            rc = layout_set_value(joined->layout, joined->value_at[i], state->values[i].bytes, err);
    }
    return rc;
}

static int prepare_state(ckptbench *self, const struct ckptbench_state *state, struct cb_err *err)
{
    const struct joined *joined = &self->saved.joined;
    int rc = gpu_open_for(&self->gpu, state, err);
    if (!rc)
        rc = packing_prepare(&self->packing, state, joined, &self->gpu, err);
    if (!rc)
        rc = packing_pack(&self->packing, state, joined, &self->gpu, library_deadline(self), err);
    if (rc)
        return rc;
    self->state = (struct state){.layout = joined->layout,
                                 .pieces = joined->pieces,
                                 .memory = self->packing.addresses,
                                 .piece_count = joined->piece_count,
                                 .holder = comm_rank(self->comm),
                                 .shared_fd = -1};
    return set_values(self, state, err);
}

/* Plans and saves, with the lock held. `async` NULL: the caller waits. `rc`: what this rank has failed with already. */
static int save(ckptbench *self, const char *path, const struct ckptbench_state *state, ckptbench_async *async, int rc,
                struct ckptbench_result *result, struct cb_err *err)
{
    uint64_t start_ns = clock_monotonic_ns(), start_wall_ns = clock_wall_ns();
    struct engine_options options = {
        .iteration = self->calls++, .deadline_ns = library_deadline(self), .async = async != NULL};
    struct table_request request = {.op = async ? "save asynchronously" : "save",
                                    .path = path,
                                    .deadline_ns = options.deadline_ns,
                                    .saves = true,
                                    .allows_different_values = self->allows_different_values};
    struct place_name name;
    struct place *place = NULL;
    struct sample own;
    bool kept = false;
    if (!rc)
        rc = settle(self, options.deadline_ns, err);
    if (!rc)
        rc = check_result(result, err);
    if (!rc)
        rc = description_check(state, comm_rank(self->comm), comm_size(self->comm), true, err);
    rc = tables_exchange(&self->saved, self->comm, state, &request, rc, &kept, err);
    if (!rc)
        rc = find_place(self, path, true, async != NULL, &place, &name, err);
    if (!rc)
        rc = begin_recording(self, &start_ns, err);
    if (rc)
        return rc;
    struct sample *sample = async ? &async->sample : &own;
    clear_sample(sample, OP_SAVE, options.iteration);
    options.layout_number = self->saved.number;
    rc = prepare_state(self, state, err);
    struct before before = {.waited_s = (double)self->saved.waited_ns / 1e9, .told_bytes = self->saved.told_bytes};
    rc = agree_timed(self, rc, options.deadline_ns, &before, err);
    before.all_s = seconds_since(start_ns);
    if (!rc && async) {
        async->start_wall_ns = start_wall_ns;
        async->before = before;
        async->plan_is_kept = kept;
    }
    if (rc)
        return rc;
    rc = engine_save(place_engine(place), name.name, &self->state, &options, sample, err);
    rc = name_path(rc, path, err);
    if (rc)
        sample->flags |= SAMPLE_FAILED;
    if (rc || !async)
        record(self, path, start_wall_ns, sample, &before, async != NULL);
    if (!rc && !async)
        fill_result(result, sample, &before, kept);
    return rc;
}

static int locked_save(ckptbench *self, const char *path, const struct ckptbench_state *state, bool is_async,
                       ckptbench_async **handed, struct ckptbench_result *result, struct ckptbench_error *error)
{
    struct sigpipe_guard guard;
    struct cb_err err = {0};
    ckptbench_async *async = NULL;
    pthread_mutex_lock(&self->lock);
    sigpipe_block(&guard);
    int rc = is_async ? make_async(self, path, &async, &err) : 0;
    rc = save(self, path, state, async, rc, result, &err);
    if (!rc && async) {
        self->async = async;
        async->owners = handed ? 2 : 1;
        if (handed)
            *handed = async;
    } else if (async) {
        async_release(async);
    }
    sigpipe_restore(&guard);
    rc = finish(self, rc, &err, error);
    pthread_mutex_unlock(&self->lock);
    return rc;
}

int ckptbench_save(ckptbench *handle, const char *path, const struct ckptbench_state *state,
                   struct ckptbench_result *result, struct ckptbench_error *error)
{
    return locked_save(handle, path, state, false, NULL, result, error);
}

int ckptbench_save_async(ckptbench *handle, const char *path, const struct ckptbench_state *state,
                         ckptbench_async **save, struct ckptbench_error *error)
{
    return locked_save(handle, path, state, true, save, NULL, error);
}

/* --- loading --- */

static void forget_values(ckptbench *self)
{
    for (size_t i = 0; i < self->value_count; i++)
        free(self->values[i].bytes);
    free(self->values);
    self->values = NULL;
    self->value_count = 0;
}

static int make_room_for_values(ckptbench *self, const struct ckptbench_state *state, struct cb_err *err)
{
    forget_values(self);
    self->values = calloc(state->value_count + 1, sizeof *self->values);
    if (!self->values)
        return alloc_fail(err, "for %zu values", state->value_count);
    self->value_count = state->value_count;
    return 0;
}

/* Copies what was loaded to where it shall be. That is a part of the load, although the engine's clock has stopped. */
static int unpack(ckptbench *self, const struct packing *packing, const struct ckptbench_state *state,
                  const struct joined *joined, uint64_t deadline_ns, struct sample *sample, struct cb_err *err)
{
    uint64_t start_ns = clock_monotonic_ns();
    int rc = packing_unpack(packing, state, joined, &self->gpu, deadline_ns, err);
    double copy_s = seconds_since(start_ns);
    rc = agree(self->comm, rc, deadline_ns, err);
    double whole_s = seconds_since(start_ns);
    sample->values[METRIC_OP_S] += whole_s;
    sample->values[METRIC_OWN_S] += copy_s;
    sample->values[METRIC_OTHER_S] += copy_s;
    sample->values[METRIC_WAIT_S] += whole_s - copy_s;
    return rc;
}

static int load(ckptbench *self, const char *path, const struct ckptbench_state *state, struct ckptbench_result *result,
                struct cb_err *err)
{
    uint64_t start_ns = clock_monotonic_ns(), start_wall_ns = clock_wall_ns();
    struct engine_options options = {.iteration = self->calls++, .deadline_ns = library_deadline(self)};
    struct table_request request = {.op = "load",
                                    .path = path,
                                    .deadline_ns = options.deadline_ns,
                                    .alone = experiment_is(self->experiment, OPT_LOAD_EXCHANGE, "off")};
    struct tables tables;
    struct packing packing = {0};
    struct place_name name;
    struct place *place = NULL;
    struct sample sample;
    bool unused = false;
    tables_init(&tables);
    int rc = settle(self, options.deadline_ns, err);
    if (!rc)
        rc = check_result(result, err);
    if (!rc)
        rc = description_check(state, comm_rank(self->comm), comm_size(self->comm), false, err);
    if (!rc)
        rc = make_room_for_values(self, state, err);
    rc = tables_exchange(&tables, self->comm, state, &request, rc, &unused, err);
    if (!rc)
        rc = find_place(self, path, false, false, &place, &name, err);
    if (!rc)
        rc = begin_recording(self, &start_ns, err);
    if (rc)
        goto out;
    rc = gpu_open_for(&self->gpu, state, err);
    if (!rc)
        rc = packing_prepare(&packing, state, &tables.joined, &self->gpu, err);
    struct before before = {.waited_s = (double)tables.waited_ns / 1e9, .told_bytes = tables.told_bytes};
    rc = agree_timed(self, rc, options.deadline_ns, &before, err);
    if (rc)
        goto out;
    struct state target = {.layout = tables.joined.layout,
                           .pieces = tables.joined.pieces,
                           .memory = packing.addresses,
                           .piece_count = tables.joined.piece_count,
                           .holder = comm_rank(self->comm),
                           .shared_fd = -1};
    before.all_s = seconds_since(start_ns);
    clear_sample(&sample, OP_LOAD, options.iteration);
    self->loading = state;
    rc = engine_load(place_engine(place), name.name, &target, &options, &sample, err);
    self->loading = NULL;
    rc = name_path(rc, path, err);
    if (!rc)
        rc = unpack(self, &packing, state, &tables.joined, options.deadline_ns, &sample, err);
    sample.flags |= rc ? SAMPLE_FAILED : 0;
    record(self, path, start_wall_ns, &sample, &before, false);
    if (!rc)
        fill_result(result, &sample, &before, false);
out:
    packing_release(&packing);
    tables_release(&tables);
    return rc;
}

int ckptbench_load(ckptbench *handle, const char *path, const struct ckptbench_state *state,
                   struct ckptbench_result *result, struct ckptbench_error *error)
{
    struct sigpipe_guard guard;
    struct cb_err err = {0};
    pthread_mutex_lock(&handle->lock);
    sigpipe_block(&guard);
    int rc = load(handle, path, state, result, &err);
    sigpipe_restore(&guard);
    rc = finish(handle, rc, &err, error);
    pthread_mutex_unlock(&handle->lock);
    return rc;
}

int ckptbench_loaded_value(ckptbench *handle, size_t index, const void **bytes, uint64_t *length,
                           struct ckptbench_error *error)
{
    struct cb_err err = {0};
    int rc = 0;
    pthread_mutex_lock(&handle->lock);
    if (index >= handle->value_count || !handle->values[index].bytes) {
        rc = cb_fail(&err, CB_ERR_USAGE, "the last load has no value %zu", index);
    } else {
        *bytes = handle->values[index].bytes;
        *length = handle->values[index].len;
    }
    pthread_mutex_unlock(&handle->lock);
    return errors_report(rc, &err, error);
}

/* --- looking --- */

int ckptbench_inspect(ckptbench *handle, const char *path, ckptbench_checkpoint **checkpoint,
                      struct ckptbench_error *error)
{
    struct sigpipe_guard guard;
    struct place_name name;
    struct store *store = NULL;
    struct cb_err err = {0};
    pthread_mutex_lock(&handle->lock);
    sigpipe_block(&guard);
    int rc = place_name_read(path, &name, &err);
    const struct place_setup setup = place_setup_of(handle, false);
    if (!rc)
        rc = place_open_store(handle->experiment, &setup, &name, false, &store, &err);
    if (!rc)
        rc = name_path(contents_read(store, name.name, checkpoint, &err), path, &err);
    store_free(store);
    sigpipe_restore(&guard);
    pthread_mutex_unlock(&handle->lock);
    return errors_report(rc, &err, error);
}

/* --- the end --- */

int library_stop(ckptbench *self, bool *closed, struct ckptbench_error *error)
{
    struct cb_err err = {0};
    int rc = settle(self, library_deadline(self), &err);
    ckptbench_async *left = self->async; /* it did not end in time */
    if (left)
        pthread_mutex_lock(&left->lock);
    *closed = place_close(self->saves);
    *closed = place_close(self->loads) && *closed;
    if (left) {
        left->ended = left->told = true;
        left->err = err;
        pthread_mutex_unlock(&left->lock);
    }
    if (left && *closed)
        async_release(left);
    if (!left)
        recording_end(self->recording);
    rc = report(self, rc, &err, error);
    recording_free(self->recording);
    self->recording = NULL;
    forget_values(self);
    return rc;
}
