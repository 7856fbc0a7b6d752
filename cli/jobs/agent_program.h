/* The agent that belongs to this program. */
#ifndef CLI_JOBS_AGENT_PROGRAM_H
#define CLI_JOBS_AGENT_PROGRAM_H

#include <limits.h>

#include "core/err.h"

/* ckptbench-agent beside this program, else in PATH; absolute. CB_ERR_NOT_FOUND; CB_ERR_UNSUPPORTED where it is of another
 * release. One that does not say which (its libraries may be those of the nodes) is taken. */
int agent_program_find(char path[PATH_MAX], struct cb_err *err) CB_MUST_CHECK;

#endif
