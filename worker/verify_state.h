/* Is what was loaded what was saved? Compares state memory with the payload, outside of any timing. */
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

/* verify=auto: every byte of states up to this size, else a sample. */
#define VERIFY_FULL_LIMIT_BYTES (UINT64_C(64) << 30)

enum verify_mode verify_mode_read(const struct experiment *experiment, const struct layout *layout);
const char *verify_mode_name(enum verify_mode mode);

struct verify_job {
    enum verify_mode mode;
    struct payload_settings payload;
    struct store *store; /* to find where a wrong element lies; NULL where there is none */
    const char *path;    /* of the checkpoint */
    uint32_t iteration;
};

/* Fills verify_s and verified_bytes (those found right). A line on the page for each piece that is
 * wrong: tensor, element, file and offset; CB_ERR_CORRUPT with their number. Not collective. */
int verify_state(const struct verify_job *job, const struct state *state, struct status_page *page,
                 struct sample *sample, struct cb_err *err) CB_MUST_CHECK;

/* The part of a region that sample number `index` checks: whole rows of its first dimension, about
 * VERIFY_SAMPLE_BYTES of them, one in VERIFY_SAMPLE_STRIDE; `phase` chooses which. False at the end. */
#define VERIFY_SAMPLE_BYTES (UINT64_C(256) * 1024)
#define VERIFY_SAMPLE_STRIDE 16
bool verify_sample_region(const struct region *region, size_t element_bytes, uint64_t phase, uint64_t index,
                          struct region *part, uint64_t *skipped_bytes);

#endif
