/* The steps of a save, and the commit after the data.
 *
 * The order never changes: durably remove an older marker; write data; fsync files and folders; agree; write the marker;
 * agree again. An asynchronous save does the same, from staging memory and on another lane. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/format/save_id.h"
#include "core/clock.h"
#include "engine/older_checkpoint.h"
#include "engine/save/native_save.h"

static int create_file(void *context, uint32_t file, struct store_object **object, uint64_t *length, struct cb_err *err)
{
    struct native_save *self = context;
    char planned[PLAN_NAME_BYTES], name[PATH_MAX];
    *length = plan_file_length(self->plan, self->files[file]);
    if (self->shared) { /* opened before the data path, for this one file */
        *object = self->shared;
        self->shared = NULL;
        return 0;
    }
    plan_file_name(self->plan, self->files[file], planned);
    int rc = native_copy_name(self->operation->path, self->copy, planned, name, err);
    return rc ? rc : store_create(self->operation->lane->store, name, *length, object, err);
}

static int write_failed(void *context, const struct io_request *request, const char *staging, uint64_t available,
                        const struct cb_err *why, struct cb_err *err)
{
    (void)context, (void)request, (void)staging, (void)available;
    *err = *why;
    return why->code;
}

/* --- steps of a save --- */

static int remove_if_there(struct store *store, const char *path, uint32_t copy, const char *file, struct cb_err *err)
{
    char name[PATH_MAX];
    int rc = native_copy_name(path, copy, file, name, err);
    if (!rc)
        rc = store_remove(store, name, err);
    return rc == CB_ERR_NOT_FOUND ? 0 : rc;
}

static int check_owner(const struct native_engine *engine, struct cb_err *err)
{
    return engine->setup.check_owner ? engine->setup.check_owner(engine->setup.folder, err) : 0;
}

static int refuse_marker(struct native_operation *operation, struct cb_err *err)
{
    char name[PATH_MAX];
    uint64_t length;
    int rc = CB_ERR_NOT_FOUND;
    for (size_t i = 0; format_marker_at(i) && rc == CB_ERR_NOT_FOUND; i++) {
        rc = native_name(operation->path, format_marker_at(i), name, err);
        if (!rc)
            rc = store_stat(operation->lane->store, name, &length, err);
    }
    if (rc == CB_ERR_NOT_FOUND)
        return 0;
    return rc ? rc
              : cb_fail(err, CB_ERR_EXISTS,
                        "%s holds a complete checkpoint already: give another suffix, or folder=overwrite",
                        operation->path);
}

static int remove_own_files(struct native_operation *operation, struct cb_err *err)
{
    const struct native_engine *engine = operation->engine;
    const struct plan *plan = engine->save->plan;
    uint32_t rank = engine->rank < plan->world_size ? engine->rank : plan->world_size;
    uint32_t first = plan->ranks[rank].first_file, end = plan->ranks[rank + (rank < plan->world_size)].first_file;
    int rc = 0;
    for (uint32_t file = first; file < end && !rc; file++) {
        char name[PLAN_NAME_BYTES];
        plan_file_name(plan, file, name);
        for (uint32_t copy = 0; copy < engine->setup.config.copies && !rc; copy++)
            rc = remove_if_there(operation->lane->store, operation->path, copy, name, err);
    }
    return rc;
}

/* Removes an earlier checkpoint from the folder: first its marker, durably, before any rank writes data. `code` is this
 * rank's result so far. In a synchronous save this time is reported as delete_s, not as part of the save. */
static int clear_folder(struct native_operation *operation, int code, struct cb_err *err)
{
    struct agreement agreement;
    uint64_t start_ns = timeline_enter(&operation->timeline, STATE_OTHER);
    int rc = code;
    if (!rc && operation->engine->rank == 0)
        rc = check_owner(operation->engine, err);
    if (!rc && operation->engine->rank == 0)
        rc = older_checkpoint_uncommit(operation->lane->store, operation->path, err);
    rc = native_agree(operation, rc, 0, &agreement, err);
    if (!rc)
        rc = native_agree(operation, remove_own_files(operation, err), 0, &agreement, err);
    if (!rc && operation->engine->rank == 0) /* files of other ranks, another format and more copies */
        rc = older_checkpoint_remove_files(operation->lane->store, operation->path, !operation->engine->setup.enter,
                                           err);
    operation->sample->values[METRIC_DELETE_S] = (double)(clock_monotonic_ns() - start_ns) / 1e9;
    if (!operation->lane->async)
        timeline_leave_out(&operation->timeline, start_ns);
    return rc;
}

static bool has_shared_file(const struct native_engine *engine)
{
    return engine->setup.config.plan.files == FILES_SHARED && engine->save->plan->file_count > 0;
}

static int create_shared(struct native_operation *operation, struct cb_err *err)
{
    const struct plan *plan = operation->engine->save->plan;
    struct store_object *object;
    char file[PLAN_NAME_BYTES], name[PATH_MAX];
    plan_file_name(plan, 0, file);
    int rc = native_name(operation->path, file, name, err);
    if (!rc)
        rc = store_create(operation->lane->store, name, plan_file_length(plan, 0), &object, err);
    if (!rc)
        store_close(operation->lane->store, object);
    return rc;
}

/* All ranks open the shared file, and only then rank 0 finds that the folder is still this run's: so none has opened another
 * run's file of that name, and none writes before it is known. */
static int open_shared(struct native_operation *operation, struct cb_err *err)
{
    struct native_save *save = operation->engine->save;
    struct agreement agreement;
    char file[PLAN_NAME_BYTES], name[PATH_MAX];
    int rc = 0;
    if (save->schedule.file_count > 0) {
        plan_file_name(save->plan, 0, file);
        rc = native_name(operation->path, file, name, err);
        if (!rc)
            rc = store_open_shared(operation->lane->store, name, plan_file_length(save->plan, 0), &save->shared, err);
    }
    rc = native_agree(operation, rc, 0, &agreement, err);
    if (!rc && operation->engine->rank == 0)
        rc = check_owner(operation->engine, err);
    return native_agree(operation, rc, 0, &agreement, err);
}

/* Prepares the folder before any rank writes: no marker, and the shared file if there is one. */
static int make_place(struct native_operation *operation, struct cb_err *err)
{
    const struct native_engine *engine = operation->engine;
    if (engine->rank != 0)
        return 0;
    int rc = store_make_folder(operation->lane->store, operation->path, err);
    if (!rc)
        rc = refuse_marker(operation, err);
    if (!rc && has_shared_file(engine))
        rc = create_shared(operation, err);
    return rc;
}

/* Syncs each folder in which this rank created files once; files of one folder are adjacent. */
static int sync_folders(struct native_operation *operation, struct cb_err *err)
{
    const struct native_engine *engine = operation->engine;
    char last[PATH_MAX] = "";
    timeline_enter(&operation->timeline, STATE_FSYNC);
    int rc = 0;
    for (uint32_t i = 0; i < engine->save->schedule.file_count && !rc; i++) {
        char file[PLAN_NAME_BYTES], folder[PATH_MAX];
        plan_file_name(engine->save->plan, engine->save->files[i], file);
        rc = native_copy_name(operation->path, engine->save->copy, file, folder, err);
        if (rc)
            return rc;
        *strrchr(folder, '/') = '\0';
        if (strcmp(folder, last) == 0)
            continue;
        rc = store_sync_folder(operation->lane->store, folder, err);
        memcpy(last, folder, sizeof last);
    }
    return rc;
}

static int write_copy(struct native_operation *operation, struct cb_err *err)
{
    static const struct transfer_ops in_place = {
        .open = create_file, .prepare = write_frames, .complete = write_failed};
    static const struct transfer_ops staged = {.open = create_file,
                                               .ready = native_staged_ready,
                                               .place = native_staged_place,
                                               .written = native_staged_written,
                                               .prepare = write_frames,
                                               .complete = write_failed};
    static const struct transfer_ops bounced = {.open = create_file,
                                                .ready = bounce_save_ready,
                                                .place = bounce_save_place,
                                                .written = bounce_save_written,
                                                .prepare = write_frames,
                                                .complete = write_failed,
                                                .meanwhile = bounce_save_meanwhile};
    struct native_engine *engine = operation->engine;
    struct native_save *save = engine->save;
    struct transfer_run run = {
        .schedule = &save->schedule,
        .ops = save->staged    ? &staged
               : save->bounces ? &bounced
                               : &in_place,
        .context = save,
        .write = true,
        .timeline = &operation->timeline,
        .warmup = (operation->sample->flags & SAMPLE_WARMUP) != 0,
        .iteration = operation->options->iteration,
        .deadline_ns = operation->options->deadline_ns,
    };
    struct transfer_counts counts = {0};
    for (size_t i = 0; i < save->source_count; i++)
        save->sources[i].crc = 0;
    int rc = save->bounces ? bounce_save_begin(save, err) : 0;
    if (!rc)
        rc = transfer_run(operation->lane->transfer, &run, &counts, err);
    if (save->bounces)
        rc = bounce_save_end(save, rc, err);
    operation->counts.requests += counts.requests;
    operation->counts.errors += counts.errors;
    operation->counts.bytes += counts.bytes;
    if (!rc && engine->setup.config.fsync)
        rc = sync_folders(operation, err);
    return rc;
}

static int write_data(struct native_operation *operation, struct cb_err *err)
{
    struct native_engine *engine = operation->engine;
    struct status_page *page = engine->setup.page;
    atomic_store_explicit(operation->lane->async ? &page->behind_bytes_total : &page->bytes_total,
                          engine->save->schedule.bytes * engine->setup.config.copies, memory_order_relaxed);
    int rc = 0;
    for (uint32_t copy = 0; copy < engine->setup.config.copies && !rc; copy++) {
        engine->save->copy = copy;
        rc = write_copy(operation, err);
    }
    engine->save->copy = 0;
    return rc;
}

/* The metadata on its way to the store. */
struct marker {
    struct native_operation *operation;
    store_put_fn put;
    void *to;
};

static int put_metadata(void *context, const void *bytes, size_t len, struct cb_err *err)
{
    const struct marker *self = context;
    timeline_enter(&self->operation->timeline, STATE_COMMIT);
    int rc = self->put(self->to, bytes, len, err);
    timeline_enter(&self->operation->timeline, STATE_SERIALIZE);
    return rc;
}

static int pass_metadata(void *context, store_put_fn put, void *to, struct cb_err *err)
{
    struct marker *self = context;
    struct native_operation *operation = self->operation;
    struct native_engine *engine = operation->engine;
    struct metadata_sink sink = {.write = put_metadata, .context = self};
    char id[PATH_MAX];
    self->put = put;
    self->to = to;
    timeline_enter(&operation->timeline, STATE_SERIALIZE);
    const char *place = engine->setup.store_path;
    int rc = native_name(place ? place : engine->setup.config.store, operation->path, id, err);
    if (!rc)
        rc = format_write_metadata(engine->setup.config.plan.format, operation->layout, engine->save->plan, id,
                                   operation->save_id, &sink, err);
    timeline_enter(&operation->timeline, STATE_COMMIT);
    return rc ? rc : check_owner(engine, err); /* writing takes seconds where there are many items */
}

static int publish_marker(struct native_operation *operation, struct cb_err *err)
{
    struct native_engine *engine = operation->engine;
    struct marker marker = {.operation = operation};
    char name[PATH_MAX];
    timeline_enter(&operation->timeline, STATE_COMMIT);
    int rc = check_owner(engine, err);
    if (!rc)
        rc = native_name(operation->path, format_marker(engine->setup.config.plan.format), name, err);
    return rc ? rc : store_publish_pieces(operation->lane->store, name, pass_metadata, &marker, err);
}

/* Fails on all ranks unless all have the same plan. Sets plan_cache_hit and the save id, which rank 0 generates. */
static int agree_on_plan(struct native_operation *operation, int code, struct cb_err *err)
{
    struct agreement agreement;
    timeline_enter(&operation->timeline, STATE_WAIT);
    operation->save_id = operation->engine->rank == 0 ? save_id_draw() : 0;
    int rc = native_agree_and_share(operation, code, operation->plan_number, &operation->save_id, &agreement, err);
    if (!rc && agreement.min >> 1 != agreement.max >> 1)
        rc = cb_fail(err, CB_ERR_INTERNAL,
                     "ranks computed different plans: do all run the same program and experiment?");
    if (!rc)
        operation->sample->values[METRIC_PLAN_CACHE_HIT] = (double)(agreement.min & 1);
    return rc;
}

/* A failure on any rank ends the save before the marker is written. */
static int persist(struct native_operation *operation, struct native_job *job, int code, struct cb_err *err)
{
    struct native_engine *engine = operation->engine;
    struct native_save *save = engine->save;
    struct agreement agreement;
    int rc = code;
    save->operation = operation;
    save->job = job;
    if (engine->setup.config.replaces)
        rc = clear_folder(operation, rc, err);
    timeline_enter(&operation->timeline, STATE_IO);
    if (!rc)
        rc = make_place(operation, err);
    rc = agree_on_plan(operation, rc, err);
    if (rc)
        return rc;
    rc = has_shared_file(engine) ? open_shared(operation, err) : 0;
    if (!rc)
        rc = write_data(operation, err);
    if (save->shared)
        store_close(operation->lane->store, save->shared);
    save->shared = NULL;
    timeline_own_done(&operation->timeline);
    timeline_enter(&operation->timeline, STATE_WAIT);
    rc = native_agree(operation, rc, 0, &agreement, err);
    if (rc)
        return rc;
    if (engine->rank == 0)
        rc = publish_marker(operation, err);
    timeline_enter(&operation->timeline, STATE_WAIT);
    return native_agree(operation, rc, 0, &agreement, err);
}

int native_persist(struct native_operation *operation, struct native_job *job, int code, struct cb_err *err)
{
    const struct native_engine *engine = operation->engine;
    bool enters = !code && engine->rank == 0 && engine->setup.enter;
    if (enters)
        timeline_enter(&operation->timeline, STATE_OTHER);
    int entered = enters ? engine->setup.enter(engine->setup.folder, operation->path, err) : code;
    int rc = persist(operation, job, entered, err);
    if (enters && !entered)
        engine->setup.leave(engine->setup.folder);
    return rc;
}
