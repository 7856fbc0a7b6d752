#include "agent/attempt/seal_lines.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/attempt/seal.h"
#include "agent/attempt/watch_left.h"
#include "agent/attempt/watch_limit.h"
#include "agent/attempt/watch_lines.h"
#include "agent/attempt/watch_task.h"
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
        rc = watch_folder_path(attempt->path.data, lines, err);
    if (!rc)
        rc = path_format(manifest, sizeof manifest, err, "%s/manifest.json", attempt->path.data);
    *is_open = !rc && access(lines, F_OK) == 0 && access(manifest, F_OK) != 0;
    return rc;
}

/* Where no line has a time, the attempt lasted until the folder was last written to. */
static void set_times(struct attempt *attempt, const char *lines, const struct watch_summary *summary)
{
    struct stat about;
    if (summary->started_wall_ns)
        attempt->started_wall_ns = summary->started_wall_ns;
    if (summary->ended_wall_ns)
        attempt->ended_wall_ns = summary->ended_wall_ns;
    if (attempt->started_wall_ns || stat(lines, &about) != 0)
        return;
    attempt->started_wall_ns = (uint64_t)about.st_mtim.tv_sec * NS_PER_S + (uint64_t)about.st_mtim.tv_nsec;
    attempt->ended_wall_ns = attempt->started_wall_ns;
}

static bool has_ended(const struct watch_summary *summary)
{
    if (summary->tasks == 0)
        return summary->all_reported;
    return summary->ended >= summary->tasks && summary->tasks >= summary->expected;
}

static void decide_tasks(struct attempt *attempt, const struct watch_summary *summary)
{
    if (summary->was_late)
        attempt_decide(attempt, OUTCOME_TIMEOUT, CB_ERR_TIMEOUT, "the command took longer than timeout.run=%s%s%s",
                       experiment_text(attempt->experiment, OPT_TIMEOUT_RUN), *summary->failure ? ": " : "",
                       summary->failure);
    else if (*summary->failure)
        attempt_decide(attempt, summary->was_asked ? OUTCOME_CANCELLED : OUTCOME_BENCHMARK_FAILED, CB_ERR_SYSTEM, "%s",
                       summary->failure);
    else if (*summary->unreadable)
        attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_SYSTEM, "how a task ended is not known: its file is %s",
                       summary->unreadable);
}

static int seal_attempt(struct attempt *attempt, const char *lines, const struct seal_request *request,
                        struct cb_err *err)
{
    struct watch_summary summary = {0};
    int rc = watch_lines_read(attempt, lines, &summary, err);
    if (!rc && summary.was_stopped) {
        rc = cb_fail(err, CB_ERR_ABORTED, "stopped on request before the run was sealed: ckptbench collect seals it");
        goto out;
    }
    bool ended = !rc && has_ended(&summary);
    if (!ended && !request->why)
        goto out;
    set_times(attempt, lines, &summary);
    if (rc)
        attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, rc, "%s", err->message);
    if (!rc)
        watch_limit_remove_left(attempt, &summary);
    if (!rc && summary.tasks > 0)
        status_page_add_fact(attempt->pages.page[0], "watch.command", summary.command);
    bool has_limit =
        ended && experiment_bool(attempt->experiment, OPT_BASELINE) && !summary.was_asked && !summary.was_late;
    if (has_limit && summary.tasks > 0 && summary.has_several_hosts)
        watch_limit_take(attempt, &summary);
    else if (has_limit && request->measures_limit)
        watch_limit_measure(attempt, &summary, NULL);
    if (!rc && ended)
        watch_left_note(lines, attempt->pages.page[0]);
    if (ended)
        decide_tasks(attempt, &summary);
    else
        attempt_decide(attempt, request->outcome, 0, "%s", request->why);
    attempt_decide(attempt, OUTCOME_PASS, 0, "%s", "");
    rc = seal_write(attempt, err);
    rc = rc == CB_ERR_EXISTS ? 0 : rc;
out:
    watch_summary_release(&summary);
    pages_release(&attempt->pages);
    return rc;
}

static int seal_each(const struct attempt *common, uint32_t last, const struct seal_request *request,
                     struct cb_err *err)
{
    /* A later attempt began when the processes of this one had ended. */
    static const struct seal_request of_earlier = {.why = "not every process reported its end",
                                                   .outcome = OUTCOME_LOST};
    char lines[PATH_MAX];
    int rc = 0;
    for (uint32_t number = 1; number <= last && !rc; number++) {
        struct attempt attempt = *common;
        bool is_open = false;
        attempt.number = number;
        buf_init(&attempt.path, PATH_MAX);
        rc = find_attempt(&attempt, lines, &is_open, err);
        if (!rc && is_open)
            rc = seal_attempt(&attempt, lines, number == last ? request : &of_earlier, err);
        buf_release(&attempt.path);
    }
    return rc;
}

int seal_lines(const char *run_folder, const struct seal_request *request, struct cb_err *err)
{
    char absolute[PATH_MAX];
    struct attempt common = {.run_folder = absolute, .nodes = {.own = -1}, .pages = {.lock_fd = -1}};
    uint32_t last = 0;
    if (!realpath(run_folder, absolute))
        return cb_fail(err, CB_ERR_NOT_FOUND, "there is no run folder %s", run_folder);
    int rc = path_format(common.run, sizeof common.run, err, "%s", strrchr(absolute, '/') + 1);
    if (!rc)
        rc = run_folder_read_experiment(absolute, &common.experiment, err);
    if (!rc)
        rc = run_folder_last_attempt(absolute, &last, err);
    if (!rc)
        rc = seal_each(&common, last, request, err);
    experiment_free(common.experiment);
    return rc;
}
