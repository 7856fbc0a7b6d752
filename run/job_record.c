/* job.json: names of states, and the file. Knows what is kept of a job, not how Slurm is asked. */
#include "run/job_record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/json.h"
#include "core/path.h"

#define JOB_FILE "job.json"
#define JOB_FILE_MAX_BYTES (4u << 20)

static const char *const state_names[JOB_STATE_COUNT] = {
    "planned", "submitted", "pending", "booting", "running", "sealing", "done", "failed", "cancelled", "lost",
};

const char *job_state_name(enum job_state state)
{
    return state < JOB_STATE_COUNT ? state_names[state] : "unknown";
}

bool job_state_find(const char *name, enum job_state *state)
{
    for (unsigned i = 0; i < JOB_STATE_COUNT; i++) {
        if (strcmp(state_names[i], name) == 0) {
            *state = (enum job_state)i;
            return true;
        }
    }
    return false;
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
    if (alloc_grow(&self->transitions, self->transition_count, sizeof *self->transitions, err))
        return CB_ERR_MEMORY;
    self->transitions[self->transition_count++] = *transition;
    return 0;
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

/* ---- the file ---- */

static void write_transitions(struct json_writer *json, const struct job_record *self)
{
    json_write_key(json, "transitions");
    json_write_begin_array(json);
    for (size_t i = 0; i < self->transition_count; i++) {
        json_write_begin_object(json);
        json_member_u64(json, "at_wall_ns", self->transitions[i].at_wall_ns);
        json_member_text(json, "state", job_state_name(self->transitions[i].state));
        json_member_text(json, "note", self->transitions[i].note);
        json_write_end_object(json);
    }
    json_write_end_array(json);
}

static void write_slurm(struct json_writer *json, const struct job_record *self)
{
    json_write_key(json, "slurm");
    json_write_begin_object(json);
    json_member_text(json, "state", self->slurm_state);
    json_member_text(json, "reason", self->reason);
    json_member_text(json, "nodes", self->nodes);
    json_member_u64(json, "node_count", self->node_count);
    json_member_u64(json, "restarts", self->restarts);
    json_member_u64(json, "state_wall_ns", self->slurm_state_wall_ns);
    json_member_u64(json, "queued_s", self->queued_s);
    json_member_u64(json, "allocated_s", self->allocated_s);
    json_member_u64(json, "began_s", self->began_s);
    json_write_end_object(json);
}

int job_record_write_in(struct file_batch *batch, const char *run_folder, const struct job_record *self,
                        struct cb_err *err)
{
    char path[PATH_MAX];
    struct buf text;
    struct json_writer json;
    if (path_format(path, sizeof path, err, "%s/" JOB_FILE, run_folder))
        return CB_ERR_USAGE;
    buf_init(&text, JOB_FILE_MAX_BYTES);
    json_writer_init(&json, &text, 2);
    json_write_begin_object(&json);
    json_member_u64(&json, "version", JOB_RECORD_VERSION);
    json_member_text(&json, "name", self->name);
    json_member_text(&json, "job", self->job);
    json_member_text(&json, "cluster", self->cluster);
    json_write_key(&json, "array_task");
    if (self->in_array)
        json_write_u64(&json, self->array_task);
    else
        json_write_null(&json);
    json_member_text(&json, "before", self->before);
    json_member_text(&json, "pool", self->pool);
    json_member_text(&json, "step", self->step);
    json_member_u64(&json, "intent_wall_ns", self->intent_wall_ns);
    json_member_u64(&json, "submitted_wall_ns", self->submitted_wall_ns);
    json_member_bool(&json, "cancel_asked", self->cancel_asked);
    json_member_text(&json, "state", job_state_name(self->state));
    json_member_double(&json, "queue_s", self->queue_s);
    json_member_double(&json, "boot_s", self->boot_s);
    write_slurm(&json, self);
    write_transitions(&json, self);
    json_write_end_object(&json);
    buf_append_char(&text, '\n');
    int rc = buf_check(&text, "the job's record", err);
    if (rc == 0)
        rc = file_write(batch, &text, path, 0644, err);
    buf_release(&text);
    return rc;
}

int job_record_write(const char *run_folder, const struct job_record *self, struct cb_err *err)
{
    return job_record_write_in(NULL, run_folder, self, err);
}

static int read_state(const struct json_value *object, enum job_state *state, struct cb_err *err)
{
    const char *name;
    int rc = json_need_text(object, "state", &name, err);
    if (rc == 0 && !job_state_find(name, state))
        rc = cb_fail(err, CB_ERR_FORMAT, "there is no state %s", name);
    return rc;
}

static double number_or_nan(const struct json_value *object, const char *key)
{
    double number;
    return json_as_double(json_get(object, key), &number) ? number : NAN;
}

static int read_slurm(const struct json_value *root, struct job_record *self, struct cb_err *err)
{
    const struct json_value *slurm = json_get(root, "slurm");
    if (!json_is_object(slurm))
        return cb_fail(err, CB_ERR_FORMAT, "no object slurm");
    int rc = json_copy_text(slurm, "state", self->slurm_state, sizeof self->slurm_state, err);
    if (rc == 0)
        rc = json_copy_text(slurm, "reason", self->reason, sizeof self->reason, err);
    if (rc == 0)
        rc = json_copy_text(slurm, "nodes", self->nodes, sizeof self->nodes, err);
    if (rc == 0)
        rc = json_need_u64(slurm, "node_count", &self->node_count, err);
    if (rc == 0)
        rc = json_need_u64(slurm, "restarts", &self->restarts, err);
    if (rc == 0)
        rc = json_need_u64(slurm, "state_wall_ns", &self->slurm_state_wall_ns, err);
    if (rc == 0)
        rc = json_need_u64(slurm, "queued_s", &self->queued_s, err);
    if (rc == 0)
        rc = json_need_u64(slurm, "allocated_s", &self->allocated_s, err);
    if (rc == 0)
        rc = json_need_u64(slurm, "began_s", &self->began_s, err);
    return rc;
}

static int read_transitions(const struct json_value *root, struct job_record *self, struct cb_err *err)
{
    const struct json_value *list = json_get(root, "transitions");
    size_t count = json_count(list);
    if (!json_is_array(list) || count > JOB_MAX_TRANSITIONS)
        return cb_fail(err, CB_ERR_FORMAT, "no list of transitions, or one of more than %d", JOB_MAX_TRANSITIONS);
    for (size_t i = 0; i < count; i++) {
        struct job_transition transition = {0};
        const struct json_value *item = json_at(list, i);
        int rc = json_need_u64(item, "at_wall_ns", &transition.at_wall_ns, err);
        if (rc == 0)
            rc = read_state(item, &transition.state, err);
        if (rc == 0)
            rc = json_copy_text(item, "note", transition.note, sizeof transition.note, err);
        if (rc == 0)
            rc = append(self, &transition, err);
        if (rc)
            return rc;
    }
    return 0;
}

/* Of a record from before there was such a key: none. */
static int copy_optional(const struct json_value *object, const char *key, char *place, size_t bytes,
                         struct cb_err *err)
{
    place[0] = '\0';
    return json_get(object, key) ? json_copy_text(object, key, place, bytes, err) : 0;
}

static int read_members(const struct json_value *root, struct job_record *self, struct cb_err *err)
{
    uint64_t version = 0;
    int rc = json_need_u64(root, "version", &version, err);
    if (rc == 0 && version != JOB_RECORD_VERSION)
        rc = cb_fail(err, CB_ERR_FORMAT, "version %llu, this program reads %d", (unsigned long long)version,
                     JOB_RECORD_VERSION);
    if (rc == 0)
        rc = json_copy_text(root, "name", self->name, sizeof self->name, err);
    if (rc == 0)
        rc = json_copy_text(root, "job", self->job, sizeof self->job, err);
    if (rc == 0)
        rc = json_copy_text(root, "cluster", self->cluster, sizeof self->cluster, err);
    if (rc == 0)
        rc = copy_optional(root, "before", self->before, sizeof self->before, err);
    if (rc == 0)
        rc = copy_optional(root, "pool", self->pool, sizeof self->pool, err);
    if (rc == 0)
        rc = copy_optional(root, "step", self->step, sizeof self->step, err);
    if (rc == 0)
        rc = json_need_u64(root, "intent_wall_ns", &self->intent_wall_ns, err);
    if (rc == 0)
        rc = json_need_u64(root, "submitted_wall_ns", &self->submitted_wall_ns, err);
    if (rc == 0)
        rc = read_state(root, &self->state, err);
    if (rc)
        return rc;
    self->in_array = json_as_u64(json_get(root, "array_task"), &self->array_task);
    self->cancel_asked = false;
    if (!json_as_bool(json_get(root, "cancel_asked"), &self->cancel_asked))
        return cb_fail(err, CB_ERR_FORMAT, "cancel_asked is neither true nor false");
    self->queue_s = number_or_nan(root, "queue_s");
    self->boot_s = number_or_nan(root, "boot_s");
    rc = read_slurm(root, self, err);
    return rc ? rc : read_transitions(root, self, err);
}

int job_record_parse(const char *name, const char *text, size_t len, struct job_record *self, struct cb_err *err)
{
    struct json_value *root = NULL;
    struct job_record parsed;
    struct cb_err own;
    job_record_init(&parsed);
    int rc = json_parse(text, len, &root, &own);
    if (rc == 0)
        rc = read_members(root, &parsed, &own);
    json_value_free(root);
    if (rc) {
        job_record_release(&parsed);
        return cb_fail(err, rc, "%s: %s", name, own.message);
    }
    *self = parsed;
    return 0;
}

int job_record_read(const char *run_folder, struct job_record *self, struct cb_err *err)
{
    char path[PATH_MAX];
    struct buf text;
    if (path_format(path, sizeof path, err, "%s/" JOB_FILE, run_folder))
        return CB_ERR_USAGE;
    buf_init(&text, JOB_FILE_MAX_BYTES);
    int rc = buf_read_file(&text, path, err);
    if (rc == 0)
        rc = job_record_parse(path, text.data, text.len, self, err);
    buf_release(&text);
    return rc;
}
