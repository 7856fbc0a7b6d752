/* Resumes where another attempt or run ended: finds its newest checkpoint, and what was lost. */
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

/* Steps that a rank had completed, and the one in progress. */
static void note_reached(struct train_checkpoint *self, const struct record_rank *rank)
{
    uint64_t reached = rank->last_op == OP_STEP ? rank->last_iteration + UINT64_C(1) : 0;
    for (uint32_t i = 0; i < rank->sample_count; i++)
        if (rank->samples[i].op == OP_STEP && rank->samples[i].iteration >= reached)
            reached = rank->samples[i].iteration + UINT64_C(1);
    self->reached_step = reached > self->reached_step ? reached : self->reached_step;
}

/* When the previous attempt ended, and the step in progress. */
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

/* Earlier checkpoints count for retention as if this attempt had saved them; incomplete ones are removed. For rank
 * 0. */
static int take_over(struct trainer *trainer, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    struct left_list *list = calloc(1, sizeof *list);
    if (!list)
        return alloc_fail(err, "for a list of checkpoints");
    list->suffix = self->folder.suffix;
    int rc = store_list(self->folder.plain, list->suffix, note_left, list, err);
    qsort(list->items, rc ? 0 : list->count, sizeof *list->items, by_step);
    for (size_t i = 0; i < list->count && !rc; i++) {
        if (!list->items[i].whole)
            train_checkpoint_clear(trainer, list->items[i].step);
        else if (list->items[i].step < trainer->position.step)
            self->kept[self->kept_count++] = list->items[i].step;
    }
    free(list);
    return rc;
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
    if (!rc)
        rc = train_checkpoint_fetch_position(self, trainer, err);
    sample->iteration = rc ? 0 : (uint32_t)self->position.step;
    sample->flags |= rc ? SAMPLE_FAILED : SAMPLE_COLDNESS_UNKNOWN;
    status_page_publish_sample(trainer->page);
    return rc ? cb_context(err, "train.resume=latest, %s", name) : 0;
}

int checkpoint_resume(struct trainer *trainer, struct cb_err *err)
{
    struct train_checkpoint *self = trainer->checkpoint;
    char name[FOLDER_NAME_BYTES], text[FOLDER_NAME_BYTES + 128];
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
    bool saves = trainer->training.checkpoint_steps || trainer->training.checkpoint_ns;
    rc = trainer_join(trainer, trainer->rank == 0 && self->folder.path && saves ? take_over(trainer, err) : 0, err);
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
