/* Leads the runs of a job array whose nodes have no programs: each task of the array only holds its nodes, and its run's
 * agent is a child process here (jobs/slurm/job_script.c has the other side). Follows the tasks by squeue until none is
 * left. */
#include "agent/pool/array_lead.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/child.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/path.h"
#include "core/process.h"

#define MOST_TASKS 4096
#define LOOK_NS NS_PER_S
#define COMMAND_NS (30 * NS_PER_S)
#define SILENCE_NS (600 * NS_PER_S) /* without a reply of Slurm, and without a run */
#define TEXT_MAX_BYTES (4 << 20)

struct task {
    struct child agent;
    char job[32];        /* the task's own number */
    bool started, ended; /* the agent */
    bool passed, told;   /* the run has passed; its agent was asked to end */
    bool runs;           /* in Slurm's last reply */
};

struct array {
    const char *links, *job; /* FIRST/array, "4711" */
    const char *name;        /* the job's; a Slurm that has lost its state gives numbers again */
    struct task *tasks;      /* MOST_TASKS of them */
    size_t running;          /* agents */
    char program[PATH_MAX];
};

static int ask(const char *const *argv, struct buf *answer)
{
    const struct child_options options = {.argv = argv, .stdin_fd = -1};
    buf_clear(answer);
    return child_capture(&options, COMMAND_NS, answer, NULL);
}

/* The agent finds the task's allocation where salloc would leave it. Its log is that of the task. */
static void start_agent(struct array *self, size_t index, const char *nodes, const char *count)
{
    struct task *task = &self->tasks[index];
    char folder[PATH_MAX], log[PATH_MAX], texts[7][64 + 4096];
    const char *const argv[] = {self->program, "run", folder, NULL};
    const char *const environment[] = {texts[0], texts[1], texts[2], texts[3], texts[4], texts[5], texts[6], NULL};
    struct cb_err err;
    snprintf(texts[0], sizeof texts[0], "SLURM_JOB_ID=%s", task->job);
    snprintf(texts[1], sizeof texts[1], "SLURM_JOBID=%s", task->job);
    snprintf(texts[2], sizeof texts[2], "SLURM_ARRAY_JOB_ID=%s", self->job);
    snprintf(texts[3], sizeof texts[3], "SLURM_JOB_NUM_NODES=%s", count);
    snprintf(texts[4], sizeof texts[4], "SLURM_NNODES=%s", count);
    snprintf(texts[5], sizeof texts[5], "SLURM_JOB_NODELIST=%s", nodes);
    snprintf(texts[6], sizeof texts[6], "SLURM_JOB_NAME=%s", self->name);
    int rc = path_format(folder, sizeof folder, &err, "%s/%zu", self->links, index);
    if (rc == 0)
        rc = path_format(log, sizeof log, &err, "%s/../job.log.%zu", self->links, index);
    int fd = rc ? -1 : open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    const struct child_options options = {
        .argv = argv, .environment = environment, .stdin_fd = -1, .stdout_fd = fd, .stderr_fd = fd};
    if (rc == 0)
        rc = child_start(&task->agent, &options, &err);
    if (fd >= 0)
        close(fd);
    task->started = true;
    task->ended = rc != 0;
    self->running += rc == 0;
    if (rc)
        log_error("task %zu of job %s: %s", index, self->job, err.message);
}

/* A task's script waits to hear how its run has ended. The last task of an array has the array's own number, which would
 * mean all of its tasks; with the index it means one. */
static void end_task(const struct array *self, const struct task *task, struct buf *answer)
{
    char name[64];
    const char *signal = task->passed ? "--signal=USR2" : "--signal=HUP";
    snprintf(name, sizeof name, "%s_%zu", self->job, (size_t)(task - self->tasks));
    (void)!ask((const char *const[]){"scancel", "-Q", "--batch", signal, name, NULL}, answer);
}

/* Takes Slurm's lines: "K|STATE|NUMBER|NAME|NODES|LIST". Returns how many tasks are waiting or running. Tasks of
 * another job that has our number now do not count. */
static size_t take_lines(struct array *self, const char *text)
{
    size_t alive = 0;
    for (size_t i = 0; i < MOST_TASKS; i++)
        self->tasks[i].runs = false;
    for (const char *line = text; *line; line += strcspn(line, "\n") + (line[strcspn(line, "\n")] == '\n')) {
        size_t index;
        char state[32], job[32], name[256], count[16], nodes[4096] = "";
        if (sscanf(line, "%zu|%31[A-Z_]|%31[0-9]|%255[^|\n]|%15[0-9]|%4095[^\n]", &index, state, job, name, count,
                   nodes) < 5 ||
            index >= MOST_TASKS || strcmp(name, self->name) != 0)
            continue;
        struct task *task = &self->tasks[index];
        bool waits = strcmp(state, "PENDING") == 0 || strcmp(state, "CONFIGURING") == 0 ||
                     strcmp(state, "SUSPENDED") == 0 || strcmp(state, "STOPPED") == 0;
        task->runs = strcmp(state, "RUNNING") == 0 || (task->started && waits);
        alive += waits || task->runs;
        if (task->started || !task->runs || !*nodes)
            continue;
        if (strlen(nodes) == sizeof nodes - 1) { /* cut: its script gives the nodes back */
            log_error("task %zu of job %s: its list of nodes is too long", index, self->job);
            task->started = task->ended = true;
            continue;
        }
        snprintf(task->job, sizeof task->job, "%s", job);
        start_agent(self, index, nodes, count);
    }
    return alive;
}

static void follow_task(struct array *self, struct task *task, bool answered, struct buf *answer)
{
    if (!task->ended && child_wait(&task->agent, 0, NULL) == 0) {
        task->ended = true;
        task->passed = WIFEXITED(task->agent.status) && WEXITSTATUS(task->agent.status) == 0;
        self->running--;
    }
    if (task->ended && answered && task->runs) /* again if Slurm did not hear it */
        end_task(self, task, answer);
    else if (!task->ended && answered && !task->runs && !task->told)
        task->told = kill(task->agent.pid, SIGTERM) == 0;
}

static void lead(struct array *self, const volatile sig_atomic_t *signals, struct buf *answer)
{
    const char *const look[] = {"squeue", "-h", "-a", "-r", "-j", self->job, "-t", "all", "-o", "%K|%T|%A|%j|%D|%N",
                                NULL};
    const char *const cancel[] = {"scancel", "-Q", self->job, NULL};
    uint64_t heard_ns = clock_monotonic_ns();
    size_t alive = 1;
    bool asked = false;
    while (self->running || (alive && clock_monotonic_ns() - heard_ns < SILENCE_NS)) {
        bool answered = ask(look, answer) == 0;
        if (answered) {
            heard_ns = clock_monotonic_ns();
            alive = take_lines(self, answer->data);
        }
        if (*signals && !asked && answered && alive)
            asked = ask(cancel, answer) == 0;
        for (size_t i = 0; i < MOST_TASKS; i++)
            if (self->tasks[i].started)
                follow_task(self, &self->tasks[i], answered, answer);
        if (self->running || alive)
            clock_sleep_ns(LOOK_NS);
    }
}

int array_lead(const char *links, const char *job, const char *name, const volatile sig_atomic_t *signals,
               struct cb_err *err)
{
    struct array self = {.links = links, .job = job, .name = name, .tasks = calloc(MOST_TASKS, sizeof *self.tasks)};
    struct buf answer;
    if (!self.tasks)
        return alloc_fail(err, "for the tasks of an array");
    buf_init(&answer, TEXT_MAX_BYTES);
    int rc =
        process_own_path(self.program) ? 0 : cb_fail(err, CB_ERR_SYSTEM, "this program does not find its own path");
    if (rc == 0)
        lead(&self, signals, &answer);
    buf_release(&answer);
    free(self.tasks);
    return rc;
}
