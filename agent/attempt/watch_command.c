/* Starts the command with hooks in its PYTHONPATH, and ends the attempt as the command ended. */
#include "agent/attempt/watch_command.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/attempt/slurm_end.h"
#include "agent/attempt/watch_job.h"
#include "agent/attempt/watch_left.h"
#include "agent/attempt/watch_limit.h"
#include "agent/attempt/watch_lines.h"
#include "agent/attempt/watch_task.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/foreground.h"
#include "core/path.h"
#include "core/share_file.h"

#define LOOK_EVERY_NS (100 * NS_PER_MS)
#define BEAT_NS (5 * NS_PER_S)
#define REQUEST_NS NS_PER_S
#define LEAVE_GRACE_NS (15 * NS_PER_S) /* from SIGTERM to SIGKILL for the shell command and its processes */

/* Python finds our hooks before everything else; for programs that are not Python these variables mean nothing. */
int watch_environment_make(struct watch_environment *self, const char *folder, struct cb_err *err)
{
    const char *before = getenv("PYTHONPATH");
    char found[PATH_MAX], hooks[PATH_MAX];
    int rc = share_file_find("workload=watch", "watch/hooks/..", found, err);
    if (!rc && !realpath(found, hooks))
        rc = cb_fail_errno(err, errno, "looking for %s", found);
    if (!rc)
        rc = path_format(self->texts[0], sizeof self->texts[0], err, "CKPTBENCH_WATCH=%s", folder);
    if (!rc)
        rc = path_format(self->texts[1], sizeof self->texts[1], err, "PYTHONPATH=%s/hooks:%s/sitecustomize%s%s", hooks,
                         hooks, before && *before ? ":" : "", before ? before : "");
    for (size_t i = 0; i < WATCH_VARIABLES; i++)
        self->variables[i] = self->texts[i];
    self->variables[WATCH_VARIABLES] = NULL;
    return rc;
}

const char *watch_command_name(const char *const *command)
{
    const char *slash = strrchr(command[0], '/');
    return slash ? slash + 1 : command[0];
}

void watch_command_describe(const char *name, int status, char *text, size_t bytes)
{
    const struct child ended = {.exited = true, .status = status};
    char how[64];
    child_describe(&ended, how);
    if (status == 0)
        snprintf(text, bytes, "%s", "");
    else
        snprintf(text, bytes, "%s %s%s", name, WIFSIGNALED(status) ? "was " : "ended with ", how);
}

/* Why the shell command must end now; leaves the attempt undecided if it may continue. */
static void check_end(struct attempt *attempt, uint64_t limit_ns)
{
    const char *limit = experiment_text(attempt->experiment, OPT_TIMEOUT_RUN);
    if (getppid() != attempt->parent)
        attempt_decide(attempt, OUTCOME_CANCELLED, CB_ERR_ABORTED, "the controller that started this run died");
    else if (*attempt->signals > 0 || *attempt->time_is_up) {
        slurm_end_explain(attempt);
        if (*attempt->time_is_up)
            attempt_decide(attempt, OUTCOME_TIMEOUT, CB_ERR_TIMEOUT, "the job's time limit came near");
        attempt_decide(attempt, OUTCOME_CANCELLED, CB_ERR_ABORTED, "stopped on request");
    } else if (limit_ns && clock_monotonic_ns() - attempt->started_ns > limit_ns)
        attempt_decide(attempt, OUTCOME_TIMEOUT, CB_ERR_TIMEOUT, "the command took longer than timeout.run=%s", limit);
}

/* Slurm signals the processes of a job one after the other: the command may have ended before our signal comes. */
static void await_request(struct attempt *attempt, uint64_t limit_ns)
{
    uint64_t end_ns = clock_monotonic_ns() + REQUEST_NS;
    while (attempt->nodes.slurm && *attempt->signals == 0 && clock_monotonic_ns() < end_ns)
        clock_sleep_ns(LOOK_EVERY_NS / 10);
    check_end(attempt, limit_ns);
}

/* The progress is the heartbeat of an agent: without it `collect` takes the run for lost. */
static void beat(const struct attempt *attempt, uint64_t *last_ns)
{
    const struct progress progress = {.state = "running", .slowest_rank = -1};
    uint64_t now_ns = clock_monotonic_ns();
    if (*last_ns && now_ns - *last_ns < BEAT_NS)
        return;
    *last_ns = now_ns;
    if (progress_write(attempt->path.data, &progress, NULL) != 0)
        return; /* the next one may pass */
}

/* The measurement after a shell command, which is an agent's of its own: nobody holds the run's lock meanwhile. */
struct measuring {
    const struct attempt *attempt;
    uint64_t beat_ns;
};

static int look_around(void *context, struct cb_err *err)
{
    struct measuring *self = context;
    beat(self->attempt, &self->beat_ns);
    return *self->attempt->signals > 0 || *self->attempt->time_is_up
               ? cb_fail(err, CB_ERR_ABORTED, "stopped on request")
               : 0;
}

/* The shell command of command= and all its processes end with the run. */
static int run_shell(struct attempt *attempt, const char *const *variables, uint64_t limit_ns, struct cb_err *err)
{
    const char *const argv[] = {"/bin/sh", "-c", experiment_text(attempt->experiment, OPT_COMMAND), NULL};
    const struct child_options options = {
        .argv = argv, .environment = variables, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
    struct child command = {0};
    uint64_t beat_ns = 0;
    if (!*argv[2])
        return cb_fail(err, CB_ERR_USAGE,
                       "workload=watch needs command='torchrun …', or `ckptbench watch -- torchrun …`");
    attempt->nodes.slurm = getenv("SLURM_JOB_ID") != NULL;
    int rc = child_start(&command, &options, err);
    if (rc)
        return rc;
    while ((rc = child_wait(&command, clock_monotonic_ns() + LOOK_EVERY_NS, err)) == CB_ERR_TIMEOUT) {
        beat(attempt, &beat_ns);
        check_end(attempt, limit_ns);
        if (attempt->verdict.decided) {
            child_end(&command, *attempt->signals > 1 ? 0 : LEAVE_GRACE_NS);
            rc = 0;
            break;
        }
    }
    if (!rc && command.exited && command.status != 0)
        await_request(attempt, limit_ns);
    attempt->command_status = command.exited ? command.status : -1;
    return rc;
}

static int run_command(struct attempt *attempt, const char *folder, struct cb_err *err)
{
    uint64_t limit_ns = experiment_u64(attempt->experiment, OPT_TIMEOUT_RUN);
    struct watch_environment *environment = malloc(sizeof *environment);
    int rc = environment ? watch_environment_make(environment, folder, err) : alloc_fail(err, "for an environment");
    if (!rc)
        rc = attempt->command ? foreground_run(attempt->command, environment->variables, true, limit_ns,
                                               &attempt->command_status, err)
                              : run_shell(attempt, environment->variables, limit_ns, err);
    free(environment);
    return rc;
}

static void decide(struct attempt *attempt, const char *name, int requests)
{
    char text[256];
    watch_command_describe(name, attempt->command_status, text, sizeof text);
    if (foreground_passed_limit())
        attempt_decide(attempt, OUTCOME_TIMEOUT, CB_ERR_TIMEOUT, "the command took longer than timeout.run=%s: %s",
                       experiment_text(attempt->experiment, OPT_TIMEOUT_RUN), text);
    else if (attempt->command_status == 0)
        attempt_decide(attempt, OUTCOME_PASS, 0, "%s", "");
    else
        attempt_decide(attempt, requests > 0 ? OUTCOME_CANCELLED : OUTCOME_BENCHMARK_FAILED, CB_ERR_SYSTEM, "%s", text);
}

/* Reads the lines of the processes, and adds the device's limit if nobody wants the run over. */
static int read_lines(struct attempt *attempt, const char *folder, bool was_ended, struct cb_err *err)
{
    struct watch_summary summary = {0};
    struct cb_err why = {0};
    struct measuring measuring = {.attempt = attempt};
    const struct limit_look around = {look_around, &measuring}, *look = attempt->command ? NULL : &around;
    bool measures = experiment_bool(attempt->experiment, OPT_BASELINE) && !was_ended;
    bool on_nodes = measures && getenv("SLURM_JOB_ID") && watch_folder_has_others(folder);
    bool failed = on_nodes && watch_job_measure(attempt, folder, look, &why) != 0;
    int rc = watch_lines_read(attempt, folder, &summary, err);
    if (!rc && failed) /* our reason comes before what the tasks say when we have gone */
        snprintf(summary.limit.why, sizeof summary.limit.why, "%.590s", why.message);
    if (!rc && on_nodes) {
        watch_limit_remove_left(attempt, &summary);
        watch_limit_take(attempt, &summary);
    } else if (!rc && measures)
        watch_limit_measure(attempt, &summary, look);
    if (!rc)
        watch_left_note(folder, attempt->pages.page[0]);
    watch_summary_release(&summary);
    return rc;
}

void watch_command_run(struct attempt *attempt)
{
    const char *name = attempt->command ? watch_command_name(attempt->command) : "the command";
    char folder[PATH_MAX];
    struct cb_err err;
    int rc = watch_folder_path(attempt->path.data, folder, &err);
    if (!rc && mkdir(folder, 0777) < 0)
        rc = cb_fail_errno(&err, errno, "making the folder %s", folder);
    if (!rc)
        rc = run_command(attempt, folder, &err);
    int requests = foreground_requests();
    if (!rc)
        rc = read_lines(attempt, folder, attempt->verdict.decided || requests > 0 || foreground_passed_limit(), &err);
    if (rc)
        attempt_decide(attempt, rc == CB_ERR_USAGE ? OUTCOME_BENCHMARK_FAILED : OUTCOME_INFRASTRUCTURE, rc, "%s",
                       err.message);
    else {
        status_page_add_fact(attempt->pages.page[0], "watch.command", name);
        decide(attempt, name, requests);
    }
}
