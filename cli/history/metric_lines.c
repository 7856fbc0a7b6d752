/* Loads the lines of the history. */
#include "cli/history/metric_lines.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "run/workload_kind.h"

#define CONFIDENCE 0.95 /* of a level's interval */

/* A point that does not know its line yet. */
struct loose_point {
    struct line_point point;
    char hash[32], site[64];
    const char *store;      /* borrowed from the list of stores */
    uint64_t line_began_ns; /* first point of its line */
};

struct loader {
    char **stores;
    size_t store_count;
    struct loose_point *points;
    size_t count;
};

/* A copy of the name that lives as long as the loader. Runs have few stores. */
static const char *keep_store(struct loader *self, const char *store, struct cb_err *err)
{
    for (size_t i = 0; i < self->store_count; i++)
        if (strcmp(self->stores[i], store) == 0)
            return self->stores[i];
    if (alloc_add_text(&self->stores, &self->store_count, store, strlen(store), err))
        return NULL;
    return self->stores[self->store_count - 1];
}

static int take_point(void *context, const struct metric_point *found, struct cb_err *err)
{
    struct loader *self = context;
    if (!isfinite(found->summary.median))
        return 0;
    const char *store = keep_store(self, found->store, err);
    if (!store || alloc_grow(&self->points, self->count, sizeof *self->points, err))
        return CB_ERR_MEMORY;
    struct loose_point *loose = &self->points[self->count++];
    *loose = (struct loose_point){.store = store};
    snprintf(loose->hash, sizeof loose->hash, "%s", found->hash);
    snprintf(loose->site, sizeof loose->site, "%s", found->site);
    loose->point = (struct line_point){.at_ns = found->started_wall_ns,
                                       .value = found->summary.median,
                                       .min = found->summary.min,
                                       .max = found->summary.max,
                                       .n = found->summary.n};
    snprintf(loose->point.run, sizeof loose->point.run, "%s", found->run);
    return 0;
}

/* 0 if both are of one line. */
static int compare_lines(const struct loose_point *x, const struct loose_point *y)
{
    int order = strcmp(x->hash, y->hash);
    if (order == 0)
        order = strcmp(x->store, y->store);
    return order ? order : strcmp(x->site, y->site);
}

static int compare_points(const void *a, const void *b)
{
    const struct loose_point *x = a, *y = b;
    int order = compare_lines(x, y);
    if (x->line_began_ns != y->line_began_ns)
        return x->line_began_ns < y->line_began_ns ? -1 : 1;
    if (order == 0 && x->point.at_ns != y->point.at_ns)
        return x->point.at_ns < y->point.at_ns ? -1 : 1;
    return order ? order : strcmp(x->point.run, y->point.run);
}

/* Orders lines by their first run. */
static void sort_points(struct loader *self)
{
    uint64_t began_ns = 0;
    qsort(self->points, self->count, sizeof *self->points, compare_points);
    for (size_t i = 0; i < self->count; i++) {
        if (i == 0 || compare_lines(&self->points[i - 1], &self->points[i]) != 0)
            began_ns = self->points[i].point.at_ns;
        self->points[i].line_began_ns = began_ns;
    }
    qsort(self->points, self->count, sizeof *self->points, compare_points);
}

static int find_changes(struct metric_line *line, struct cb_err *err)
{
    double *values = calloc(line->count, sizeof *values);
    if (!values)
        return alloc_fail(err, "to find change points");
    for (size_t i = 0; i < line->count; i++)
        values[i] = line->points[i].value;
    int rc = change_points_find(values, line->count, &line->changes, &line->change_count, err);
    free(values);
    return rc;
}

/* The experiment of a line: that of its first run whose folder can be read. */
static int load_experiment(struct metric_line *line, struct history *history, struct cb_err *err)
{
    struct cb_err later;
    int rc = history_load_experiment(history, line->points[0].run, &line->experiment, err);
    for (size_t i = 1; rc && rc != CB_ERR_MEMORY && i < line->count; i++)
        if (history_load_experiment(history, line->points[i].run, &line->experiment, &later) == 0)
            rc = 0;
    return rc;
}

static int add_line(struct metric_lines *self, struct history *history, const struct loose_point *points, size_t count,
                    struct cb_err *err)
{
    if (alloc_grow(&self->items, self->count, sizeof *self->items, err))
        return CB_ERR_MEMORY;
    struct metric_line *line = &self->items[self->count++];
    *line = (struct metric_line){.store = strdup(points->store), .points = calloc(count, sizeof *line->points)};
    if (!line->store || !line->points)
        return alloc_fail(err, "for a history");
    memcpy(line->hash, points->hash, sizeof line->hash);
    memcpy(line->site, points->site, sizeof line->site);
    for (; line->count < count; line->count++)
        line->points[line->count] = points[line->count].point;
    self->on_stores = self->on_stores || strcmp(self->items[0].store, line->store) != 0;
    self->at_sites = self->at_sites || strcmp(self->items[0].site, line->site) != 0;
    int rc = load_experiment(line, history, err);
    return rc ? rc : find_changes(line, err);
}

int metric_lines_load(struct metric_lines *self, struct history *history, const struct metric_lines_wanted *wanted,
                      struct cb_err *err)
{
    struct loader loader = {0};
    struct run_selection selection = {0};
    int rc = 0;
    *self = (struct metric_lines){.op = wanted->op, .metric = wanted->metric};
    if (wanted->word_count)
        rc = history_select(history, wanted->words, wanted->word_count, &selection, err);
    if (rc == 0)
        rc = history_each_point(history, wanted->word_count ? &selection : NULL, wanted->op, wanted->metric, take_point,
                                &loader, err);
    run_selection_release(&selection);
    if (rc == 0 && loader.count)
        sort_points(&loader);
    for (size_t start = 0, end; start < loader.count && rc == 0; start = end) {
        for (end = start + 1; end < loader.count; end++)
            if (compare_lines(&loader.points[end], &loader.points[start]) != 0)
                break;
        if (end - start >= wanted->least_points)
            rc = add_line(self, history, loader.points + start, end - start, err);
    }
    free(loader.points);
    alloc_free_texts(loader.stores, loader.store_count);
    return rc;
}

void metric_lines_release(struct metric_lines *self)
{
    for (size_t i = 0; i < self->count; i++) {
        experiment_free(self->items[i].experiment);
        free(self->items[i].store);
        free(self->items[i].points);
        free(self->items[i].changes);
    }
    free(self->items);
    *self = (struct metric_lines){0};
}

int metric_lines_axes(const struct metric_lines *self, struct sweep_axes *axes, struct cb_err *err)
{
    const struct experiment **experiments = calloc(self->count + 1, sizeof *experiments);
    *axes = (struct sweep_axes){0};
    if (!experiments)
        return alloc_fail(err, "for a history");
    for (size_t i = 0; i < self->count; i++)
        experiments[i] = self->items[i].experiment;
    int rc = sweep_axes_find(axes, experiments, self->count, true, err);
    free(experiments);
    return rc;
}

/* An experiment of another release may have another hash although all keys are equal. */
void metric_lines_name(const struct metric_lines *self, const struct metric_line *line, const struct sweep_axes *axes,
                       struct buf *out)
{
    const struct workload_kind *workload = workload_kind_of(line->experiment);
    bool has_model = !metric_is_of_suite(self->metric) && !workload->watches;
    const char *command = workload->watches ? experiment_text(line->experiment, OPT_COMMAND) : "";
    size_t start = out->len;
    sweep_axes_describe(axes, line->experiment, out);
    if (out->len == start && *command)
        buf_printf(out, "command=%s", command);
    else if (out->len == start)
        buf_printf(out, "%s=%s ranks=%s (%s)", has_model ? "model" : "workload",
                   has_model ? experiment_text(line->experiment, OPT_MODEL) : workload->name,
                   experiment_text(line->experiment, OPT_RANKS), line->hash);
    if (self->on_stores && *line->store)
        buf_printf(out, " on %s", line->store);
    if (self->at_sites)
        buf_printf(out, " at %s", line->site);
}

void metric_line_write_json(const struct metric_line *line, struct json_writer *json)
{
    json_member_text(json, "experiment_hash", line->hash);
    json_member_text(json, "store", line->store);
    json_member_text(json, "site", line->site);
}

struct line_level metric_line_points(const struct metric_line *line, size_t start, size_t end)
{
    struct line_level level = {start, end, NAN, {NAN, NAN}};
    double *values = calloc(end - start + 1, sizeof *values);
    if (!values)
        return level;
    for (size_t i = start; i < end; i++)
        values[i - start] = line->points[i].value;
    stats_sort(values, end - start);
    level.median = stats_quantile_sorted(values, end - start, 0.5);
    stats_median_interval_sorted(values, end - start, CONFIDENCE, level.interval);
    free(values);
    return level;
}

size_t metric_line_level_count(const struct metric_line *line)
{
    return line->count >= CHANGE_POINT_MIN_SEGMENT ? line->change_count + 1 : 0;
}

struct line_level metric_line_level(const struct metric_line *line, size_t number)
{
    const struct change_point *changes = line->changes;
    return metric_line_points(line, number ? changes[number - 1].at : 0,
                              number < line->change_count ? changes[number].at : line->count);
}
