/* What an experiment comes to: its model, layout and plan, for the verbs that look before a run. */
#ifndef CLI_PLAN_WORKLOAD_H
#define CLI_PLAN_WORKLOAD_H

#include "ckpt/layout/layout.h"
#include "ckpt/model/model.h"
#include "ckpt/plan/plan.h"
#include "core/err.h"
#include "run/experiment.h"
#include "setup/training.h"

struct workload {
    struct model *model;
    struct layout_pair layouts; /* to save in, and to load in */
    struct layout *layout;      /* the one to save in; owned by `layouts` */
    struct plan *plan;
    struct training training; /* workload=train, which has a model and no layout here; steps is 0 elsewhere */
};

/* Computes what the workload has of it; fails with what is wrong with the keys. */
int workload_init(struct workload *self, const struct experiment *experiment, struct cb_err *err) CB_MUST_CHECK;
void workload_release(struct workload *self);

/* The model alone, with the experiment's layers and dtype. */
int workload_load_model(const struct experiment *experiment, struct model **model, struct cb_err *err) CB_MUST_CHECK;

/* Where payloads of the experiment start: at multiples of this in their file. */
uint32_t workload_payload_alignment(const struct experiment *experiment);

#endif
