/* Copies the request counters of a store that uses a server into a sample. */
#ifndef ENGINE_STORE_METRICS_H
#define ENGINE_STORE_METRICS_H

#include "run/status_page.h"
#include "store/store.h"

/* Resets the counters before an operation. */
void store_metrics_begin(struct store *store);
/* Fills in requests, retries, errors and related values; does nothing if the store counts nothing. Adds the times to
 * first byte to the page, except for a warm-up. No request of the operation may be in flight. */
void store_metrics_fill(struct store *store, struct sample *sample, struct status_page *page);

#endif
