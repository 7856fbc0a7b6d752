/* Launches ranks with mpirun, or one rank without a launcher, and ends them. */
#include "agent/attempt/launch_ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/attempt/launch_nodes.h"
#include "agent/attempt/mpi_launcher.h"
#include "agent/attempt/node_peers.h"
#include "core/clock.h"
#include "core/path.h"
#include "core/process.h"
#include "core/procfs.h"
#include "core/version.h"
#include "run/container.h"

#define TOOL_TIMEOUT_NS (10 * NS_PER_S)
#define POLL_NS (5 * NS_PER_MS)
#define KILL_BOUND_NS (2 * NS_PER_S)

/* The worker next to this program, or at its path on the ranks' nodes; a container image has its own. */
static int find_worker(const struct attempt *attempt, struct worker *worker, struct cb_err *err)
{
    struct container *container = &worker->container;
    int rc = container_parse(experiment_text(attempt->experiment, OPT_CONTAINER), container, err);
    if (rc == 0 && container->count > 0)
        snprintf(worker->path, sizeof worker->path, "ckptbench-worker");
    else if (rc == 0 && *attempt->programs)
        snprintf(worker->path, sizeof worker->path, "%s/ckptbench-worker", attempt->programs);
    else if (rc == 0 && !process_find_program("ckptbench-worker", worker->path))
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "ckptbench-worker is neither beside ckptbench-agent nor in PATH");
    memcpy(worker->words, container->words, container->count * sizeof *worker->words);
    worker->words[container->count] = worker->path;
    worker->words[container->count + 1] = NULL;
    return rc;
}

/* Whether srun may have to start the ranks. */
static bool may_use_srun(const struct attempt *attempt)
{
    const struct experiment *experiment = attempt->experiment;
    return experiment_is(experiment, OPT_LAUNCHER, "srun") ||
           (nodes_are_remote(&attempt->nodes) && attempt->nodes.slurm &&
            !experiment_is(experiment, OPT_LAUNCHER, "mpirun"));
}

void launch_ask_ahead(struct attempt *attempt)
{
    int fd = may_use_srun(attempt) ? memfd_create("mpi-list", MFD_CLOEXEC) : -1;
    const struct child_options options = {
        .argv = (const char *const[]){"srun", "--mpi=list", NULL}, .stdin_fd = -1, .stdout_fd = fd, .stderr_fd = fd};
    if (fd < 0)
        return;
    if (child_start(&attempt->mpi_list, &options, NULL) == 0)
        attempt->mpi_list_fd = fd;
    else
        close(fd);
}

static void end_question(struct attempt *attempt)
{
    if (attempt->mpi_list.pid == 0)
        return;
    child_end(&attempt->mpi_list, 0);
    close(attempt->mpi_list_fd);
    attempt->mpi_list = (struct child){0};
}

/* srun can start ranks only with the plugin that their MPI needs; without it, mpirun lets srun start its daemons. */
static bool srun_has_plugin(struct attempt *attempt)
{
    char text[4096] = "";
    if (attempt->mpi_list.pid == 0)
        return false;
    bool ended = child_wait(&attempt->mpi_list, clock_monotonic_ns() + TOOL_TIMEOUT_NS, NULL) == 0;
    ssize_t len = ended ? pread(attempt->mpi_list_fd, text, sizeof text - 1, 0) : 0;
    bool found = len > 0 && attempt->mpi_list.status == 0 && strstr(text, mpi_launcher()->srun_type);
    end_question(attempt);
    return found;
}

/* mpirun starts several ranks; srun those of an allocation of several nodes, if it has PMIx. */
static int choose_launcher(struct attempt *attempt, struct cb_err *err)
{
    const struct experiment *experiment = attempt->experiment;
    bool wants_srun = experiment_is(experiment, OPT_LAUNCHER, "srun");
    if (experiment_is(experiment, OPT_LAUNCHER, "none") && attempt->ranks > 1)
        return cb_fail(err, CB_ERR_USAGE, "launcher=none starts one rank, not %u: use launcher=mpirun", attempt->ranks);
    if (may_use_srun(attempt)) {
        bool has_plugin = srun_has_plugin(attempt);
        if (wants_srun && !has_plugin)
            return cb_fail(err, CB_ERR_UNSUPPORTED,
                           "launcher=srun: this Slurm has no %s, which %s needs (srun --mpi=list); use launcher=mpirun",
                           mpi_launcher()->srun_type, mpi_launcher()->name);
        attempt->launcher_name = has_plugin ? "srun" : "mpirun";
    } else if (attempt->peers || attempt->ranks > 1 || experiment_is(experiment, OPT_LAUNCHER, "mpirun")) {
        attempt->launcher_name = "mpirun";
    }
    attempt->has_launcher = attempt->launcher_name != NULL;
    return 0;
}

static int start_here(struct attempt *attempt, const struct worker *worker, int log_fd, struct cb_err *err)
{
    const struct mpi_launcher *mpi = mpi_launcher();
    char number[16], ranks[16];
    struct mpi_variables variables = {.folder = attempt->pages.folder};
    snprintf(number, sizeof number, "%u", attempt->number);
    snprintf(ranks, sizeof ranks, "%u", attempt->ranks);
    const char *const told[] = {"--run-folder",        attempt->run_folder, "--attempt",    number, "--pages",
                                attempt->pages.folder, "--release",         version_text(), NULL};
    struct command_line line = {0};
    if (attempt->has_launcher) {
        command_line_add(&line, mpi->words);
        command_line_add(&line, (const char *const[]){"-n", ranks, NULL});
    }
    command_line_add(&line, worker->words);
    command_line_add(&line, told);
    command_line_add_adapter(&line, attempt->experiment);
    int rc = mpi_variables_add(&variables, mpi->always, err);
    if (!rc)
        rc = mpi_variables_add(&variables, mpi->one_node, err);
    /* If we are killed, nobody can repeat a SIGTERM that mpirun misses. The ranks exit by themselves when mpirun is
     * gone. */
    struct child_options options = {.argv = line.words,
                                    .environment = (const char *const *)variables.text,
                                    .stdin_fd = -1,
                                    .stdout_fd = log_fd,
                                    .stderr_fd = log_fd,
                                    .death_signal = attempt->has_launcher ? SIGKILL : 0};
    if (!rc)
        rc = child_start(&attempt->launcher, &options, err);
    if (rc == CB_ERR_NOT_FOUND && attempt->has_launcher)
        rc = cb_fail(err, CB_ERR_NOT_FOUND,
                     "mpirun is not in PATH: install %s (Debian: %s), load the machine's MPI module or add its bin "
                     "folder to PATH; ranks=1 launcher=none needs none",
                     mpi->name, mpi->package);
    mpi_variables_free(&variables);
    return rc;
}

int launch_start(struct attempt *attempt, struct cb_err *err)
{
    struct worker worker;
    char log[PATH_MAX];
    int log_fd = -1;
    int rc = choose_launcher(attempt, err);
    if (!rc)
        rc = find_worker(attempt, &worker, err);
    if (!rc)
        rc = path_format(log, sizeof log, err, "%s/logs/ranks.log", attempt->path.data);
    if (!rc && (log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) < 0)
        rc = cb_fail_errno(err, errno, "creating %s", log);
    bool srun = !rc && attempt->has_launcher && strcmp(attempt->launcher_name, "srun") == 0;
    attempt->rank_start_ns = clock_monotonic_ns();
    if (!rc)
        rc = attempt->peers || srun ? launch_across_nodes(attempt, &worker, log_fd, err)
                                    : start_here(attempt, &worker, log_fd, err);
    if (log_fd >= 0)
        close(log_fd);
    return rc;
}

/* The process number on a page may have been reused; the command line identifies the process. */
bool launch_is_ours(const struct attempt *attempt, pid_t pid)
{
    return procfs_mentions(pid, attempt->pages.base);
}

static pid_t pid_of(const struct attempt *attempt, uint32_t rank)
{
    return (pid_t)atomic_load(&attempt->pages.page[rank]->pid);
}

bool launch_is_alive(const struct attempt *attempt, uint32_t rank)
{
    if (node_peers_has(attempt, rank))
        return node_peers_is_alive(attempt, rank);
    pid_t pid = pid_of(attempt, rank);
    char state = pid > 0 ? procfs_state(pid) : '\0';
    return state && state != 'Z' && state != 'X' && launch_is_ours(attempt, pid);
}

bool launch_end_adopted(const struct attempt *attempt)
{
    bool any = false;
    pid_t children[64];
    size_t count = procfs_children(children, sizeof children / sizeof *children);
    for (size_t i = 0; i < count; i++) {
        if (children[i] == attempt->launcher.pid || children[i] == attempt->keeper.step.pid ||
            node_peers_started(attempt, children[i]))
            continue;
        kill(children[i], SIGKILL);
        any = waitpid(children[i], NULL, WNOHANG) == 0 || any;
    }
    return any;
}

/* Kills the ranks, which have process groups of their own, and their leftover children. */
static bool kill_rest(const struct attempt *attempt)
{
    bool any = false;
    for (uint32_t rank = 0; rank < attempt->pages.count; rank++) {
        if (launch_is_alive(attempt, rank)) {
            if (!node_peers_has(attempt, rank))
                kill(pid_of(attempt, rank), SIGKILL);
            any = true;
        }
    }
    if (any)
        node_peers_kill(attempt);
    return launch_end_adopted(attempt) || any;
}

char *launch_describe_process(const struct attempt *attempt, uint32_t rank, char text[64])
{
    return node_peers_has(attempt, rank) ? node_peers_describe_process(attempt, rank, text)
                                         : procfs_describe(pid_of(attempt, rank), text);
}

static void name_stuck(struct attempt *attempt)
{
    size_t used = 0;
    for (uint32_t rank = 0; rank < attempt->pages.count && used < sizeof attempt->stuck; rank++) {
        char where[64];
        pid_t pid = pid_of(attempt, rank);
        if (!launch_is_alive(attempt, rank))
            continue;
        int len = snprintf(attempt->stuck + used, sizeof attempt->stuck - used, "%sprocess %d (rank %u) in %s",
                           used ? ", " : "", (int)pid, rank, launch_describe_process(attempt, rank, where));
        used += len > 0 ? (size_t)len : 0;
    }
    if (!attempt->launcher.exited && attempt->launcher.pid && used < sizeof attempt->stuck)
        snprintf(attempt->stuck + used, sizeof attempt->stuck - used, "%sprocess %d (the launcher)", used ? ", " : "",
                 (int)attempt->launcher.pid);
}

void launch_end(struct attempt *attempt, uint64_t grace_ns)
{
    end_question(attempt);
    child_end(&attempt->launcher, grace_ns);
    uint64_t deadline_ns = clock_monotonic_ns() + KILL_BOUND_NS;
    while (kill_rest(attempt)) {
        if (clock_monotonic_ns() >= deadline_ns) {
            name_stuck(attempt);
            return;
        }
        clock_sleep_ns(POLL_NS);
    }
    if (attempt->launcher.pid && !attempt->launcher.exited)
        name_stuck(attempt);
}
