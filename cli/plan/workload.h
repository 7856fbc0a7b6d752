/* Model, layout and plan of an experiment, for verbs that inspect it before a run. */
#ifndef CLI_PLAN_WORKLOAD_H
#define CLI_PLAN_WORKLOAD_H

#include "ckpt/layout/layout.h"
#include "ckpt/model/model.h"
#include "ckpt/plan.h"
#include "core/err.h"
#include "run/experiment.h"
#include "setup/training.h"

struct workload {
    struct model *model;
    struct layout_pair layouts; /* for saving and for loading */
    struct layout *layout;      /* the layout for saving; owned by `layouts` */
    struct plan *plan;
    struct training training; /* of workload=train, which has a model but no layout here; else its steps are 0 */
};

/* Computes the members that the workload has. Fails if keys are invalid or contradict each other. */
int workload_init(struct workload *self, const struct experiment *experiment, struct cb_err *err) CB_MUST_CHECK;
/* For the rows of cli/workload_table.h: model, layouts and plan of a state; a training; only ranks; only waiting. */
int workload_plan_state(struct workload *self, const struct experiment *experiment, struct cb_err *err) CB_MUST_CHECK;
int workload_plan_training(struct workload *self, const struct experiment *experiment,
                           struct cb_err *err) CB_MUST_CHECK;
int workload_plan_ranks(struct workload *self, const struct experiment *experiment, struct cb_err *err) CB_MUST_CHECK;
int workload_plan_watching(struct workload *self, const struct experiment *experiment,
                           struct cb_err *err) CB_MUST_CHECK;
int workload_plan_waiting(struct workload *self, const struct experiment *experiment, struct cb_err *err) CB_MUST_CHECK;
void workload_release(struct workload *self);

/* Only the model, with the experiment's layers and dtype. */
int workload_load_model(const struct experiment *experiment, struct model **model, struct cb_err *err) CB_MUST_CHECK;

/* Payloads of the experiment start at multiples of this offset in their file, in bytes. */
uint32_t workload_payload_alignment(const struct experiment *experiment);

/* The length of the metadata that a save of the workload's plan writes. */
int workload_metadata_bytes(const struct experiment *experiment, const struct workload *workload, uint64_t *bytes,
                            struct cb_err *err) CB_MUST_CHECK;

#endif
