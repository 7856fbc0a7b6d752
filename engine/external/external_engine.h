/* Shared by the engines that run another process: folders, sizes, timing. */
#ifndef ENGINE_EXTERNAL_EXTERNAL_ENGINE_H
#define ENGINE_EXTERNAL_EXTERNAL_ENGINE_H

#include <limits.h>
#include <stdint.h>

#include "core/child.h"
#include "engine/engine_ops.h"
#include "engine/timeline.h"

#define EXTERNAL_OUTPUTS 2 /* stdout and stderr */
#define EXTERNAL_OUTPUT_MAX_BYTES (16 << 20)

/* An operation in progress, between external_begin and external_end. */
struct external_operation {
    const struct engine_setup *setup;
    const struct engine_options *options;
    struct sample *sample;
    struct timeline timeline;
    const char *name;    /* the checkpoint's folder, relative to the store */
    char path[PATH_MAX]; /* the same for the other process: a file path, or s3://… */
};

/* Agrees with the other ranks on `code`, this rank's result of preparing, and starts the clock. Before a save, rank 0 makes
 * the folder and durably removes an older commit marker. Collective. */
int external_begin(struct external_operation *self, const struct engine_setup *setup, const char *path, uint64_t bytes,
                   const struct engine_options *options, struct sample *sample, int code,
                   struct cb_err *err) CB_MUST_CHECK;
/* Agrees with the other ranks on `code`, stops the clock and fills in the times. Collective. */
int external_end(struct external_operation *self, int code, struct cb_err *err) CB_MUST_CHECK;

/* Agrees with the other ranks on `code`, outside of the timed part. Collective. */
int external_join(struct external_operation *self, int code, struct cb_err *err) CB_MUST_CHECK;

/* Moves seconds from "other" to the state that the other process reports for them. */
void external_attribute(struct sample *sample, enum metric_id metric, double seconds);

/* Waits for a child and kills it at the deadline, on a stop request, or if it writes too much output. Meanwhile the
 * status page shows the child's activity. */
int external_wait(const struct external_operation *operation, struct child *child,
                  const int output_fds[EXTERNAL_OUTPUTS], struct cb_err *err) CB_MUST_CHECK;

/* The last non-empty line of a file, or "". */
char *external_last_line(int fd, char text[512]);

#endif
