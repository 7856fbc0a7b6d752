/* job.json: reading, writing, and the names of states. */
#include "run/job_record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/json_fields.h"

#define JOB_FILE "job.json"
#define JOB_FILE_MAX_BYTES (4u << 20)

static const char *const state_names[JOB_STATE_COUNT] = {
    "planned", "submitted", "pending", "booting", "running", "sealing", "done", "failed", "cancelled", "lost",
};

static const struct name_list states = NAME_LIST(state_names, "there is no state");

const char *job_state_name(enum job_state state)
{
    return state < JOB_STATE_COUNT ? state_names[state] : "unknown";
}

bool job_state_find(const char *name, enum job_state *state)
{
    return name_find(&states, name, (unsigned *)state);
}

bool job_state_is_final(enum job_state state)
{
    return state >= JOB_DONE;
}

void job_record_init(struct job_record *self)
{
    *self = (struct job_record){.queue_s = NAN, .boot_s = NAN};
}

void job_record_release(struct job_record *self)
{
    free(self->transitions);
    self->transitions = NULL;
    self->transition_count = 0;
}

static int append(struct job_record *self, const struct job_transition *transition, struct cb_err *err)
{
    if (self->transition_count >= JOB_MAX_TRANSITIONS) {
        memmove(self->transitions + 1, self->transitions + 2, (self->transition_count - 2) * sizeof *self->transitions);
        self->transition_count--;
    }
    int rc = alloc_grow(&self->transitions, self->transition_count, sizeof *self->transitions, err);
    if (rc == 0)
        self->transitions[self->transition_count++] = *transition;
    return rc;
}

int job_record_enter(struct job_record *self, enum job_state state, uint64_t at_wall_ns, const char *note,
                     struct cb_err *err)
{
    struct job_transition transition = {.at_wall_ns = at_wall_ns, .state = state};
    if (self->state == state && self->transition_count > 0)
        return 0;
    snprintf(transition.note, sizeof transition.note, "%s", note ? note : "");
    int rc = append(self, &transition, err);
    if (rc == 0)
        self->state = state;
    return rc;
}

static const struct json_field transition_fields[] = {
    JSON_FIELD(struct job_transition, FIELD_U64, at_wall_ns),
    JSON_FIELD_NAME(struct job_transition, state, &states),
    JSON_FIELD(struct job_transition, FIELD_TEXT, note),
};

static void write_transitions(struct json_writer *json, const void *object)
{
    const struct job_record *self = object;
    json_write_begin_array(json);
    for (size_t i = 0; i < self->transition_count; i++) {
        json_write_begin_object(json);
        json_write_fields(json, JSON_FIELDS(transition_fields), &self->transitions[i]);
        json_write_end_object(json);
    }
    json_write_end_array(json);
}

static int read_transitions(const struct json_value *list, void *object, struct cb_err *err)
{
    size_t count = json_count(list);
    if (!json_is_array(list) || count > JOB_MAX_TRANSITIONS)
        return cb_fail(err, CB_ERR_FORMAT, "no list of transitions, or one of more than %d", JOB_MAX_TRANSITIONS);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct job_transition transition = {0};
        rc = json_read_fields(json_at(list, i), JSON_FIELDS(transition_fields), &transition, err);
        if (rc == 0)
            rc = append(object, &transition, err);
    }
    return rc;
}

static const struct json_field slurm_fields[] = {
    {"state", FIELD_TEXT, offsetof(struct job_record, slurm_state), sizeof(((struct job_record *)0)->slurm_state)},
    JSON_FIELD(struct job_record, FIELD_TEXT, reason),
    JSON_FIELD(struct job_record, FIELD_TEXT, nodes),
    JSON_FIELD(struct job_record, FIELD_U64, node_count),
    JSON_FIELD(struct job_record, FIELD_U64, restarts),
    {"state_wall_ns", FIELD_U64, offsetof(struct job_record, slurm_state_wall_ns), sizeof(uint64_t)},
    JSON_FIELD(struct job_record, FIELD_U64, queued_s),
    JSON_FIELD(struct job_record, FIELD_U64, allocated_s),
    JSON_FIELD(struct job_record, FIELD_U64, began_s),
};

static void write_slurm(struct json_writer *json, const void *object)
{
    json_write_begin_object(json);
    json_write_fields(json, JSON_FIELDS(slurm_fields), object);
    json_write_end_object(json);
}

static int read_slurm(const struct json_value *slurm, void *object, struct cb_err *err)
{
    if (!json_is_object(slurm))
        return cb_fail(err, CB_ERR_FORMAT, "no object slurm");
    return json_read_fields(slurm, JSON_FIELDS(slurm_fields), object, err);
}

static void write_array_task(struct json_writer *json, const void *object)
{
    const struct job_record *self = object;
    if (self->in_array)
        json_write_u64(json, self->array_task);
    else
        json_write_null(json);
}

static int read_array_task(const struct json_value *value, void *object, struct cb_err *err)
{
    struct job_record *self = object;
    (void)err;
    self->in_array = json_as_u64(value, &self->array_task);
    return 0;
}

static const struct json_field record_fields[] = {
    JSON_FIELD(struct job_record, FIELD_TEXT, name),
    JSON_FIELD(struct job_record, FIELD_TEXT, job),
    JSON_FIELD(struct job_record, FIELD_TEXT, cluster),
    JSON_FIELD_OWN("array_task", write_array_task, read_array_task),
    JSON_FIELD_OPTIONAL(struct job_record, FIELD_TEXT, before), /* records of early versions lack these three */
    JSON_FIELD_OPTIONAL(struct job_record, FIELD_TEXT, pool),
    JSON_FIELD_OPTIONAL(struct job_record, FIELD_TEXT, step),
    JSON_FIELD(struct job_record, FIELD_U64, intent_wall_ns),
    JSON_FIELD(struct job_record, FIELD_U64, submitted_wall_ns),
    JSON_FIELD(struct job_record, FIELD_BOOL, cancel_asked),
    JSON_FIELD_NAME(struct job_record, state, &states),
    JSON_FIELD(struct job_record, FIELD_DOUBLE, queue_s),
    JSON_FIELD(struct job_record, FIELD_DOUBLE, boot_s),
    JSON_FIELD_OWN("slurm", write_slurm, read_slurm),
    JSON_FIELD_OWN("transitions", write_transitions, read_transitions),
};

int job_record_write_in(struct file_batch *batch, const char *run_folder, const struct job_record *self,
                        struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = run_folder_join(path, run_folder, JOB_FILE, err);
    return rc ? rc : json_write_file(batch, path, JOB_RECORD_VERSION, JSON_FIELDS(record_fields), self, err);
}

int job_record_write(const char *run_folder, const struct job_record *self, struct cb_err *err)
{
    return job_record_write_in(NULL, run_folder, self, err);
}

int job_record_parse(const char *name, const char *text, size_t len, struct job_record *self, struct cb_err *err)
{
    struct job_record parsed;
    job_record_init(&parsed);
    int rc = json_read_document(name, text, len, JOB_RECORD_VERSION, JSON_FIELDS(record_fields), &parsed, err);
    if (rc)
        job_record_release(&parsed);
    else
        *self = parsed;
    return rc;
}

int job_record_read(const char *run_folder, struct job_record *self, struct cb_err *err)
{
    char path[PATH_MAX];
    struct buf text;
    buf_init(&text, JOB_FILE_MAX_BYTES);
    int rc = run_folder_join(path, run_folder, JOB_FILE, err);
    if (rc == 0)
        rc = buf_read_file(&text, path, err);
    if (rc == 0)
        rc = job_record_parse(path, text.data, text.len, self, err);
    buf_release(&text);
    return rc;
}
