/* Curves of a suite's run, from the facts that workload=suite writes ("bytes:figure:figure ..."). */
#include "cli/report/suite_curves.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report/table.h"
#include "core/units.h"

#define FIGURES 3

/* The values for one message size. */
struct point {
    uint64_t bytes;
    double figures[FIGURES]; /* NAN if the fact has fewer values */
};

/* Facts with a common prefix, and the names of their values. */
struct kind {
    const char *prefix, *title, *member;
    const char *names[FIGURES]; /* in JSON; terminated by NULL */
};

static const struct kind collectives = {
    "suite.curve.", "COLLECTIVE", "collectives", {"seconds", "algorithm_bytes_per_s", "bus_bytes_per_s"}};
static const struct kind between_nodes = {
    "suite.latency.", "LATENCY OF NODE", "between_nodes", {"median_s", "p99_s", NULL}};
static const struct kind within_nodes = {
    "suite.local_latency.", "LATENCY WITHIN NODE", "within_nodes", {"median_s", "p99_s", NULL}};

/* Returns the first point of the next fact of a kind and the fact's subject ("all_reduce"); NULL if there are no more. */
static const char *next_points(const struct run_info *run, const struct kind *kind, size_t *at, char name[128])
{
    const char *fact = run_info_next_fact(run, kind->prefix, at), *equals = fact ? strrchr(fact, '=') : NULL;
    if (!equals)
        return NULL;
    snprintf(name, 128, "%.*s", (int)(equals - fact), fact);
    return equals + 1;
}

/* Reads a point and advances past it; false at the end. */
static bool next_point(const char **text, struct point *point)
{
    char *end;
    while (**text == ' ')
        ++*text;
    point->bytes = strtoull(*text, &end, 10);
    if (end == *text)
        return false;
    for (size_t i = 0; i < FIGURES; i++)
        point->figures[i] = *end == ':' ? strtod(end + 1, &end) : (double)NAN;
    *text = end + strcspn(end, " ");
    return true;
}

/* Times of all kinds come first. Rates of collectives use decimal prefixes, as usual for networks. */
static void add_point(struct table *table, const char *name, const struct kind *kind, const struct point *point)
{
    char text[32];
    table_add(table, TABLE_BOLD, name);
    table_add(table, TABLE_PLAIN, units_format_bytes((double)point->bytes, text));
    for (size_t i = 0; i < FIGURES && kind->names[i]; i++) {
        bool is_rate = strstr(kind->names[i], "bytes_per_s") != NULL;
        if (isnan(point->figures[i]))
            table_add(table, TABLE_PLAIN, NULL);
        else if (is_rate)
            table_add(table, TABLE_PLAIN, units_format_decimal(point->figures[i], "B/s", text));
        else
            table_add(table, TABLE_PLAIN, units_format_duration(point->figures[i] * 1e9, text));
    }
}

static int write_kind(const struct run_info *run, const struct kind *kind, bool colour, struct buf *out,
                      struct cb_err *err)
{
    bool has_rates = kind->names[2] != NULL;
    const char *const headings[] = {kind->title, "BYTES", has_rates ? "TIME" : "MEDIAN",
                                    has_rates ? "ALGORITHM" : "P99", "BUS"};
    struct table table;
    struct point point;
    char name[128];
    table_init(&table, has_rates ? "lrrrr" : "lrrr");
    table_add_headings(&table, headings);
    size_t at = 0;
    for (const char *text; (text = next_points(run, kind, &at, name));)
        for (const char *shown = name; next_point(&text, &point); shown = "")
            add_point(&table, shown, kind, &point);
    if (table_has_rows(&table))
        buf_append_char(out, '\n');
    return table_finish(&table, colour, out, err);
}

int suite_curves_write(const struct run_info *run, bool colour, struct buf *out, struct cb_err *err)
{
    int rc = write_kind(run, &between_nodes, colour, out, err);
    if (!rc)
        rc = write_kind(run, &within_nodes, colour, out, err);
    return rc ? rc : write_kind(run, &collectives, colour, out, err);
}

static void write_members(const struct run_info *run, const struct kind *kind, struct json_writer *json)
{
    struct point point;
    char name[128];
    json_member_object(json, kind->member);
    size_t at = 0;
    for (const char *text; (text = next_points(run, kind, &at, name));) {
        json_member_array(json, name);
        while (next_point(&text, &point)) {
            json_write_begin_object(json);
            json_member_u64(json, "bytes", point.bytes);
            for (size_t k = 0; k < FIGURES && kind->names[k]; k++)
                json_member_double(json, kind->names[k], point.figures[k]);
            json_write_end_object(json);
        }
        json_write_end_array(json);
    }
    json_write_end_object(json);
}

void suite_curves_write_json(const struct run_info *run, struct json_writer *json)
{
    write_members(run, &collectives, json);
    json_member_object(json, "latencies");
    write_members(run, &between_nodes, json);
    write_members(run, &within_nodes, json);
    json_write_end_object(json);
}
