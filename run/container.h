/* How programs start inside a container image: the words before the command, such as "apptainer exec --bind /scratch
 * /shared/bench.sif". Blanks separate the words; no shell reads them. */
#ifndef RUN_CONTAINER_H
#define RUN_CONTAINER_H

#include <stddef.h>

#include "core/err.h"

#define CONTAINER_MAX_WORDS 40
#define CONTAINER_MAX_BYTES 2048

struct container {
    char text[CONTAINER_MAX_BYTES];             /* storage of the words; not copyable */
    const char *words[CONTAINER_MAX_WORDS + 1]; /* NULL-terminated */
    size_t count;                               /* 0: no container */
};

/* CB_ERR_USAGE for words that cannot work: quotes, which no shell would remove, and an option as the first word. */
int container_parse(const char *text, struct container *self, struct cb_err *err) CB_MUST_CHECK;

#endif
