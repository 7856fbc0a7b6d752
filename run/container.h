/* How programs start inside of an image: the words that stand before them, as "apptainer exec --bind /scratch
 * /shared/bench.sif". Blanks part them, and no shell ever reads them. */
#ifndef RUN_CONTAINER_H
#define RUN_CONTAINER_H

#include <stddef.h>

#include "core/err.h"

#define CONTAINER_MAX_WORDS 40
#define CONTAINER_MAX_BYTES 2048

struct container {
    char text[CONTAINER_MAX_BYTES];             /* what the words point into: not to be copied */
    const char *words[CONTAINER_MAX_WORDS + 1]; /* NULL-terminated */
    size_t count;                               /* 0: no container */
};

/* CB_ERR_USAGE for what could not be meant: quotes, which nobody would take away; an option as the first word. */
int container_parse(const char *text, struct container *self, struct cb_err *err) CB_MUST_CHECK;

#endif
