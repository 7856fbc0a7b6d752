/* Records requests: counters of a store that uses a server, and latencies. */
#ifndef ENGINE_STORE_METRICS_H
#define ENGINE_STORE_METRICS_H

#include "run/status_page.h"
#include "store/store.h"

/* Resets the counters before an operation. */
void store_metrics_begin(struct store *store);
/* Fills in requests, retries, errors and related values; does nothing if the store counts nothing. Adds the times to
 * first byte to the page, except for a warm-up. No request of the operation may be in flight. */
void store_metrics_fill(struct store *store, struct sample *sample, struct status_page *page);

/* Counts a completed request among the latencies of an operation, and keeps it if it is one of the slowest. */
void store_metrics_record(struct histogram *latency, struct slow_requests *slowest, uint32_t iteration,
                          const struct store_completion *completion);

#endif
