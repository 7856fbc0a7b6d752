/* Turns settings into planned runs: expands sweeps, checks every run, names it and writes it to disk before anything
 * starts. Shared by local runs and submitted ones. */
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
    char *folder;                        /* owned; exists once the run has been written */
    const struct experiment *experiment; /* borrowed from the sweep */
};

struct run_plan {
    char id[64];       /* of the sweep, or of a single run */
    char sweep_id[64]; /* "" for a single run */
    struct sweep sweep;
    struct planned *members; /* sweep.count runs, in order */
};

/* Expands and checks every combination, freezes paths and ranks, and chooses names; writes nothing. `elsewhere`: the
 * runs are for other machines, which may have folders that this one lacks. Release also after a failure. */
int run_plan_expand(struct run_plan *self, const struct setting_list *settings, bool elsewhere,
                    struct cb_err *err) CB_MUST_CHECK;
/* Checks one experiment as run_plan_expand does, but not its store's location: whether its keys agree, and whether this
 * machine has the memory and space. */
int run_plan_check(struct experiment *experiment, uint32_t *ranks, struct cb_err *err) CB_MUST_CHECK;
/* What has been remarked so far, so that a remark about several members of a sweep is logged once. Zero it. */
struct remarks {
    char **texts;
    size_t count;
};
/* Remarks keys that have no effect: layers= of a model that has no more, and those that another engine does not look at. */
int run_plan_remark(const struct experiment *experiment, const struct workload *workload, struct remarks *remarks,
                    struct cb_err *err) CB_MUST_CHECK;
void remarks_release(struct remarks *self);
/* Sets the name of the sweep or run, before anything is written. */
int run_plan_rename(struct run_plan *self, const char *id, struct cb_err *err) CB_MUST_CHECK;
/* Sets `ranks` of an experiment for a cluster from nodes and ranks_per_node, as expanding does. CB_ERR_USAGE if a
 * given `ranks` contradicts them. */
int run_plan_freeze_nodes(struct experiment *experiment, struct cb_err *err) CB_MUST_CHECK;
/* Whether the name has 1 to 40 lower-case letters, digits and dashes and does not start with a dash. */
bool run_plan_is_id(const char *id);
/* Sets `ranks` to the product of the axes and fixes dp, as expanding does. */
int run_plan_freeze_world(struct experiment *experiment, const struct workload *workload,
                          struct cb_err *err) CB_MUST_CHECK;
/* Writes a member's folder and its row in the history; if the row cannot be written, the folder is removed. The
 * folder's files become part of a batch; NULL writes them at once. */
int run_plan_write(const struct run_plan *self, size_t index, struct history *history, struct file_batch *batch,
                   struct cb_err *err) CB_MUST_CHECK;
void run_plan_release(struct run_plan *self);

/* HOME/runs/ID; owned by the caller. */
int run_plan_folder(const char *id, char **folder, struct cb_err *err) CB_MUST_CHECK;

#endif
