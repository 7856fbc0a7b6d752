/* Tasks of a watched run: who writes its folder, and who seals it. */
#include "cli/jobs/watch_tasks.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/jobs/agent_program.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/foreground.h"
#include "core/path.h"
#include "core/units.h"
#include "run/run_folder.h"

#define OTHERS_NS (60 * NS_PER_S) /* for the task that writes the run's folder */
#define LOOK_EVERY_NS (100 * NS_PER_MS)

struct watch_task watch_task_find(void)
{
    static const char *const names[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"PMI_RANK", "PMI_SIZE"},
                                           {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}}; /* mpirun may run in a step */
    struct watch_task task = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *number = getenv(names[i][0]), *count = getenv(names[i][1]);
        if (number && count && units_parse_u64(number, &task.number, NULL) == 0 &&
            units_parse_u64(count, &task.count, NULL) == 0 && task.count <= UINT32_MAX)
            return task;
    }
    return (struct watch_task){0};
}

static bool is_planned(const char *folder)
{
    char path[PATH_MAX];
    return path_format(path, sizeof path, NULL, "%s/planned.json", folder) == 0 && access(path, F_OK) == 0;
}

static bool becomes_planned(const char *folder)
{
    uint64_t end_ns = clock_monotonic_ns() + OTHERS_NS;
    while (!is_planned(folder) && clock_monotonic_ns() < end_ns)
        clock_sleep_ns(LOOK_EVERY_NS);
    return is_planned(folder);
}

int watch_tasks_plan(const struct run_plan *plan, const struct watch_task *task, struct cb_err *err)
{
    const char *folder = plan->members[0].folder;
    struct history *history = NULL;
    if (is_planned(folder) || (task->number > 0 && becomes_planned(folder)))
        return 0;
    int rc = history_open(NULL, &history, err);
    if (!rc)
        rc = run_plan_write(plan, 0, history, NULL, err);
    history_close(history);
    return rc == CB_ERR_EXISTS && becomes_planned(folder) ? 0 : rc; /* another task was faster */
}

int watch_tasks_run(const char *folder, uint64_t tasks, const char *const *command, int *exit_code, struct cb_err *err)
{
    char agent[PATH_MAX], count[24];
    size_t words = 0;
    int status, rc = agent_program_find(agent, err);
    while (command[words])
        words++;
    const char **argv = rc ? NULL : calloc(words + 5, sizeof *argv);
    if (!rc && !argv)
        rc = alloc_fail(err, "for %zu words", words);
    if (rc)
        return rc;
    snprintf(count, sizeof count, "%llu", (unsigned long long)tasks);
    const char *const start[] = {agent, "join", folder, count};
    memcpy(argv, start, sizeof start);
    memcpy(argv + 4, command, words * sizeof *argv);
    rc = foreground_run(argv, NULL, false, 0, &status, err);
    free(argv);
    if (!rc)
        *exit_code = foreground_exit_code(status);
    return rc;
}

static bool is_sealed(const char *folder)
{
    char path[PATH_MAX];
    struct manifest unused;
    uint32_t last;
    return run_folder_last_attempt(folder, &last, NULL) == 0 && last > 0 &&
           path_format(path, sizeof path, NULL, "%s/attempts/%u", folder, last) == 0 &&
           manifest_read(path, &unused, NULL) != CB_ERR_NOT_FOUND;
}

int watch_tasks_seal(const char *folder, struct history *history, bool *sealed, struct cb_err *err)
{
    bool ingested = false;
    int fd, rc = run_folder_lock(folder, &fd, err);
    *sealed = false;
    if (rc || fd < 0) /* some tasks have not ended, or one of them seals */
        return rc;
    bool was_sealed = is_sealed(folder);
    if (!was_sealed)
        rc = agent_program_seal_watched(folder, fd, err);
    *sealed = !rc && !was_sealed && is_sealed(folder);
    if (*sealed)
        rc = history_ingest(history, folder, &ingested, err);
    run_folder_unlock(fd);
    return rc;
}
