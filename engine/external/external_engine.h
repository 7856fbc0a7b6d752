/* What engines that let another process do the work share: folders, sizes, the clock around it. */
#ifndef ENGINE_EXTERNAL_EXTERNAL_ENGINE_H
#define ENGINE_EXTERNAL_EXTERNAL_ENGINE_H

#include <limits.h>
#include <stdint.h>

#include "core/child.h"
#include "engine/engine_ops.h"
#include "engine/timeline.h"

#define EXTERNAL_OUTPUTS 2 /* stdout and stderr */
#define EXTERNAL_OUTPUT_MAX_BYTES (16 << 20)

/* An operation under way, between external_begin and external_end. */
struct external_operation {
    const struct engine_setup *setup;
    const struct engine_options *options;
    struct sample *sample;
    struct timeline timeline;
    const char *name;    /* of the checkpoint's folder, in the store */
    char path[PATH_MAX]; /* the same for another process: on the file system, or s3://… */
};

/* Joins the ranks and starts the clock. A save's folder is made before by rank 0, and an older commit
 * marker in it is gone durably. `code` is what preparing came to on this rank. Collective. */
int external_begin(struct external_operation *self, const struct engine_setup *setup, const char *path, uint64_t bytes,
                   const struct engine_options *options, struct sample *sample, int code,
                   struct cb_err *err) CB_MUST_CHECK;
/* Joins the ranks again, stops the clock and fills the times. Collective. */
int external_end(struct external_operation *self, int code, struct cb_err *err) CB_MUST_CHECK;

/* Joins the ranks without the clock, for what follows an operation. Collective. */
int external_join(struct external_operation *self, int code, struct cb_err *err) CB_MUST_CHECK;

/* Moves seconds from "other" to the state that the other process says they were spent in. */
void external_attribute(struct sample *sample, enum metric_id metric, double seconds);

/* Waits for a child, looking at stop requests and at the sizes of the files it writes its output to; one
 * that must go is ended. */
int external_wait(struct child *child, struct comm *comm, uint64_t deadline_ns, const int output_fds[EXTERNAL_OUTPUTS],
                  struct cb_err *err) CB_MUST_CHECK;

/* The last line that is not empty of what was written to a file; "" where there is none. `text` holds
 * 512 bytes. */
char *external_last_line(int fd, char text[512]);

#endif
