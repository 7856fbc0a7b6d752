/* Draws a run over time. */
#include "cli/report/run_time.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report/history_reading.h"
#include "cli/report/metric_format.h"
#include "cli/report/run_nodes.h"
#include "cli/report/table.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/path.h"
#include "core/units.h"
#include "run/record.h"

#define HOST_MAX_BYTES (1 << 20)
#define COLUMNS_MAX 100   /* of a picture */
#define COLUMNS_BESIDE 48 /* labels and figures at its sides */
#define COLUMNS_NARROW 22 /* labels alone, on a narrow terminal */
#define COLUMNS_BESIDE_HEAT 16
#define COLUMNS_LEAST 16 /* narrower pictures say nothing */
#define HEAT_MAP_LINES 64

static const struct record_time *find_time(const struct record_rank *rank, unsigned op, unsigned kind)
{
    for (uint32_t i = 0; i < rank->time_count; i++)
        if (rank->times[i].op == op && rank->times[i].kind == kind)
            return &rank->times[i];
    return NULL;
}

/* The sum over ranks `first` to `end` - 1 of the record's list. */
static struct time_buckets sum_ranks(const struct record *record, unsigned op, unsigned kind, uint32_t first,
                                     uint32_t end)
{
    struct time_buckets sum = {0};
    for (uint32_t i = first; i < end; i++) {
        const struct record_time *time = find_time(&record->ranks[i], op, kind);
        if (time)
            time_buckets_merge(&sum, &time->buckets);
    }
    return sum;
}

static double seconds(uint64_t ns)
{
    return (double)ns / (double)NS_PER_S;
}

/* ---- activity of nodes ---- */

/* Counters of host.json, in the order in which they are shown. */
static const struct {
    const char *key, *label;
    bool is_rate, is_bytes; /* divided by the bucket's width; else a share, or bytes at its end */
} host_counters[] = {
    {"cpu_fraction", "CPU", false, false},
    {"disk_read_bytes", "disk read", true, true},
    {"disk_written_bytes", "disk write", true, true},
    {"received_bytes", "received", true, true},
    {"sent_bytes", "sent", true, true},
    {"memory_used_bytes", "memory", false, true},
    {"memory_stall_s", "memory stall", true, false},
};
#define HOST_COUNTERS (sizeof host_counters / sizeof *host_counters)

/* "over_time" of a node's host.json; NULL if it has none. Free *root. */
static const struct json_value *read_host(const struct run_info *run, const char *node, struct json_value **root)
{
    char path[PATH_MAX];
    *root = NULL;
    if (path_format(path, sizeof path, NULL, "%s/attempts/%u/%s%s/host.json", run->folder, run->attempt,
                    node ? "nodes/" : "", node ? node : ".") != 0 ||
        json_parse_file(path, HOST_MAX_BYTES, root, NULL) != 0)
        return NULL;
    return json_get(*root, "over_time");
}

typedef int (*host_fn)(void *context, const char *node, const struct json_value *times, struct cb_err *err);

/* Calls `each` for every node that left counters over time. The head's own file is in the attempt's folder. */
static int each_host(const struct run_info *run, host_fn each, void *context, struct cb_err *err)
{
    struct run_node *nodes = NULL;
    size_t count = 0;
    bool own_is_left = true;
    int rc = run_nodes_load(run, &nodes, &count, err);
    for (size_t i = 0; i < count && !rc; i++) {
        struct json_value *root, *own;
        const struct json_value *times = read_host(run, nodes[i].name, &root);
        if (!times && own_is_left) {
            own_is_left = false;
            times = read_host(run, NULL, &own);
            json_value_free(root);
            root = own;
        }
        if (times)
            rc = each(context, nodes[i].name, times, err);
        json_value_free(root);
    }
    run_nodes_free(nodes, count);
    return rc;
}

/* ---- JSON ---- */

/* A member of all buckets, by its offset. */
static void json_buckets(struct json_writer *json, const char *key, const struct time_buckets *buckets, size_t member)
{
    int indent = json->indent;
    json_member_array(json, key);
    json->indent = 0; /* an array on one line */
    for (uint64_t i = 0; i < buckets->count; i++) {
        uint64_t value;
        memcpy(&value, (const char *)&buckets->buckets[i] + member, sizeof value);
        json_write_u64(json, value);
    }
    json_write_end_array(json);
    json->indent = indent;
}

/* A line for each `together` ranks of the record's list. */
static void json_ranks(const struct record *record, unsigned op, unsigned kind, uint32_t together, uint64_t width_ns,
                       struct json_writer *json)
{
    json_member_array(json, "ranks");
    for (uint32_t i = 0; i < record->rank_count; i += together) {
        uint32_t end = record->rank_count - i < together ? record->rank_count : i + together;
        struct time_buckets buckets = sum_ranks(record, op, kind, i, end);
        if (buckets.count == 0)
            continue;
        time_buckets_widen(&buckets, width_ns);
        json_write_begin_object(json);
        json_member_u64(json, "rank", record->ranks[i].rank);
        if (together > 1)
            json_member_u64(json, "ranks", end - i);
        json_member_u64(json, "first_bucket", buckets.first);
        json_buckets(json, "bytes", &buckets, offsetof(struct time_bucket, bytes));
        json_buckets(json, "requests", &buckets, offsetof(struct time_bucket, requests));
        json_buckets(json, "in_flight_ns", &buckets, offsetof(struct time_bucket, in_flight_ns));
        json_write_end_object(json);
    }
    json_write_end_array(json);
}

static void json_operations(const struct record *record, uint32_t together, struct json_writer *json)
{
    json_member_array(json, "operations");
    for (unsigned op = 0; op < OP_COUNT; op++) {
        for (unsigned kind = 0; kind < TIMED_KINDS; kind++) {
            struct time_bucket sum = {0};
            uint64_t width_ns = 0;
            for (uint32_t i = 0; i < record->rank_count; i += together) {
                uint32_t end = record->rank_count - i < together ? record->rank_count : i + together;
                struct time_buckets line = sum_ranks(record, op, kind, i, end);
                struct time_bucket own = time_buckets_sum(&line);
                sum.bytes += own.bytes;
                sum.requests += own.requests;
                sum.in_flight_ns += own.in_flight_ns;
                width_ns = line.width_ns > width_ns ? line.width_ns : width_ns;
            }
            if (width_ns == 0)
                continue;
            json_write_begin_object(json);
            json_member_text(json, "operation", operation_name((enum operation)op));
            json_member_text(json, "request", timed_kind_name(kind));
            json_member_double(json, "bucket_s", seconds(width_ns));
            json_member_u64(json, "bytes", sum.bytes);
            json_member_u64(json, "requests", sum.requests);
            json_member_u64(json, "in_flight_ns", sum.in_flight_ns);
            json_ranks(record, op, kind, together, width_ns, json);
            json_write_end_object(json);
        }
    }
    json_write_end_array(json);
}

/* NAN if it is null or absent. */
static double number_of(const struct json_value *value)
{
    double number;
    return json_as_double(value, &number) ? number : (double)NAN;
}

static int json_host(void *context, const char *node, const struct json_value *times, struct cb_err *err)
{
    struct json_writer *json = context;
    int indent = json->indent;
    (void)err;
    json_write_begin_object(json);
    json_member_text(json, "node", node);
    json_member_double(json, "bucket_s", number_of(json_get(times, "bucket_s")));
    json_member_double(json, "first_bucket", number_of(json_get(times, "first_bucket")));
    for (size_t i = 0; i < HOST_COUNTERS; i++) {
        const struct json_value *values = json_get(times, host_counters[i].key);
        json_write_key(json, host_counters[i].key);
        if (!json_is_array(values)) {
            json_write_null(json);
            continue;
        }
        json_write_begin_array(json);
        json->indent = 0;
        for (size_t k = 0; k < json_count(values); k++)
            json_write_double(json, number_of(json_at(values, k)));
        json_write_end_array(json);
        json->indent = indent;
    }
    json_write_end_object(json);
    return 0;
}

int run_time_write_json(const struct run_info *run, uint64_t most_lines, struct json_writer *json, struct cb_err *err)
{
    struct record record;
    int rc = read_records(run, &record, err);
    if (rc)
        return rc;
    uint32_t together = (uint32_t)(most_lines ? (record.rank_count + most_lines - 1) / most_lines : 1);
    json_member_object(json, "time");
    json_member_date(json, "start", run->started_wall_ns);
    json_member_double(json, "duration_s", record.run_values[METRIC_RUN_S]);
    json_operations(&record, together ? together : 1, json);
    json_member_array(json, "host");
    rc = each_host(run, json_host, json, err);
    json_write_end_array(json);
    json_write_end_object(json);
    record_release(&record);
    return rc;
}

/* ---- pictures ---- */

/* The axis of all pictures: columns of equal width, which is that of buckets, so that sums stay exact. */
struct axis {
    uint64_t width_ns, first, count; /* of a column; number of the first column; columns */
};

static void extend_axis(struct axis *self, const struct time_buckets *buckets, uint64_t *end_ns, uint64_t *start_ns)
{
    if (buckets->count == 0)
        return;
    uint64_t from_ns = buckets->first * buckets->width_ns, to_ns = from_ns + buckets->count * buckets->width_ns;
    *start_ns = from_ns < *start_ns ? from_ns : *start_ns;
    *end_ns = to_ns > *end_ns ? to_ns : *end_ns;
    self->width_ns = buckets->width_ns > self->width_ns ? buckets->width_ns : self->width_ns;
}

/* False if the run has no requests. `beside` is how much room labels and figures take. */
static bool find_axis(const struct record *record, const struct blocks *blocks, size_t beside, struct axis *axis)
{
    uint64_t start_ns = UINT64_MAX, end_ns = 0;
    size_t room = blocks->columns > beside + COLUMNS_LEAST ? blocks->columns - beside : COLUMNS_LEAST;
    room = room > COLUMNS_MAX ? COLUMNS_MAX : room;
    *axis = (struct axis){0};
    for (uint32_t i = 0; i < record->rank_count; i++)
        for (uint32_t k = 0; k < record->ranks[i].time_count; k++)
            extend_axis(axis, &record->ranks[i].times[k].buckets, &end_ns, &start_ns);
    if (end_ns == 0)
        return false;
    while ((end_ns - 1) / axis->width_ns - start_ns / axis->width_ns + 1 > room)
        axis->width_ns *= 2;
    axis->first = start_ns / axis->width_ns;
    axis->count = (end_ns - 1) / axis->width_ns - axis->first + 1;
    return true;
}

/* The bucket of a column; zero outside. `buckets` has the axis' width. */
static struct time_bucket column_of(const struct time_buckets *buckets, const struct axis *axis, uint64_t column)
{
    uint64_t number = axis->first + column;
    bool inside = number >= buckets->first && number < buckets->first + buckets->count;
    return inside ? buckets->buckets[number - buckets->first] : (struct time_bucket){0};
}

static bool moves_bytes(unsigned kind)
{
    return kind == REQUEST_WRITE || kind == REQUEST_READ;
}

/* What is drawn of a bucket: bytes if such requests move some, else the time in flight. */
static double drawn(const struct time_bucket *bucket, unsigned kind)
{
    return moves_bytes(kind) ? (double)bucket->bytes : (double)bucket->in_flight_ns;
}

static double most_drawn(const struct time_buckets *buckets, unsigned kind)
{
    double most = 0;
    for (uint64_t i = 0; i < buckets->count; i++)
        most = fmax(most, drawn(&buckets->buckets[i], kind));
    return most;
}

static void draw(const struct time_buckets *buckets, const struct axis *axis, double most, unsigned kind,
                 const struct blocks *blocks, enum blocks_kind shape, struct buf *out)
{
    for (uint64_t column = 0; column < axis->count; column++) {
        struct time_bucket bucket = column_of(buckets, axis, column);
        if (moves_bytes(kind) && bucket.bytes == 0 && bucket.in_flight_ns > 0)
            blocks_add_waiting(blocks, out);
        else
            blocks_add(blocks, shape, most > 0 ? drawn(&bucket, kind) / most : 0, out);
    }
}

/* "50.0 ms a column, from 1.20 s to 7.60 s after the start" */
static void write_axis(const struct axis *axis, struct buf *out)
{
    char column[32], from[32], to[32];
    buf_printf(out, "%s a column, from %s to %s after the start\n",
               units_format_duration((double)axis->width_ns, column),
               units_format_duration((double)(axis->first * axis->width_ns), from),
               units_format_duration((double)((axis->first + axis->count) * axis->width_ns), to));
}

static bool is_narrow(const struct blocks *blocks)
{
    return blocks->columns < COLUMNS_BESIDE + COLUMNS_LEAST;
}

static void add_requests(struct table *table, const struct record *record, unsigned op, unsigned kind,
                         const struct axis *axis, const struct blocks *blocks)
{
    struct time_buckets sum = sum_ranks(record, op, kind, 0, record->rank_count);
    struct time_bucket whole = time_buckets_sum(&sum);
    struct buf line;
    char text[32];
    if (sum.count == 0)
        return;
    time_buckets_widen(&sum, axis->width_ns);
    double most = most_drawn(&sum, kind);
    buf_init(&line, 8 * COLUMNS_MAX);
    draw(&sum, axis, most, kind, blocks, BLOCKS_HEIGHT, &line);
    table_addf(table, TABLE_BOLD, "%s %s", operation_name((enum operation)op), timed_kind_name(kind));
    table_add(table, TABLE_PLAIN, line.data);
    if (moves_bytes(kind))
        table_add(table, TABLE_PLAIN, units_format_rate(most / seconds(axis->width_ns), text));
    else
        table_addf(table, TABLE_PLAIN, "%.2g at once", most / (double)axis->width_ns);
    if (moves_bytes(kind))
        table_add(table, TABLE_PLAIN, units_format_bytes((double)whole.bytes, text));
    else
        table_addf(table, TABLE_PLAIN, "%llu", (unsigned long long)whole.requests);
    buf_release(&line);
}

/* Counters of all nodes together, by column: sums of bytes, means of the rest. */
struct host_picture {
    struct axis axis;
    double sum[HOST_COUNTERS][COLUMNS_MAX];
    uint32_t nodes[HOST_COUNTERS][COLUMNS_MAX]; /* how many have a value */
};

/* The mean of a node's counter in a column: a rate if it is one. NAN if it is not known. */
static double level_in(const struct json_value *values, uint64_t first, uint64_t width_ns, bool is_rate,
                       uint64_t from_ns, uint64_t to_ns)
{
    double sum = 0, weight = 0, value;
    for (uint64_t at_ns = from_ns; at_ns < to_ns;) {
        uint64_t number = at_ns / width_ns, next_ns = (number + 1) * width_ns;
        next_ns = next_ns < to_ns ? next_ns : to_ns;
        if (number >= first && json_as_double(json_at(values, number - first), &value)) {
            sum += (is_rate ? value / seconds(width_ns) : value) * (double)(next_ns - at_ns);
            weight += (double)(next_ns - at_ns);
        }
        at_ns = next_ns;
    }
    return weight > 0 ? sum / weight : NAN;
}

static int add_host(void *context, const char *node, const struct json_value *times, struct cb_err *err)
{
    struct host_picture *self = context;
    double width_s;
    uint64_t first;
    (void)node, (void)err;
    if (!json_as_double(json_get(times, "bucket_s"), &width_s) || !(width_s >= 1e-3) || width_s > 1e9 ||
        !json_as_u64(json_get(times, "first_bucket"), &first))
        return 0;
    uint64_t width_ns = (uint64_t)(width_s * 1e9 + 0.5);
    for (size_t i = 0; i < HOST_COUNTERS; i++) {
        for (uint64_t column = 0; column < self->axis.count; column++) {
            uint64_t from_ns = (self->axis.first + column) * self->axis.width_ns;
            double level = level_in(json_get(times, host_counters[i].key), first, width_ns, host_counters[i].is_rate,
                                    from_ns, from_ns + self->axis.width_ns);
            if (isnan(level))
                continue;
            self->sum[i][column] += level;
            self->nodes[i][column]++;
        }
    }
    return 0;
}

static void add_host_rows(struct table *table, const struct host_picture *picture, const struct blocks *blocks)
{
    for (size_t i = 0; i < HOST_COUNTERS; i++) {
        double most = 0, level[COLUMNS_MAX];
        char text[32];
        struct buf line;
        for (uint64_t column = 0; column < picture->axis.count; column++) {
            uint32_t nodes = picture->nodes[i][column];
            level[column] = picture->sum[i][column] / (host_counters[i].is_bytes || nodes == 0 ? 1 : nodes);
            most = fmax(most, level[column]);
        }
        if (!(most > 0)) /* absent, or nothing happened */
            continue;
        buf_init(&line, 8 * COLUMNS_MAX);
        double scale = host_counters[i].is_bytes ? most : 1; /* a share of all cores, or of the time */
        for (uint64_t column = 0; column < picture->axis.count; column++)
            blocks_add(blocks, BLOCKS_HEIGHT, scale > 0 ? level[column] / scale : 0, &line);
        table_add(table, TABLE_BOLD, host_counters[i].label);
        table_add(table, TABLE_PLAIN, line.data);
        if (!host_counters[i].is_bytes)
            table_addf(table, TABLE_PLAIN, "%.0f %%", 100 * most);
        else if (host_counters[i].is_rate)
            table_add(table, TABLE_PLAIN, units_format_rate(most, text));
        else
            table_add(table, TABLE_PLAIN, units_format_bytes(most, text));
        table_add(table, TABLE_PLAIN, "");
        buf_release(&line);
    }
}

/* The longest time in which a rank had requests in flight and none completed. */
struct standstill {
    uint64_t from_ns, to_ns, width_ns;
    uint32_t rank;
    unsigned op, kind;
};

static void find_standstill(const struct record_rank *rank, const struct record_time *time, struct standstill *longest)
{
    const struct time_buckets *buckets = &time->buckets;
    uint64_t start = 0;
    for (uint64_t i = 0; i < buckets->count; i++) {
        if (buckets->buckets[i].requests > 0 || buckets->buckets[i].in_flight_ns == 0) {
            start = i + 1;
            continue;
        }
        uint64_t length_ns = (i + 1 - start) * buckets->width_ns;
        if (length_ns > longest->to_ns - longest->from_ns)
            *longest = (struct standstill){.from_ns = (buckets->first + start) * buckets->width_ns,
                                           .to_ns = (buckets->first + i + 1) * buckets->width_ns,
                                           .width_ns = buckets->width_ns,
                                           .rank = rank->rank,
                                           .op = time->op,
                                           .kind = time->kind};
    }
}

static void write_standstill(const struct record *record, struct buf *out)
{
    struct standstill longest = {0};
    char from[32], length[32], width[32];
    for (uint32_t i = 0; i < record->rank_count; i++)
        for (uint32_t k = 0; k < record->ranks[i].time_count; k++)
            if (record->ranks[i].times[k].kind != TIMED_BACKOFF)
                find_standstill(&record->ranks[i], &record->ranks[i].times[k], &longest);
    if (longest.to_ns > 0)
        buf_printf(out, "longest without a completed request: rank %u, %s %s, %s from %s on (within %s)\n",
                   longest.rank, operation_name((enum operation)longest.op), timed_kind_name(longest.kind),
                   units_format_duration((double)(longest.to_ns - longest.from_ns), length),
                   units_format_duration((double)longest.from_ns, from),
                   units_format_duration((double)longest.width_ns, width));
}

static int write_pictures(const struct run_info *run, const struct record *record, const struct axis *axis,
                          const struct blocks *blocks, bool colour, struct buf *out, struct cb_err *err)
{
    struct host_picture *picture = calloc(1, sizeof *picture);
    struct table table;
    if (!picture)
        return alloc_fail(err, "for the nodes over time");
    picture->axis = *axis;
    table_init(&table, "llrr");
    table_add_headings(&table, (const char *const[]){"", "", "HIGHEST", "IN ALL"});
    for (unsigned op = 0; op < OP_COUNT; op++)
        for (unsigned kind = 0; kind < TIMED_KINDS; kind++)
            add_requests(&table, record, op, kind, axis, blocks);
    int rc = each_host(run, add_host, picture, err);
    if (!rc)
        add_host_rows(&table, picture, blocks);
    free(picture);
    for (size_t column = 4; is_narrow(blocks) && column > 2; column--)
        table_drop_column(&table, column - 1);
    int written = table_finish(&table, colour, out, rc ? NULL : err);
    return rc ? rc : written;
}

int run_time_write(const struct run_info *run, const struct blocks *blocks, bool colour, struct buf *out,
                   struct cb_err *err)
{
    struct record record;
    struct axis axis;
    int rc = read_records(run, &record, err);
    if (rc)
        return rc;
    if (find_axis(&record, blocks, is_narrow(blocks) ? COLUMNS_NARROW : COLUMNS_BESIDE, &axis)) {
        write_axis(&axis, out);
        rc = write_pictures(run, &record, &axis, blocks, colour, out, err);
        if (!rc)
            write_standstill(&record, out);
    } else {
        buf_append_text(out, "nothing over time: this run made no requests of its own\n");
    }
    record_release(&record);
    return rc;
}

static int write_heat_map(const struct record *record, unsigned op, unsigned kind, const struct axis *axis,
                          const struct blocks *blocks, bool colour, struct buf *out, struct cb_err *err)
{
    uint32_t group = (record->rank_count + HEAT_MAP_LINES - 1) / HEAT_MAP_LINES;
    struct table table;
    double most = 0;
    char text[32];
    for (uint32_t i = 0; i < record->rank_count; i += group) {
        uint32_t end = i + group < record->rank_count ? i + group : record->rank_count;
        struct time_buckets sum = sum_ranks(record, op, kind, i, end);
        time_buckets_widen(&sum, axis->width_ns);
        most = fmax(most, most_drawn(&sum, kind));
    }
    if (!(most > 0))
        return 0;
    buf_printf(out, "\n%s %s by rank, darkest %s%s\n", operation_name((enum operation)op), timed_kind_name(kind),
               units_format_rate(most / seconds(axis->width_ns), text), group > 1 ? " of several ranks together" : "");
    table_init(&table, "rl");
    for (uint32_t i = 0; i < record->rank_count; i += group) {
        uint32_t end = i + group < record->rank_count ? i + group : record->rank_count;
        struct time_buckets sum = sum_ranks(record, op, kind, i, end);
        struct buf line;
        time_buckets_widen(&sum, axis->width_ns);
        buf_init(&line, 8 * COLUMNS_MAX);
        draw(&sum, axis, most, kind, blocks, BLOCKS_SHADE, &line);
        table_addf(&table, TABLE_BOLD, end - i > 1 ? "%u-%u" : "%u", record->ranks[i].rank,
                   record->ranks[end - 1].rank);
        table_add(&table, TABLE_PLAIN, line.data);
        buf_release(&line);
    }
    int rc = table_write(&table, 0, colour, out, err);
    table_release(&table);
    return rc;
}

int run_time_write_ranks(const struct run_info *run, const struct blocks *blocks, bool colour, struct buf *out,
                         struct cb_err *err)
{
    struct record record;
    struct axis axis;
    int rc = read_records(run, &record, err);
    if (rc)
        return rc;
    if (find_axis(&record, blocks, COLUMNS_BESIDE_HEAT, &axis)) {
        rc = write_heat_map(&record, OP_SAVE, REQUEST_WRITE, &axis, blocks, colour, out, err);
        if (!rc)
            rc = write_heat_map(&record, OP_LOAD, REQUEST_READ, &axis, blocks, colour, out, err);
        if (!rc)
            write_axis(&axis, out);
    }
    record_release(&record);
    return rc;
}
