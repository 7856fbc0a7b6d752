/* load.dataset: while a checkpoint is loaded, each rank also reads files of its own at a given rate, as when a training
 * restarts and its data loader begins beside the load. Nothing here does anything without the key. */
#ifndef WORKER_DATASET_READS_H
#define WORKER_DATASET_READS_H

#include "worker/run.h"

/* Before a load: the files exist (worker/scratch_files.h) and are not in this machine's page cache. Collective. */
int dataset_reads_prepare(struct run *run, struct cb_err *err) CB_MUST_CHECK;
/* Around the timed load: starts the reads of this rank; ends them, and puts their bytes and rate into the load's
 * sample. The end must follow whatever came of the load, unless the start failed. */
int dataset_reads_start(struct run *run, struct cb_err *err) CB_MUST_CHECK;
int dataset_reads_end(struct run *run, struct sample *sample, struct cb_err *err) CB_MUST_CHECK;
/* False if requests hang in the store, which still uses the memory: then this process must exit without releasing it. */
bool dataset_reads_can_end(const struct run *run);
void dataset_reads_release(struct run *run);

#endif
