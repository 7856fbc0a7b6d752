/* What a run asks of the machine and of the store, from its experiment and layouts alone: the controller
 * looks before anything starts, the ranks before anything is written. Pure functions, bytes. */
#ifndef SETUP_MEMORY_ESTIMATE_H
#define SETUP_MEMORY_ESTIMATE_H

#include <stdint.h>

#include "ckpt/layout/layout.h"
#include "run/experiment.h"

/* The most that is in the store at one time; 0 for ops=load, which brings no checkpoint. */
uint64_t needs_store_bytes(const struct layout_pair *layouts, const struct experiment *experiment);

/* What one rank writes for the baseline. */
uint64_t needs_baseline_bytes(const struct layout *layout);

/* Staging memory of a rank for its asynchronous saves: what it writes where dedup shares that out
 * evenly, or save.staging_bytes. 0 without save.async. */
uint64_t needs_staging_bytes(const struct layout_pair *layouts, const struct experiment *experiment);

/* Memory for the states of all ranks and their requests in flight; *largest is that of one rank. A rank
 * holds what it saves and what it loads in turn, in one memory. 0 where the engine's own program holds it. */
uint64_t needs_memory_bytes(const struct layout_pair *layouts, const struct experiment *experiment, uint64_t *largest);

#endif
