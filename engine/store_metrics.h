/* What a store that talks to a server has counted, as a sample's values. */
#ifndef ENGINE_STORE_METRICS_H
#define ENGINE_STORE_METRICS_H

#include "run/status_page.h"
#include "store/store.h"

/* Forgets what was counted before an operation. */
void store_metrics_begin(struct store *store);
/* Fills requests, retries, errors and what belongs to them; leaves the sample as it is where the store counts nothing.
 * Times until first bytes join those on the page, unless the sample is of a warm-up. Nothing of the operation may be in
 * flight. */
void store_metrics_fill(struct store *store, struct sample *sample, struct status_page *page);

#endif
