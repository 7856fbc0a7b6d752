/* Starts the command with hooks in its PYTHONPATH, and ends the attempt as the command ended. */
#include "agent/attempt/watch_command.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "agent/attempt/watch_lines.h"
#include "core/foreground.h"
#include "core/path.h"
#include "core/share_file.h"

#define PYTHON_PATH_BYTES 32768

/* The folder where the processes of the command leave their lines. */
static int make_folder(const struct attempt *attempt, char folder[PATH_MAX], struct cb_err *err)
{
    int rc = path_format(folder, PATH_MAX, err, "%s/watch", attempt->path.data);
    if (!rc && mkdir(folder, 0777) < 0)
        rc = cb_fail_errno(err, errno, "making the folder %s", folder);
    return rc;
}

/* Python finds our hooks before everything else; for programs that are not Python these variables mean nothing. */
static int run_command(struct attempt *attempt, const char *folder, struct cb_err *err)
{
    const char *const shell[] = {"/bin/sh", "-c", experiment_text(attempt->experiment, OPT_COMMAND), NULL};
    const char *const *argv = attempt->command ? attempt->command : shell;
    const char *before = getenv("PYTHONPATH");
    char found[PATH_MAX], hooks[PATH_MAX], place[PATH_MAX + 32], python_path[PYTHON_PATH_BYTES];
    if (!attempt->command && !*shell[2])
        return cb_fail(err, CB_ERR_USAGE,
                       "workload=watch needs command='torchrun …', or `ckptbench watch -- torchrun …`");
    int rc = share_file_find("workload=watch", "watch/hooks/..", found, err);
    if (!rc && !realpath(found, hooks))
        rc = cb_fail_errno(err, errno, "looking for %s", found);
    if (!rc)
        rc = path_format(place, sizeof place, err, "CKPTBENCH_WATCH=%s", folder);
    if (!rc)
        rc = path_format(python_path, sizeof python_path, err, "PYTHONPATH=%s/hooks:%s/sitecustomize%s%s", hooks, hooks,
                         before && *before ? ":" : "", before ? before : "");
    if (rc)
        return rc;
    return foreground_run(argv, (const char *const[]){place, python_path, NULL}, attempt->command != NULL,
                          &attempt->command_status, err);
}

/* The command's name without its arguments, which may hold secrets. */
static const char *name_of(const struct attempt *attempt)
{
    if (!attempt->command)
        return "the command";
    const char *slash = strrchr(attempt->command[0], '/');
    return slash ? slash + 1 : attempt->command[0];
}

static void decide(struct attempt *attempt)
{
    int status = attempt->command_status;
    const char *name = name_of(attempt);
    bool asked = foreground_was_asked_to_end();
    if (status == 0)
        attempt_decide(attempt, OUTCOME_PASS, 0, "%s", "");
    else if (WIFSIGNALED(status))
        attempt_decide(attempt, asked ? OUTCOME_CANCELLED : OUTCOME_BENCHMARK_FAILED, CB_ERR_SYSTEM,
                       "%s was killed by signal %d (SIG%s)", name, WTERMSIG(status), sigabbrev_np(WTERMSIG(status)));
    else
        attempt_decide(attempt, asked ? OUTCOME_CANCELLED : OUTCOME_BENCHMARK_FAILED, CB_ERR_SYSTEM,
                       "%s ended with exit status %d", name, WEXITSTATUS(status));
}

void watch_command_run(struct attempt *attempt)
{
    char folder[PATH_MAX];
    struct cb_err err;
    int rc = make_folder(attempt, folder, &err);
    if (!rc)
        rc = run_command(attempt, folder, &err);
    if (!rc)
        rc = watch_lines_read(attempt, folder, NULL, &err);
    if (rc) {
        attempt_decide(attempt, rc == CB_ERR_USAGE ? OUTCOME_BENCHMARK_FAILED : OUTCOME_INFRASTRUCTURE, rc, "%s",
                       err.message);
        return;
    }
    status_page_add_fact(attempt->pages.page[0], "watch.command", name_of(attempt));
    decide(attempt);
}
