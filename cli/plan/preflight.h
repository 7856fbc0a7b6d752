/* Checks, before a run is planned, that this machine can run the experiment. */
#ifndef CLI_PLAN_PREFLIGHT_H
#define CLI_PLAN_PREFLIGHT_H

#include "cli/plan/workload.h"
#include "core/err.h"
#include "run/experiment.h"

/* CB_ERR_USAGE with the figures if ranks, memory or free space of the store do not suffice. Requirements of other
 * machines (hosts, nodes), and what cannot be checked from here, are not checked. */
int preflight_check(const struct experiment *experiment, const struct workload *workload,
                    struct cb_err *err) CB_MUST_CHECK;

#endif
