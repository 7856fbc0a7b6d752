/* Reads from an experiment how its state is laid out and how its files are planned. */
#ifndef SETUP_CHECKPOINT_OPTIONS_H
#define SETUP_CHECKPOINT_OPTIONS_H

#include "ckpt/layout/layout.h"
#include "ckpt/plan.h"
#include "core/err.h"
#include "run/experiment.h"

/* From ranks, mesh, dp, tp, pp, ep, zero, sharding, pp.split, state and seed. Texts are the experiment's. */
struct layout_options layout_options_of(const struct experiment *experiment);

/* The same and the load.* keys and ops. */
struct layout_pair_options layout_pair_options_of(const struct experiment *experiment);

/* From format, save.dedup, io.files, io.fanout, s3.prefixes and s3.prefix_strategy. CB_ERR_USAGE if they contradict
 * each other. */
int plan_options_read(const struct experiment *experiment, uint32_t payload_alignment, struct plan_options *options,
                      struct cb_err *err) CB_MUST_CHECK;

#endif
