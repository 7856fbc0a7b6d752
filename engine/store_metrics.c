/* Copies a store's counters into a sample, and records latencies. */
#include "engine/store_metrics.h"

#include "core/clock.h"

void store_metrics_begin(struct store *store)
{
    struct store_statistics unused;
    (void)store_take_statistics(store, &unused);
}

void store_metrics_fill(struct store *store, struct sample *sample, struct status_page *page)
{
    struct store_statistics counted;
    double *values = sample->values;
    if (!store_take_statistics(store, &counted))
        return;
    uint64_t retries =
        counted.retries_throttled + counted.retries_server + counted.retries_connection + counted.retries_stalled;
    values[METRIC_REQUESTS] = (double)counted.requests;
    values[METRIC_RETRIES] = (double)retries;
    values[METRIC_ERRORS] = (double)(retries + counted.failed);
    values[METRIC_RETRIES_THROTTLED] = (double)counted.retries_throttled;
    values[METRIC_RETRIES_SERVER] = (double)counted.retries_server;
    values[METRIC_RETRIES_CONNECTION] = (double)counted.retries_connection;
    values[METRIC_RETRIES_STALLED] = (double)counted.retries_stalled;
    values[METRIC_WIRE_BYTES] = (double)(counted.wire_sent_bytes + counted.wire_received_bytes);
    values[METRIC_CONNECTIONS] = (double)counted.connections;
    values[METRIC_THROTTLED_S] = (double)counted.throttled_ns / 1e9;
    values[METRIC_BACKOFF_S] = (double)counted.backoff_ns / 1e9;
    values[METRIC_REPEATED_BYTES] = (double)counted.repeated_bytes;
    values[METRIC_REQUESTS_IN_FLIGHT] = (double)counted.most_in_flight;
    time_buckets_merge(&page->over_time[sample->op][TIMED_BACKOFF], &counted.backoff);
    if (counted.ttfb.count == 0)
        return;
    if (!(sample->flags & SAMPLE_WARMUP))
        histogram_merge(&page->ttfb[sample->op], &counted.ttfb);
    values[METRIC_TTFB_P50_S] = (double)histogram_quantile(&counted.ttfb, 0.5) / 1e9;
    values[METRIC_TTFB_P99_S] = (double)histogram_quantile(&counted.ttfb, 0.99) / 1e9;
}

void store_metrics_record(struct status_page *page, enum operation op, bool warmup, uint32_t iteration,
                          const struct store_completion *completion)
{
    static const enum request_kind kinds[] = {
        [STORE_WRITE] = REQUEST_WRITE, [STORE_READ] = REQUEST_READ, [STORE_FINISH] = REQUEST_FINISH};
    uint64_t latency_ns = completion->completed_ns - completion->submitted_ns;
    uint64_t start_ns = completion->submitted_ns - page->time_origin_ns;
    struct slow_requests *slowest = &page->slowest[op];
    time_buckets_add(&page->over_time[op][kinds[completion->kind]], start_ns, start_ns + latency_ns, completion->bytes);
    if (warmup)
        return;
    histogram_record(&page->latency[op], latency_ns);
    if (!slow_requests_wants(slowest, latency_ns))
        return;
    struct slow_request request = {
        .latency_ns = latency_ns,
        .offset = completion->offset,
        .bytes = completion->length,
        .started_wall_ns = clock_wall_ns() - (clock_monotonic_ns() - completion->submitted_ns),
        .kind = kinds[completion->kind],
        .iteration = iteration,
    };
    slow_request_set_file(&request, store_object_name(completion->object));
    slow_requests_add(slowest, &request);
}
