#include "agent/attempt/watch_join.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/attempt/watch_command.h"
#include "agent/attempt/watch_lines.h"
#include "agent/attempt/watch_nodes.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/foreground.h"
#include "core/json.h"
#include "core/path.h"
#include "core/process.h"

#define LINE_BYTES 4096
#define LOCK_NS (60 * NS_PER_S)
#define LOOK_NS (20 * NS_PER_MS)
#define PROBE_GRACE_NS (3 * NS_PER_S)
#define NOT_STARTED (127 << 8) /* exit status 127, as a shell reports it */

/* A task: its attempt, the shared lock of the run's folder, and its file of lines. */
struct task {
    char attempt[PATH_MAX], folder[PATH_MAX], host[PROCESS_NODE_BYTES];
    int lock_fd, lines_fd, limit_fd;
    bool has_created;
};

/* *number: of the last attempt, 0 if none has begun. CB_ERR_EXISTS if it is sealed. */
static int find_attempt(struct task *self, const char *run_folder, uint32_t *number, struct cb_err *err)
{
    struct manifest manifest;
    int rc = run_folder_last_attempt(run_folder, number, err);
    if (rc || *number == 0)
        return rc;
    rc = path_format(self->attempt, sizeof self->attempt, err, "%s/attempts/%" PRIu32, run_folder, *number);
    if (!rc)
        rc = watch_folder_path(self->attempt, self->folder, err);
    if (!rc && manifest_read(self->attempt, &manifest, NULL) != CB_ERR_NOT_FOUND)
        rc = cb_fail(err, CB_ERR_EXISTS, "run %s has ended already: give the next one another name",
                     strrchr(run_folder, '/') + 1);
    return rc;
}

/* With the folder locked alone, so that one task creates the attempt. */
static int create_attempt(struct task *self, const char *run_folder, struct cb_err *err)
{
    struct buf path;
    uint32_t number;
    int rc = find_attempt(self, run_folder, &number, err);
    if (rc || number > 0)
        return rc;
    buf_init(&path, PATH_MAX);
    rc = run_folder_new_attempt(run_folder, &number, &path, err);
    if (!rc)
        rc = watch_folder_path(path.data, self->folder, err);
    if (!rc && mkdir(self->folder, 0777) < 0)
        rc = cb_fail_errno(err, errno, "making the folder %s", self->folder);
    if (!rc)
        watch_nodes_lead(path.data, &self->limit_fd);
    buf_release(&path);
    self->has_created = rc == 0;
    return rc;
}

static void unlock(struct task *self)
{
    if (self->lock_fd >= 0)
        close(self->lock_fd);
    self->lock_fd = -1;
}

/* Others hold it for moments, except a program that runs or seals the run: the command must not wait for that. */
static int wait_for_lock(const char *run_folder, bool is_shared, int *fd, struct cb_err *err)
{
    uint64_t end_ns = clock_monotonic_ns() + LOCK_NS;
    for (;;) {
        *fd = -1;
        int rc = is_shared ? run_folder_share_lock(run_folder, fd, err) : run_folder_lock(run_folder, fd, err);
        if (rc || *fd >= 0)
            return rc;
        if (clock_monotonic_ns() > end_ns)
            return cb_fail(err, CB_ERR_TIMEOUT, "run %s is locked by another program", strrchr(run_folder, '/') + 1);
        clock_sleep_ns(LOOK_NS);
    }
}

/* Afterwards the folder is locked shared, and the attempt is there. */
static int enter(struct task *self, const char *run_folder, struct cb_err *err)
{
    uint32_t number = 0;
    for (;;) {
        int rc = wait_for_lock(run_folder, true, &self->lock_fd, err);
        if (!rc)
            rc = find_attempt(self, run_folder, &number, err);
        if (rc || number > 0)
            return rc;
        unlock(self);
        rc = wait_for_lock(run_folder, false, &self->lock_fd, err);
        if (!rc)
            rc = create_attempt(self, run_folder, err);
        unlock(self);
        if (rc)
            return rc;
    }
}

static int open_lines(struct task *self, struct cb_err *err)
{
    char path[PATH_MAX];
    process_node_name(self->host);
    int rc =
        path_format(path, sizeof path, err, "%s/%s-%d%s", self->folder, self->host, (int)getpid(), WATCH_TASK_ENDING);
    if (rc)
        return rc;
    self->lines_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    return self->lines_fd < 0 ? cb_fail_errno(err, errno, "creating %s", path) : 0;
}

static int write_line(struct task *self, struct json_writer *json, struct cb_err *err)
{
    json_write_end_object(json);
    buf_append_char(json->out, '\n');
    int rc = buf_check(json->out, "a line of a task", err);
    if (!rc && !fd_write_all(self->lines_fd, json->out->data, json->out->len))
        rc = cb_fail_errno(err, errno, "writing to a file in %s", self->folder);
    return rc;
}

static int write_begin(struct task *self, uint32_t tasks, const char *name, struct cb_err *err)
{
    struct buf line;
    struct json_writer json;
    buf_init(&line, LINE_BYTES);
    json_writer_init(&json, &line, 0);
    json_write_begin_object(&json);
    json_member_text(&json, "op", "task");
    json_member_u64(&json, "tasks", tasks);
    json_member_text(&json, "command", name);
    json_member_u64(&json, "start_ns", clock_wall_ns());
    int rc = write_line(self, &json, err);
    buf_release(&line);
    return rc;
}

static int write_end(struct task *self, const char *name, int status, struct cb_err *err)
{
    char how[256];
    struct buf line;
    struct json_writer json;
    watch_command_describe(name, status, how, sizeof how);
    size_t used = strlen(how);
    if (used)
        snprintf(how + used, sizeof how - used, " on %s", self->host);
    buf_init(&line, LINE_BYTES);
    json_writer_init(&json, &line, 0);
    json_write_begin_object(&json);
    json_member_text(&json, "op", "task_end");
    json_member_text(&json, "failure", how);
    json_member_bool(&json, "asked", foreground_requests() > 0);
    json_member_bool(&json, "late", foreground_passed_limit());
    json_member_u64(&json, "end_ns", clock_wall_ns());
    int rc = write_line(self, &json, err);
    buf_release(&line);
    return rc;
}

/* The machine of the first task stands for all. A missing fingerprint invalidates no result. */
static void describe_machine(const struct task *self)
{
    struct probe *probe = NULL;
    if (self->has_created && probe_start(self->attempt, "", &probe, NULL) == 0)
        (void)!probe_finish(probe, clock_monotonic_ns() + PROBE_GRACE_NS, NULL);
}

/* The device's limit, if the tasks run on several nodes. */
static void measure_limit(const struct task *self, const char *run, const struct experiment *experiment, uint32_t tasks)
{
    struct watch_nodes nodes = {.run = run,
                                .lines = self->folder,
                                .experiment = experiment,
                                .lines_fd = self->lines_fd,
                                .tasks = tasks,
                                .fd = self->limit_fd};
    snprintf(nodes.task, sizeof nodes.task, "%s-%d" WATCH_TASK_ENDING, self->host, (int)getpid());
    watch_nodes_measure(&nodes, self->attempt);
    if (nodes.fd >= 0 && nodes.fd != self->limit_fd)
        close(nodes.fd);
}

int watch_join(const char *run_folder, uint32_t tasks, const char *const *command, int *status, struct cb_err *err)
{
    struct task self = {.lock_fd = -1, .lines_fd = -1, .limit_fd = -1};
    struct watch_environment *environment = malloc(sizeof *environment);
    const char *name = watch_command_name(command);
    struct experiment *experiment = NULL;
    char absolute[PATH_MAX];
    *status = -1;
    int rc = environment ? 0 : alloc_fail(err, "for an environment");
    if (!rc && !realpath(run_folder, absolute))
        rc = cb_fail_errno(err, errno, "looking for %s", run_folder);
    if (!rc)
        rc = run_folder_read_experiment(absolute, &experiment, err);
    if (!rc)
        rc = enter(&self, absolute, err);
    if (!rc)
        rc = open_lines(&self, err);
    if (!rc)
        rc = watch_environment_make(environment, self.folder, err);
    if (!rc)
        rc = write_begin(&self, tasks, name, err);
    if (!rc) {
        describe_machine(&self);
        rc = foreground_run(command, environment->variables, true, experiment_u64(experiment, OPT_TIMEOUT_RUN), status,
                            err);
        if (rc)
            *status = NOT_STARTED;
        if (write_end(&self, name, *status, rc ? NULL : err) && !rc) /* also then: nobody must wait for this task */
            rc = CB_ERR_SYSTEM;
        if (!rc && *status == 0)
            measure_limit(&self, strrchr(absolute, '/') + 1, experiment, tasks);
    }
    if (self.limit_fd >= 0)
        close(self.limit_fd);
    if (self.lines_fd >= 0)
        close(self.lines_fd);
    unlock(&self);
    experiment_free(experiment);
    free(environment);
    return rc;
}
