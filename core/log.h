/* Messages on stderr. Only programs log; libraries return errors. The level is set once in main, before any thread
 * starts. */
#ifndef CORE_LOG_H
#define CORE_LOG_H

#include "core/err.h"

enum log_level { LOG_QUIET, LOG_NORMAL, LOG_VERBOSE };

void log_init(const char *program, enum log_level level);
void log_error(const char *format, ...) CB_PRINTF(1, 2);   /* always: "ckptbench: …" */
void log_info(const char *format, ...) CB_PRINTF(1, 2);    /* not with -q */
void log_verbose(const char *format, ...) CB_PRINTF(1, 2); /* with -v */

#endif
