#include "agent/attempt/watch_job.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/attempt/launch_nodes.h"
#include "agent/attempt/watch_nodes.h"
#include "core/clock.h"
#include "core/foreground.h"
#include "core/path.h"
#include "core/process.h"

#define END_NS (150 * NS_PER_S) /* for tasks to end once all have begun their last measurement */
#define GRACE_NS (5 * NS_PER_S) /* for tasks to remove their files */
#define LOOK_NS (100 * NS_PER_MS)
#define LOG_MAX_BYTES (1 << 20)

struct step {
    const struct attempt *attempt;
    const struct limit_look *look; /* may be NULL */
    struct child child;
    char log[PATH_MAX];
};

static int look_around(const struct step *self, struct cb_err *err)
{
    if (foreground_requests() > 0)
        return cb_fail(err, CB_ERR_ABORTED, "stopped on request");
    return self->look ? self->look->look(self->look->context, err) : 0;
}

/* The tasks that are waited for will not come if their step has ended. */
static int may_wait(void *context, struct cb_err *err)
{
    struct step *self = context;
    char line[200];
    struct buf text;
    int rc = look_around(self, err);
    if (rc || child_wait(&self->child, 0, NULL) != 0)
        return rc;
    buf_init(&text, LOG_MAX_BYTES);
    bool good = buf_read_file(&text, self->log, NULL) == 0;
    text_last_line(good ? text.data : "", "", line, sizeof line);
    buf_release(&text);
    return cb_fail(err, CB_ERR_SYSTEM, "the tasks that measure have ended%s%s", *line ? ": " : "", line);
}

static int start(struct step *self, const struct nodes *nodes, struct cb_err *err)
{
    char program[PATH_MAX], number[16];
    snprintf(number, sizeof number, "%u", self->attempt->number);
    const char *const words[] = {program, "limit", self->attempt->run_folder, number, NULL};
    if (!process_own_path(program))
        return cb_fail_errno(err, errno, "finding this program's own path");
    int rc = path_format(self->log, sizeof self->log, err, "%s/logs/limit.log", self->attempt->path.data);
    if (rc)
        return rc;
    int log_fd = open(self->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    const struct child_options options = {.argv = words, .stdin_fd = -1, .stdout_fd = log_fd, .stderr_fd = log_fd};
    if (log_fd < 0)
        return cb_fail_errno(err, errno, "creating %s", self->log);
    rc = launch_on_each(nodes, true, &options, &self->child, err);
    close(log_fd);
    return rc;
}

static int await_end(struct step *self, struct cb_err *err)
{
    uint64_t end_ns = clock_monotonic_ns() + END_NS;
    int rc = 0;
    while (!rc && child_wait(&self->child, clock_monotonic_ns() + LOOK_NS, NULL) != 0) {
        rc = look_around(self, err);
        if (!rc && clock_monotonic_ns() > end_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "the tasks that measure did not end");
    }
    return rc;
}

int watch_job_measure(struct attempt *attempt, const char *lines, const struct limit_look *look, struct cb_err *err)
{
    struct nodes nodes = {.own = -1};
    struct step step = {.attempt = attempt, .look = look};
    struct watch_nodes leader = {.run = attempt->run,
                                 .attempt = attempt->path.data,
                                 .lines = lines,
                                 .experiment = attempt->experiment,
                                 .fd = watch_nodes_lock(attempt->path.data),
                                 .may_wait = may_wait,
                                 .context = &step};
    int rc = leader.fd < 0 ? cb_fail_errno(err, errno, "locking a file in %s", attempt->path.data)
                           : nodes_find(attempt->experiment, UINT32_MAX, &nodes, err);
    if (!rc && !nodes.slurm)
        rc = cb_fail(err, CB_ERR_UNSUPPORTED, "the command ran on other machines than this one");
    if (!rc)
        rc = start(&step, &nodes, err);
    leader.tasks = nodes.count;
    if (!rc)
        rc = watch_nodes_lead(&leader, err);
    if (!rc)
        rc = await_end(&step, err);
    if (leader.fd >= 0)
        close(leader.fd); /* from here on, no task waits for us */
    child_end(&step.child, GRACE_NS);
    nodes_release(&nodes);
    return rc;
}

int watch_job_take_part(const char *run_folder, const char *attempt, struct cb_err *err)
{
    struct watch_task task = {.fd = -1};
    struct experiment *experiment = NULL;
    char path[PATH_MAX], lines[PATH_MAX];
    const char *slash = strrchr(run_folder, '/');
    foreground_catch(false); /* files of the measurement are removed */
    int rc = run_folder_read_experiment(run_folder, &experiment, err);
    if (!rc)
        rc = path_format(path, sizeof path, err, "%s/attempts/%s", run_folder, attempt);
    if (!rc)
        rc = watch_folder_path(path, lines, err);
    if (!rc)
        rc = watch_task_open(&task, lines, err);
    if (!rc) {
        struct watch_nodes nodes = {.run = slash ? slash + 1 : run_folder,
                                    .attempt = path,
                                    .lines = lines,
                                    .experiment = experiment,
                                    .task = &task,
                                    .fd = -1};
        watch_nodes_take_part(&nodes);
    }
    watch_task_close(&task);
    experiment_free(experiment);
    return rc;
}
