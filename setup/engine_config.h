/* What an experiment says of its engine, as engine/engine.h wants it. */
#ifndef SETUP_ENGINE_CONFIG_H
#define SETUP_ENGINE_CONFIG_H

#include "core/err.h"
#include "engine/engine.h"
#include "run/experiment.h"

/* Texts stay the experiment's. Fails where keys contradict each other, with the sentence for the user. */
int engine_config_read(const struct experiment *experiment, struct engine_config *config,
                       struct cb_err *err) CB_MUST_CHECK;

#endif
