#include "cli/compare/scaling_report.h"

#include <math.h>
#include <string.h>

#include "cli/report/table.h"
#include "core/alloc.h"
#include "core/scaling.h"
#include "core/units.h"

static const enum operation operations[] = {OP_SAVE, OP_LOAD};
#define OPERATIONS (sizeof operations / sizeof *operations)

/* The runs of a side with the operation, in points[first … first + count-1]. */
struct size {
    double n, seconds, bytes_per_s; /* medians */
    double efficiency;              /* rate of a unit, of that at the smallest size */
    size_t count;
};

struct scaling {
    struct scaling_point *points;
    size_t point_count;
    struct size *sizes;
    size_t size_count;
    struct scaling_fit fit;
    char refused[1024]; /* why there is no model; "" if there is one */
};

bool scaling_is_size(const char *key)
{
    return key && (strcmp(key, "nodes") == 0 || strcmp(key, "ranks") == 0);
}

static bool take_point(const struct run_info *run, enum operation op, enum option_id key, struct scaling_point *point)
{
    const struct run_metric *seconds = run_info_metric(run, op, METRIC_OP_S);
    const struct run_metric *bytes = run_info_metric(run, op, METRIC_BYTES_MOVED);
    *point = (struct scaling_point){.n = (double)experiment_u64(run->experiment, key),
                                    .bytes = bytes ? bytes->summary.median : 0,
                                    .seconds = seconds ? seconds->summary.median : 0};
    return point->n > 0 && point->bytes > 0 && point->seconds > 0;
}

static int add_side(struct scaling *self, const struct side *side, enum operation op, enum option_id key,
                    struct cb_err *err)
{
    size_t first = self->point_count, count = 0;
    double *values = malloc((2 * side->compared.count + 1) * sizeof *values), *rates = values + side->compared.count;
    if (!values)
        return alloc_fail(err, "to compare runs");
    for (size_t i = 0; i < side->compared.count; i++) {
        struct scaling_point *point = &self->points[first + count];
        if (!take_point(side->runs[i], op, key, point))
            continue;
        values[count] = point->seconds;
        rates[count++] = point->bytes / point->seconds;
    }
    self->point_count += count;
    if (count > 0) {
        struct summary seconds, rate;
        stats_summarize(values, count, &seconds);
        stats_summarize(rates, count, &rate);
        self->sizes[self->size_count++] = (struct size){
            .n = self->points[first].n, .seconds = seconds.median, .bytes_per_s = rate.median, .count = count};
    }
    free(values);
    return 0;
}

static void scaling_release(struct scaling *self)
{
    free(self->points);
    free(self->sizes);
}

static int scaling_compute(struct scaling *self, const struct sides *sides, enum operation op, const char *key,
                           struct cb_err *err)
{
    enum option_id id;
    struct cb_err why = {0};
    size_t runs = 0;
    int rc = option_find(key, &id, err);
    *self = (struct scaling){0};
    for (size_t i = 0; i < sides->count; i++)
        runs += sides->items[i].compared.count;
    self->points = calloc(runs + 1, sizeof *self->points);
    self->sizes = calloc(sides->count + 1, sizeof *self->sizes);
    if (!rc && (!self->points || !self->sizes))
        rc = alloc_fail(err, "to compare runs");
    for (size_t i = 0; i < sides->count && !rc; i++)
        rc = add_side(self, &sides->items[i], op, id, err);
    const struct size *smallest = self->sizes;
    for (size_t i = 0; i < self->size_count && !rc; i++)
        smallest = self->sizes[i].n < smallest->n ? &self->sizes[i] : smallest;
    for (size_t i = 0; i < self->size_count && !rc; i++)
        self->sizes[i].efficiency =
            self->sizes[i].bytes_per_s / self->sizes[i].n / (smallest->bytes_per_s / smallest->n);
    if (rc)
        return rc;
    struct scaling_fit fit = {0};
    rc = scaling_fit(self->points, self->point_count, &fit, &why);
    self->fit = fit;
    if (rc && rc != CB_ERR_UNSUPPORTED)
        return cb_fail(err, rc, "%s", why.message);
    snprintf(self->refused, sizeof self->refused, "%s", rc ? why.message : "");
    return 0;
}

/* --- for people --- */

static void write_sizes(const struct scaling *self, const char *key, const char *operation, struct table *table)
{
    char time[32], rate[32];
    table_init(table, "rrrrr");
    table_add(table, TABLE_BOLD, key);
    table_add(table, TABLE_BOLD, "runs");
    table_addf(table, TABLE_BOLD, "%s", operation);
    table_add(table, TABLE_BOLD, "rate");
    table_add(table, TABLE_BOLD, "efficiency");
    for (size_t i = 0; i < self->size_count; i++) {
        const struct size *size = &self->sizes[i];
        table_addf(table, TABLE_PLAIN, "%g", size->n);
        table_addf(table, TABLE_PLAIN, "%zu", size->count);
        table_add(table, TABLE_PLAIN, units_format_duration(size->seconds * 1e9, time));
        table_add(table, TABLE_PLAIN, units_format_rate(size->bytes_per_s, rate));
        table_addf(table, TABLE_PLAIN, "%.0f %%", 100 * size->efficiency);
    }
}

static void write_seconds(const struct scaling_figure *figure, const char *what, struct buf *out)
{
    char value[32], low[32], high[32];
    units_format_duration(figure->high * 1e9, high);
    if (figure->low > 0)
        buf_printf(out, "%s %s [%s, %s]", what, units_format_duration(figure->value * 1e9, value),
                   units_format_duration(figure->low * 1e9, low), high);
    else
        buf_printf(out, "%s at most %s", what, high);
}

static void write_rate(const struct scaling_figure *figure, const char *what, struct buf *out)
{
    char value[32], low[32], high[32];
    units_format_rate(figure->low, low);
    if (isfinite(figure->high))
        buf_printf(out, "%s %s [%s, %s]", what, units_format_rate(figure->value, value), low,
                   units_format_rate(figure->high, high));
    else
        buf_printf(out, "%s at least %s", what, low);
}

static void write_model(const struct scaling *self, const char *key, const char *operation, struct buf *out)
{
    char unit[32], of_log[48];
    if (*self->refused) {
        buf_printf(out, "model of the %s: none, %s\n", operation, self->refused);
        return;
    }
    snprintf(unit, sizeof unit, "one %.*s", (int)strlen(key) - 1, key);
    snprintf(of_log, sizeof of_log, "per ln(%s)", key);
    buf_printf(out, "model of the %s (95 %% intervals): ", operation);
    write_seconds(&self->fit.terms[SCALING_FIXED], "fixed", out);
    buf_append_text(out, "; ");
    write_rate(&self->fit.terms[SCALING_UNIT], unit, out);
    buf_append_text(out, "; ");
    write_rate(&self->fit.terms[SCALING_SHARED], "shared limit", out);
    buf_append_text(out, "; ");
    write_seconds(&self->fit.terms[SCALING_LOG], of_log, out);
    buf_printf(out, "; a run is within %.1f %%\n", 100 * self->fit.deviation);
}

int scaling_write(const struct sides *sides, const char *key, bool colour, struct buf *out, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < OPERATIONS && !rc; i++) {
        struct scaling scaling;
        struct table table;
        const char *operation = operation_name(operations[i]);
        rc = scaling_compute(&scaling, sides, operations[i], key, err);
        if (!rc && scaling.size_count > 0) {
            buf_append_char(out, '\n');
            write_sizes(&scaling, key, operation, &table);
            rc = table_finish(&table, colour, out, err);
            write_model(&scaling, key, operation, out);
        }
        scaling_release(&scaling);
    }
    return rc;
}

/* --- JSON --- */

static void json_model(const struct scaling *self, struct json_writer *json)
{
    static const char *const names[SCALING_TERMS] = {"fixed_s", "unit_bytes_per_s", "shared_bytes_per_s", "log_s"};
    json_member_text(json, "no_model", *self->refused ? self->refused : NULL);
    if (*self->refused) {
        json_write_key(json, "model");
        json_write_null(json);
        return;
    }
    json_member_object(json, "model");
    for (int term = 0; term < SCALING_TERMS; term++) {
        const struct scaling_figure *figure = &self->fit.terms[term];
        json_member_object(json, names[term]);
        json_member_double(json, "value", figure->value);
        json_member_doubles(json, "ci", (const double[]){figure->low, figure->high}, 2);
        json_write_end_object(json);
    }
    json_member_double(json, "deviation", self->fit.deviation);
    json_write_end_object(json);
}

int scaling_write_json(const struct sides *sides, const char *key, struct json_writer *json, struct cb_err *err)
{
    int rc = 0;
    json_member_object(json, "scaling");
    json_member_text(json, "key", key);
    for (size_t i = 0; i < OPERATIONS && !rc; i++) {
        struct scaling scaling;
        rc = scaling_compute(&scaling, sides, operations[i], key, err);
        if (!rc && scaling.size_count > 0) {
            json_member_object(json, operation_name(operations[i]));
            json_member_array(json, "sizes");
            for (size_t k = 0; k < scaling.size_count; k++) {
                const struct size *size = &scaling.sizes[k];
                json_write_begin_object(json);
                json_member_double(json, "n", size->n);
                json_member_u64(json, "runs", size->count);
                json_member_double(json, "seconds", size->seconds);
                json_member_double(json, "bytes_per_s", size->bytes_per_s);
                json_member_double(json, "efficiency", size->efficiency);
                json_write_end_object(json);
            }
            json_write_end_array(json);
            json_model(&scaling, json);
            json_write_end_object(json);
        }
        scaling_release(&scaling);
    }
    json_write_end_object(json);
    return rc;
}
