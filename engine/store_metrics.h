/* Records requests: counters of a store that uses a server, and latencies. */
#ifndef ENGINE_STORE_METRICS_H
#define ENGINE_STORE_METRICS_H

#include "run/status_page.h"
#include "store/store.h"

/* Resets the counters before an operation. */
void store_metrics_begin(struct store *store);
/* Fills in requests, retries, errors and related values; does nothing if the store counts nothing. Adds the times to
 * first byte to the page, except for a warm-up, and the backoff over time. No request of the operation may be in flight. */
void store_metrics_fill(struct store *store, struct sample *sample, struct status_page *page);

/* Counts a completed request over time and, except in a warm-up, among the latencies of its operation; keeps it if it
 * is one of the slowest. */
void store_metrics_record(struct status_page *page, enum operation op, bool warmup, uint32_t iteration,
                          const struct store_completion *completion);

#endif
