/* Compares a loaded state with the values that were saved, outside of the timed part. */
#ifndef WORKER_VERIFY_STATE_H
#define WORKER_VERIFY_STATE_H

#include <stdint.h>

#include "core/err.h"
#include "engine/engine.h"
#include "engine/state.h"
#include "run/experiment.h"
#include "run/status_page.h"
#include "store/store.h"

enum verify_mode { VERIFY_NONE, VERIFY_SAMPLE, VERIFY_FULL };

/* verify=auto checks every byte of states up to this size, else a sample. */
#define VERIFY_FULL_LIMIT_BYTES (UINT64_C(64) << 30)

enum verify_mode verify_mode_read(const struct experiment *experiment, const struct layout *layout);
const char *verify_mode_name(enum verify_mode mode);

struct verify_job {
    enum verify_mode mode;
    struct payload_settings payload;
    struct store *store; /* to find the file and offset of a wrong element; may be NULL */
    const char *path;    /* of the checkpoint */
    uint32_t iteration;
};

/* Fills in verify_s and verified_bytes (the bytes found right). Adds a line to the page for each wrong piece: tensor,
 * element, file and offset. CB_ERR_CORRUPT with the number of wrong pieces. Not collective. */
int verify_state(const struct verify_job *job, const struct state *state, struct status_page *page,
                 struct sample *sample, struct cb_err *err) CB_MUST_CHECK;

/* The part of a region that sample number `index` checks: about VERIFY_SAMPLE_BYTES in whole rows of the first
 * dimension, in one of VERIFY_SAMPLE_STRIDE places; `phase` selects the place. False at the end. */
#define VERIFY_SAMPLE_BYTES (UINT64_C(256) * 1024)
#define VERIFY_SAMPLE_STRIDE 16
bool verify_sample_region(const struct region *region, size_t element_bytes, uint64_t phase, uint64_t index,
                          struct region *part, uint64_t *skipped_bytes);

#endif
