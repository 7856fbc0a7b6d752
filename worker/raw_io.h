/* Raw I/O: what the store achieves without a checkpoint format. Used for the baseline of a run and for workload=raw.
 *
 * Each rank writes a new file with the run's own store settings (place, block, depth, O_DIRECT, fsync included), then
 * reads another rank's file. Collective. */
#ifndef WORKER_RAW_IO_H
#define WORKER_RAW_IO_H

#include <stdbool.h>
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
    char *memory;        /* borrowed buffer for both; whole pages, page-aligned */
    uint64_t memory_bytes;
    uint64_t bytes; /* of a rank's file; a multiple of the store's alignment */
    uint64_t block; /* bytes of a request */
    uint32_t depth, shift;
    bool unseen; /* its requests are in no figure; raw_init sets false */
};

/* `bytes` of each rank are rounded up to the store's alignment. */
void raw_init(struct raw *self, const struct experiment *experiment, struct comm *comm, struct status_page *page,
              struct store *store, void *memory, uint64_t memory_bytes, uint64_t bytes);

/* Write this rank's FOLDER/rank-N, or read that of rank N + shift. The caller has set op, iteration and flags of the
 * sample. All ranks agree at the start and at the end. */
int raw_write(struct raw *self, const char *folder, struct sample *sample, uint64_t deadline_ns,
              struct cb_err *err) CB_MUST_CHECK;
int raw_read(struct raw *self, const char *folder, struct sample *sample, uint64_t deadline_ns,
             struct cb_err *err) CB_MUST_CHECK;

#endif
