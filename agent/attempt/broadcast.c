/* Sends programs to the nodes by sbcast, and removes their folder there. */
#include "agent/attempt/broadcast.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/attempt/launch_nodes.h"
#include "agent/sent_programs.h"
#include "core/child.h"
#include "core/clock.h"
#include "core/path.h"
#include "core/process.h"
#include "run/cuda_plugin.h"

#define SEND_NS (300 * NS_PER_S) /* nodes may be slow to start their first step */
#define REMOVE_NS (10 * NS_PER_S)
#define ANSWER_MAX_BYTES (1 << 16)
#define POLL_MS 1000

static int run(const char *const *words, uint64_t timeout_ns, struct cb_err *err)
{
    const struct child_options options = {.argv = words, .stdin_fd = -1};
    struct buf said;
    buf_init(&said, ANSWER_MAX_BYTES);
    int rc = child_capture(&options, timeout_ns, &said, err);
    buf_release(&said);
    return rc;
}

/* Makes the folder on a node, and removes it when its input ends or Slurm ends the step: also what is sent after its
 * sender was killed goes away. `wait` and not a read, since a trap would wait for a command to end. */
static const char keeper_script[] =
    "d=$1; trap 'exit 1' TERM INT HUP; mkdir -m700 -- \"$d\" || { echo failed; exit 1; }; "
    "trap 'rm -rf -- \"$d\" || rm -rf -- \"$d\"' EXIT; echo ready; exec 3<&0; cat <&3 >/dev/null & wait";

/* Waits for a line of each node. Returns CB_ERR_SYSTEM if one failed or the step has ended. */
static int await_keepers(int lines_fd, unsigned long nodes)
{
    uint64_t deadline_ns = clock_monotonic_ns() + SEND_NS;
    bool failed = false;
    while (nodes > 0 && !failed && clock_monotonic_ns() < deadline_ns) {
        char text[256];
        struct pollfd wait = {.fd = lines_fd, .events = POLLIN};
        if (poll(&wait, 1, POLL_MS) <= 0)
            continue;
        ssize_t got = read(lines_fd, text, sizeof text);
        failed = got <= 0 || memchr(text, 'f', (size_t)got);
        for (ssize_t i = 0; i < got && !failed && nodes > 0; i++)
            nodes -= text[i] == '\n';
    }
    return nodes == 0 && !failed ? 0 : CB_ERR_SYSTEM;
}

/* Why the step failed: the last line of its stderr. */
static int explain(struct program_keeper *keeper, struct cb_err *err)
{
    struct buf out, errors;
    char last[256] = "no reply";
    buf_init(&out, ANSWER_MAX_BYTES);
    buf_init(&errors, ANSWER_MAX_BYTES);
    close(keeper->input_fd);
    keeper->input_fd = -1;
    int rc = child_read_pipes(keeper->pipes, clock_monotonic_ns() + REMOVE_NS, &out, &errors, true);
    keeper->pipes[0] = keeper->pipes[1] = -1; /* closed */
    while (errors.len > 0 && errors.data[errors.len - 1] == '\n')
        errors.data[--errors.len] = '\0';
    if (errors.len > 0) {
        const char *line = strrchr(errors.data, '\n');
        snprintf(last, sizeof last, "%s", line ? line + 1 : errors.data);
    }
    buf_release(&out);
    buf_release(&errors);
    (void)rc; /* a step that does not end has said why, too */
    return cb_fail(err, CB_ERR_SYSTEM, "%s", last);
}

/* On each node of the allocation, which may have more nodes than this run uses. */
static int start_keepers(struct attempt *attempt, struct cb_err *err)
{
    struct program_keeper *keeper = &attempt->keeper;
    const char *count = getenv("SLURM_JOB_NUM_NODES");
    const char *const words[] = {LAUNCH_BESIDE, "--chdir=/",           "--nodes", count, "--ntasks",
                                 count,         "--ntasks-per-node=1", "sh",      "-c",  keeper_script,
                                 "sh",          attempt->programs,     NULL};
    int input[2];
    if (!count)
        return cb_fail(err, CB_ERR_SYSTEM, "slurm.sbcast needs an allocation of Slurm (ckptbench submit)");
    if (pipe2(input, O_CLOEXEC) != 0)
        return cb_fail_errno(err, errno, "making a pipe");
    /* Not killed when we are: its input ends then, and it removes the folder. */
    const struct child_options options = {.argv = words, .stdin_fd = input[0], .death_signal = SIGCONT};
    int rc = child_start_piped(&keeper->step, &options, keeper->pipes, err);
    close(input[0]);
    if (rc) {
        close(input[1]);
        return rc;
    }
    keeper->input_fd = input[1];
    return await_keepers(keeper->pipes[0], strtoul(count, NULL, 10)) == 0 ? 0 : explain(keeper, err);
}

static bool find(const char *name, char path[PATH_MAX])
{
    if (strcmp(name, CUDA_PLUGIN_FILE) == 0)
        return cuda_plugin_find(path, PATH_MAX, NULL) == 0;
    return process_find_program(name, path);
}

static int send_all(const char *folder, bool in_image, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < SENT_PROGRAMS && !rc; i++) {
        char from[PATH_MAX], to[PATH_MAX];
        if (!find(sent_programs[i], from)) {
            if (i + 1 < SENT_PROGRAMS && !(i == SENT_WORKER && in_image))
                return cb_fail(err, CB_ERR_NOT_FOUND, "%s is neither beside ckptbench-agent nor in PATH",
                               sent_programs[i]);
            continue;
        }
        if (path_format(to, sizeof to, err, "%s/%s", folder, sent_programs[i]))
            return CB_ERR_USAGE;
        rc = run((const char *const[]){"sbcast", "--preserve", from, to, NULL}, SEND_NS, err);
    }
    return rc;
}

int broadcast_programs(struct attempt *attempt, struct cb_err *err)
{
    const char *parent = experiment_text(attempt->experiment, OPT_SLURM_SBCAST);
    if (!*parent || !attempt->nodes.slurm)
        return 0;
    const char *job = getenv("SLURM_JOB_ID"); /* the script of an array's task looks for a folder with its number */
    if (path_format(attempt->programs, sizeof attempt->programs, err, "%s/" SENT_FOLDER "%s-%u.%s", parent,
                    attempt->run, attempt->number, job ? job : ""))
        return CB_ERR_USAGE;
    int rc = start_keepers(attempt, err);
    if (!rc)
        rc = send_all(attempt->programs, *experiment_text(attempt->experiment, OPT_CONTAINER) != '\0', err);
    if (!rc && setenv("SLURM_WORKING_DIR", attempt->programs,
                      1)) /* for every later srun: our working folder does not exist there */
        rc = cb_fail_errno(err, errno, "setting a variable for srun");
    return rc ? cb_context(err, "sending the programs to %s of the nodes by sbcast (slurm.sbcast)", parent) : 0;
}

void broadcast_remove(struct attempt *attempt)
{
    struct program_keeper *keeper = &attempt->keeper;
    if (keeper->step.pid == 0)
        return;
    if (keeper->input_fd >= 0)
        close(keeper->input_fd);
    (void)!child_wait(&keeper->step, clock_monotonic_ns() + REMOVE_NS, NULL);
    child_end(&keeper->step, 0);
    for (int i = 0; i < 2; i++)
        if (keeper->pipes[i] >= 0)
            close(keeper->pipes[i]);
    *keeper = (struct program_keeper){0};
}
