/* Prints latencies of requests. */
#include "cli/report/run_latency.h"

#include <stdio.h>
#include <string.h>

#include "cli/report/history_reading.h"
#include "cli/report/table.h"
#include "core/clock.h"
#include "core/units.h"
#include "run/record.h"

#define BAR_COLUMNS 40

static const struct {
    const char *heading, *key;
    double quantile;
} columns[] = {{"P50", "p50_s", 0.5}, {"P90", "p90_s", 0.9}, {"P99", "p99_s", 0.99}, {"P99.9", "p999_s", 0.999}};
#define COLUMNS (sizeof columns / sizeof *columns)

/* Why a run has no records. */
static const char *why_without(const struct run_info *run)
{
    if (run->attempt == 0)
        return "it has not been started";
    return *run->outcome ? "it ended before any rank did an operation, or they were removed" : "it has not ended";
}

/* The next of 1, 2, 5, 10, 20, 50 us and so on: the limits of the histogram's lines. */
static uint64_t next_limit(uint64_t limit_ns)
{
    uint64_t power = 1;
    while (power <= limit_ns / 10)
        power *= 10;
    return limit_ns / power == 2 ? 5 * power : 2 * limit_ns;
}

static uint64_t first_limit(const struct histogram *latency)
{
    uint64_t limit_ns = NS_PER_US;
    while (histogram_count_up_to(latency, limit_ns) == 0)
        limit_ns = next_limit(limit_ns);
    return limit_ns;
}

static char *duration_text(uint64_t ns, char text[32])
{
    return units_format_duration((double)ns, text);
}

/* "at most 2.00 ms    83   52 %  ####################" */
static int write_histogram(const struct histogram *latency, bool colour, struct buf *out, struct cb_err *err)
{
    struct table table;
    char text[32], bar[BAR_COLUMNS + 1];
    uint64_t before = 0;
    table_init(&table, "rrrl");
    for (uint64_t limit_ns = first_limit(latency); before < latency->count; limit_ns = next_limit(limit_ns)) {
        uint64_t count = histogram_count_up_to(latency, limit_ns) - before;
        double share = (double)count / (double)latency->count;
        memset(bar, '#', sizeof bar);
        bar[(size_t)(share * BAR_COLUMNS + 0.5)] = '\0';
        table_addf(&table, TABLE_PLAIN, "at most %s", duration_text(limit_ns, text));
        table_addf(&table, TABLE_PLAIN, "%llu", (unsigned long long)count);
        table_addf(&table, TABLE_PLAIN, "%.1f %%", 100 * share);
        table_add(&table, TABLE_PLAIN, bar);
        before += count;
    }
    int rc = table_write(&table, 2, colour, out, err);
    table_release(&table);
    return rc;
}

static uint64_t iteration_number(const struct run_info *run, uint32_t iteration)
{
    return iteration + UINT64_C(1) - experiment_u64(run->experiment, OPT_WARMUP);
}

static int write_slowest(const struct run_info *run, const struct slow_requests *slowest, bool colour, struct buf *out,
                         struct cb_err *err)
{
    struct table table;
    char text[32], date[21];
    table_init(&table, "rlrrlrrl");
    table_add_headings(
        &table, (const char *const[]){"SLOWEST", "", "RANK", "ITERATION", "FILE", "OFFSET", "BYTES", "STARTED (UTC)"});
    for (uint64_t i = 0; i < slowest->count; i++) {
        const struct slow_request *request = &slowest->items[i];
        clock_format_utc(request->started_wall_ns, date);
        date[strlen(date) - 1] = '\0';
        table_add(&table, TABLE_BOLD, duration_text(request->latency_ns, text));
        table_add(&table, TABLE_PLAIN, slow_request_kind_name(request->kind));
        table_addf(&table, TABLE_PLAIN, "%u", request->rank);
        table_addf(&table, TABLE_PLAIN, "%llu", (unsigned long long)iteration_number(run, request->iteration));
        table_add(&table, TABLE_PLAIN, request->file);
        table_addf(&table, TABLE_PLAIN, "%llu", (unsigned long long)request->offset);
        table_add(&table, TABLE_PLAIN, request->bytes ? units_format_bytes((double)request->bytes, text) : NULL);
        table_addf(&table, TABLE_PLAIN, "%s.%03llu", date + strlen("2026-11-25T"),
                   (unsigned long long)(request->started_wall_ns % NS_PER_S / NS_PER_MS));
    }
    int rc = table_write(&table, 2, colour, out, err);
    table_release(&table);
    return rc;
}

static void add_percentiles(struct table *table, const char *name, const struct histogram *latency)
{
    char text[32];
    if (latency->count == 0)
        return;
    table_add(table, TABLE_BOLD, name);
    table_addf(table, TABLE_PLAIN, "%llu", (unsigned long long)latency->count);
    table_add(table, TABLE_PLAIN, duration_text(latency->sum_ns / latency->count, text));
    for (size_t i = 0; i < COLUMNS; i++)
        table_add(table, TABLE_PLAIN, duration_text(histogram_quantile(latency, columns[i].quantile), text));
    table_add(table, TABLE_PLAIN, duration_text(latency->max_ns, text));
}

static int write_percentiles(const struct record *record, bool colour, struct buf *out, struct cb_err *err)
{
    struct table table;
    table_init(&table, "lrrrrrrr");
    table_add(&table, TABLE_BOLD, "");
    table_add(&table, TABLE_BOLD, "REQUESTS");
    table_add(&table, TABLE_BOLD, "MEAN");
    for (size_t i = 0; i < COLUMNS; i++)
        table_add(&table, TABLE_BOLD, columns[i].heading);
    table_add(&table, TABLE_BOLD, "MAX");
    for (enum operation op = OP_NONE + 1; op < OP_COUNT; op++) {
        add_percentiles(&table, operation_name(op), &record->latency[op]);
        add_percentiles(&table, "  first byte", &record->ttfb[op]);
    }
    if (!table_has_rows(&table))
        buf_append_text(out, "no latencies: this run made no requests of its own\n");
    return table_finish(&table, colour, out, err);
}

int run_latency_write(const struct run_info *run, bool colour, struct buf *out, struct cb_err *err)
{
    struct record record;
    int rc = read_records(run, &record, err);
    if (rc == CB_ERR_NOT_FOUND)
        buf_printf(out, "no latencies: run %s has no records, since %s\n", run->run, why_without(run));
    if (rc)
        return rc == CB_ERR_NOT_FOUND ? 0 : rc;
    rc = write_percentiles(&record, colour, out, err);
    for (enum operation op = OP_NONE + 1; op < OP_COUNT && !rc; op++) {
        if (record.latency[op].count == 0)
            continue;
        buf_printf(out, "\n%s\n", operation_name(op));
        rc = write_histogram(&record.latency[op], colour, out, err);
        if (!rc && record.slowest[op].count > 0)
            rc = write_slowest(run, &record.slowest[op], colour, out, err);
    }
    record_release(&record);
    return rc;
}

static double seconds(uint64_t ns)
{
    return (double)ns / (double)NS_PER_S;
}

static void json_histogram(const struct histogram *latency, struct json_writer *json)
{
    uint64_t before = 0;
    json_member_array(json, "histogram");
    for (uint64_t limit_ns = first_limit(latency); before < latency->count; limit_ns = next_limit(limit_ns)) {
        uint64_t count = histogram_count_up_to(latency, limit_ns) - before;
        json_write_begin_object(json);
        json_member_double(json, "at_most_s", seconds(limit_ns));
        json_member_u64(json, "requests", count);
        json_write_end_object(json);
        before += count;
    }
    json_write_end_array(json);
}

static void json_percentiles(const struct histogram *latency, struct json_writer *json)
{
    json_member_u64(json, "requests", latency->count);
    json_member_double(json, "mean_s", seconds(latency->sum_ns / latency->count));
    for (size_t i = 0; i < COLUMNS; i++)
        json_member_double(json, columns[i].key, seconds(histogram_quantile(latency, columns[i].quantile)));
    json_member_double(json, "max_s", seconds(latency->max_ns));
}

static void json_slowest(const struct run_info *run, const struct slow_requests *slowest, struct json_writer *json)
{
    char date[21];
    json_member_array(json, "slowest");
    for (uint64_t i = 0; i < slowest->count; i++) {
        const struct slow_request *request = &slowest->items[i];
        clock_format_utc(request->started_wall_ns, date);
        json_write_begin_object(json);
        json_member_double(json, "latency_s", seconds(request->latency_ns));
        json_member_text(json, "request", slow_request_kind_name(request->kind));
        json_member_u64(json, "rank", request->rank);
        json_member_u64(json, "iteration", iteration_number(run, request->iteration));
        json_member_text(json, "file", request->file);
        json_member_u64(json, "offset", request->offset);
        json_member_u64(json, "bytes", request->bytes);
        json_member_text(json, "started", date);
        json_write_end_object(json);
    }
    json_write_end_array(json);
}

int run_latency_write_json(const struct run_info *run, struct json_writer *json, struct cb_err *err)
{
    struct record record;
    int rc = read_records(run, &record, err);
    if (rc == CB_ERR_NOT_FOUND) {
        json_write_key(json, "latency");
        json_write_null(json);
    }
    if (rc)
        return rc == CB_ERR_NOT_FOUND ? 0 : rc;
    json_member_object(json, "latency");
    for (enum operation op = OP_NONE + 1; op < OP_COUNT; op++) {
        const struct histogram *latency = &record.latency[op];
        if (latency->count == 0)
            continue;
        json_member_object(json, operation_name(op));
        json_percentiles(latency, json);
        json_histogram(latency, json);
        json_slowest(run, &record.slowest[op], json);
        if (record.ttfb[op].count > 0) {
            json_member_object(json, "first_byte");
            json_percentiles(&record.ttfb[op], json);
            json_write_end_object(json);
        }
        json_write_end_object(json);
    }
    json_write_end_object(json);
    record_release(&record);
    return 0;
}
