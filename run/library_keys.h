/* Which keys apply to saves and loads of a program through libckptbench. */
#ifndef RUN_LIBRARY_KEYS_H
#define RUN_LIBRARY_KEYS_H

#include <stdbool.h>

#include "core/buf.h"
#include "run/experiment.h"

bool library_keys_has(const char *key);

/* Appends them as lines "key=value", with which a handle of the library works as the run does. The run itself chooses
 * folders and engine; load.exchange=auto, which only a run can do, is left out. */
void library_keys_write(const struct experiment *experiment, struct buf *words);

#endif
