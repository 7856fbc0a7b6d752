/* The states of Slurm and what they mean for a run, as one table. */
#include <string.h>

#include "jobs/slurm/slurm.h"

static const struct {
    const char *name;
    enum slurm_phase phase;
} rows[SLURM_STATE_COUNT] = {
    [SLURM_UNKNOWN] = {"UNKNOWN", SLURM_IS_UNKNOWN},
    [SLURM_PENDING] = {"PENDING", SLURM_IS_WAITING},
    [SLURM_RUNNING] = {"RUNNING", SLURM_IS_RUNNING},
    [SLURM_SUSPENDED] = {"SUSPENDED", SLURM_IS_RUNNING},
    [SLURM_COMPLETED] = {"COMPLETED", SLURM_IS_ENDED},
    [SLURM_CANCELLED] = {"CANCELLED", SLURM_IS_ENDED},
    [SLURM_FAILED] = {"FAILED", SLURM_IS_ENDED},
    [SLURM_TIMEOUT] = {"TIMEOUT", SLURM_IS_ENDED},
    [SLURM_NODE_FAIL] = {"NODE_FAIL", SLURM_IS_UNSETTLED},
    [SLURM_PREEMPTED] = {"PREEMPTED", SLURM_IS_UNSETTLED},
    [SLURM_BOOT_FAIL] = {"BOOT_FAIL", SLURM_IS_UNSETTLED},
    [SLURM_DEADLINE] = {"DEADLINE", SLURM_IS_ENDED},
    [SLURM_OUT_OF_MEMORY] = {"OUT_OF_MEMORY", SLURM_IS_ENDED},
    [SLURM_CONFIGURING] = {"CONFIGURING", SLURM_IS_BOOTING},
    [SLURM_COMPLETING] = {"COMPLETING", SLURM_IS_ENDING},
    [SLURM_REQUEUED] = {"REQUEUED", SLURM_IS_UNSETTLED},
    [SLURM_REQUEUE_FED] = {"REQUEUE_FED", SLURM_IS_WAITING},
    [SLURM_REQUEUE_HOLD] = {"REQUEUE_HOLD", SLURM_IS_WAITING},
    [SLURM_SPECIAL_EXIT] = {"SPECIAL_EXIT", SLURM_IS_WAITING},
    [SLURM_RESIZING] = {"RESIZING", SLURM_IS_RUNNING},
    [SLURM_SIGNALING] = {"SIGNALING", SLURM_IS_RUNNING},
    [SLURM_STAGE_OUT] = {"STAGE_OUT", SLURM_IS_ENDING},
    [SLURM_STOPPED] = {"STOPPED", SLURM_IS_RUNNING},
    [SLURM_REVOKED] = {"REVOKED", SLURM_IS_ENDED},
    [SLURM_RESV_DEL_HOLD] = {"RESV_DEL_HOLD", SLURM_IS_WAITING},
    [SLURM_POWER_UP_NODE] = {"POWER_UP_NODE", SLURM_IS_BOOTING},
    [SLURM_LAUNCH_FAILED] = {"LAUNCH_FAILED", SLURM_IS_UNSETTLED},
    [SLURM_RECONFIG_FAIL] = {"RECONFIG_FAIL", SLURM_IS_UNSETTLED},
    [SLURM_EXPEDITING] = {"EXPEDITING", SLURM_IS_WAITING},
};

const char *slurm_state_name(enum slurm_state state)
{
    return rows[state < SLURM_STATE_COUNT ? state : SLURM_UNKNOWN].name;
}

enum slurm_state slurm_state_find(const char *name)
{
    size_t len = strcspn(name, " +");
    for (unsigned i = SLURM_UNKNOWN + 1; i < SLURM_STATE_COUNT; i++)
        if (strlen(rows[i].name) == len && strncmp(rows[i].name, name, len) == 0)
            return (enum slurm_state)i;
    return SLURM_UNKNOWN;
}

enum slurm_phase slurm_state_phase(enum slurm_state state)
{
    return rows[state < SLURM_STATE_COUNT ? state : SLURM_UNKNOWN].phase;
}
