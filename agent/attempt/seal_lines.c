#include "agent/attempt/seal_lines.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/attempt/seal.h"
#include "agent/attempt/watch_join.h"
#include "agent/attempt/watch_lines.h"
#include "core/clock.h"
#include "core/path.h"

/* The attempt's path and the folder of its lines. *is_open: it has lines, and no seal. */
static int find_attempt(struct attempt *attempt, char lines[PATH_MAX], bool *is_open, struct cb_err *err)
{
    char manifest[PATH_MAX];
    buf_clear(&attempt->path);
    buf_printf(&attempt->path, "%s/attempts/%u", attempt->run_folder, attempt->number);
    int rc = buf_check(&attempt->path, "the attempt's path", err);
    if (!rc)
        rc = path_format(lines, PATH_MAX, err, "%s/watch", attempt->path.data);
    if (!rc)
        rc = path_format(manifest, sizeof manifest, err, "%s/manifest.json", attempt->path.data);
    *is_open = !rc && access(lines, F_OK) == 0 && access(manifest, F_OK) != 0;
    return rc;
}

/* Tasks know when they began. Where no line has a time, the attempt lasted until the folder was last written to. */
static void set_times(struct attempt *attempt, const char *lines, const struct watch_summary *summary)
{
    struct stat about;
    if (summary->started_wall_ns)
        attempt->started_wall_ns = summary->started_wall_ns;
    if (attempt->started_wall_ns || stat(lines, &about) != 0)
        return;
    attempt->started_wall_ns = (uint64_t)about.st_mtim.tv_sec * NS_PER_S + (uint64_t)about.st_mtim.tv_nsec;
    attempt->ended_wall_ns = attempt->started_wall_ns;
}

static int seal_attempt(struct attempt *attempt, const char *lines, bool is_silent, struct cb_err *err)
{
    struct watch_summary summary;
    int rc = watch_lines_read(attempt, lines, &summary, err);
    if (!rc)
        set_times(attempt, lines, &summary);
    if (rc || (!summary.all_reported && !is_silent)) {
        pages_release(&attempt->pages);
        return rc;
    }
    if (summary.all_reported)
        attempt_decide(attempt, OUTCOME_PASS, 0, "%s", "");
    else
        attempt_decide(attempt, OUTCOME_LOST, 0, "%s",
                       "not every process reported its end: what had been recorded until then is kept");
    rc = seal_write(attempt, err);
    pages_release(&attempt->pages);
    return rc == CB_ERR_EXISTS ? 0 : rc;
}

static int seal_each(struct attempt *common, uint32_t last, bool is_silent, struct cb_err *err)
{
    char lines[PATH_MAX];
    int rc = 0;
    for (uint32_t number = 1; number <= last && !rc; number++) {
        struct attempt attempt = *common;
        bool is_open = false, is_sealed = false;
        attempt.number = number;
        buf_init(&attempt.path, PATH_MAX);
        rc = find_attempt(&attempt, lines, &is_open, err);
        if (!rc && is_open && number == last) /* tasks of `watch --join` may have ended without sealing it */
            rc = watch_join_seal(common->run_folder, false, &is_sealed, err);
        if (!rc && is_open && !is_sealed) /* a later attempt began when the processes of this one had ended */
            rc = seal_attempt(&attempt, lines, is_silent || number < last, err);
        buf_release(&attempt.path);
    }
    return rc;
}

int seal_lines(const char *run_folder, bool is_silent, struct cb_err *err)
{
    char absolute[PATH_MAX];
    struct attempt common = {.run_folder = absolute, .nodes = {.own = -1}, .pages = {.lock_fd = -1}};
    uint32_t last = 0;
    int lock = -1;
    if (!realpath(run_folder, absolute))
        return cb_fail(err, CB_ERR_NOT_FOUND, "there is no run folder %s", run_folder);
    int rc = path_format(common.run, sizeof common.run, err, "%s", strrchr(absolute, '/') + 1);
    if (!rc)
        rc = run_folder_lock(absolute, &lock, err);
    if (rc || lock < 0)
        return rc;
    rc = run_folder_read_experiment(absolute, &common.experiment, err);
    if (!rc)
        rc = run_folder_last_attempt(absolute, &last, err);
    if (!rc)
        rc = seal_each(&common, last, is_silent, err);
    experiment_free(common.experiment);
    close(lock);
    return rc;
}
