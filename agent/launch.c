/* Launching ranks with mpirun, or one rank alone, and ending them. Knows processes, not what they do.
 *
 * What mpirun must be told goes through the environment, since the names of its flags differ between
 * MPIs while unknown variables harm none. */
#include "agent/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/procfs.h"
#include "core/clock.h"

#define POLL_NS (5 * NS_PER_MS)
#define KILL_BOUND_NS (2 * NS_PER_S)

int launch_find_worker(char *path, struct cb_err *err)
{
    char own[PATH_MAX] = "";
    if (readlink("/proc/self/exe", own, sizeof own - 1) < 0)
        return cb_fail_errno(err, errno, "finding this program's own path");
    *(strrchr(own, '/') + 1) = '\0'; /* the link is an absolute path */
    if (snprintf(path, PATH_MAX, "%s%s", own, "ckptbench-worker") >= PATH_MAX)
        return cb_fail(err, CB_ERR_USAGE, "the path of this program is too long");
    if (access(path, X_OK) < 0)
        return cb_fail_errno(err, errno, "the worker %s cannot be started", path);
    return 0;
}

/* Also decides by what: mpirun, where there is more than one rank. */
static int choose_launcher(struct attempt *attempt, struct cb_err *err)
{
    if (experiment_is(attempt->experiment, OPT_LAUNCHER, "none") && attempt->ranks > 1)
        return cb_fail(err, CB_ERR_USAGE, "launcher=none starts one rank, not %u: use launcher=mpirun", attempt->ranks);
    attempt->has_launcher = experiment_is(attempt->experiment, OPT_LAUNCHER, "mpirun") || attempt->ranks > 1;
    return 0;
}

static int open_log(const struct attempt *attempt, int *fd, struct cb_err *err)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/logs/ranks.log", attempt->path.data) >= (int)sizeof path)
        return cb_fail(err, CB_ERR_USAGE, "the path %s is too long", attempt->path.data);
    *fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    return *fd < 0 ? cb_fail_errno(err, errno, "creating %s", path) : 0;
}

static int start(struct attempt *attempt, const char *worker, int log_fd, struct cb_err *err)
{
    char number[16], ranks[16], backing[256], base[256], prte_base[256];
    snprintf(number, sizeof number, "%u", attempt->number);
    snprintf(ranks, sizeof ranks, "%u", attempt->ranks);
    snprintf(backing, sizeof backing, "OMPI_MCA_btl_vader_backing_directory=%s", attempt->pages.folder);
    snprintf(base, sizeof base, "OMPI_MCA_orte_tmpdir_base=%s", attempt->pages.folder);
    snprintf(prte_base, sizeof prte_base, "PRTE_MCA_prte_tmpdir_base=%s", attempt->pages.folder);
    const char *const environment[] = {"OMPI_ALLOW_RUN_AS_ROOT=1",
                                       "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", /* a container is often root */
                                       "PRTE_ALLOW_RUN_AS_ROOT=1",
                                       "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                       "OMPI_MCA_rmaps_base_oversubscribe=1",
                                       "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe",
                                       "OMPI_MCA_hwloc_base_binding_policy=none",
                                       "PRTE_MCA_hwloc_default_binding_policy=none",
                                       "OMPI_MCA_plm=isolated", /* one machine: looks for no ssh */
                                       "OMPI_MCA_ras=^slurm",   /* a job's node is it */
                                       "PRTE_MCA_ras=^slurm",
                                       "OMPI_MCA_pml=ob1",
                                       "OMPI_MCA_btl=self,vader",
                                       "OMPI_MCA_btl_vader_single_copy_mechanism=none",
                                       "OMPI_MCA_btl_base_warn_component_unused=0",
                                       "OMPI_MCA_orte_tag_output=1",
                                       backing,
                                       base,
                                       prte_base,
                                       NULL};
    const char *const words[] = {"mpirun",
                                 "-n",
                                 ranks,
                                 worker,
                                 "--run-folder",
                                 attempt->run_folder,
                                 "--attempt",
                                 number,
                                 "--pages",
                                 attempt->pages.folder,
                                 NULL};
    struct child_options options = {.argv = attempt->has_launcher ? words : words + 3,
                                    .environment = environment,
                                    .stdin_fd = -1,
                                    .stdout_fd = log_fd,
                                    .stderr_fd = log_fd};
    int rc = child_start(&attempt->launcher, &options, err);
    if (rc == CB_ERR_NOT_FOUND && attempt->has_launcher)
        return cb_fail(
            err, CB_ERR_NOT_FOUND,
            "mpirun is not in PATH: install Open MPI (Debian: openmpi-bin), load the machine's MPI module or "
            "add its bin folder to PATH; ranks=1 launcher=none needs none");
    return rc;
}

int launch_start(struct attempt *attempt, struct cb_err *err)
{
    char worker[PATH_MAX];
    int log_fd = -1;
    int rc = choose_launcher(attempt, err);
    if (!rc)
        rc = launch_find_worker(worker, err);
    if (!rc)
        rc = open_log(attempt, &log_fd, err);
    if (!rc)
        rc = start(attempt, worker, log_fd, err);
    if (log_fd >= 0)
        close(log_fd);
    return rc;
}

/* A number on a page may have gone to another process since: the command line says whose it is. */
bool launch_is_ours(const struct attempt *attempt, pid_t pid)
{
    char words[4096];
    size_t len = procfs_read(pid, "cmdline", words, sizeof words);
    size_t folder = strlen(attempt->pages.folder);
    for (size_t i = 0; i + folder <= len; i++) {
        if (memcmp(words + i, attempt->pages.folder, folder) == 0)
            return true;
    }
    return false;
}

static pid_t pid_of(const struct attempt *attempt, uint32_t rank)
{
    return (pid_t)atomic_load(&attempt->pages.page[rank]->pid);
}

bool launch_is_alive(const struct attempt *attempt, uint32_t rank)
{
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
        if (children[i] == attempt->launcher.pid)
            continue;
        kill(children[i], SIGKILL);
        any = waitpid(children[i], NULL, WNOHANG) == 0 || any;
    }
    return any;
}

/* Kills the ranks, which stand in groups of their own, and what they left behind. */
static bool kill_rest(const struct attempt *attempt)
{
    bool any = false;
    for (uint32_t rank = 0; rank < attempt->pages.count; rank++) {
        if (launch_is_alive(attempt, rank)) {
            kill(pid_of(attempt, rank), SIGKILL);
            any = true;
        }
    }
    return launch_end_adopted(attempt) || any;
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
                           used ? ", " : "", (int)pid, rank, procfs_describe(pid, where));
        used += len > 0 ? (size_t)len : 0;
    }
    if (!attempt->launcher.exited && attempt->launcher.pid && used < sizeof attempt->stuck)
        snprintf(attempt->stuck + used, sizeof attempt->stuck - used, "%sprocess %d (the launcher)", used ? ", " : "",
                 (int)attempt->launcher.pid);
}

void launch_end(struct attempt *attempt, uint64_t grace_ns)
{
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
