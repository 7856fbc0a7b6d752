/* Resumes where another attempt or run ended: finds its newest checkpoint, and determines which steps were lost. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/format/format.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "run/record.h"
#include "run/run_folder.h"
#include "setup/open_store.h"
#include "store/kind.h"
#include "train/train_checkpoint.h"

/* Counts the steps that a rank had begun. */
static void note_reached(struct train_checkpoint *self, const struct record_rank *rank)
{
    uint64_t reached = rank->last_op == OP_STEP ? rank->last_iteration + UINT64_C(1) : 0;
    for (uint32_t i = 0; i < rank->sample_count; i++)
        if (rank->samples[i].op == OP_STEP && rank->samples[i].iteration >= reached)
            reached = rank->samples[i].iteration + UINT64_C(1);
    self->reached_step = reached > self->reached_step ? reached : self->reached_step;
}

/* Notes when the previous attempt ended, and how many steps it had begun. */
static void look_back(struct trainer *trainer)
{
    struct train_checkpoint *self = trainer->checkpoint;
    const struct train_place *place = &trainer->place;
    const char *name = train_checkpoint_run_name(place);
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

/* --- the run folder's earlier attempts --- */

struct left {
    uint32_t step;
    bool whole;
};

struct left_list {
    const char *suffix;
    struct left items[TRAIN_KEPT];
    size_t count;
};

/* From "SUFFIX/iteration-N/FILE". */
static bool parse_step(const char *name, const char *suffix, uint32_t *step)
{
    static const char before[] = "/iteration-";
    char *end;
    size_t len = strlen(suffix);
    if (strncmp(name, suffix, len) != 0 || strncmp(name + len, before, strlen(before)) != 0)
        return false;
    const char *number = name + len + strlen(before);
    unsigned long value = strtoul(number, &end, 10);
    *step = (uint32_t)value;
    return *number >= '0' && *number <= '9' && *end == '/' && value <= UINT32_MAX;
}

static int note_left(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    struct left_list *self = context;
    uint32_t step;
    size_t i = 0;
    (void)length, (void)err;
    if (!parse_step(name, self->suffix, &step))
        return 0;
    while (i < self->count && self->items[i].step != step)
        i++;
    if (i == TRAIN_KEPT)
        return 0;
    if (i == self->count)
        self->items[self->count++] = (struct left){.step = step};
    self->items[i].whole |= format_is_marker(name);
    return 0;
}

static int by_step(const void *a, const void *b)
{
    uint32_t x = ((const struct left *)a)->step, y = ((const struct left *)b)->step;
    return (x > y) - (x < y);
}

/* Lists the checkpoints in the run's folder, the lowest step first. For rank 0. */
static int list_left(const struct train_checkpoint *self, struct left_list *list, struct cb_err *err)
{
    list->suffix = self->folder.suffix;
    int rc = store_list(self->folder.plain, list->suffix, note_left, list, err);
    if (rc)
        list->count = 0;
    qsort(list->items, list->count, sizeof *list->items, by_step);
    return rc;
}

/* Earlier checkpoints count for retention as if this attempt had saved them; incomplete ones are removed. For rank
 * 0. */
static int take_over(struct trainer *trainer, struct left_list *list, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    int rc = list_left(self, list, err);
    for (size_t i = 0; i < list->count && !rc; i++) {
        if (!list->items[i].whole)
            train_checkpoint_clear(trainer, list->items[i].step);
        else if (list->items[i].step < trainer->position.step)
            self->kept[self->kept_count++] = list->items[i].step;
    }
    return rc;
}

/* The complete checkpoint with the highest step that has not been rejected. If the folder contains no checkpoint of a
 * step, one with another name, since suffix= may name the checkpoint's own folder. "" if none is left. For rank 0. */
static int find_next(struct trainer *trainer, struct left_list *list, bool is_first, char name[FOLDER_NAME_BYTES],
                     struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    name[0] = '\0';
    if (!self->folder.path)
        return 0;
    int rc = is_first ? list_left(self, list, err) : 0;
    if (is_first)
        look_back(trainer);
    while (list->count > 0 && !list->items[list->count - 1].whole)
        list->count--;
    if (rc == 0 && list->count > 0) {
        folder_checkpoint_name(&self->folder, self->experiment, list->items[--list->count].step, name);
        return 0;
    }
    if (rc == 0 && is_first)
        rc = folder_find_checkpoint(&self->folder, name, err);
    if (rc == CB_ERR_NOT_FOUND)
        name[0] = '\0';
    return rc == CB_ERR_NOT_FOUND ? 0 : rc;
}

/* The step in a checkpoint's name; -1 if it contains none. */
static int64_t named_step(const struct train_checkpoint *self, const char *name)
{
    uint32_t step;
    char file[FOLDER_NAME_BYTES + 2];
    snprintf(file, sizeof file, "%s/", name);
    return parse_step(file, self->folder.suffix, &step) ? (int64_t)step : -1;
}

static int load(struct trainer *trainer, const char *name, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    struct engine_options options = {.deadline_ns = trainer_deadline(trainer)};
    struct sample *sample = status_page_begin_sample(trainer->page);
    int64_t named = named_step(self, name);
    if (!sample)
        return cb_fail(err, CB_ERR_INTERNAL, "the status page has no room for another sample");
    sample->op = OP_LOAD;
    int rc = engine_load(self->engine, name, &self->state, &options, sample, err);
    if (!rc)
        rc = train_checkpoint_move_position(self, trainer, DEVICE_TO_HOST, err);
    if (!rc &&
        (self->position.step < 0 || self->position.step > UINT32_MAX || (named >= 0 && self->position.step != named)))
        rc = cb_fail(err, CB_ERR_CORRUPT, "%s says that its step is %lld", name, (long long)self->position.step);
    sample->iteration = rc ? 0 : (uint32_t)self->position.step;
    sample->flags |= rc ? SAMPLE_FAILED : SAMPLE_COLDNESS_UNKNOWN;
    status_page_publish_sample(trainer->page);
    return rc ? cb_context(err, "train.resume=latest, %s", name) : 0;
}

/* Loads it on all ranks; *damaged: the load failed because of its contents. Collective. */
static int try_to_load(struct trainer *trainer, const char *name, bool *damaged, struct cb_err *err)
{
    struct agreement agreement;
    struct cb_err why;
    int code = load(trainer, name, err);
    bool mine = code == CB_ERR_CORRUPT || code == CB_ERR_FORMAT || code == CB_ERR_NOT_FOUND;
    int rc = comm_agree(trainer->comm, code, mine, trainer_deadline(trainer), &agreement, code ? &why : err);
    *damaged = !rc && agreement.sum > 0;
    if (!code && !rc && agreement.code)
        code = cb_fail(err, CB_ERR_ABORTED, "train.resume=latest, %s: rank %u could not load it", name,
                       agreement.failed_rank);
    if (*damaged && trainer->rank == 0)
        status_page_add_fact(trainer->page, "train.passed_over", err->message);
    return code ? code : rc;
}

/* Loads the complete, undamaged checkpoint with the highest step; `name` is "" if there is none to resume from. If all
 * are damaged, fails: training must not begin anew without the user's knowledge. */
static int load_newest(struct trainer *trainer, struct left_list *list, char name[FOLDER_NAME_BYTES],
                       struct cb_err *err)
{
    bool damaged = true;
    int loaded = 0, rc = 0;
    for (bool is_first = true; damaged && !rc; is_first = false) {
        struct cb_err why = {0};
        if (trainer->rank == 0)
            rc = find_next(trainer, list, is_first, name, &why);
        rc = trainer_join(trainer, rc, &why);
        if (!rc)
            rc = comm_broadcast(trainer->comm, name, FOLDER_NAME_BYTES, trainer_deadline(trainer), &why);
        if (rc)
            *err = why;
        if (rc || !name[0])
            break;
        if (loaded)
            status_page_forgive(trainer->page); /* of the previous checkpoint */
        loaded = try_to_load(trainer, name, &damaged, err);
        if (loaded && !damaged)
            rc = loaded;
    }
    return rc ? rc : loaded;
}

int checkpoint_resume(struct trainer *trainer, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    char name[FOLDER_NAME_BYTES], text[FOLDER_NAME_BYTES + 128];
    if (!self || !self->resumes)
        return 0;
    struct left_list *list = calloc(1, sizeof *list);
    int rc = trainer_join(trainer, list ? 0 : alloc_fail(err, "for a list of checkpoints"), err);
    if (rc || !list) {
        free(list);
        return rc;
    }
    rc = load_newest(trainer, list, name, err);
    if (rc || !name[0]) {
        free(list);
        if (!rc)
            status_page_add_fact(trainer->page, "train.resumed", "nothing to resume: from step 0");
        return rc;
    }
    trainer->position = self->position;
    self->last_step = self->position.step;
    bool saves = trainer->training.checkpoint_steps || trainer->training.checkpoint_ns;
    if (trainer->rank == 0 && self->folder.path && saves) {
        list->count = 0;
        rc = take_over(trainer, list, err);
    }
    free(list);
    rc = trainer_join(trainer, rc, err);
    if (rc)
        return rc;
    self->kept[self->kept_count++] = (uint32_t)self->position.step;
    self->resumed = true;
    bool done = (uint64_t)self->position.step >= trainer->training.steps;
    snprintf(text, sizeof text, "%s, from step %lld%s", name, (long long)self->position.step,
             done ? ": nothing is left to do, train.steps counts from the beginning" : "");
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
