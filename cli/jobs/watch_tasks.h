/* Watched runs that several `ckptbench watch --join` share. */
#ifndef CLI_JOBS_WATCH_TASKS_H
#define CLI_JOBS_WATCH_TASKS_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/plan/run_plan.h"
#include "core/err.h"
#include "db/history.h"

/* This process among the tasks that srun or mpirun has started: its number, and how many there are; 0 and 0 without a
 * launcher. */
struct watch_task {
    uint64_t number, count;
};
struct watch_task watch_task_find(void);

/* Writes the run of the plan unless another task has written it. Task 0 writes it, the others wait for it for a while,
 * and write it if nobody does. */
int watch_tasks_plan(const struct run_plan *plan, const struct watch_task *task, struct cb_err *err) CB_MUST_CHECK;

/* Runs the command as a task of the run in `folder`, in the foreground. *exit_code is as a shell reports it. */
int watch_tasks_run(const char *folder, uint64_t tasks, const char *const *command, int *exit_code,
                    struct cb_err *err) CB_MUST_CHECK;

/* Seals the run if all tasks have ended, and brings it into the history. *sealed is true for one of the tasks alone. */
int watch_tasks_seal(const char *folder, struct history *history, bool *sealed, struct cb_err *err) CB_MUST_CHECK;

#endif
