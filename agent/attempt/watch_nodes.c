#include "agent/attempt/watch_nodes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/attempt/watch_limit.h"
#include "agent/attempt/watch_lines.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/foreground.h"
#include "core/json.h"
#include "core/path.h"

#define STEPS 16                  /* bytes of the file for them */
#define PLAN_AT 64                /* offset of the plan in the file */
#define PLAN_MAX_BYTES (16 << 20) /* and of a task's lines */
#define GO 'g'                    /* in the byte of a step */
#define NO 'n'                    /* there is nothing to go on with; no byte: nobody has decided */
#define OTHERS_NS (60 * NS_PER_S) /* for commands that still run when ours has ended */
#define STEP_NS (150 * NS_PER_S)  /* for the others to be ready */
#define ROUNDS_NS (4 * NS_PER_S)  /* after this no further round begins */
#define LOOK_NS (10 * NS_PER_MS)
#define TASKS_NS (200 * NS_PER_MS) /* between two looks at whether commands have ended */

/* ---- locks ---- */

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

void watch_nodes_lead(const char *attempt, int *fd)
{
    *fd = open_steps(attempt, O_RDWR | O_CREAT);
    if (*fd >= 0 && lock_bytes(*fd, F_WRLCK, 0, STEPS) < 0) {
        close(*fd);
        *fd = -1;
    }
}

static int check_waiting(uint64_t end_ns, const char *what, struct cb_err *err)
{
    if (foreground_requests() > 0)
        return cb_fail(err, CB_ERR_ABORTED, "stopped on request");
    return clock_monotonic_ns() > end_ns ? cb_fail(err, CB_ERR_TIMEOUT, "%s", what) : 0;
}

/* A member: waits until the leader has opened the step, or has gone. Each look may be a request to the server of the
 * file's locks. */
static int await_step(const struct watch_nodes *self, uint64_t wait_ns, uint64_t look_ns, const char *what, char *said,
                      struct cb_err *err)
{
    uint64_t end_ns = clock_monotonic_ns() + wait_ns;
    int rc = 0;
    *said = '\0';
    while (!rc && lock_bytes(self->fd, F_RDLCK, self->step, 1) < 0) {
        if (errno != EAGAIN && errno != EACCES)
            return cb_fail_errno(err, errno, "locking a step");
        clock_sleep_ns(look_ns);
        rc = check_waiting(end_ns, what, err);
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

/* Other machines see it when the function has returned. */
static int write_line(const struct watch_nodes *self, struct json_writer *json, struct cb_err *err)
{
    json_write_end_object(json);
    buf_append_char(json->out, '\n');
    int rc = buf_check(json->out, "a line of a task", err);
    if (!rc && (!fd_write_all(self->lines_fd, json->out->data, json->out->len) || fsync(self->lines_fd) < 0))
        rc = cb_fail_errno(err, errno, "writing %s", self->task);
    return rc;
}

static void begin_line(struct buf *line, struct json_writer *json, const char *op)
{
    buf_init(line, 4096);
    json_writer_init(json, line, 0);
    json_write_begin_object(json);
    json_member_text(json, "op", op);
}

static int write_ready(const struct watch_nodes *self, struct cb_err *err)
{
    struct buf line;
    struct json_writer json;
    begin_line(&line, &json, "limit_ready");
    json_member_u64(&json, "step", self->step);
    int rc = write_line(self, &json, err);
    buf_release(&line);
    return rc;
}

/* With the node's name, unless it is the reason of another task. */
static void write_failure(const struct watch_nodes *self, const struct cb_err *err)
{
    struct buf line;
    struct json_writer json;
    char text[600];
    int len = err->code == CB_ERR_ABORTED ? 0 : (int)(strrchr(self->task, '-') - self->task);
    snprintf(text, sizeof text, "%.*s%s%.400s", len, self->task, len ? ": " : "", err->message);
    begin_line(&line, &json, "limit_failed");
    json_member_text(&json, "why", text);
    (void)!write_line(self, &json, NULL); /* the leader stops waiting for us after a while */
    buf_release(&line);
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
    struct buf line;
    struct json_writer json;
    begin_line(&line, &json, "limit");
    json_member_u64(&json, "nodes", nodes);
    json_member_u64(&json, "files", result->files);
    json_member_u64(&json, "bytes", result->bytes);
    write_seconds(&json, "write_s", result->write_s, result->writes);
    write_seconds(&json, "read_s", result->read_s, result->reads);
    int rc = write_line(self, &json, err);
    buf_release(&line);
    return rc;
}

/* ---- the other tasks, as the leader sees them ---- */

struct member {
    char *name; /* of its file; owned */
    bool ended;
    bool measures;
    uint32_t ready; /* the steps before this one; of a task that measures */
};

struct members {
    struct member *items;
    size_t count;
};

static void members_release(struct members *self)
{
    for (size_t i = 0; i < self->count; i++)
        free(self->items[i].name);
    free(self->items);
}

static bool has_ending(const char *name)
{
    size_t len = strlen(name), of_ending = strlen(WATCH_TASK_ENDING);
    return len > of_ending && strcmp(name + len - of_ending, WATCH_TASK_ENDING) == 0 && strrchr(name, '-');
}

static bool is_known(const struct members *self, const char *name)
{
    for (size_t i = 0; i < self->count; i++)
        if (strcmp(self->items[i].name, name) == 0)
            return true;
    return false;
}

static int list_members(const struct watch_nodes *nodes, struct members *self, struct cb_err *err)
{
    DIR *entries = opendir(nodes->lines);
    int rc = entries ? 0 : cb_fail_errno(err, errno, "reading the folder %s", nodes->lines);
    for (struct dirent *entry; !rc && (entry = readdir(entries));) {
        if (!has_ending(entry->d_name) || is_known(self, entry->d_name))
            continue;
        rc = alloc_grow(&self->items, self->count, sizeof *self->items, err);
        if (rc)
            break;
        struct member *member = &self->items[self->count];
        *member = (struct member){.name = strdup(entry->d_name)};
        rc = member->name ? 0 : alloc_fail(err, "for a task");
        self->count += rc ? 0 : 1;
    }
    if (entries)
        closedir(entries);
    return rc;
}

static bool are_on_one_node(const char *task, const char *other)
{
    size_t len = (size_t)(strrchr(task, '-') - task);
    return (size_t)(strrchr(other, '-') - other) == len && strncmp(task, other, len) == 0;
}

static int take_line(struct member *self, const struct json_value *line, struct cb_err *err)
{
    const char *op = "", *text = "";
    bool flag = false;
    uint32_t step = 0;
    (void)json_as_text(json_get(line, "op"), &op);
    if (strcmp(op, "task_end") == 0) {
        self->ended = true;
        (void)json_as_text(json_get(line, "failure"), &text);
        if (*text || (json_as_bool(json_get(line, "asked"), &flag) && flag))
            return cb_fail(err, CB_ERR_ABORTED, "%.300s", *text ? text : "a command was asked to end");
    } else if (strcmp(op, "limit_ready") == 0 && json_need_u32(line, "step", &step, NULL) == 0)
        self->ready = step + 1;
    else if (strcmp(op, "limit") == 0)
        self->ready = UINT32_MAX;
    else if (strcmp(op, "limit_failed") == 0) {
        (void)json_as_text(json_get(line, "why"), &text);
        return cb_fail(err, CB_ERR_ABORTED, "%.400s", text);
    }
    return 0;
}

/* Reads the lines of a task again. Fails if what they say ends the measurement. */
static int look_at(const struct watch_nodes *nodes, struct member *self, struct cb_err *err)
{
    char path[PATH_MAX];
    struct buf text;
    buf_init(&text, PLAN_MAX_BYTES);
    int rc = path_format(path, sizeof path, err, "%s/%s", nodes->lines, self->name);
    if (!rc)
        rc = buf_read_file(&text, path, err);
    for (const char *at = text.data, *newline; !rc && at && (newline = strchr(at, '\n')); at = newline + 1) {
        struct json_value *line = NULL;
        if (json_parse(at, (size_t)(newline - at), &line, NULL) == 0)
            rc = take_line(self, line, err);
        json_value_free(line);
    }
    buf_release(&text);
    return rc;
}

static bool is_ready(const struct member *self, uint32_t step)
{
    return self->measures ? self->ready > step : true;
}

/* Until all tasks have ended (step UINT32_MAX), or those that measure are ready for the step. */
static int await_members(const struct watch_nodes *nodes, struct members *self, uint32_t step, struct cb_err *err)
{
    bool for_end = step == UINT32_MAX;
    uint64_t end_ns = clock_monotonic_ns() + (for_end ? OTHERS_NS : STEP_NS);
    for (;;) {
        size_t missing = for_end && self->count < nodes->tasks ? 1 : 0;
        for (size_t i = 0; i < self->count; i++) {
            struct member *member = &self->items[i];
            if (strcmp(member->name, nodes->task) == 0 || (for_end ? member->ended : is_ready(member, step)))
                continue;
            int rc = look_at(nodes, member, err);
            if (rc)
                return rc;
            missing += (for_end ? member->ended : is_ready(member, step)) ? 0 : 1;
        }
        if (missing == 0)
            return 0;
        int rc =
            check_waiting(end_ns, for_end ? "not all commands ended within a minute" : "not all nodes were ready", err);
        if (!rc && for_end && self->count < nodes->tasks)
            rc = list_members(nodes, self, err);
        if (rc)
            return rc;
        clock_sleep_ns(for_end ? TASKS_NS : LOOK_NS);
    }
}

/* ---- the plan ---- */

struct plan {
    struct limit_share own; /* of this task */
    size_t number;          /* of the share */
    uint32_t nodes;         /* that measure */
};

/* The task of a node that measures: the leader itself, or the first. */
static struct member *task_of(const struct watch_nodes *nodes, struct members *members, const char *host)
{
    struct member *found = NULL;
    for (size_t i = 0; i < members->count; i++) {
        struct member *member = &members->items[i];
        size_t len = (size_t)(strrchr(member->name, '-') - member->name);
        if (strlen(host) == len && strncmp(member->name, host, len) == 0 &&
            (!found || strcmp(member->name, nodes->task) == 0))
            found = member;
    }
    return found;
}

static int plan_shares(const struct watch_nodes *nodes, struct members *members, const struct watch_summary *summary,
                       struct plan *plan, struct json_writer *json, struct cb_err *err)
{
    json_member_array(json, "shares");
    for (size_t i = 0; i < summary->share_count; i++) {
        const struct watch_share *share = &summary->shares[i];
        if (share->writers == 0)
            continue;
        struct member *member = task_of(nodes, members, share->host);
        if (!member)
            return cb_fail(err, CB_ERR_UNSUPPORTED, "processes on %.200s belong to no task", share->host);
        if (strcmp(member->name, nodes->task) == 0) {
            plan->number = plan->nodes;
            plan->own.bytes = share->bytes;
            plan->own.writers = share->writers;
        } else
            member->measures = true;
        plan->nodes++;
        json_write_begin_object(json);
        json_member_text(json, "task", member->name);
        json_member_double(json, "bytes", share->bytes);
        json_member_u64(json, "writers", share->writers);
        json_write_end_object(json);
    }
    json_write_end_array(json);
    return plan->nodes ? 0 : cb_fail(err, CB_ERR_UNSUPPORTED, "nothing was saved in a way that is seen");
}

/* Reads all lines, decides who measures what, and publishes it. */
static int make_plan(const struct watch_nodes *self, struct members *members, struct plan *plan, struct cb_err *err)
{
    struct attempt unused = {.experiment = NULL, .pages = {.lock_fd = -1}};
    struct watch_summary summary = {0};
    struct buf text;
    struct json_writer json;
    buf_init(&text, PLAN_MAX_BYTES);
    json_writer_init(&json, &text, 0);
    int rc = watch_lines_read(&unused, self->lines, &summary, err);
    if (!rc)
        rc = watch_limit_check(&summary, err);
    if (!rc) {
        snprintf(plan->own.place, sizeof plan->own.place, "%s", summary.place);
        plan->own.loads = summary.loads > 0;
        json_write_begin_object(&json);
        json_member_text(&json, "place", plan->own.place);
        json_member_bool(&json, "loads", plan->own.loads);
        rc = plan_shares(self, members, &summary, plan, &json, err);
    }
    if (!rc) {
        json_member_u64(&json, "nodes", plan->nodes);
        json_write_end_object(&json);
        rc = buf_check(&text, "the plan of a measurement", err);
    }
    if (!rc && pwrite(self->fd, text.data, text.len, PLAN_AT) != (ssize_t)text.len)
        rc = cb_fail_errno(err, errno, "writing the plan of a measurement");
    pages_release(&unused.pages);
    watch_summary_release(&summary);
    buf_release(&text);
    return rc;
}

static int take_share(const struct watch_nodes *self, const struct json_value *root, struct plan *plan,
                      struct cb_err *err)
{
    const struct json_value *shares = json_get(root, "shares");
    int rc = json_copy_text(root, "place", plan->own.place, sizeof plan->own.place, err);
    if (!rc)
        rc = json_need_u32(root, "nodes", &plan->nodes, err);
    (void)json_as_bool(json_get(root, "loads"), &plan->own.loads);
    for (size_t i = 0; !rc && i < json_count(shares); i++) {
        const struct json_value *share = json_at(shares, i);
        const char *task = "";
        if (!json_as_text(json_get(share, "task"), &task) || strcmp(task, self->task) != 0)
            continue;
        plan->number = i;
        if (!json_as_double(json_get(share, "bytes"), &plan->own.bytes))
            rc = cb_fail(err, CB_ERR_FORMAT, "bytes is no number");
        if (!rc)
            rc = json_need_u32(share, "writers", &plan->own.writers, err);
    }
    return rc;
}

/* What the leader has published; no writers if this task has nothing to measure. */
static int read_plan(const struct watch_nodes *self, struct plan *plan, struct cb_err *err)
{
    struct stat about;
    struct json_value *root = NULL;
    if (fstat(self->fd, &about) < 0 || about.st_size <= PLAN_AT || about.st_size > PLAN_MAX_BYTES)
        return cb_fail(err, CB_ERR_FORMAT, "the plan of a measurement is missing");
    size_t len = (size_t)about.st_size - PLAN_AT;
    char *text = malloc(len);
    if (!text)
        return alloc_fail(err, "for the plan of a measurement");
    int rc = pread(self->fd, text, len, PLAN_AT) == (ssize_t)len
                 ? json_parse(text, len, &root, err)
                 : cb_fail_errno(err, errno, "reading the plan of a measurement");
    if (!rc)
        rc = take_share(self, root, plan, err);
    json_value_free(root);
    free(text);
    return rc;
}

/* ---- measuring ---- */

static int meet_as_member(void *context, bool *goes_on, struct cb_err *err)
{
    struct watch_nodes *self = context;
    char said = '\0';
    int rc = write_ready(self, err);
    if (!rc)
        rc = await_step(self, STEP_NS, LOOK_NS, "the other nodes were not ready", &said, err);
    *goes_on = said == GO;
    self->step++;
    return rc;
}

struct leading {
    struct watch_nodes *self;
    struct members members;
};

/* The leader decides whether another round begins. */
static int meet_as_leader(void *context, bool *goes_on, struct cb_err *err)
{
    struct leading *leading = context;
    struct watch_nodes *self = leading->self;
    uint32_t moves = self->loads ? 2 : 1; /* of a round; step 0 was the plan */
    bool begins_round = (self->step - 1) % moves == 0;
    *goes_on = self->step == 1 || !begins_round || clock_monotonic_ns() < self->begin_ns + ROUNDS_NS;
    int rc = await_members(self, &leading->members, self->step, err);
    if (!rc)
        rc = open_step(self, *goes_on, err);
    if (self->step == 1)
        self->begin_ns = clock_monotonic_ns();
    self->step++;
    return rc;
}

static int measure(struct watch_nodes *self, const struct plan *plan, const struct limit_meeting *meeting,
                   struct cb_err *err)
{
    struct limit_result result = {0};
    char folder[RUN_ID_BYTES + 32];
    snprintf(folder, sizeof folder, WATCH_LIMIT_FOLDER "%.*s@%zu", RUN_ID_BYTES, self->run, plan->number);
    int rc = watch_limit_run(self->experiment, folder, &plan->own, meeting, NULL, &result, err);
    return rc || plan->own.writers == 0 ? rc : write_result(self, plan->nodes, &result, err);
}

static int lead(struct watch_nodes *self, struct cb_err *err)
{
    struct leading leading = {.self = self};
    struct plan plan = {0};
    int rc = list_members(self, &leading.members, err);
    if (!rc)
        rc = await_members(self, &leading.members, UINT32_MAX, err);
    if (!rc)
        rc = make_plan(self, &leading.members, &plan, err);
    if (!rc)
        rc = open_step(self, true, err);
    else
        (void)!open_step(self, false, NULL);
    self->step = 1;
    self->loads = plan.own.loads;
    const struct limit_meeting meeting = {.meet = meet_as_leader, .context = &leading};
    if (!rc)
        rc = measure(self, &plan, &meeting, err);
    members_release(&leading.members);
    return rc;
}

static int follow(struct watch_nodes *self, struct cb_err *err)
{
    struct plan plan = {0};
    char said = '\0';
    int rc = await_step(self, OTHERS_NS, TASKS_NS, "other commands ran for more than a minute", &said, err);
    self->step = 1;
    if (!rc && !said)
        rc = cb_fail(err, CB_ERR_UNSUPPORTED, "the first task has ended, or locks are not shared by the nodes");
    if (rc || said != GO)
        return rc;
    rc = read_plan(self, &plan, err);
    const struct limit_meeting meeting = {.meet = meet_as_member, .context = self};
    return rc || plan.own.writers == 0 ? rc : measure(self, &plan, &meeting, err);
}

/* Whether tasks on other nodes have joined. */
static bool has_several_nodes(const struct watch_nodes *self)
{
    DIR *entries = opendir(self->lines);
    bool has = false;
    for (struct dirent *entry; entries && !has && (entry = readdir(entries));)
        has = has_ending(entry->d_name) && !are_on_one_node(entry->d_name, self->task);
    if (entries)
        closedir(entries);
    return has;
}

void watch_nodes_measure(struct watch_nodes *self, const char *attempt)
{
    struct cb_err err;
    if (self->tasks < 2 || foreground_requests() > 0 || !experiment_bool(self->experiment, OPT_BASELINE) ||
        !has_several_nodes(self))
        return;
    self->leads = self->fd >= 0;
    if (!self->leads)
        self->fd = open_steps(attempt, O_RDONLY);
    if (self->fd >= 0 && (self->leads ? lead(self, &err) : follow(self, &err)))
        write_failure(self, &err);
}
