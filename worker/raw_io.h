/* Bytes moved raw: what the store gives without any checkpoint. The baseline of a run, and
 * workload=raw.
 *
 * Each rank writes one fresh file with the run's own store: the same place, block, depth, direct or
 * not, fsync inside; then reads another rank's. Collective. */
#ifndef WORKER_RAW_IO_H
#define WORKER_RAW_IO_H

#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"
#include "run/experiment.h"
#include "run/status_page.h"
#include "store/store.h"

struct raw {
    struct comm *comm;
    struct status_page *page;
    struct store *store; /* borrowed */
    char *memory;        /* borrowed: where bytes come from and go to; whole pages, page-aligned */
    uint64_t memory_bytes;
    uint64_t bytes; /* a rank's file, a multiple of the store's alignment */
    uint64_t block; /* bytes a request */
    uint32_t depth, shift;
};

/* `bytes` is what each rank would like to move; rounded up to the store's alignment. */
void raw_init(struct raw *self, const struct experiment *experiment, struct comm *comm, struct status_page *page,
              struct store *store, void *memory, uint64_t memory_bytes, uint64_t bytes);

/* Write FOLDER/rank-N of this rank, or read that of rank N + shift. The caller has set op, iteration
 * and flags of the sample. Start and end are agreed by all ranks. */
int raw_write(struct raw *self, const char *folder, struct sample *sample, uint64_t deadline_ns,
              struct cb_err *err) CB_MUST_CHECK;
int raw_read(struct raw *self, const char *folder, struct sample *sample, uint64_t deadline_ns,
             struct cb_err *err) CB_MUST_CHECK;

#endif
