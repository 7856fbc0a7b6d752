/* From settings to planned runs: expanded, checked, named, and written down before anything starts. Shared
 * by what runs here and what is submitted. */
#ifndef CLI_PLAN_RUN_PLAN_H
#define CLI_PLAN_RUN_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/plan/workload.h"
#include "core/err.h"
#include "core/setting.h"
#include "db/history.h"
#include "run/sweep.h"

struct planned {
    char id[64];
    char *folder;                        /* owned; there once it is written */
    const struct experiment *experiment; /* borrowed from the sweep */
};

struct run_plan {
    char id[64];       /* of the sweep, or of the single run */
    char sweep_id[64]; /* "" for a single run */
    struct sweep sweep;
    struct planned *members; /* sweep.count of them, in order */
};

/* Every combination checked, paths and ranks frozen, names given; nothing is written. `elsewhere`: for
 * other machines than this one, which may have folders that are not here. Release also after a failure. */
int run_plan_expand(struct run_plan *self, const struct setting_list *settings, bool elsewhere,
                    struct cb_err *err) CB_MUST_CHECK;
/* Names them so, before anything is written. */
int run_plan_rename(struct run_plan *self, const char *id, struct cb_err *err) CB_MUST_CHECK;
/* `ranks` of an experiment for a cluster from its nodes and ranks_per_node, as expanding does it; USAGE where they do not
 * agree with it. */
int run_plan_freeze_nodes(struct experiment *experiment, struct cb_err *err) CB_MUST_CHECK;
/* Small letters, digits and dashes, at most 40 of them. */
bool run_plan_is_id(const char *id);
/* As expanding does it: `ranks` becomes what the axes make, and dp is no longer what it leaves over. */
int run_plan_freeze_world(struct experiment *experiment, const struct workload *workload,
                          struct cb_err *err) CB_MUST_CHECK;
/* The member's folder and its row; the folder's files as part of a batch (NULL: at once). Where there is no row there
 * is no folder. */
int run_plan_write(const struct run_plan *self, size_t index, struct history *history, struct file_batch *batch,
                   struct cb_err *err) CB_MUST_CHECK;
void run_plan_release(struct run_plan *self);

/* HOME/runs/ID; owned by the caller. */
int run_plan_folder(const char *id, char **folder, struct cb_err *err) CB_MUST_CHECK;

#endif
