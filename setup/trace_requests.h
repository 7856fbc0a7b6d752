/* trace=full: writes every request of a store to a trace in the attempt's folder. */
#ifndef SETUP_TRACE_REQUESTS_H
#define SETUP_TRACE_REQUESTS_H

#include <stdint.h>

#include "core/err.h"
#include "run/experiment.h"
#include "run/status_page.h"
#include "store/store.h"

struct trace_requests;

struct trace_place {
    const char *run_folder;
    uint32_t attempt;
};

/* Watches the store of the page's rank from now on, if the experiment has trace=full; else *trace is NULL. `async`: the
 * store of asynchronous saves. Adds a fact instead of a trace if the attempt's folder is not on this node. */
int trace_requests_start(const struct experiment *experiment, const struct trace_place *place, struct status_page *page,
                         struct store *store, bool async, struct trace_requests **trace,
                         struct cb_err *err) CB_MUST_CHECK;
/* Ends the trace, and adds the fact how many requests it has. Call before the store is freed; accepts NULL. */
void trace_requests_end(struct trace_requests *self);

#endif
