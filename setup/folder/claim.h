/* The claim on a run's folder in the store: which run owns it, whether its checkpoints are to be kept, and the lease of
 * the attempt that uses it now.
 *
 * Only the owner of a claim writes or removes checkpoints in the folder. For one rank; not collective. */
#ifndef SETUP_FOLDER_CLAIM_H
#define SETUP_FOLDER_CLAIM_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "core/process.h"
#include "run/experiment.h"
#include "store/store.h"

#define CLAIM_NAME ".ckptbench-run" /* files whose names continue after it belong to claims, too */
#define CLAIM_RUN_BYTES 1024
#define CLAIM_TEXT_BYTES 4096

/* The attempt that uses the folder. It renews the claim as long as it runs; without a renewal for `lasts_ns`, other
 * runs may take the folder over. */
struct claim_lease {
    char token[33]; /* random; "" if no attempt uses the folder, and in claims of earlier versions */
    uint32_t attempt;
    uint64_t since_wall_ns, lasts_ns;
    char host[256];
    char run_folder[CLAIM_RUN_BYTES];
    struct process_identity process; /* of rank 0; pid 0 if ranks also run on other machines */
};

struct claim {
    char run[CLAIM_RUN_BYTES];
    bool keeps; /* the folder's checkpoints are to be kept: only --replace-kept replaces them */
    struct claim_lease lease;
};

/* Whether the checkpoints of this experiment stay after the run. */
bool claim_is_to_keep(const struct experiment *experiment);

/* CB_ERR_NOT_FOUND if the folder `suffix` has no claim. */
int claim_read(struct store *store, const char *suffix, struct claim *claim, struct cb_err *err) CB_MUST_CHECK;

/* "SUFFIX/.ckptbench-run". */
int claim_name(const char *suffix, char name[PATH_MAX], struct cb_err *err) CB_MUST_CHECK;
/* The claim's text in the store, and back. */
void claim_format(const struct claim *claim, char text[CLAIM_TEXT_BYTES]);
void claim_parse(const char *text, struct claim *claim);

/* Whether the attempt is known to have ended: its process is gone, or its run folder, seen from here, is sealed. */
bool claim_has_ended(const struct claim_lease *lease);

/* For messages: "run R (attempt 1, process 7 on host H, since 2026-11-21T10:00:00Z)". */
char *claim_describe(const struct claim *claim, char text[CLAIM_TEXT_BYTES]);

#endif
