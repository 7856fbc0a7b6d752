#include "cli/jobs/agent_program.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "cli/jobs/site_command.h"
#include "core/child.h"
#include "core/clock.h"
#include "core/foreground.h"
#include "core/path.h"
#include "core/process.h"
#include "core/version.h"
#include "run/run_folder.h"

#define VERSION_NS (10 * NS_PER_S)
#define SEALING_NS (600 * NS_PER_S)
#define SAID_MAX_BYTES (1 << 20)

/* Its release is checked before anything is planned, so that a run does not fail only after waiting in a queue. */
int agent_program_find(char path[PATH_MAX], struct cb_err *err)
{
    if (!process_find_program("ckptbench-agent", path))
        return cb_fail(err, CB_ERR_NOT_FOUND, "ckptbench-agent is neither beside ckptbench nor in PATH");
    const struct child_options options = {
        .argv = (const char *const[]){path, "--version", NULL}, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
    char version[32] = "", commit[64] = "";
    struct buf answer;
    buf_init(&answer, 4096);
    bool said = child_capture(&options, VERSION_NS, &answer, NULL) == 0 &&
                remote_parse_version(answer.data, version, commit, NULL) == 0;
    buf_release(&answer);
    if (!said || strcmp(version, version_text()) == 0)
        return 0;
    return cb_fail(err, CB_ERR_UNSUPPORTED,
                   "%s is of release %s (%s), and this is ckptbench %s (%s): install ckptbench, ckptbench-agent and "
                   "ckptbench-worker of one release",
                   path, version, commit, version_text(), version_commit());
}

/* `agent` is "" if the last attempt has no lines. */
static int find_sealer(const char *folder, char agent[PATH_MAX], struct cb_err *err)
{
    char lines[PATH_MAX];
    uint32_t last;
    agent[0] = '\0';
    int rc = run_folder_last_attempt(folder, &last, err);
    if (!rc)
        rc = path_format(lines, sizeof lines, err, "%s/attempts/%u/" LINES_FOLDER, folder, last);
    return rc || access(lines, F_OK) != 0 ? rc : agent_program_find(agent, err);
}

int agent_program_seal(const char *folder, enum outcome outcome, const char *why, struct cb_err *err)
{
    char agent[PATH_MAX];
    const char *const words[] = {agent, "seal", folder, why ? "--as" : NULL, outcome_name(outcome), why, NULL};
    const struct child_options options = {.argv = words, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
    struct buf said;
    int rc = find_sealer(folder, agent, err);
    if (rc || !*agent)
        return rc;
    buf_init(&said, SAID_MAX_BYTES);
    rc = child_capture(&options, SEALING_NS, &said, err);
    buf_release(&said);
    return rc;
}

int agent_program_seal_watched(const char *folder, int lock_fd, struct cb_err *err)
{
    char agent[PATH_MAX];
    const char *const words[] = {agent, "seal", folder, "--measure", NULL};
    int status, rc = find_sealer(folder, agent, err);
    if (rc || !*agent)
        return rc;
    (void)fcntl(lock_fd, F_SETFD, 0);
    rc = foreground_run(words, NULL, false, 0, &status, err);
    (void)fcntl(lock_fd, F_SETFD, FD_CLOEXEC);
    if (!rc && status != 0)
        rc = cb_fail(err, CB_ERR_SYSTEM, "the run in %s was not sealed: ckptbench collect tries it again", folder);
    return rc;
}
