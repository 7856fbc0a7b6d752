/* The memory and store space that a run requires, from its experiment and layouts alone: the controller checks it
 * before anything starts, the ranks before anything is written. Pure functions, bytes. */
#ifndef SETUP_MEMORY_ESTIMATE_H
#define SETUP_MEMORY_ESTIMATE_H

#include <stdint.h>

#include "ckpt/layout/layout.h"
#include "run/experiment.h"

/* Peak bytes in the store; 0 for ops=load, which writes no checkpoint. */
uint64_t estimate_store_bytes(const struct layout_pair *layouts, const struct experiment *experiment);

/* Bytes that one rank writes for the baseline. */
uint64_t estimate_baseline_bytes(const struct layout *layout);

/* load.dataset: bytes of a rank's file, of a read, and of the memory for the reads in flight. 0 without the key. */
uint64_t estimate_dataset_file_bytes(const struct experiment *experiment);
uint64_t estimate_dataset_block_bytes(const struct experiment *experiment);
uint64_t estimate_dataset_memory_bytes(const struct experiment *experiment);

/* Staging memory of a rank for its asynchronous saves: the bytes that it writes if dedup divides them evenly, or
 * save.staging_bytes. 0 without save.async. */
uint64_t estimate_staging_bytes(const struct layout_pair *layouts, const struct experiment *experiment);

/* CB_ERR_USAGE if save.staging_bytes cannot hold two requests of an asynchronous save: a rank would fail in its first
 * save. Some layouts that it passes fail nevertheless. */
int estimate_check_staging(const struct layout_pair *layouts, const struct experiment *experiment,
                           struct cb_err *err) CB_MUST_CHECK;

/* Memory for the states of all ranks and their requests in flight; *largest is that of one rank. A rank saves and
 * loads in the same memory, one after the other. 0 if an external engine's program holds the state. */
uint64_t estimate_memory_bytes(const struct layout_pair *layouts, const struct experiment *experiment,
                               uint64_t *largest);

/* What rank 0 needs at most beyond that while it reads metadata of so many bytes for a load, and passes on what they
 * list. 0 if nothing is loaded, or if another program reads them. */
uint64_t estimate_metadata_memory_bytes(const struct experiment *experiment, uint64_t metadata_bytes);

#endif
