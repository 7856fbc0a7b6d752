/* Reads an engine's options from an experiment. */
#ifndef SETUP_ENGINE_CONFIG_H
#define SETUP_ENGINE_CONFIG_H

#include "core/err.h"
#include "engine/engine.h"
#include "run/experiment.h"

/* Texts are borrowed from the experiment; library_words is the caller's to set. CB_ERR_USAGE if keys contradict each
 * other. */
int engine_config_read(const struct experiment *experiment, struct engine_config *config,
                       struct cb_err *err) CB_MUST_CHECK;

#endif
