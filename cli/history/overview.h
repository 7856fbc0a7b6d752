/* What got better or worse in the last week, and the present level of every line: the start page of a site. */
#ifndef CLI_HISTORY_OVERVIEW_H
#define CLI_HISTORY_OVERVIEW_H

#include "core/buf.h"
#include "core/err.h"
#include "db/history.h"

/* Lines with fewer runs cannot have a change point, and are only counted. */
#define OVERVIEW_LEAST_RUNS 8
/* Runs that did not pass, and sweeps, that are listed: the newest. */
#define OVERVIEW_LISTED 50

/* Appends the document. The week is that before the newest run that has ended, so that the same history always gives the same
 * document. */
int overview_write(struct history *history, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

#endif
