/* A hold pool's job: keeps its allocation and starts the spool's runs in it, one after the other, each as a step of its
 * own; with slurm.sbcast it is led from here, and each run's agent is a child process that sends its programs. Requires
 * no controller. It wakes up when inotify reports a new file, and ten times a second, since inotify misses files from
 * other machines.
 *
 * The end (time, budget, `stop`, a signal) is recorded before the spool is emptied, and a controller that adds a run
 * checks for the end afterwards, so no run stays in a spool that is no longer read. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>

#include "agent/node/nodes.h"
#include "agent/pool/pool_job.h"
#include "core/child.h"
#include "core/clock.h"
#include "core/path.h"
#include "core/process.h"
#include "run/experiment.h"
#include "run/run_folder.h"
#include "run/spool.h"

#define LOOK_NS (100 * NS_PER_MS)
#define TELL_NS (10 * NS_PER_S)           /* between two heartbeats in the share */
#define WARN_NS (30 * NS_PER_S)           /* time before the pool's end at which the run is warned, at most */
#define LEAVE_NS (12 * NS_PER_S)          /* time for the agent of a terminated run to seal it */
#define LEAVE_SIGNALLED_NS (8 * NS_PER_S) /* the same if Slurm is about to kill this job */

struct hold {
    struct pool_job *job;
    uint64_t end_wall_ns;
    uint64_t told_ns;       /* time of the last heartbeat */
    bool runs;              /* a step is running */
    bool warned, cancelled; /* the signal sent to its agent */
    struct ticket ticket;
    struct child step;
    char program[PATH_MAX], node[256];
    int spool_watch; /* inotify on the spool; -1 if unavailable */
};

static int start_step(struct hold *self, struct cb_err *err)
{
    const struct pool_job *job = self->job;
    const char *const words[] = {"srun",       "--overlap",       "--nodes=1",      "--ntasks=1",
                                 "--nodelist", self->node,        "--mpi=none",     "--cpu-bind=none",
                                 "--mem=0",    "--quiet",         self->program,    "step",
                                 job->folder,  self->ticket.name, job->share.nodes, NULL};
    const char *const led_words[] = {self->program, "step", job->folder, self->ticket.name, job->share.nodes, NULL};
    char log[PATH_MAX];
    int log_fd = path_format(log, sizeof log, NULL, "%s/job.log", self->ticket.run_folder)
                     ? -1
                     : open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    const struct child_options options = {.argv = pool_job_is_led_here(job) ? led_words : words,
                                          .stdin_fd = -1,
                                          .stdout_fd = log_fd,
                                          .stderr_fd = log_fd};
    int rc = child_start(&self->step, &options, err);
    if (log_fd >= 0)
        close(log_fd);
    return rc;
}

/* Ends the ticket; keeps what the step wrote there: its number and its agent's process. */
static void finish(struct hold *self, uint64_t exit_status, const char *note)
{
    struct cb_err err;
    struct ticket known;
    if (spool_read_claimed(self->job->folder, self->ticket.name, &known, NULL) == 0)
        self->ticket = known;
    self->ticket.ended_wall_ns = clock_wall_ns();
    self->ticket.exit_status = exit_status;
    snprintf(self->ticket.note, sizeof self->ticket.note, "%s", note);
    if (spool_finish(self->job->folder, &self->ticket, &err))
        pool_job_log(self->job, "%s", err.message);
    pool_job_log(self->job, "run %s: step %s ended with exit status %" PRIu64 "%s%s", self->ticket.run,
                 self->ticket.step, exit_status, *note ? ": " : "", note);
    self->runs = self->warned = self->cancelled = false;
}

static void start_next(struct hold *self)
{
    char rejected[512];
    struct cb_err err;
    int rc = spool_claim(self->job->folder, &self->ticket, rejected, sizeof rejected, &err);
    if (*rejected)
        pool_job_log(self->job, "not started: %s", rejected);
    if (rc == CB_ERR_NOT_FOUND)
        return;
    if (rc) {
        pool_job_log(self->job, "%s", err.message);
        return;
    }
    snprintf(self->ticket.job, sizeof self->ticket.job, "%s", self->job->share.job);
    self->ticket.started_wall_ns = clock_wall_ns();
    self->step = (struct child){0};
    rc = spool_update(self->job->folder, &self->ticket, &err);
    if (rc == 0)
        rc = start_step(self, &err);
    if (rc)
        finish(self, 1, err.message);
    else
        self->runs = true;
}

/* The step's agent runs on this node; until it has recorded its process number it cannot be signalled. */
static bool tell_agent(struct hold *self, int number)
{
    struct ticket known;
    if (spool_read_claimed(self->job->folder, self->ticket.name, &known, NULL) || known.pid < 2)
        return false;
    return kill((pid_t)known.pid, number) == 0;
}

static void end_step(struct hold *self, const char *note)
{
    uint64_t leave_ns = *self->job->signals ? LEAVE_SIGNALLED_NS : LEAVE_NS;
    if (!self->runs)
        return;
    if (tell_agent(self, SIGTERM) && child_wait(&self->step, clock_monotonic_ns() + leave_ns, NULL) != 0)
        note = "its agent did not leave";
    child_end(&self->step, NS_PER_S);
    finish(self, self->step.exited && WIFEXITED(self->step.status) ? (uint64_t)WEXITSTATUS(self->step.status) : 1,
           note);
}

static void follow_step(struct hold *self)
{
    if (child_wait(&self->step, 0, NULL) == 0) {
        int status = self->step.status;
        finish(self, WIFEXITED(status) ? (uint64_t)WEXITSTATUS(status) : 128 + (uint64_t)WTERMSIG(status), "");
        return;
    }
    if (!self->cancelled && spool_is_cancelled(self->job->folder, self->ticket.run))
        self->cancelled = tell_agent(self, SIGTERM);
}

static const char *why_end(const struct hold *self, uint64_t now_wall_ns)
{
    if (pool_is_stopping(self->job->folder))
        return "stopped on request";
    if (pool_job_is_orphaned(self->job))
        return "salloc, which held its nodes, has died";
    if (*self->job->signals)
        return "Slurm ended its job";
    if (*self->job->time_is_up && now_wall_ns < self->end_wall_ns)
        return "the time limit that Slurm gave its job is near";
    if (now_wall_ns >= self->end_wall_ns)
        return self->end_wall_ns >= self->job->pool.expires_wall_ns ? "its time is over" : "its budget is used up";
    return NULL;
}

/* If Slurm restarts this job, another process seals the runs that it could not finish. */
static void leave(struct hold *self, const char *reason)
{
    char note[256];
    struct cb_err err;
    snprintf(note, sizeof note, "pool %s ended before this run was started: %.150s", self->job->pool.name, reason);
    pool_job_end(self->job, reason);
    if (spool_return_all(self->job->folder, note, &err))
        pool_job_log(self->job, "%s", err.message);
    end_step(self, reason);
}

static void look(struct hold *self)
{
    uint64_t now_wall_ns = clock_wall_ns(), now_ns = clock_monotonic_ns();
    struct cb_err err;
    if (now_ns - self->told_ns > TELL_NS) {
        self->told_ns = now_ns;
        if (pool_job_tell(self->job, false, &err))
            pool_job_log(self->job, "%s", err.message);
    }
    uint64_t quarter_ns = (self->end_wall_ns - self->job->share.began_wall_ns) / 4;
    bool near = now_wall_ns + (quarter_ns < WARN_NS ? quarter_ns : WARN_NS) >= self->end_wall_ns;
    if (self->runs && near && !self->warned)
        self->warned = tell_agent(self, SIGUSR1);
    if (self->runs)
        follow_step(self);
    if (!self->runs && !near)
        start_next(self);
}

/* Only a hint: nothing is lost if the system has no inotify watches left. */
static void watch_spool(struct hold *self)
{
    char path[PATH_MAX];
    self->spool_watch = -1;
    if (snprintf(path, sizeof path, "%s/spool", self->job->folder) >= (int)sizeof path)
        return;
    self->spool_watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (self->spool_watch >= 0 && inotify_add_watch(self->spool_watch, path, IN_MOVED_TO) < 0) {
        close(self->spool_watch);
        self->spool_watch = -1;
    }
}

static int prepare(struct hold *self, struct cb_err *err)
{
    struct pool_usage earlier;
    const char *node = getenv("SLURMD_NODENAME");
    struct pool_job *job = self->job;
    if (!process_own_path(self->program))
        return cb_fail_errno(err, errno, "finding this program's own path");
    snprintf(self->node, sizeof self->node, "%s", node ? node : "");
    int rc = pool_sum(&job->pool, job->folder, &earlier, err);
    if (rc)
        return rc;
    uint64_t own_ns = job->share.node_count * (job->share.seen_wall_ns - job->share.allocated_wall_ns);
    earlier.node_ns -= own_ns < earlier.node_ns ? own_ns : earlier.node_ns;
    self->end_wall_ns = pool_hold_end_wall_ns(&job->pool, &earlier, &job->share);
    if (self->end_wall_ns < job->share.began_wall_ns)
        self->end_wall_ns = job->share.began_wall_ns;
    if (earlier.failures >= POOL_MOST_FAILURES)
        return cb_fail(err, CB_ERR_SYSTEM, "%" PRIu64 " boots of its nodes have failed", earlier.failures);
    return spool_abandon_claimed(job->folder, "the pool's job was started again while this run was under way", err);
}

int hold_run(struct pool_job *job, struct cb_err *err)
{
    struct hold self = {.job = job, .spool_watch = -1};
    const char *reason;
    char text[512], events[4096];
    if (pool_has_ended(job->folder)) /* Slurm restarted the job after the pool's end */
        return 0;
    int rc = prepare(&self, err);
    if (rc) {
        snprintf(text, sizeof text, "%.500s", err->message);
        leave(&self, text);
        return rc;
    }
    watch_spool(&self);
    pool_job_log(job, "holds %s for %.0f s", job->share.nodes,
                 (double)(self.end_wall_ns - job->share.began_wall_ns) / (double)NS_PER_S);
    while (!(reason = why_end(&self, clock_wall_ns()))) {
        look(&self);
        if (self.runs && child_wait(&self.step, clock_monotonic_ns() + LOOK_NS, NULL) == 0)
            continue;
        struct pollfd ready = {.fd = self.spool_watch, .events = POLLIN};
        if (!self.runs)
            (void)poll(&ready, 1, (int)(LOOK_NS / NS_PER_MS)); /* without a watch this only sleeps */
        while (!self.runs && self.spool_watch >= 0 && read(self.spool_watch, events, sizeof events) > 0)
            continue;
    }
    if (self.spool_watch >= 0)
        close(self.spool_watch);
    leave(&self, reason);
    return 0;
}

/* Every nested srun would take the step's variables as its options. */
static void forget_step(const char *job_nodes)
{
    static const char *const kept[] = {"SLURM_CONF",          "SLURM_JOB_ID",       "SLURM_JOBID",
                                       "SLURM_JOB_PARTITION", "SLURM_CLUSTER_NAME", "SLURM_JOB_CPUS_PER_NODE",
                                       "SLURM_JOB_ACCOUNT",   "SLURM_JOB_UID",      "SLURM_JOB_USER",
                                       "SLURM_SUBMIT_DIR"};
    char name[128];
    for (size_t i = 0; environ[i];) {
        size_t len = strcspn(environ[i], "="), k = 0;
        snprintf(name, sizeof name, "%.*s", (int)(len < sizeof name ? len : sizeof name - 1), environ[i]);
        while (k < sizeof kept / sizeof *kept && strcmp(kept[k], name) != 0)
            k++;
        bool ours = strncmp(name, "SLURM_", 6) == 0 || strncmp(name, "PMI", 3) == 0;
        if (!ours || k < sizeof kept / sizeof *kept || unsetenv(name) != 0)
            i++;
    }
    setenv("SLURM_JOB_NODELIST", job_nodes, 1);
}

/* A run that does not ask for a number of nodes gets one, as in a job of its own, not all nodes of the pool. */
static int choose_nodes(const struct experiment *experiment, const char *job_nodes, struct cb_err *err)
{
    const char *node = getenv("SLURMD_NODENAME");
    bool one = experiment_u64(experiment, OPT_NODES) <= 1;
    struct nodes first;
    if (getenv("SLURM_STEP_ID")) {
        forget_step(one && node ? node : job_nodes);
        return 0;
    }
    int rc = one ? nodes_find(experiment, 1, &first, err) : 0;
    if (rc || !one)
        return rc;
    if (first.slurm)
        setenv(NODES_CHOSEN, first.name[0], 1);
    nodes_release(&first);
    return 0;
}

int hold_enter_step(const char *pool_folder, const char *name, const char *job_nodes, char run_folder[4096],
                    struct cb_err *err)
{
    struct ticket ticket;
    const char *step = getenv("SLURM_STEP_ID");
    struct experiment *experiment = NULL;
    int rc = spool_read_claimed(pool_folder, name, &ticket, err);
    if (rc == 0)
        rc = run_folder_read_experiment(ticket.run_folder, &experiment, err);
    if (rc)
        return rc;
    snprintf(ticket.step, sizeof ticket.step, "%s", step ? step : "");
    ticket.pid = (uint64_t)getpid();
    rc = spool_update(pool_folder, &ticket, err);
    if (rc == 0)
        rc = choose_nodes(experiment, job_nodes, err);
    experiment_free(experiment);
    if (rc == 0)
        snprintf(run_folder, SPOOL_PATH_BYTES, "%s", ticket.run_folder);
    return rc;
}
