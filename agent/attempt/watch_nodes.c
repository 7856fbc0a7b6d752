#include "agent/attempt/watch_nodes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/attempt/watch_limit.h"
#include "agent/attempt/watch_lines.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/foreground.h"
#include "core/json_fields.h"
#include "core/path.h"

#define STEPS 16                  /* bytes of the file for them */
#define PLAN_AT 64                /* offset of the plan in the file */
#define PLAN_MAX_BYTES (16 << 20) /* and of a task's lines */
#define GO 'g'                    /* in the byte of a step */
#define NO 'n'                    /* there is nothing to go on with; no byte: nobody has decided */
#define OTHERS_NS (60 * NS_PER_S) /* for tasks whose commands still run when ours has ended */
#define STEP_NS (150 * NS_PER_S)  /* for the others to be ready */
#define ROUNDS_NS (4 * NS_PER_S)  /* after this no further round begins */
#define LOOK_NS (10 * NS_PER_MS)
#define TASKS_NS (200 * NS_PER_MS) /* between two looks at whether commands have ended */

/* A task, as the leader sees it. */
struct watch_member {
    char *name; /* of its file; owned */
    bool measures;
    uint32_t ready; /* for the steps before this one; step 0: its command has ended */
};

/* What a node is to measure: a line of the plan. */
struct plan {
    char task[sizeof((struct watch_task *)0)->name];
    uint32_t nodes, number; /* that measure; of the node among them */
    struct limit_share share;
};

static const struct json_field plan_fields[] = {
    JSON_FIELD(struct plan, FIELD_TEXT, task),          JSON_FIELD(struct plan, FIELD_U32, nodes),
    JSON_FIELD(struct plan, FIELD_U32, number),         JSON_FIELD(struct plan, FIELD_TEXT, share.place),
    JSON_FIELD(struct plan, FIELD_DOUBLE, share.bytes), JSON_FIELD(struct plan, FIELD_U32, share.writers),
    JSON_FIELD(struct plan, FIELD_BOOL, share.loads),
};

/* ---- steps ---- */

static int lock_bytes(int fd, short type, uint32_t first, uint32_t count)
{
    struct flock bytes = {.l_type = type, .l_whence = SEEK_SET, .l_start = first, .l_len = count};
    return fcntl(fd, F_OFD_SETLK, &bytes);
}

static int open_steps(const char *attempt, int flags)
{
    char path[PATH_MAX];
    return path_format(path, sizeof path, NULL, "%s/limit", attempt) ? -1 : open(path, flags | O_CLOEXEC, 0666);
}

int watch_nodes_lock(const char *attempt)
{
    int fd = open_steps(attempt, O_RDWR | O_CREAT);
    if (fd < 0 || lock_bytes(fd, F_WRLCK, 0, STEPS) == 0)
        return fd;
    close(fd);
    return -1;
}

static int check_waiting(const struct watch_nodes *self, uint64_t end_ns, const char *what, struct cb_err *err)
{
    if (foreground_requests() > 0)
        return cb_fail(err, CB_ERR_ABORTED, "stopped on request");
    int rc = self->may_wait ? self->may_wait(self->context, err) : 0;
    return rc || clock_monotonic_ns() <= end_ns ? rc : cb_fail(err, CB_ERR_TIMEOUT, "%s", what);
}

/* Waits until the leader has opened the step, or has gone. Each look may be a request to the server of the file's
 * locks. */
static int await_step(const struct watch_nodes *self, char *said, struct cb_err *err)
{
    bool is_first = self->step == 0;
    uint64_t end_ns = clock_monotonic_ns() + (is_first ? OTHERS_NS : STEP_NS);
    int rc = 0;
    *said = '\0';
    while (!rc && lock_bytes(self->fd, F_RDLCK, self->step, 1) < 0) {
        if (errno != EAGAIN && errno != EACCES)
            return cb_fail_errno(err, errno, "locking a step");
        clock_sleep_ns(is_first ? TASKS_NS : LOOK_NS);
        rc = check_waiting(self, end_ns,
                           is_first ? "other commands ran for more than a minute" : "the other nodes were not ready",
                           err);
    }
    if (!rc && pread(self->fd, said, 1, self->step) < 0)
        rc = cb_fail_errno(err, errno, "reading a step");
    return rc;
}

static int open_step(const struct watch_nodes *self, bool goes_on, struct cb_err *err)
{
    const char byte = goes_on ? GO : NO;
    if (pwrite(self->fd, &byte, 1, self->step) != 1 || fsync(self->fd) < 0)
        return cb_fail_errno(err, errno, "writing a step");
    return lock_bytes(self->fd, F_UNLCK, self->step, 1) < 0 ? cb_fail_errno(err, errno, "opening a step") : 0;
}

/* ---- lines ---- */

static int write_ready(const struct watch_nodes *self, struct cb_err *err)
{
    json_member_u64(watch_task_begin(self->task, "limit_ready"), "step", self->step);
    return watch_task_end(self->task, err);
}

/* With the node's name, unless it is the reason of another task. */
static void write_failure(const struct watch_nodes *self, const struct cb_err *err)
{
    const char *host = err->code == CB_ERR_ABORTED ? "" : self->task->host;
    char text[600];
    snprintf(text, sizeof text, "%s%s%.400s", host, *host ? ": " : "", err->message);
    json_member_text(watch_task_begin(self->task, "limit_failed"), "why", text);
    (void)!watch_task_end(self->task, NULL); /* the leader stops waiting for us after a while */
}

static void write_seconds(struct json_writer *json, const char *key, const double *seconds, uint32_t count)
{
    json_member_array(json, key);
    for (uint32_t i = 0; i < count; i++)
        json_write_double(json, seconds[i]);
    json_write_end_array(json);
}

static int write_result(const struct watch_nodes *self, uint32_t nodes, const struct limit_result *result,
                        struct cb_err *err)
{
    struct json_writer *json = watch_task_begin(self->task, "limit");
    json_member_u64(json, "nodes", nodes);
    json_member_u64(json, "files", result->files);
    json_member_u64(json, "bytes", result->bytes);
    write_seconds(json, "write_s", result->write_s, result->writes);
    write_seconds(json, "read_s", result->read_s, result->reads);
    return watch_task_end(self->task, err);
}

/* Takes each line of a text that is JSON, until `take` fails. */
static int take_lines(const char *text, size_t len, int (*take)(void *, const struct json_value *, struct cb_err *),
                      void *context, struct cb_err *err)
{
    int rc = 0;
    for (const char *newline; !rc && len > 0 && (newline = memchr(text, '\n', len)); text = newline + 1) {
        struct json_value *line = NULL;
        len -= (size_t)(newline + 1 - text);
        if (json_parse(text, (size_t)(newline - text), &line, NULL) == 0)
            rc = take(context, line, err);
        json_value_free(line);
    }
    return rc;
}

/* ---- the tasks, as the leader sees them ---- */

static bool is_own(const struct watch_nodes *self, const char *task)
{
    return self->task && strcmp(task, self->task->name) == 0;
}

static bool is_known(const struct watch_nodes *self, const char *name)
{
    for (size_t i = 0; i < self->member_count; i++)
        if (strcmp(self->members[i].name, name) == 0)
            return true;
    return false;
}

static int list_members(struct watch_nodes *self, struct cb_err *err)
{
    DIR *entries = opendir(self->lines);
    int rc = entries ? 0 : cb_fail_errno(err, errno, "reading the folder %s", self->lines);
    for (struct dirent *entry; !rc && (entry = readdir(entries));) {
        if (!watch_file_is_task(entry->d_name) || is_known(self, entry->d_name))
            continue;
        rc = alloc_grow(&self->members, self->member_count, sizeof *self->members, err);
        if (rc)
            break;
        struct watch_member *member = &self->members[self->member_count];
        *member =
            (struct watch_member){.name = strdup(entry->d_name), .ready = is_own(self, entry->d_name) ? UINT32_MAX : 0};
        rc = member->name ? 0 : alloc_fail(err, "for a task");
        self->member_count += rc ? 0 : 1;
    }
    if (entries)
        closedir(entries);
    return rc;
}

static int take_line(void *context, const struct json_value *line, struct cb_err *err)
{
    struct watch_member *self = context;
    const char *op = "", *text = "";
    uint32_t step = 0, ready = 0;
    bool asked = false;
    (void)json_as_text(json_get(line, "op"), &op);
    (void)json_as_text(json_get(line, strcmp(op, "task_end") == 0 ? "failure" : "why"), &text);
    (void)json_as_bool(json_get(line, "asked"), &asked);
    if (*text || asked)
        return cb_fail(err, CB_ERR_ABORTED, "%.400s", *text ? text : "a command was asked to end");
    if (strcmp(op, "task_end") == 0)
        ready = 1;
    else if (strcmp(op, "limit_ready") == 0 && json_need_u32(line, "step", &step, NULL) == 0)
        ready = step + 1;
    self->ready = ready > self->ready ? ready : self->ready;
    return 0;
}

/* Reads the lines of a task again. Fails if what they say ends the measurement. */
static int look_at(const struct watch_nodes *self, struct watch_member *member, struct cb_err *err)
{
    char path[PATH_MAX];
    struct buf text;
    buf_init(&text, PLAN_MAX_BYTES);
    int rc = path_format(path, sizeof path, err, "%s/%s", self->lines, member->name);
    if (!rc)
        rc = buf_read_file(&text, path, err);
    if (!rc)
        rc = take_lines(text.data, text.len, take_line, member, err);
    buf_release(&text);
    return rc;
}

static bool is_missing(const struct watch_member *self, uint32_t step)
{
    return (step == 0 || self->measures) && self->ready <= step;
}

/* Until the commands of all tasks have ended (step 0), or those that measure are ready for the step. */
static int await_members(struct watch_nodes *self, uint32_t step, struct cb_err *err)
{
    uint64_t end_ns = clock_monotonic_ns() + (step ? STEP_NS : OTHERS_NS);
    for (;;) {
        int rc = self->member_count < self->tasks ? list_members(self, err) : 0;
        size_t missing = self->member_count < self->tasks ? 1 : 0;
        for (size_t i = 0; i < self->member_count && !rc; i++) {
            struct watch_member *member = &self->members[i];
            if (is_missing(member, step))
                rc = look_at(self, member, err);
            missing += is_missing(member, step) ? 1 : 0;
        }
        if (!rc && missing == 0)
            return 0;
        if (!rc)
            rc = check_waiting(self, end_ns,
                               step ? "not all nodes were ready" : "not all commands ended within a minute", err);
        if (rc)
            return rc;
        clock_sleep_ns(step ? LOOK_NS : TASKS_NS);
    }
}

/* ---- the plan ---- */

/* The task of a node that measures: the leader itself, or the first. */
static struct watch_member *task_of(const struct watch_nodes *self, const char *host)
{
    struct watch_member *found = NULL;
    for (size_t i = 0; i < self->member_count; i++) {
        struct watch_member *member = &self->members[i];
        if (watch_file_is_of_host(member->name, host) && (!found || is_own(self, member->name)))
            found = member;
    }
    return found;
}

static int plan_shares(struct watch_nodes *self, const struct watch_summary *summary, struct plan *own,
                       struct buf *text, struct cb_err *err)
{
    struct plan plan = {.share.loads = summary->loads > 0};
    snprintf(plan.share.place, sizeof plan.share.place, "%s", summary->place);
    for (size_t i = 0; i < summary->share_count; i++)
        plan.nodes += summary->shares[i].writers > 0 ? 1 : 0;
    *own = plan;
    for (size_t i = 0; i < summary->share_count; i++) {
        const struct watch_share *share = &summary->shares[i];
        struct json_writer json;
        if (share->writers == 0)
            continue;
        struct watch_member *member = task_of(self, share->host);
        if (!member)
            return cb_fail(err, CB_ERR_UNSUPPORTED, "processes on %.200s belong to no task", share->host);
        member->measures = true;
        snprintf(plan.task, sizeof plan.task, "%s", member->name);
        plan.share.bytes = share->bytes;
        plan.share.writers = share->writers;
        if (is_own(self, member->name))
            *own = plan;
        json_writer_init(&json, text, 0);
        json_write_begin_object(&json);
        json_write_fields(&json, JSON_FIELDS(plan_fields), &plan);
        json_write_end_object(&json);
        buf_append_char(text, '\n');
        plan.number++;
    }
    return plan.nodes ? 0 : cb_fail(err, CB_ERR_UNSUPPORTED, "nothing was saved in a way that is seen");
}

/* Reads all lines, decides who measures what, and publishes it. */
static int make_plan(struct watch_nodes *self, struct plan *own, struct cb_err *err)
{
    struct attempt unused = {.experiment = NULL, .pages = {.lock_fd = -1}};
    struct watch_summary summary = {0};
    struct buf text;
    buf_init(&text, PLAN_MAX_BYTES);
    int rc = watch_lines_read(&unused, self->lines, &summary, err);
    if (!rc)
        rc = watch_limit_check(&summary, err);
    if (!rc)
        rc = plan_shares(self, &summary, own, &text, err);
    if (!rc)
        rc = buf_check(&text, "the plan of a measurement", err);
    if (!rc && pwrite(self->fd, text.data, text.len, PLAN_AT) != (ssize_t)text.len)
        rc = cb_fail_errno(err, errno, "writing the plan of a measurement");
    pages_release(&unused.pages);
    watch_summary_release(&summary);
    buf_release(&text);
    return rc;
}

/* Keeps the plan of this task: the others have another `task`. */
static int take_plan(void *context, const struct json_value *line, struct cb_err *err)
{
    struct plan *self = context, found = {.nodes = 0};
    int rc = json_read_fields(line, JSON_FIELDS(plan_fields), &found, err);
    if (!rc && strcmp(found.task, self->task) == 0)
        *self = found;
    return rc;
}

/* What the leader has published; no writers if this task has nothing to measure. */
static int read_plan(const struct watch_nodes *self, struct plan *plan, struct cb_err *err)
{
    char path[PATH_MAX];
    struct buf text;
    buf_init(&text, PLAN_MAX_BYTES + PLAN_AT);
    snprintf(plan->task, sizeof plan->task, "%s", self->task->name);
    int rc = path_format(path, sizeof path, err, "%s/limit", self->attempt);
    if (!rc)
        rc = buf_read_file(&text, path, err);
    if (!rc && text.len <= PLAN_AT)
        rc = cb_fail(err, CB_ERR_FORMAT, "the plan of a measurement is missing");
    if (!rc)
        rc = take_lines(text.data + PLAN_AT, text.len - PLAN_AT, take_plan, plan, err);
    buf_release(&text);
    return rc;
}

/* ---- measuring ---- */

/* Before each direction of a round. */
static int meet_as_member(void *context, bool *goes_on, struct cb_err *err)
{
    struct watch_nodes *self = context;
    char said = '\0';
    int rc = write_ready(self, err);
    if (!rc)
        rc = await_step(self, &said, err);
    *goes_on = said == GO;
    self->step++;
    return rc;
}

/* The leader decides whether another round begins. */
static int meet_as_leader(void *context, bool *goes_on, struct cb_err *err)
{
    struct watch_nodes *self = context;
    uint32_t moves = self->loads ? 2 : 1; /* of a round; step 0 was the plan */
    bool begins_round = (self->step - 1) % moves == 0;
    *goes_on = self->step == 1 || !begins_round || clock_monotonic_ns() < self->begin_ns + ROUNDS_NS;
    int rc = await_members(self, self->step, err);
    if (!rc)
        rc = open_step(self, *goes_on, err);
    if (self->step == 1)
        self->begin_ns = clock_monotonic_ns();
    self->step++;
    return rc;
}

static int measure(struct watch_nodes *self, const struct plan *plan, int (*meet)(void *, bool *, struct cb_err *),
                   struct cb_err *err)
{
    const struct limit_meeting meeting = {.meet = meet, .context = self};
    struct limit_result result = {0};
    char folder[RUN_ID_BYTES + 32];
    snprintf(folder, sizeof folder, WATCH_LIMIT_FOLDER "%.*s@%u", RUN_ID_BYTES, self->run, plan->number);
    self->step = 1;
    self->loads = plan->share.loads;
    int rc = watch_limit_run(self->experiment, folder, &plan->share, &meeting, NULL, &result, err);
    return rc || plan->share.writers == 0 ? rc : write_result(self, plan->nodes, &result, err);
}

int watch_nodes_lead(struct watch_nodes *self, struct cb_err *err)
{
    struct plan plan;
    int rc = await_members(self, 0, err);
    if (!rc)
        rc = make_plan(self, &plan, err);
    if (!rc)
        rc = open_step(self, true, err);
    else
        (void)!open_step(self, false, NULL);
    if (!rc)
        rc = measure(self, &plan, meet_as_leader, err);
    for (size_t i = 0; i < self->member_count; i++)
        free(self->members[i].name);
    free(self->members);
    self->members = NULL;
    self->member_count = 0;
    return rc;
}

static int follow(struct watch_nodes *self, struct cb_err *err)
{
    struct plan plan = {.nodes = 0};
    char said = '\0';
    int rc = write_ready(self, err);
    if (!rc)
        rc = await_step(self, &said, err);
    if (!rc && !said)
        rc = cb_fail(err, CB_ERR_UNSUPPORTED, "the first task has ended, or locks are not shared by the nodes");
    if (rc || said != GO)
        return rc;
    rc = read_plan(self, &plan, err);
    return rc || plan.share.writers == 0 ? rc : measure(self, &plan, meet_as_member, err);
}

void watch_nodes_take_part(struct watch_nodes *self)
{
    struct cb_err err;
    bool leads = self->fd >= 0;
    if (!leads)
        self->fd = open_steps(self->attempt, O_RDONLY);
    if (self->fd >= 0 && (leads ? watch_nodes_lead(self, &err) : follow(self, &err)))
        write_failure(self, &err);
    if (!leads && self->fd >= 0)
        close(self->fd);
}
