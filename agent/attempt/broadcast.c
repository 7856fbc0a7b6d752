/* Sends programs to the nodes by sbcast, and removes their folder there. */
#include "agent/attempt/broadcast.h"

#include <errno.h>
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

static int run(const char *const *words, uint64_t timeout_ns, struct cb_err *err)
{
    const struct child_options options = {.argv = words, .stdin_fd = -1};
    struct buf said;
    buf_init(&said, ANSWER_MAX_BYTES);
    int rc = child_capture(&options, timeout_ns, &said, err);
    buf_release(&said);
    return rc;
}

/* Runs a command on each node of the allocation, which may have more nodes than this run uses. */
static int run_on_all(const char *const command[4], uint64_t timeout_ns, struct cb_err *err)
{
    const char *count = getenv("SLURM_JOB_NUM_NODES");
    const char *const words[] = {LAUNCH_BESIDE,         "--chdir=/", "--nodes",  count,      "--ntasks", count,
                                 "--ntasks-per-node=1", command[0],  command[1], command[2], command[3], NULL};
    return count ? run(words, timeout_ns, err)
                 : cb_fail(err, CB_ERR_SYSTEM, "slurm.sbcast needs an allocation of Slurm (ckptbench submit)");
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
    if (path_format(attempt->programs, sizeof attempt->programs, err, "%s/" SENT_FOLDER "%s-%u", parent, attempt->run,
                    attempt->number))
        return CB_ERR_USAGE;
    int rc = run_on_all((const char *const[]){"mkdir", "-m700", "--", attempt->programs}, SEND_NS, err);
    if (!rc)
        rc = send_all(attempt->programs, *experiment_text(attempt->experiment, OPT_CONTAINER) != '\0', err);
    if (!rc && setenv("SLURM_WORKING_DIR", attempt->programs,
                      1)) /* for every later srun: our working folder does not exist there */
        rc = cb_fail_errno(err, errno, "setting a variable for srun");
    return rc ? cb_context(err, "sending the programs to %s of the nodes by sbcast (slurm.sbcast)", parent) : 0;
}

void broadcast_remove(const struct attempt *attempt, bool all_came)
{
    const char *count = getenv("SLURM_JOB_NUM_NODES");
    bool took_all = count && strtoul(count, NULL, 10) <= attempt->nodes.count;
    if (*attempt->programs && !(all_came && took_all))
        (void)!run_on_all((const char *const[]){"rm", "-rf", "--", attempt->programs}, REMOVE_NS, NULL);
}
