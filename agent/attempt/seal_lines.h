/* Seals attempts from the lines of their processes: those of programs that record their own saves (lib/recording.h), and
 * of watched commands whose agent has died. */
#ifndef AGENT_ATTEMPT_SEAL_LINES_H
#define AGENT_ATTEMPT_SEAL_LINES_H

#include <stdbool.h>

#include "core/err.h"

/* Seals every attempt of the run folder that has lines and no seal. The last one only if each of its processes reported
 * its end, or if `is_silent`: then it is lost, with the lines there are. Does nothing while a program or controller has
 * the folder locked. */
int seal_lines(const char *run_folder, bool is_silent, struct cb_err *err) CB_MUST_CHECK;

#endif
