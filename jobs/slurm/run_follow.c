/* Follows a submitted run through its folder: the lock between controllers, and sealing for dead agents. */
#include "jobs/slurm/run_follow.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/path.h"

static uint64_t modified_wall_ns(const char *folder, const char *name)
{
    char path[PATH_MAX];
    struct stat facts;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path || stat(path, &facts) < 0)
        return 0;
    return (uint64_t)facts.st_mtim.tv_sec * NS_PER_S + (uint64_t)facts.st_mtim.tv_nsec;
}

/* Modification time of the newest file that a running agent updates. */
static uint64_t last_sign_wall_ns(const char *attempt)
{
    static const char *const names[] = {".", "progress.json", "records", "logs", "logs/ranks.log"};
    uint64_t newest = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint64_t at_ns = modified_wall_ns(attempt, names[i]);
        newest = at_ns > newest ? at_ns : newest;
    }
    return newest;
}

int job_folder_look(const char *run_folder, struct job_folder *folder, struct cb_err *err)
{
    char path[PATH_MAX];
    struct job_folder found = {0};
    int rc = run_folder_last_attempt(run_folder, &found.attempts, err);
    if (rc == CB_ERR_NOT_FOUND && access(run_folder, F_OK) == 0)
        rc = 0; /* a user deleted single attempts */
    if (rc == 0 && found.attempts > 0) {
        rc = path_format(path, sizeof path, err, "%s/attempts/%u", run_folder, found.attempts);
        if (rc == 0) {
            rc = manifest_read(path, &found.manifest, err);
            found.sealed = rc == 0;
            rc = rc == CB_ERR_NOT_FOUND ? 0 : rc;
            found.has_progress = progress_read(path, &found.progress, NULL) == 0;
            found.sign_wall_ns = last_sign_wall_ns(path);
        }
    }
    if (rc == 0)
        *folder = found;
    return rc;
}

int job_folder_lock(const char *run_folder, int *fd, struct cb_err *err)
{
    int rc = run_folder_lock(run_folder, fd, err);
    if (rc && rc != CB_ERR_NOT_FOUND && access(run_folder, F_OK) == 0 && access(run_folder, W_OK) < 0) {
        *fd = -1; /* another user's run is followed, but not written to */
        return 0;
    }
    return rc;
}

static int seal(const char *attempt, const char *run, uint32_t number, enum outcome outcome, const char *message,
                struct cb_err *err)
{
    struct manifest manifest = {.attempt = number, .outcome = outcome};
    uint64_t sign_ns = last_sign_wall_ns(attempt);
    snprintf(manifest.run, sizeof manifest.run, "%s", run);
    snprintf(manifest.message, sizeof manifest.message, "%s", message);
    manifest.started_wall_ns = modified_wall_ns(attempt, "fingerprint.json");
    if (manifest.started_wall_ns == 0 || manifest.started_wall_ns > sign_ns)
        manifest.started_wall_ns = sign_ns;
    manifest.ended_wall_ns = sign_ns;
    int rc = manifest_write_for_agent(attempt, &manifest, err);
    return rc == CB_ERR_EXISTS ? 0 : rc;
}

int job_folder_seal(const char *run_folder, const char *run, const struct job_folder *folder, enum outcome outcome,
                    const char *message, struct cb_err *err)
{
    struct buf path;
    char parent[PATH_MAX];
    uint32_t number = folder->attempts;
    buf_init(&path, PATH_MAX);
    int rc = 0;
    if (number == 0 || folder->sealed) {
        rc = run_folder_join(parent, run_folder, "attempts", err);
        if (rc == 0 && mkdir(parent, 0777) < 0 && errno != EEXIST) /* a user may have deleted all of them */
            rc = cb_fail_errno(err, errno, "creating the folder %s", parent);
        if (rc == 0)
            rc = run_folder_new_attempt(run_folder, &number, &path, err);
    } else
        buf_printf(&path, "%s/attempts/%u", run_folder, number);
    if (rc == 0)
        rc = buf_check(&path, "the attempt's path", err);
    if (rc == 0)
        rc = seal(path.data, run, number, outcome, message, err);
    buf_release(&path);
    return rc;
}

int job_folder_seal_earlier(const char *run_folder, const char *run, const struct job_folder *folder,
                            struct cb_err *err)
{
    int rc = 0;
    for (uint32_t number = 1; rc == 0 && number < folder->attempts; number++) {
        char path[PATH_MAX];
        struct manifest manifest;
        rc = path_format(path, sizeof path, err, "%s/attempts/%u", run_folder, number);
        if (rc == 0 && manifest_read(path, &manifest, NULL) == CB_ERR_NOT_FOUND)
            rc = seal(path, run, number, OUTCOME_PREEMPTED, "the job was requeued before this attempt had ended", err);
    }
    return rc;
}
