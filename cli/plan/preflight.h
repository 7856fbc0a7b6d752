/* Whether this machine can do what an experiment asks for, before a run of it is planned. */
#ifndef CLI_PLAN_PREFLIGHT_H
#define CLI_PLAN_PREFLIGHT_H

#include "cli/plan/workload.h"
#include "core/err.h"
#include "run/experiment.h"

/* CB_ERR_USAGE with the figures where ranks, memory or the store's space do not suffice. What is asked of
 * other machines (hosts, nodes) is theirs to refuse, and so is what cannot be told from here. */
int preflight_check(const struct experiment *experiment, const struct workload *workload,
                    struct cb_err *err) CB_MUST_CHECK;

#endif
