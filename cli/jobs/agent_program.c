/* Finds the agent and checks its release. */
#include "cli/jobs/agent_program.h"

#include <stdio.h>
#include <string.h>

#include "cli/jobs/site_command.h"
#include "core/buf.h"
#include "core/child.h"
#include "core/clock.h"
#include "core/process.h"
#include "core/version.h"

#define ANSWER_NS (10 * NS_PER_S)
#define ANSWER_MAX_BYTES 4096

/* Checked before anything is planned, so that a run does not fail only after waiting in a queue. */
static int check_release(const char *path, struct cb_err *err)
{
    const struct child_options options = {
        .argv = (const char *const[]){path, "--version", NULL}, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
    char version[32] = "", commit[64] = "";
    struct buf answer;
    buf_init(&answer, ANSWER_MAX_BYTES);
    bool said = child_capture(&options, ANSWER_NS, &answer, NULL) == 0 &&
                remote_parse_version(answer.data, version, commit, NULL) == 0;
    buf_release(&answer);
    if (!said || strcmp(version, version_text()) == 0)
        return 0;
    return cb_fail(err, CB_ERR_UNSUPPORTED,
                   "%s is of release %s (%s), and this is ckptbench %s (%s): install ckptbench, ckptbench-agent and "
                   "ckptbench-worker of one release",
                   path, version, commit, version_text(), version_commit());
}

int agent_program_find(char path[PATH_MAX], struct cb_err *err)
{
    if (!process_find_program("ckptbench-agent", path))
        return cb_fail(err, CB_ERR_NOT_FOUND, "ckptbench-agent is neither beside ckptbench nor in PATH");
    return check_release(path, err);
}
