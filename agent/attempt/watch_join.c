#include "agent/attempt/watch_join.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/attempt/watch_command.h"
#include "agent/attempt/watch_nodes.h"
#include "agent/attempt/watch_task.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/foreground.h"
#include "core/path.h"

#define LOCK_NS (60 * NS_PER_S)
#define LOOK_NS (20 * NS_PER_MS)
#define PROBE_GRACE_NS (3 * NS_PER_S)
#define NOT_STARTED (127 << 8) /* exit status 127, as a shell reports it */

/* A task: its attempt, the shared lock of the run's folder, and its file of lines. */
struct task {
    char attempt[PATH_MAX], folder[PATH_MAX];
    struct watch_task lines;
    int lock_fd, limit_fd;
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
        self->limit_fd = watch_nodes_lock(path.data);
    buf_release(&path);
    self->has_created = rc == 0;
    return rc;
}

static void unlock(struct task *self)
{
    run_folder_unlock(self->lock_fd);
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

static int write_begin(struct watch_task *lines, uint32_t tasks, const char *name, struct cb_err *err)
{
    struct json_writer *json = watch_task_begin(lines, "task");
    json_member_u64(json, "tasks", tasks);
    json_member_text(json, "command", name);
    json_member_u64(json, "start_ns", clock_wall_ns());
    return watch_task_end(lines, err);
}

static int write_end(struct watch_task *lines, const char *name, int status, struct cb_err *err)
{
    char how[256];
    watch_command_describe(name, status, how, sizeof how);
    size_t used = strlen(how);
    if (used)
        snprintf(how + used, sizeof how - used, " on %s", lines->host);
    struct json_writer *json = watch_task_begin(lines, "task_end");
    json_member_text(json, "failure", how);
    json_member_bool(json, "asked", foreground_requests() > 0);
    json_member_bool(json, "late", foreground_passed_limit());
    json_member_u64(json, "end_ns", clock_wall_ns());
    return watch_task_end(lines, err);
}

/* The machine of the first task stands for all. A missing fingerprint invalidates no result. */
static void describe_machine(const struct task *self)
{
    struct probe *probe = NULL;
    if (self->has_created && probe_start(self->attempt, "", &probe, NULL) == 0)
        (void)!probe_finish(probe, clock_monotonic_ns() + PROBE_GRACE_NS, NULL);
}

/* The device's limit, if the tasks run on several nodes. */
static void measure_limit(struct task *self, const char *run, const struct experiment *experiment, uint32_t tasks)
{
    struct watch_nodes nodes = {.run = run,
                                .attempt = self->attempt,
                                .lines = self->folder,
                                .experiment = experiment,
                                .task = &self->lines,
                                .tasks = tasks,
                                .fd = self->limit_fd};
    if (tasks > 1 && foreground_requests() == 0 && experiment_bool(experiment, OPT_BASELINE) &&
        watch_folder_has_others(self->folder))
        watch_nodes_take_part(&nodes);
}

int watch_join(const char *run_folder, uint32_t tasks, const char *const *command, int *status, struct cb_err *err)
{
    struct task self = {.lock_fd = -1, .lines = {.fd = -1}, .limit_fd = -1};
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
        rc = watch_task_open(&self.lines, self.folder, err);
    if (!rc)
        rc = watch_environment_make(environment, self.folder, err);
    if (!rc)
        rc = write_begin(&self.lines, tasks, name, err);
    if (!rc) {
        describe_machine(&self);
        rc = foreground_run(command, environment->variables, true, experiment_u64(experiment, OPT_TIMEOUT_RUN), status,
                            err);
        if (rc)
            *status = NOT_STARTED;
        if (write_end(&self.lines, name, *status, rc ? NULL : err) &&
            !rc) /* also then: nobody must wait for this task */
            rc = CB_ERR_SYSTEM;
        if (!rc && *status == 0)
            measure_limit(&self, strrchr(absolute, '/') + 1, experiment, tasks);
    }
    if (self.limit_fd >= 0)
        close(self.limit_fd);
    watch_task_close(&self.lines);
    unlock(&self);
    experiment_free(experiment);
    free(environment);
    return rc;
}
